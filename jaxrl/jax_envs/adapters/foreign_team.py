"""Agents of different kinds as the rows of teams: who stands where, one action for all, and whose reward is whose."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.adapters.foreign import ForeignEnvironmentError
from jaxrl.types import ActionSpec

_OPPONENTS = ("adversary", "leadadversary", "enemy", "eve")  # how JaxMARL's registry calls agents of the other side


def rows_of(agents: list[str]) -> tuple[tuple[str | None, ...], int]:
    """Agents by row (A entries), and the number of teams.

    Agents whose names begin as in `_OPPONENTS` are the second team if there are others; the smaller of two teams is
    filled up with None, rows that never live.
    """
    opponents = [agent for agent in agents if str(agent).startswith(_OPPONENTS)]
    sides = [side for side in ([agent for agent in agents if agent not in opponents], opponents) if side]
    members = max(len(side) for side in sides)
    filled = [[*side, *[None] * (members - len(side))] for side in sides]
    return tuple(agent for side in filled for agent in side), len(sides)


def joint_action(where: str, specs: list[ActionSpec]) -> ActionSpec:
    """The smallest action that holds every agent's: most continuous dimensions, most branches, largest branches.

    Raises:
        ForeignEnvironmentError: some agents are continuous and others discrete; `where` names the environment.
    """
    continuous = max(spec.continuous_size for spec in specs)
    count = max(len(spec.discrete_branches) for spec in specs)
    if continuous and count:
        raise ForeignEnvironmentError(
            f"{where}: agents with continuous and agents with discrete actions: not supported"
        )
    padded = [(*spec.discrete_branches, *[1] * (count - len(spec.discrete_branches))) for spec in specs]
    return ActionSpec(continuous, tuple(max(sizes) for sizes in zip(*padded, strict=True)))


def possible_actions(action: ActionSpec, own: ActionSpec) -> np.ndarray:
    """bool [M]: entries of the joint action that `own` has; of a branch it lacks, the first alone."""
    lacking = len(action.discrete_branches) - len(own.discrete_branches)
    sizes = zip(action.discrete_branches, (*own.discrete_branches, *[1] * lacking), strict=True)
    return np.concatenate([np.zeros(0, bool), *[np.arange(joint) < size for joint, size in sizes]])


def shares(reward: Array, alive: Array, teams: int) -> tuple[Array, Array]:
    """Each member's reward split into its own and the group's: r_i = own_i + group with Σ own_i = 0 in a team.

    `group` is the mean over the members that lived before the step. It is taken of differences from the largest reward,
    so that it is exact where all are equal. A team of one keeps r as its own.

    Args:
        reward: float32 [A], r, one team after the other.
        alive: bool [A], before the step.
        teams: number of teams, each of A / teams rows.

    Returns:
        own and group reward, float32 [A], 0 for members that did not live.
    """
    reward, lived = (x.reshape(teams, -1) for x in (reward, alive))
    if lived.shape[1] == 1:
        return jnp.where(alive, reward.ravel(), 0.0), jnp.zeros(alive.shape)
    some = jnp.max(reward, axis=1, where=lived, initial=-jnp.inf)[:, None]
    count = jnp.maximum(lived.sum(axis=1, keepdims=True), 1)
    mean = some + jnp.where(lived, reward - some, 0.0).sum(axis=1, keepdims=True) / count
    own, group = jnp.where(lived, reward - mean, 0.0), jnp.where(lived, mean, 0.0)
    return own.ravel(), group.ravel()
