"""A small Push Block for tests: its names, a board to start from, and a compiled step."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxrl.jax_envs.interface import TeamActions, TeamStep
from jaxrl.jax_envs.push_block import PushBlockSettings, PushBlockState, make_push_block

REST, FORWARD, BACK, TURN_LEFT, TURN_RIGHT, STEP_LEFT, STEP_RIGHT = range(7)
TO_GOAL, TO_LEFT, FROM_GOAL, TO_RIGHT = range(4)  # ways to look
SMALL, OTHER_SMALL, MEDIUM, LARGE = range(4)  # blocks
ENV = make_push_block(PushBlockSettings(size=7, small=2, medium=1, large=1, episode_limit=100, penalty=0.5))
COST = 0.5 / 100
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiled in half the time


def place(**changes) -> PushBlockState:
    """Agents at (1, 1), (3, 1) and (5, 1) look to the goal, row 6; the four blocks stand apart in row 3 and 5."""
    state = PushBlockState(
        position=jnp.array([[1, 1], [3, 1], [5, 1]], jnp.int32),
        heading=jnp.zeros(3, jnp.int32),
        block=jnp.array([[1, 3], [3, 3], [5, 3], [3, 5]], jnp.int32),
        standing=jnp.ones(4, bool),
        started=jnp.ones(4, bool),
        clock=jnp.int32(0),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def team_actions(actions) -> TeamActions:
    discrete = jnp.asarray(actions, jnp.int32)[..., None]
    return TeamActions(continuous=jnp.zeros((*discrete.shape[:-1], 0)), discrete=discrete)


compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def act(state: PushBlockState, *actions: int) -> tuple[PushBlockState, TeamStep]:
    return compiled_step(state, team_actions(actions))
