"""Basic: walk along a line, past a small reward to a large one.

After the example scene "Basic" of ML-Agents, the smallest environment that rewards patience.

Rules. There are 20 positions in a line, 0 to 19; the agent starts at 10. Each decision costs 0.01 and moves it
(action 1 left, 2 right; 0 stays). At position 7 it gets 0.1, at position 17 it gets 1, and either ends the episode.
Three steps to the left earn 0.07, seven to the right 0.93, the mean reward in ML-Agents' documentation. There is no
limit of time.

Observation: the position as a one-hot vector of 20.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

POSITIONS = 20
START, SMALL_GOAL, LARGE_GOAL = 10, 7, 17
SMALL_REWARD, LARGE_REWARD, STEP_REWARD = 0.1, 1.0, -0.01
_MOVES = np.array([0, -1, 1], np.int32)  # by action


class BasicState(NamedTuple):
    """State of one area."""

    position: Array  # int32 [], 0 .. 19


def make_basic() -> JaxEnv:
    """Make Basic, which has no sizes and no parameters."""
    return JaxEnv(
        name="Basic",
        spec=BehaviorSpec((vector_sensor(POSITIONS),), ActionSpec(continuous_size=0, discrete_branches=(len(_MOVES),))),
        members=1,
        parameters={},
        reset=_reset,
        step=_step,
        draw=draw,
    )


def _reset(key: Array, parameters: EnvParams | None = None) -> tuple[BasicState, TeamView]:
    """Begin an episode. All start alike; the key is not used."""
    state = BasicState(position=jnp.int32(START))
    return state, _view(state, jnp.bool_(True))


def _step(key: Array, state: BasicState, actions: TeamActions) -> tuple[BasicState, TeamStep]:
    """Advance by one decision. Nothing is random; the key is not used."""
    move = jnp.asarray(_MOVES)[actions.discrete[0, 0]]
    state = BasicState(position=jnp.clip(state.position + move, 0, POSITIONS - 1))
    small, large = state.position == SMALL_GOAL, state.position == LARGE_GOAL
    over = small | large
    reward = STEP_REWARD + jnp.where(small, SMALL_REWARD, 0.0) + jnp.where(large, LARGE_REWARD, 0.0)
    return state, team_step(_view(state, ~over), reward=reward, terminated=over, figures={"Large Goal": large})


def _view(state: BasicState, alive: Array) -> TeamView:
    obs = jax.nn.one_hot(state.position, POSITIONS, dtype=jnp.float32)
    return TeamView(obs=(obs[None],), action_mask=jnp.ones((1, len(_MOVES)), bool), alive=alive[None])


_PAPER = "#f4f1ea"


def draw(state: Any) -> Scene:
    """Draw the line with its two goals and the agent; `state` is a `BasicState` of numpy arrays."""
    shapes: list[Shape] = []
    for place in range(POSITIONS):
        shapes.append(Box((place + 1.0, 1.5), (0.92, 0.92), "#e3dccb"))
        shapes.append(Box((place + 1.0, 0.65), (1.0, 0.7), _PAPER, label=str(place)))
    for place, radius, colour, reward in (
        (SMALL_GOAL, 0.22, "#74b47c", SMALL_REWARD),
        (LARGE_GOAL, 0.42, "#2e8b57", LARGE_REWARD),
    ):
        shapes.append(Disc((place + 1.0, 1.5), radius, colour))
        shapes.append(Box((place + 1.0, 2.4), (2.0, 0.9), _PAPER, label=f"+{reward:g}"))
    shapes.append(Box((int(state.position) + 1.0, 1.5), (0.62, 0.62), "#3b6fb6"))
    return Scene(size=(POSITIONS + 1.0, 3.0), shapes=tuple(shapes), background=_PAPER)
