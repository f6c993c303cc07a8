"""Wall Jump: get over a wall to the goal; over a high one only from a block, to be pushed there unless it is near.

After the example scene "Wall Jump" of ML-Agents, seen from the side. One agent, two behaviors: the height of the wall
decides at the beginning of each episode which of them acts, `SmallWallJump` or `BigWallJump`; the other is absent.

Rules. A platform from x = 0 to 40 with a wall at 24 to 25 and the goal from 34 on. In one of five episodes there is no
wall (`no_wall_height`, 0), in another one a small wall (`small_wall_height`, 4): both for SmallWallJump. In the others
the wall is as high as `big_wall_height`, 8: for BigWallJump. The agent, a square of 1, begins far from the wall and the
block, a square of 4, somewhere between the two. Each decision moves the agent by 1 at most and may let it jump, 4.5
high; on the ground it pushes the block, by 0.5 a decision, as far as the wall. The goal gives 1 and ends the episode,
and so does the left edge, with -1; each decision costs 0.0025. After 200 decisions the episode is cut off. ML-Agents'
documentation calls 0.8 a good mean reward for both.

Observation, 8 numbers: position, height and vertical speed of the agent, whether it stands, the height of the wall, and
how far block, wall and goal are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.drawing import Box, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView, given, vector_sensor
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.types import ActionSpec, BehaviorSpec

SMALL, BIG = "SmallWallJump", "BigWallJump"
LENGTH, WALL, GOAL = 40.0, 24.5, 34.0
AGENT_FROM, AGENT_TO = 2.0, 6.0
HALF_AGENT, HALF_BLOCK, HALF_WALL = 0.5, 2.0, 0.5
BLOCK_HEIGHT = 2 * HALF_BLOCK
SPEED, PUSH_SPEED, JUMP, GRAVITY = 1.0, 0.5, 1.5, 0.3
GOAL_REWARD, FALL_REWARD, STEP_REWARD = 1.0, -1.0, -0.0025
LIMIT = 200
PARAMETERS = {"no_wall_height": 0.0, "small_wall_height": 4.0, "big_wall_height": 8.0}
OBSERVATIONS = 8
_BLOCK_RIGHT = WALL - HALF_WALL - HALF_BLOCK  # where the wall stops it


class WallJumpState(NamedTuple):
    """State of one area; scalars."""

    big: Array  # bool, BigWallJump acts
    wall: Array  # float32, height
    x: Array  # float32, centre of the agent
    y: Array  # float32, its feet
    speed: Array  # float32, upwards, per decision
    block: Array  # float32, centre of the block
    clock: Array  # int32, decisions of this episode


def make_wall_jump() -> JaxScene:
    """Make Wall Jump, which has no sizes."""
    spec = BehaviorSpec((vector_sensor(OBSERVATIONS),), ActionSpec(continuous_size=0, discrete_branches=(3, 2)))
    parts = tuple(BehaviorPart(name, spec, members=1, truncates=True) for name in (SMALL, BIG))
    return JaxScene("WallJump", parts, PARAMETERS, reset, step, draw=draw, tell=tell)


def reset(key: Array, parameters: EnvParams) -> tuple[WallJumpState, dict[str, TeamView]]:
    """Draw the wall, and where agent and block begin."""
    kind_key, agent_key, block_key = jax.random.split(key, 3)
    kind = jax.random.randint(kind_key, (), 0, 5)
    heights = list(given(parameters, PARAMETERS).values())
    x = jax.random.uniform(agent_key, (), minval=AGENT_FROM, maxval=AGENT_TO)
    block = jax.random.uniform(block_key, (), minval=AGENT_TO + HALF_AGENT + HALF_BLOCK, maxval=_BLOCK_RIGHT)
    state = WallJumpState(
        big=kind >= 2,
        wall=jnp.select([kind == 0, kind == 1], heights[:2], heights[2]),
        x=x,
        y=jnp.float32(0.0),
        speed=jnp.float32(0.0),
        block=block,
        clock=jnp.int32(0),
    )
    return state, _views(state, jnp.bool_(True))


def step(key: Array, state: WallJumpState, actions: dict[str, TeamActions]) -> tuple[WallJumpState, SceneStep]:
    """Advance by one decision. Nothing is random; the key is not used."""
    move, jump = jnp.where(state.big, actions[BIG].discrete[0], actions[SMALL].discrete[0])
    x, block = _moved(state, SPEED * jnp.array([0.0, -1.0, 1.0])[move])
    state = state._replace(x=x, block=block, clock=state.clock + 1)
    floor = _floor(state)
    stands = (state.y <= floor) & (state.speed <= 0.0)
    speed = jnp.where(stands, jnp.where(jump == 1, JUMP, 0.0), state.speed)
    y = jnp.maximum(state.y + speed, floor)
    landed = (speed <= 0.0) & (y <= floor)
    state = state._replace(y=y, speed=jnp.where(landed, 0.0, speed - GRAVITY))
    reached, fallen = x >= GOAL, x < 0.0
    ended = reached | fallen
    cut = ~ended & (state.clock >= LIMIT)
    over = ended | cut
    reward = STEP_REWARD + GOAL_REWARD * reached + FALL_REWARD * fallen
    views = _views(state, ~over)

    def of(name: str, acts: Array) -> BehaviorStep:
        return BehaviorStep(
            view=views[name],
            reward=jnp.where(acts, reward, 0.0).astype(jnp.float32)[None],
            group_reward=jnp.zeros(1, jnp.float32),
            terminated=(acts & ended)[None],
            truncated=(acts & cut)[None],
        )

    steps = {SMALL: of(SMALL, ~state.big), BIG: of(BIG, state.big)}
    return state, SceneStep(steps, over, {"Environment/Wall Height": state.wall})


def _moved(state: WallJumpState, move: Array) -> tuple[Array, Array]:
    """Move sideways. Return the places of agent and block: walls stop the agent, it pushes a block on the ground."""
    x = state.x + move
    blocked = (jnp.abs(x - WALL) < HALF_WALL + HALF_AGENT) & (state.y < state.wall)
    side = jnp.where(state.x < WALL, -1.0, 1.0)
    x = jnp.where(blocked, WALL + side * (HALF_WALL + HALF_AGENT), x)
    touch = HALF_BLOCK + HALF_AGENT
    meets = (jnp.abs(x - state.block) < touch) & (state.y < BLOCK_HEIGHT)
    away = jnp.where(state.x < state.block, 1.0, -1.0)
    push = jnp.where(meets & (state.y <= 0.0), jnp.clip(touch - jnp.abs(x - state.block), 0.0, PUSH_SPEED), 0.0)
    block = jnp.clip(state.block + away * push, HALF_BLOCK, _BLOCK_RIGHT)
    return jnp.where(meets, block - away * touch, x), block


def _floor(state: WallJumpState) -> Array:
    """Return the height of the surface below the agent."""
    on_wall = (jnp.abs(state.x - WALL) < HALF_WALL + HALF_AGENT) & (state.y >= state.wall)
    on_block = (jnp.abs(state.x - state.block) < HALF_BLOCK + HALF_AGENT) & (state.y >= BLOCK_HEIGHT)
    return jnp.maximum(jnp.where(on_wall, state.wall, 0.0), jnp.where(on_block, BLOCK_HEIGHT, 0.0))


def _views(state: WallJumpState, goes_on: Array) -> dict[str, TeamView]:
    stands = (state.y <= _floor(state)) & (state.speed <= 0.0)
    numbers = [
        state.x / LENGTH, state.y / 8.0, state.speed / JUMP, stands.astype(jnp.float32), state.wall / 8.0,
        (state.block - state.x) / LENGTH, (WALL - state.x) / LENGTH, (GOAL - state.x) / LENGTH,
    ]  # fmt: skip
    obs, mask = jnp.stack(numbers).astype(jnp.float32), jnp.ones((1, 5), bool)

    def of(acts: Array) -> TeamView:
        return TeamView((jnp.where(acts, obs, 0.0)[None],), mask, (acts & goes_on)[None])

    return {SMALL: of(~state.big), BIG: of(state.big)}


def draw(state: Any) -> Scene:
    """Draw the platform from the side; `state` is a `WallJumpState` of numpy arrays."""
    ground, height = 2.0, max(float(state.wall), 0.1)
    shapes: list[Shape] = [
        Box((LENGTH / 2, ground / 2), (LENGTH, ground), "#c9bda3"),
        Box(((GOAL + LENGTH) / 2, ground / 2), (LENGTH - GOAL, ground), "#2e8b57"),
        Box((WALL, ground + height / 2), (2 * HALF_WALL, height), "#8d7f68"),
        Box((float(state.block), ground + HALF_BLOCK), (BLOCK_HEIGHT, BLOCK_HEIGHT), "#d9a441"),
        Box(
            (float(state.x), ground + float(state.y) + HALF_AGENT),
            (2 * HALF_AGENT, 2 * HALF_AGENT),
            "#b8433c" if bool(state.big) else "#3b6fb6",
        ),
    ]
    return Scene(size=(LENGTH, 16.0), shapes=tuple(shapes))


def tell(state: Any, over: bool) -> str:
    """Name the acting behavior, and at the end how it went."""
    name = BIG if bool(state.big) else SMALL
    if not over:
        return name
    return f"{name}, {'reached the goal' if float(state.x) >= GOAL else 'fell' if float(state.x) < 0 else 'too late'}"
