"""Statistics of all seeds of a compiled run, summed over iterations between two summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.statistics import Summary, tag_of
from jaxrl.settings import EVALUATED
from jaxrl.settings.records import CUT
from jaxrl.training.compiled.evaluation import Evaluated
from jaxrl.training.compiled.lessons import SeedLessons
from jaxrl.training.compiled.recent_returns import RecentReturns
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments, together
from jaxrl.training.compiled.state import IterationLog
from jaxrl.training.signal_rewards import extrinsic_sum
from jaxrl.types import NOTHING

STRENGTH = "reward_signals.extrinsic.strength"
"""Key of a setting in which members of a population can differ."""


class SeedStatistics:
    """Statistics between two summaries. All numbers are numpy arrays with the leading axis S."""

    def __init__(self, subject: Subject, lessons: SeedLessons) -> None:
        self._subject, self._lessons = subject, lessons
        self.group_rewards = False
        self._since: IterationLog | None = None  # sums since the last summary
        self._extrinsic: np.ndarray | None = None  # sum of episodes' extrinsic rewards since; None without the signal
        self._recent: RecentReturns | None = None
        self.frozen = np.zeros(len(subject.seeds), bool)
        """Frozen seeds, bool [S]: they report nothing, and count in no mean over seeds."""

    def add(self, chunk: IterationLog, recent: RecentReturns, values: Mapping[str, Any] = NOTHING) -> None:
        """Add a chunk of iterations, in which seeds differed in `values`; `recent`: recent returns after it."""
        exact: IterationLog = jax.tree.map(lambda x: np.asarray(x, np.float64), chunk)
        paid = self._paid(exact.episodes, values)
        self._extrinsic = paid if self._since is None or paid is None else self._extrinsic + paid
        self._since = exact if self._since is None else together(self._since, exact)
        self.group_rewards |= _earned(chunk.episodes.group_reward)
        self._recent = recent

    def take(self) -> list[dict[str, Summary]]:
        """Return each seed's summary of each tag, and empty the statistics."""
        seeds, total, self._since = range(len(self._subject.seeds)), self._since, None
        if total is None:
            return [{} for _ in seeds]
        return [{} if self.frozen[seed] else self._summaries(total, seed) for seed in seeds]

    def of_evaluation(self, evaluated: Evaluated) -> list[dict[str, Summary]]:
        """Return each seed's summary of each tag of an evaluation."""
        self.group_rewards |= _earned(evaluated.episodes.group_reward)
        seeds = range(len(self._subject.seeds))
        return [{} if self.frozen[seed] else self._evaluated(evaluated, seed) for seed in seeds]

    def recent_reward(self) -> np.ndarray:
        """Compute each seed's mean return over about its last 100 episodes, of teams with group rewards, float64 [S].

        NaN before any has ended, and for frozen seeds and exploiters.
        """
        if self._recent is None:
            return np.full(len(self._subject.seeds), np.nan)
        chosen = self._recent.group_reward if self.group_rewards else self._recent.reward
        return np.where(self.frozen | self._subject.exploits, np.nan, chosen.mean())

    def mean_reward(self) -> float | None:
        """Compute the mean of `recent_reward` over seeds; None before any episode has ended."""
        rewards = self.recent_reward()
        return None if np.isnan(rewards).all() else float(np.nanmean(rewards))

    def result_line(self, name: str) -> str | None:
        """Return a sentence with the run's recent mean return and its frozen seeds, or None."""
        rewards, lines = self.recent_reward(), []
        if np.isfinite(rewards).any():
            spread = "" if len(rewards) == 1 else f" (seeds: {_spread(rewards[np.isfinite(rewards)])})"
            what = "group reward" if self.group_rewards else "reward"
            lines.append(f"mean {what} {np.nanmean(rewards):.3f} at the end{spread}.")
        if self.frozen.any():
            left = ", ".join(str(self._subject.seeds[index]) for index in np.flatnonzero(self.frozen))
            lines.append(f"left out: frozen seeds, whose numbers were not finite: {left}.")
        return f"{name}: {' '.join(lines)}" if lines else None

    def _summaries(self, collected: IterationLog, seed: int) -> dict[str, Summary]:
        """Return the summaries for one seed's event file, by tag."""
        episodes: EpisodeFigures = jax.tree.map(lambda x: float(x[seed]), collected.episodes)
        by_tag = {tags.CUMULATIVE_REWARD: episodes.reward, tags.EPISODE_LENGTH: episodes.length}
        if self.group_rewards:
            by_tag[tags.GROUP_CUMULATIVE_REWARD] = episodes.group_reward
        by_tag |= episodes.stats
        summaries = {tag: _summary(moments) for tag, moments in by_tag.items() if moments.count > 0}
        count = int(episodes.reward.count)
        if count and self._extrinsic is not None:
            summaries[tag_of("reward/extrinsic")] = _average(float(self._extrinsic[seed]), count)
        first_signal, updates = next(iter(self._subject.settings.reward_signals)), int(collected.updates[seed])
        for name, totals in collected.metric_sums.items() if updates else ():
            summaries[tag_of(name, first_signal)] = _average(float(totals[seed]), updates)
        return summaries | self._lessons.summaries(seed)

    def _paid(self, episodes: EpisodeFigures, values: Mapping[str, Any]) -> np.ndarray | None:
        """Sum the environment's rewards over all episodes, float64 [S]; None without its signal."""
        subject, sums = self._subject, (episodes.reward.total, episodes.received, episodes.mates_reward)
        own, group, mates = map(np.asarray, sums)
        strength = values.get(STRENGTH) if subject.changing else None  # None: exactly that of the settings
        return extrinsic_sum(subject.settings, own=own, group=group, mates=mates, strength=strength)

    def _evaluated(self, evaluated: Evaluated, seed: int) -> dict[str, Summary]:
        episodes = evaluated.episodes
        figures = (episodes.reward, *((episodes.group_reward,) if self.group_rewards else ()), episodes.length)
        names = [tag for tag in EVALUATED if self.group_rewards or tag != EVALUATED[1]]
        by_tag = {tag: Moments(*(float(x[seed]) for x in item)) for tag, item in zip(names, figures, strict=True)}
        means = {tag: _summary(moments) for tag, moments in by_tag.items() if moments.count > 0}
        return means | {CUT: Summary.of(float(evaluated.cut[seed]))}


def _spread(rewards: np.ndarray) -> str:
    between = f", std between them {rewards.std(ddof=1):.3f}" if len(rewards) > 1 else ""
    return f"{rewards.min():.3f} to {rewards.max():.3f}{between}"


def _earned(group_reward: Moments) -> bool:
    """Return whether any team had a group reward."""
    return bool(np.any((group_reward.mean != 0) | (group_reward.squares > 0)))


def _summary(moments: Moments) -> Summary:
    mean, count = moments.mean, int(moments.count)
    return Summary(value=mean, mean=mean, std=moments.std, sum=moments.total, count=count, histogram=None)


def _average(total: float, count: int) -> Summary:
    """Return the summary of numbers of which only the sum is known."""
    return Summary(value=total / count, mean=total / count, std=0.0, sum=total, count=count, histogram=None)
