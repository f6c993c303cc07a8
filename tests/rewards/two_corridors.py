"""A team scene that pays once in a blue moon: each of two members has a corridor of its own, and a lever at its end.

The team earns 1, and the episode ends, when both stand at their ends at once. Moves are left, stay and right, so that a
member that draws them evenly gets to its end in `LIMIT` decisions about once in some hundred episodes, and both
together hardly ever. Each sees its own place and its mate's, one-hot.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

LENGTH, LIMIT = 16, 32


class Places(NamedTuple):
    """One area."""

    place: Array  # int32 [2]
    clock: Array  # int32 []


def make_two_corridors() -> JaxEnv:
    def view(state: Places, alive: Array) -> TeamView:
        own = jax.nn.one_hot(state.place, LENGTH)
        obs = jnp.concatenate([own, own[::-1]], axis=1)
        return TeamView((obs,), jnp.ones((2, 3), bool), jnp.broadcast_to(alive, (2,)))

    def reset(key: Array, parameters: EnvParams) -> tuple[Places, TeamView]:
        state = Places(jnp.zeros(2, jnp.int32), jnp.int32(0))
        return state, view(state, jnp.bool_(True))

    def step(key: Array, state: Places, actions: TeamActions) -> tuple[Places, TeamStep]:
        place = jnp.clip(state.place + actions.discrete[:, 0] - 1, 0, LENGTH - 1)
        state = Places(place, state.clock + 1)
        found = (place == LENGTH - 1).all()
        over = found | (state.clock >= LIMIT)
        everybody = jnp.broadcast_to(over, (2,))
        paid = jnp.full(2, found.astype(jnp.float32))
        return state, TeamStep(
            view(state, ~over), jnp.zeros(2), paid, everybody, jnp.zeros(2, bool), over, {"Environment/Found": paid[0]}
        )

    sensor = ObservationSpec("places", (2 * LENGTH,))
    return JaxEnv("TwoCorridors", BehaviorSpec((sensor,), ActionSpec(0, (3,))), 2, {}, reset, step)
