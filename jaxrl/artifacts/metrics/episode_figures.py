"""Statistics of single episodes: the user's own numbers, and the newest episodes of a behavior (`episode_window`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.artifacts.metrics.statistics import Summary

CUSTOM = "Custom/{name}"
RETURN = "Episode/Return"
AGENT_RETURN = "Episode/Agent Return"
POLICY_RETURN = "Episode/Return of {policy}"
LENGTH = "Episode/Length"
LEAST, LARGEST = "{tag} Min", "{tag} Max"


class EpisodeNumbers(NamedTuple):
    """Numbers of one finished episode of one behavior."""

    total: float  # individual rewards of its agents, and the team's group reward
    length: int  # messages with data of the episode
    agent_returns: list[tuple[str, float]]  # policy and individual rewards, one per agent
    custom: Mapping[str, float]
    histograms: Mapping[str, Sequence[float]]


class EpisodeFigures:
    """Mean, least and largest of each number, over the last `window` episodes, or since the last summary.

    Args:
      window: episodes; None: only the user's own numbers, since the last summary.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self._episodes: deque[EpisodeNumbers] = deque(maxlen=window)
        self._fresh = False

    def add(self, numbers: EpisodeNumbers) -> None:
        """Add one finished episode; faulty episodes must not be added."""
        self._episodes.append(numbers)
        self._fresh = True

    def take(self) -> dict[str, Summary]:
        """Return summaries by tag; none if no episode has finished since the last call."""
        if not self._fresh:
            return {}
        self._fresh = False
        summaries = dict(self._own())
        if self.window is None:
            self._episodes.clear()
        else:
            summaries |= dict(self._usual())
        return summaries

    def _own(self) -> Iterator[tuple[str, Summary]]:
        for name in dict.fromkeys(name for episode in self._episodes for name in episode.custom):
            values = [episode.custom[name] for episode in self._episodes if name in episode.custom]
            yield from spread(CUSTOM.format(name=name), values)
        for name in dict.fromkeys(name for episode in self._episodes for name in episode.histograms):
            values = [value for episode in self._episodes for value in episode.histograms.get(name, ())]
            yield from list(spread(CUSTOM.format(name=name), values, histogram=True))[:1]

    def _usual(self) -> Iterator[tuple[str, Summary]]:
        yield from spread(RETURN, [episode.total for episode in self._episodes], histogram=True)
        yield from spread(LENGTH, [episode.length for episode in self._episodes], histogram=True)
        returns = [pair for episode in self._episodes for pair in episode.agent_returns]
        yield from spread(AGENT_RETURN, [value for _, value in returns], histogram=True)
        policies = sorted({policy for policy, _ in returns})
        for policy in policies if len(policies) > 1 else ():
            tag = POLICY_RETURN.format(policy=policy)
            yield from spread(tag, [value for name, value in returns if name == policy])


def spread(tag: str, values: Sequence[float], *, histogram: bool = False) -> Iterator[tuple[str, Summary]]:
    """Yield the mean under `tag`, with a histogram if asked for, and least and largest under tags of their own."""
    if not len(values):
        return
    array = np.asarray(values, np.float64)
    mean, total = float(array.mean()), float(array.sum())
    shown = array if histogram else None
    yield tag, Summary(mean, mean=mean, std=float(array.std()), sum=total, count=array.size, histogram=shown)
    for name, value in ((LEAST, float(array.min())), (LARGEST, float(array.max()))):
        yield name.format(tag=tag), Summary.of(value)
