"""The newest episodes of an iteration one by one, which lessons are judged by. Sums of them stand in `EpisodeFigures`.

Pure functions of one seed; the letters are those of `iteration.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxrl.training.compiled.play import Transitions


class NewestEpisodes(NamedTuple):
    """Returns of the last K episodes that ended in an iteration, the newest first; unused places are 0."""

    reward: Array  # float32 [K], own returns of agents
    rewards: Array  # int32 [], how many there are
    group_reward: Array  # float32 [K], returns of teams
    group_rewards: Array  # int32 []


def newest(kept: int, steps: Transitions, team_over: Array) -> NewestEpisodes:
    """The last K = `kept` of `steps` [T, E, A, ...]: later steps are newer, and in a step areas and places with
    higher numbers. `team_over`: see `stacking.teams_over`."""
    ended = steps.terminated | steps.truncated
    own, team = _last(kept, steps.sums.reward, ended), _last(kept, steps.sums.group_reward, team_over)
    return NewestEpisodes(*own, *team)


def nothing(kept: int, seeds: int) -> NewestEpisodes:
    """Before the first iteration, of all seeds."""
    values, count = jnp.zeros((seeds, kept), jnp.float32), jnp.zeros(seeds, jnp.int32)
    return NewestEpisodes(values, count, values, count)


def _last(kept: int, values: Array, mask: Array) -> tuple[Array, Array]:
    """The last of `values` where `mask`, both [...], the newest first, float32 [K]; and how many, int32 []."""
    flat, ended = values.reshape(-1), mask.reshape(-1)
    age = jnp.cumsum(ended[::-1])[::-1] - 1  # of those that ended, 0 for the newest
    place = jnp.where(ended, age, kept)
    last = jnp.zeros(kept, jnp.float32).at[place].set(flat, mode="drop")
    return last, jnp.minimum(ended.sum(dtype=jnp.int32), kept)
