"""What the learners of a compiled run are worth lately: mean returns of about their last 100 episodes, by seed.

They are counted inside the program, iteration by iteration. So they depend neither on how many iterations the host lets
pass between two looks, which is a matter of speed, nor on other seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.artifacts.metrics.statistics import RECENT_EPISODES
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments


class Tally(NamedTuple):
    """Some episodes in the order of their ends: the newest ones, and RECENT_EPISODES or more before them, or none."""

    newer_count: Any  # float32 [S], below RECENT_EPISODES after an iteration
    newer_total: Any  # float32 [S], sum of their returns
    older_count: Any
    older_total: Any

    def mean(self) -> np.ndarray:
        """Mean return, float64 [S]; NaN before any has ended."""
        total = np.asarray(self.newer_total, np.float64) + self.older_total
        with np.errstate(invalid="ignore", divide="ignore"):
            return total / (np.asarray(self.newer_count, np.float64) + self.older_count)


class RecentReturns(NamedTuple):
    """Own returns of agents, and returns of teams."""

    reward: Tally
    group_reward: Tally


def none_yet(seeds: int) -> RecentReturns:
    """Before the first iteration."""
    zero = jnp.zeros(seeds, jnp.float32)
    return RecentReturns(Tally(zero, zero, zero, zero), Tally(zero, zero, zero, zero))


def counted(recent: RecentReturns, episodes: EpisodeFigures) -> RecentReturns:
    """With the episodes of one iteration, [S]."""
    return RecentReturns(_added(recent.reward, episodes.reward), _added(recent.group_reward, episodes.group_reward))


def inherited(recent: RecentReturns, parents: np.ndarray) -> RecentReturns:
    """Seed i goes on with the learner of seed parents[i], int [S], whose episodes tell what it is worth."""
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
