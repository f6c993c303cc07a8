"""Numbers of all seeds of a compiled run, put together over iterations, from one summary to the next."""

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
"""Among the settings in which members of a population differ."""


class SeedStatistics:
    """Collects between two summaries. All numbers are numpy arrays with the leading axis S."""

    def __init__(self, subject: Subject, lessons: SeedLessons) -> None:
        self._subject, self._lessons = subject, lessons
        self.group_rewards = False
        self._since: IterationLog | None = None  # since the last summary
        self._extrinsic: np.ndarray | None = None  # sum of what episodes were paid since then; None without the signal
        self._recent: RecentReturns | None = None
        self.frozen = np.zeros(len(subject.seeds), bool)
        """By seed: it tells nothing any more, and counts in no mean over seeds."""

    def add(self, chunk: IterationLog, recent: RecentReturns, values: Mapping[str, Any] = NOTHING) -> None:
        """Some iterations have run, in which seeds differed in `values`; `recent` stands after them."""
        exact: IterationLog = jax.tree.map(lambda x: np.asarray(x, np.float64), chunk)
        paid = self._paid(exact.episodes, values)
        self._extrinsic = paid if self._since is None or paid is None else self._extrinsic + paid
        self._since = exact if self._since is None else together(self._since, exact)
        self.group_rewards |= _earned(chunk.episodes.group_reward)
        self._recent = recent

    def take(self) -> list[dict[str, Summary]]:
        """By seed, the summary of each tag; afterwards everything is empty."""
        seeds, collected, self._since = range(len(self._subject.seeds)), self._since, None
        if collected is None:
            return [{} for _ in seeds]
        return [{} if self.frozen[seed] else self._summaries(collected, seed) for seed in seeds]

    def of_evaluation(self, evaluated: Evaluated) -> list[dict[str, Summary]]:
        """By seed, the summary of each tag of episodes that were played beside the training."""
        self.group_rewards |= _earned(evaluated.episodes.group_reward)
        seeds = range(len(self._subject.seeds))
        return [{} if self.frozen[seed] else self._evaluated(evaluated, seed) for seed in seeds]

    def recent_reward(self) -> np.ndarray:
        """float64 [S], mean return of each seed over about its last 100 episodes; of teams if they earn.

        NaN before any has ended, and of frozen seeds and exploiters.
        """
        if self._recent is None:
            return np.full(len(self._subject.seeds), np.nan)
        chosen = self._recent.group_reward if self.group_rewards else self._recent.reward
        return np.where(self.frozen | self._subject.exploits, np.nan, chosen.mean())

    def mean_reward(self) -> float | None:
        """Mean of `recent_reward` over seeds; None before any episode has ended."""
        rewards = self.recent_reward()
        return None if np.isnan(rewards).all() else float(np.nanmean(rewards))

    def result_line(self, name: str) -> str | None:
        """How the run ended, in words."""
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
        """What one seed's event file gets, by tag."""
        episodes: EpisodeFigures = jax.tree.map(lambda x: float(x[seed]), collected.episodes)
        found = {tags.CUMULATIVE_REWARD: episodes.reward, tags.EPISODE_LENGTH: episodes.length}
        if self.group_rewards:
            found[tags.GROUP_CUMULATIVE_REWARD] = episodes.group_reward
        found |= episodes.stats
        summaries = {tag: _summary(moments) for tag, moments in found.items() if moments.count > 0}
        count = int(episodes.reward.count)
        if count and self._extrinsic is not None:
            summaries[tag_of("reward/extrinsic")] = _average(float(self._extrinsic[seed]), count)
        first_signal, updates = next(iter(self._subject.settings.reward_signals)), int(collected.updates[seed])
        for name, totals in collected.metric_sums.items() if updates else ():
            summaries[tag_of(name, first_signal)] = _average(float(totals[seed]), updates)
        return summaries | self._lessons.summaries(seed)

    def _paid(self, episodes: EpisodeFigures, values: Mapping[str, Any]) -> np.ndarray | None:
        """What the environment's own signal has paid in all episodes, float64 [S]; None without it."""
        subject, sums = self._subject, (episodes.reward.total, episodes.received, episodes.mates_reward)
        own, group, mates = map(np.asarray, sums)
        strength = values.get(STRENGTH) if subject.changing else None  # else that of the settings, to the last digit
        return extrinsic_sum(subject.settings, own=own, group=group, mates=mates, strength=strength)

    def _evaluated(self, evaluated: Evaluated, seed: int) -> dict[str, Summary]:
        found = evaluated.episodes
        kinds = (found.reward, *((found.group_reward,) if self.group_rewards else ()), found.length)
        names = [tag for tag in EVALUATED if self.group_rewards or tag != EVALUATED[1]]
        by_tag = {tag: Moments(*(float(x[seed]) for x in kind)) for tag, kind in zip(names, kinds, strict=True)}
        means = {tag: _summary(moments) for tag, moments in by_tag.items() if moments.count > 0}
        return means | {CUT: Summary.of(float(evaluated.cut[seed]))}


def _spread(rewards: np.ndarray) -> str:
    between = f", std between them {rewards.std(ddof=1):.3f}" if len(rewards) > 1 else ""
    return f"{rewards.min():.3f} to {rewards.max():.3f}{between}"


def _earned(group_reward: Moments) -> bool:
    """Whether any team was paid together."""
    return bool(np.any((group_reward.mean != 0) | (group_reward.squares > 0)))


def _summary(moments: Moments) -> Summary:
    mean, count = moments.mean, int(moments.count)
    return Summary(value=mean, mean=mean, std=moments.std, sum=moments.total, count=count, histogram=None)


def _average(total: float, count: int) -> Summary:
    """Of a number of which only the sum is known."""
    return Summary(value=total / count, mean=total / count, std=0.0, sum=total, count=count, histogram=None)
