"""Food Collector: agents in an arena eat good food, leave bad food alone and may freeze each other with a laser.

After the example scene "Food Collector" of ML-Agents: a grid sensor that turns with the agent, and actions of which
some are continuous and one is discrete.

Rules. `agents` discs of radius `agent_scale` move in a square of side `side`, among `good` and `bad` pieces of food.
One decision goes in this order:
1. Actions: three continuous numbers in [-1, 1], forward, to the left and turn to the left (by `turn` radians at most),
   and one branch: 1 shoots. Those of an agent that is frozen count as 0.
2. An agent turns, then keeps `glide` of its velocity and adds what it pushes, up to 1 per decision. Walls hold it;
   agents pass each other.
3. A laser freezes the nearest other agent ahead, within `laser_length` and not farther from its line than an agent's
   radius, for the next `frozen_for` decisions. All shoot at once.
4. Food that touches an agent is eaten by the nearest: good food pays 1, bad food -1. It appears again anywhere.
After `episode_limit` decisions all are truncated, since nobody sees the clock.

Rewards are each agent's own. All agents of an arena are one team on the wire and for MA-POCA, which then maximises what
they earn together; PPO trains each for itself.

Observations: a grid uint8 [5, cells, cells] of cells of side 1 around the agent, row 0 the farthest ahead and column 0
the farthest to the left, 255 where good food, bad food, another agent that moves, one that is frozen, or a wall is; and
four numbers: own velocity ahead and to the left, whether I am frozen, whether I shot just now. (ML-Agents: 40 x 40.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.jax_envs.drawing import Disc, Line, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.jax_envs.soccer_twos import left_of
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

CHANNELS = 5  # good food, bad food, moving collectors, frozen ones, walls
FOOD_RADIUS = 0.5


class FoodSettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made."""

    agents: int = 4
    good: int = 16
    bad: int = 8
    side: float = 24.0
    cells: int = 20  # the smallest grid that the encoder `simple` reads
    turn: float = 0.6  # radians
    push: float = 0.6
    glide: float = 0.5
    frozen_for: int = 10  # decisions
    episode_limit: int = 100  # decisions


DEFAULTS = FoodSettings()
PARAMETERS = {"laser_length": 8.0, "agent_scale": 1.0}


class FoodState(NamedTuple):
    """State of one arena: x to the right, y upwards, (0, 0) at the lower left corner."""

    position: Array  # float32 [A, 2]
    velocity: Array  # float32 [A, 2], per decision
    angle: Array  # float32 [A], radians from the x axis to the left
    frozen: Array  # int32 [A], decisions that the agent still stands still
    shot: Array  # bool [A], with the last decision
    food: Array  # float32 [F, 2], good food first
    eaten: Array  # float32 [2], good and bad food in this episode
    clock: Array  # int32 [], decisions made
    laser_length: Array  # float32 []
    agent_scale: Array  # float32 []


