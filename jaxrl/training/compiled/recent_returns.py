"""Recent returns of the learners of a compiled run: means over about their last 100 episodes, by seed.

If lessons are judged by them, also the newest episodes of an iteration one by one. All is counted inside the program,
iteration by iteration. So it depends neither on the length of chunks, which varies with speed, nor on other seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.artifacts.metrics.statistics import RECENT_EPISODES
from jaxrl.training.compiled.play import Transitions
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments


class Tally(NamedTuple):
    """Sums over the newest episodes by time of end, and over RECENT_EPISODES or more before them, or none."""

    newer_count: Any  # float32 [S], below RECENT_EPISODES after an iteration
    newer_total: Any  # float32 [S], sum of their returns
    older_count: Any
    older_total: Any

    def mean(self) -> np.ndarray:
        """Compute the mean return, float64 [S]; NaN before any episode has ended."""
        total = np.asarray(self.newer_total, np.float64) + self.older_total
        with np.errstate(invalid="ignore", divide="ignore"):
            return total / (np.asarray(self.newer_count, np.float64) + self.older_count)


class RecentReturns(NamedTuple):
    """Own returns of agents, and returns of teams."""

    reward: Tally
    group_reward: Tally


def none_yet(seeds: int) -> RecentReturns:
    """Return empty tallies, for the time before the first iteration."""
    zero = jnp.zeros(seeds, jnp.float32)
    return RecentReturns(Tally(zero, zero, zero, zero), Tally(zero, zero, zero, zero))


def counted(recent: RecentReturns, episodes: EpisodeFigures) -> RecentReturns:
    """Add the episodes of one iteration, [S]."""
    return RecentReturns(_added(recent.reward, episodes.reward), _added(recent.group_reward, episodes.group_reward))


def inherited(recent: RecentReturns, parents: np.ndarray) -> RecentReturns:
    """Give seed i the returns of seed parents[i], int [S], whose learner it continues with."""
    return jax.tree.map(lambda x: x[parents], recent)


def _added(tally: Tally, found: Moments) -> Tally:
    count, total = tally.newer_count + found.count, tally.newer_total + found.total
    enough: Array = count >= RECENT_EPISODES
    return Tally(
        newer_count=jnp.where(enough, 0.0, count),
        newer_total=jnp.where(enough, 0.0, total),
        older_count=jnp.where(enough, count, tally.older_count),
        older_total=jnp.where(enough, total, tally.older_total),
    )


class NewestEpisodes(NamedTuple):
    """Returns of the last K episodes of one seed that ended in an iteration, the newest first; unused places are 0."""

    reward: Array  # float32 [K], own returns of agents
    rewards: Array  # int32 [], number of valid ones
    group_reward: Array  # float32 [K], returns of teams
    group_rewards: Array  # int32 []


def newest(kept: int, steps: Transitions, team_over: Array) -> NewestEpisodes:
    """Return the last K = `kept` episodes of `steps` [T, E, A, ...]; `team_over`: see `stacking.teams_over`.

    Later steps are newer, and within a step areas and places with higher numbers.
    """
    ended = steps.terminated | steps.truncated
    agents, teams = _last(kept, steps.sums.reward, ended), _last(kept, steps.sums.group_reward, team_over)
    return NewestEpisodes(*agents, *teams)


def nothing(kept: int, seeds: int) -> NewestEpisodes:
    """Return no episodes for all seeds, for the time before the first iteration."""
    values, count = jnp.zeros((seeds, kept), jnp.float32), jnp.zeros(seeds, jnp.int32)
    return NewestEpisodes(values, count, values, count)


def _last(kept: int, values: Array, mask: Array) -> tuple[Array, Array]:
    """Return the last of `values` [...] where `mask` [...], newest first, float32 [K]; and their number, int32 []."""
    flat, ended = values.reshape(-1), mask.reshape(-1)
    age = jnp.cumsum(ended[::-1])[::-1] - 1  # 0 for the newest that ended
    place = jnp.where(ended, age, kept)
    last = jnp.zeros(kept, jnp.float32).at[place].set(flat, mode="drop")
    return last, jnp.minimum(ended.sum(dtype=jnp.int32), kept)
