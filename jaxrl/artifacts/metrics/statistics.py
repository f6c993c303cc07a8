"""Names of the statistics, as ML-Agents writes them to TensorBoard, and their aggregation between two summaries."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.settings.records import TRAINERS_FOLDERS
from jaxrl.types import Aggregation, EnvironmentStat, JaxrlError

CUMULATIVE_REWARD = "Environment/Cumulative Reward"
GROUP_CUMULATIVE_REWARD = "Environment/Group Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
UNDECIDED_REWARD = "Environment/Reward without Decision"
UNDECIDED_GROUP_REWARD = "Environment/Group Reward without Decision"
WORKER_RESTARTS = "Environment/Worker Restarts"
FAULTY_EPISODES = "Environment/Faulty Episodes"
FINISHED_EPISODES = "Environment/Finished Episodes"
"""Episodes of agents, as many as `CUMULATIVE_REWARD` is the mean of."""
STEPS_PER_SECOND = "Time/Steps per Second"
ENTROPY = "Policy/Entropy"
POLICY_LOSS = "Losses/Policy Loss"
VALUE_LOSS = "Losses/Value Loss"
BASELINE_LOSS = "Losses/Baseline Loss"
PRETRAINING_LOSS = "Losses/Pretraining Loss"
ELO = "Self-play/ELO"
DECIDED = "Self-play/Decided Games"
LEAGUE_SHARE = "League/Score against Main Agent"
LEAGUE_JOINED = "League/Exploiters in Pool so far"
IS_TRAINING = "Is Training"
STEP = "Step"

INTERNAL = frozenset({IS_TRAINING, STEP})
"""Tags for the console alone."""

_LESSONS = "Environment/Lesson Number/"
_OWN = INTERNAL | {
    CUMULATIVE_REWARD,
    GROUP_CUMULATIVE_REWARD,
    EPISODE_LENGTH,
    UNDECIDED_REWARD,
    UNDECIDED_GROUP_REWARD,
    WORKER_RESTARTS,
    FAULTY_EPISODES,
    FINISHED_EPISODES,
}
_SCENE = "Scene/"

RECENT_EPISODES = 100
"""Number of recent episodes that the progress bar, the result and the choice of the best seed look at."""

_OF_EACH_SIGNAL = ("value_estimate", "baseline_estimate", "reward", "value")
_ABBREVIATIONS = {"gail": "GAIL", "kl": "KL", "rnd": "RND"}
"""Words that ML-Agents writes in capitals, except in the tags that each signal has ("Policy/Gail Reward")."""


def tag_of(metric: str, first_signal: str = "extrinsic") -> str:
    """Return the tag of an algorithm's metric.

    A metric is called `name`, or `name/signal` where it belongs to one stream of rewards: `value_estimate/gail` is
    "Policy/Gail Value Estimate". What each signal has is that of `first_signal`, the behavior's first one, where no
    signal is named. Any other metric follows a rule, so that a new algorithm or signal needs no line here:

        name ends in "loss"   Losses/<Name In Capitals>      q1_loss           → Losses/Q1 Loss
        else                  Policy/<Name In Capitals>      expert_estimate   → Policy/Expert Estimate
        with a signal         its name stands in front       accuracy/gail     → Policy/GAIL Accuracy
    """
    name, _, signal = metric.partition("/")
    if name in _OF_EACH_SIGNAL:
        return f"Policy/{(signal or first_signal).capitalize()} {name.replace('_', ' ').title()}"
    words = [_ABBREVIATIONS.get(word, word.capitalize()) for word in name.split("_")]
    group = "Losses" if words[-1] == "Loss" and name != "grad_mag_loss" else "Policy"  # as ML-Agents has that one
    first = [_ABBREVIATIONS.get(signal, signal.capitalize())] if signal else []
    return f"{group}/{' '.join(first + words)}"


def lesson_tag(parameter: str) -> str:
    return f"{_LESSONS}{parameter}"


def is_trainers(tag: str) -> bool:
    """Return whether the trainer writes statistics of its own under such a tag."""
    return tag in _OWN or tag.startswith((*TRAINERS_FOLDERS, _LESSONS))


def scene_tag(name: str) -> str:
    """Return the tag of an environment's statistic: its name, or Scene/name if the trainer has one of that name.

    Otherwise the two would be one mean.
    """
    return f"{_SCENE}{name}" if is_trainers(name) else name


def moved_names(tags: Iterable[str]) -> list[str]:
    """Return the names that `scene_tag` made other tags of."""
    names = (tag.removeprefix(_SCENE) for tag in tags if tag.startswith(_SCENE))
    return [name for name in names if is_trainers(name)]


class Summary(NamedTuple):
    """Statistic since the last summary. `value` is plotted; the others go to gauges, histogram, console."""

    value: float  # mean, sum or most recent value, by aggregation
    mean: float
    std: float  # population standard deviation
    sum: float
    count: int
    histogram: np.ndarray | None  # float64 [count], only with Aggregation.HISTOGRAM
    values: tuple[float, ...] = ()  # its single values, where they are known; the last alone with MOST_RECENT
    aggregation: Aggregation = Aggregation.AVERAGE
    between: float | None = None  # sample standard deviation of the means of several seeds

    @classmethod
    def of(cls, value: float) -> Summary:
        """Make the summary of one value."""
        return cls(value=value, mean=value, std=0.0, sum=value, count=1, histogram=None)


class StatsAggregator:
    """Collects one behavior's statistics between two summaries.

    Values of a tag become one number by its aggregation: AVERAGE their mean, SUM their sum, MOST_RECENT the last,
    HISTOGRAM their mean plus all of them. The latest aggregation given for a tag counts.
    """

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = {}  # 8 bytes each: a summary may be millions of episodes away
        self._aggregation: dict[str, Aggregation] = {}

    def add(self, tag: str, value: float, aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        """Add one value. Raises JaxrlError for an unknown aggregation."""
        self.extend(tag, (value,), aggregation)

    def extend(
        self, tag: str, values: Iterable[float] | np.ndarray, aggregation: Aggregation = Aggregation.AVERAGE
    ) -> None:
        """Add several values (any iterable or array of rank 1); none is fine. Raises JaxrlError as `add`."""
        kind = _known(tag, aggregation)
        numbers = array("d", values)
        if not numbers:
            return
        self._aggregation[tag] = kind
        if kind is Aggregation.MOST_RECENT:
            self._values[tag] = numbers[-1:]
        else:
            self._values.setdefault(tag, array("d")).extend(numbers)

    def add_environment_stats(self, stats: Sequence[EnvironmentStat], worker: int) -> None:
        """Add what one environment sent through the stats channel.

        MOST_RECENT values count from worker 0 only: several environments would overwrite each other. Raises
        JaxrlError for an unknown aggregation.
        """
        for stat in stats:
            if _known(stat.name, stat.aggregation) is not Aggregation.MOST_RECENT or worker == 0:
                self.add(stat.name, stat.value, stat.aggregation)

    def values(self, tag: str) -> tuple[float, ...]:
        """Return the values collected for `tag` since the last summary."""
        return tuple(self._values.get(tag, ()))

    def take(self) -> dict[str, Summary]:
        """Return one Summary per tag that has values, in order of first use, and empty everything."""
        summaries = {tag: _summary(values, self._aggregation[tag]) for tag, values in self._values.items()}
        self._values.clear()
        self._aggregation.clear()
        return summaries


def _known(tag: str, aggregation: int) -> Aggregation:
    try:
        return Aggregation(aggregation)
    except ValueError:
        known = ", ".join(f"{item.value} {item.name}" for item in Aggregation)
        raise JaxrlError(
            f"statistic {tag!r}: unknown aggregation {aggregation!r}; expected one of {known}. "
            "Check the StatAggregationMethod that the environment uses."
        ) from None


def _summary(values: array[float], aggregation: Aggregation) -> Summary:
    numbers = np.array(values)
    mean, total = float(numbers.mean()), float(numbers.sum())
    value = {Aggregation.SUM: total, Aggregation.MOST_RECENT: values[-1]}.get(aggregation, mean)
    histogram = numbers if aggregation is Aggregation.HISTOGRAM else None
    return Summary(
        value=value,
        mean=mean,
        std=float(numbers.std()),
        sum=total,
        count=numbers.size,
        histogram=histogram,
        values=tuple(values),
        aggregation=aggregation,
    )


def over_seeds(of_seeds: Sequence[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Return one summary per tag for several seeds, which count equally: `std` within them, and that `between`."""
    every = dict.fromkeys(tag for summaries in of_seeds for tag in summaries)
    return {tag: _together([summaries[tag] for summaries in of_seeds if tag in summaries]) for tag in every}


def _together(summaries: Sequence[Summary]) -> Summary:
    means = [s.mean for s in summaries]
    mean = float(np.mean(means))
    return Summary(
        value=mean,
        mean=mean,
        std=float(np.mean([s.std for s in summaries])),
        sum=float(np.sum([s.sum for s in summaries])),
        count=sum(s.count for s in summaries),
        histogram=None,
        between=float(np.std(means, ddof=1)) if len(means) > 1 else None,
    )