def make_food_collector(settings: FoodSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with A = `settings.agents`.

    Raises:
        ValueError: no agent, no food, no cell or a square without room.
    """
    if min(settings.agents, settings.good, settings.bad, settings.cells) < 1 or settings.side <= 4.0:
        raise ValueError(f"{settings}: at least one of each is needed, and a side above 4")

    def reset(key: Array, parameters: EnvParams = PARAMETERS) -> tuple[FoodState, TeamView]:
        state = _place(settings, key, **given(parameters, PARAMETERS))
        return state, _view(settings, state, jnp.bool_(False))

    def step(key: Array, state: FoodState, actions: TeamActions) -> tuple[FoodState, TeamStep]:
        state = _move(settings, state._replace(clock=state.clock + 1), actions)
        state, reward = _eat(settings, key, _shoot(settings, state))
        return state, _judge(settings, state, reward)

    grid = ObservationSpec("GridSensor", (CHANNELS, settings.cells, settings.cells), IMAGE_PROPERTIES, dtype="uint8")
    vector = vector_sensor(4)
    return JaxEnv(
        name="FoodCollector",
        spec=BehaviorSpec((grid, vector), ActionSpec(continuous_size=3, discrete_branches=(2,))),
        members=settings.agents,
        parameters=dict(PARAMETERS),
        reset=reset,
        step=step,
        truncates=True,
        draw=lambda state: _draw(settings, state),
    )


def _place(settings: FoodSettings, key: Array, laser_length: Array, agent_scale: Array) -> FoodState:
    """Place agents and food anywhere."""
    agent_key, angle_key, food_key = jax.random.split(key, 3)
    agents = settings.agents
    return FoodState(
        position=jax.random.uniform(agent_key, (agents, 2), minval=2.0, maxval=settings.side - 2.0),
        velocity=jnp.zeros((agents, 2), jnp.float32),
        angle=jax.random.uniform(angle_key, (agents,), maxval=2.0 * jnp.pi),
        frozen=jnp.zeros(agents, jnp.int32),
        shot=jnp.zeros(agents, bool),
        food=_anywhere(settings, food_key),
        eaten=jnp.zeros(2, jnp.float32),
        clock=jnp.int32(0),
        laser_length=laser_length,
        agent_scale=agent_scale,
    )


def _anywhere(settings: FoodSettings, key: Array) -> Array:
    """Draw a place for each piece of food that touches no wall, float32 [F, 2]."""
    shape = (settings.good + settings.bad, 2)
    return jax.random.uniform(key, shape, minval=FOOD_RADIUS, maxval=settings.side - FOOD_RADIUS)


def _frame(angle: Array) -> Array:
    """Return the unit vectors ahead and left, float32 [..., 2, 2]."""
    ahead = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
    return jnp.stack([ahead, left_of(ahead)], axis=-2)


def _own(state: FoodState, places: Array) -> Array:
    """Convert places [K, 2] to each agent's frame, (ahead, left): [A, K, 2]."""
    return jnp.einsum("akx,adx->akd", places - state.position[:, None], _frame(state.angle))


def _move(settings: FoodSettings, state: FoodState, actions: TeamActions) -> FoodState:
    """Turn and move the agents (rules 1 and 2)."""
    free = state.frozen == 0
    push = jnp.where(free[:, None], jnp.clip(actions.continuous, -1.0, 1.0), 0.0)
    angle = state.angle + settings.turn * push[:, 2]
    pushed = jnp.einsum("ad,adx->ax", push[:, :2], _frame(angle))
    velocity = jnp.where(free[:, None], settings.glide * state.velocity + settings.push * pushed, 0.0)
    velocity /= jnp.maximum(jnp.linalg.norm(velocity, axis=1, keepdims=True), 1.0)
    position = jnp.clip(state.position + velocity, state.agent_scale, settings.side - state.agent_scale)
    shot = free & (actions.discrete[:, 0] == 1)
    return state._replace(position=position, velocity=velocity, angle=angle, shot=shot)


def _shoot(settings: FoodSettings, state: FoodState) -> FoodState:
    """Freeze agents that a laser hits (rule 3) and count down the time of those frozen before."""
    ahead, aside = jnp.moveaxis(_own(state, state.position), -1, 0)  # [A, A], of the second for the first
    within = (ahead > 0.0) & (ahead <= state.laser_length) & (jnp.abs(aside) <= state.agent_scale)
    within &= ~np.eye(settings.agents, dtype=bool) & state.shot[:, None]
    nearest = jnp.argmin(jnp.where(within, ahead, jnp.inf), axis=1)
    hit = within & (nearest[:, None] == np.arange(settings.agents))
    frozen = jnp.where(hit.any(0), settings.frozen_for, jnp.maximum(state.frozen - 1, 0))
    return state._replace(frozen=frozen)


def _eat(settings: FoodSettings, key: Array, state: FoodState) -> tuple[FoodState, Array]:
    """Let agents eat food (rule 4). Return the new state and each agent's reward, float32 [A]."""
    distance = jnp.linalg.norm(state.position[:, None] - state.food, axis=-1)  # [A, F]
    nearest = jnp.argmin(distance, axis=0)
    eats = (distance <= state.agent_scale + FOOD_RADIUS) & (nearest == np.arange(settings.agents)[:, None])
    eaten = eats.any(0)
    good, bad = eats[:, : settings.good].sum(1), eats[:, settings.good :].sum(1)
    food = jnp.where(eaten[:, None], _anywhere(settings, key), state.food)
    state = state._replace(food=food, eaten=state.eaten + jnp.stack([good.sum(), bad.sum()]))
    return state, (good - bad).astype(jnp.float32)


def _judge(settings: FoodSettings, state: FoodState, reward: Array) -> TeamStep:
    late, (good, bad) = state.clock >= settings.episode_limit, state.eaten / settings.agents
    figures = {"Good Food": good, "Bad Food": bad, "Frozen Agents": (state.frozen > 0).sum()}
    return team_step(_view(settings, state, late), reward=reward, truncated=late, figures=figures)


def _view(settings: FoodSettings, state: FoodState, over: Array) -> TeamView:
    agents = settings.agents
    velocity = jnp.einsum("ax,adx->ad", state.velocity, _frame(state.angle))
    flags = jnp.stack([state.frozen > 0, state.shot], axis=1)
    vector = jnp.concatenate([velocity, flags.astype(jnp.float32)], axis=1)
    grid = jnp.where(_grid(settings, state), 255, 0).astype(jnp.uint8)
    return TeamView(obs=(grid, vector), action_mask=jnp.ones((agents, 2), bool), alive=jnp.full(agents, ~over))


def _grid(settings: FoodSettings, state: FoodState) -> Array:
    """Compute the grid that each agent sees around it, bool [A, 5, cells, cells]."""
    agents, cells = settings.agents, settings.cells
    frozen, others = state.frozen > 0, ~jnp.eye(agents, dtype=bool)
    everybody = jnp.ones((agents, len(state.food)), bool)
    of_food, of_agents = _own(state, state.food), _own(state, state.position)
    seen = [
        _cells(of_food[:, : settings.good], everybody[:, : settings.good], cells),
        _cells(of_food[:, settings.good :], everybody[:, settings.good :], cells),
        _cells(of_agents, others & ~frozen, cells),
        _cells(of_agents, others & frozen, cells),
    ]
    middle = (cells - 1) / 2 - np.arange(cells, dtype=np.float32)  # of each row ahead, of each column to the left
    centre = jnp.stack(jnp.meshgrid(middle, middle, indexing="ij"), axis=-1)  # [cells, cells, 2]
    place = state.position[:, None, None] + jnp.einsum("ijd,adx->aijx", centre, _frame(state.angle))
    seen.append(((place < 0.0) | (place > settings.side)).any(-1))
    return jnp.stack(seen, axis=1)


def _cells(own: Array, there: Array, cells: int) -> Array:
    """Return which cells hold one of the places `own` [A, K, 2] that are `there` [A, K], bool [A, cells, cells].

    A product of two one-hot matrices: scattering is a loop on CPUs.
    """
    at = jnp.floor(cells / 2 - own).astype(jnp.int32)  # row and column
    row, column = (at[..., i, None] == np.arange(cells) for i in range(2))  # [A, K, cells]
    return jnp.einsum("akr,akc->arc", (row & there[..., None]).astype(jnp.float32), column.astype(jnp.float32)) > 0.0


def _draw(settings: FoodSettings, state: Any) -> Scene:
    """Draw food, agents with their direction, blue where frozen, and lasers; `state` has numpy arrays."""
    shapes: list[Shape] = []
    for number, (x, y) in enumerate(state.food.tolist()):
        shapes.append(Disc((x, y), FOOD_RADIUS, "#40a048" if number < settings.good else "#cc3430"))
    frames, scale = np.asarray(_frame(state.angle)), float(state.agent_scale)
    for (x, y), frame, frozen, shot in zip(state.position.tolist(), frames, state.frozen, state.shot, strict=True):
        ahead_x, ahead_y = frame[0].tolist()
        if shot:
            length = float(state.laser_length)
            shapes.append(Line((x, y), (x + length * ahead_x, y + length * ahead_y), 0.15, "#e0a000"))
        shapes.append(Disc((x, y), scale, "#8fb8e8" if frozen else "#264653"))
        shapes.append(Line((x, y), (x + scale * ahead_x, y + scale * ahead_y), 0.25, "#ffffff"))
    return Scene((settings.side, settings.side), tuple(shapes))
