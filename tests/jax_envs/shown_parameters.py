"""A cheap environment that shows its parameters: what an episode was drawn with stands in the observation.

One agent; an episode lasts three decisions, two where its luck is below 0.5, and returns its luck, drawn uniformly
from [0, 1) at its start; its team of one earns twice that. Observation: size, mass, clock, luck.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

NAME = "Shown"
SIZE = "Environment/Size"


class ShownState(NamedTuple):
    """One area."""

    size: Array  # float32 []
    mass: Array  # float32 []
    clock: Array  # int32 []
    luck: Array  # float32 []


def make_shown() -> JaxEnv:
    """Its parameters are size, usually 1, and mass, usually 2."""

    def reset(key: Array, parameters: EnvParams) -> tuple[ShownState, TeamView]:
        size, mass = (jnp.asarray(parameters[name], jnp.float32) for name in ("size", "mass"))
        state = ShownState(size, mass, jnp.int32(0), jax.random.uniform(key))
        return state, _view(state, jnp.bool_(True))

    def step(key: Array, state: ShownState, actions: TeamActions) -> tuple[ShownState, TeamStep]:
        state = state._replace(clock=state.clock + 1)
        over = state.clock >= 3 - (state.luck < 0.5)
        paid = jnp.where(over, state.luck, 0.0)[None]
        return state, TeamStep(
            view=_view(state, ~over),
            reward=paid,
            group_reward=2.0 * paid,
            terminated=over[None],
            truncated=jnp.zeros(1, bool),
            over=over,
            stats={SIZE: state.size},
        )

    return JaxEnv(
        name=NAME,
        spec=BehaviorSpec((ObservationSpec("parameters", (4,)),), ActionSpec(0, (2,))),
        members=1,
        parameters={"size": 1.0, "mass": 2.0},
        reset=reset,
        step=step,
    )


def _view(state: ShownState, alive: Array) -> TeamView:
    shown = jnp.stack([state.size, state.mass, state.clock.astype(jnp.float32), state.luck])
    return TeamView(obs=(shown[None],), action_mask=jnp.ones((1, 2), bool), alive=alive[None])
