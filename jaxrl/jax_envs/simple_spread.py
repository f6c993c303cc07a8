"""Simple Spread: three particles are to cover three landmarks without bumping into each other.

The cooperative navigation task of Lowe et al., "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive
Environments" (arXiv 1706.02275), with the constants and the order of computations of `MPE_simple_spread_v3` in
JaxMARL, written anew.

Rules. Agents and landmarks begin anywhere in the square [-1, 1] x [-1, 1], agents at rest. There are no walls. An
agent weighs 1 and has radius 0.15; landmarks do not move and can be stood on. One decision, dt = 0.1 s:
1. Each agent chooses a force: 0 none, 1 left, 2 right, 3 down, 4 up, each of 5 N.
2. Two agents at distance d push each other apart with 100 · k · log(1 + exp((0.3 - d) / k)) N, k = 0.001 m: nothing
   until they touch, then a spring.
3. x <- x + v · dt, then v <- 0.75 · v + F · dt. Forces are those at the old positions.
4. Each agent earns -(1 - r) · Σ over landmarks (distance of the nearest agent) - r · (number of agents it touches),
   with r = `local_ratio`. The group reward of every member is the sum of what the three earn; nobody has a reward of
   its own. The group reward of an episode is therefore the return that JaxMARL's log wrapper reports for MPE.
5. After `episode_limit` decisions the episode is cut off: `truncated`, not `terminated`.

Why cut off. The observation, kept as in JaxMARL and PettingZoo, holds no clock, so no value function could know that
the end comes; PettingZoo says truncation, and bootstrapping is what makes the value well-defined. JaxMARL has only
`done`, and its training scripts take it for the end of all reward: `terminates=True` poses that problem instead.
PPO learns less from it: after 600,000 agent steps of configs/ppo/simple_spread_jax.yaml, 4 seeds, the group reward is
-56 to -58 with truncation and -62 to -66 without.
JaxMARL's own episodes last 26 decisions, because it compares the clock before it counts.

Observation of each agent, 18 numbers as there: own velocity (2), own position (2), to each landmark (6), to each mate
by index (4), what the mates say (4, always 0: nobody speaks in this task).

Layout. The state is a tree of scalars: with areas in front of it each is a plain vector over areas, which compiles to
straight vector code. Arrays [A, 2] with areas in front would be loops of length 2.
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.drawing import Disc, Scene
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

AGENTS = 3
LANDMARKS = 3
NUM_ACTIONS = 5
OBS_SIZE = 4 + 2 * LANDMARKS + 4 * (AGENTS - 1)
DT = 0.1  # s
KEPT_SPEED = 0.75  # share of the velocity left after one decision
FORCE = 5.0  # N
RADIUS = 0.15  # m, of an agent
LANDMARK_RADIUS = 0.05  # m, only drawn
STIFFNESS = 100.0  # N / m
SOFTNESS = 0.001  # m, k in the module's docstring
_MATES = [[mate for mate in range(AGENTS) if mate != agent] for agent in range(AGENTS)]


class SpreadSettings(NamedTuple):
    """Constants that are fixed when the environment is made."""

    episode_limit: int = 25  # decisions
    local_ratio: float = 0.5  # r: how much touching counts against distances
    terminates: bool = False  # the last decision is `terminated` instead of `truncated`


DEFAULTS = SpreadSettings()


class Spot(NamedTuple):
    """Place, or an offset."""

    x: Array  # float32 [], m
    y: Array  # float32 [], m


class Particle(NamedTuple):
    """Agent with its place and velocity."""

    x: Array  # float32 [], m
    y: Array  # float32 [], m
    vx: Array  # float32 [], m/s
    vy: Array  # float32 [], m/s


class SpreadState(NamedTuple):
    """State of one area."""

    agents: tuple[Particle, ...]
    landmarks: tuple[Spot, ...]
    clock: Array  # int32 [], decisions made


def make_simple_spread(settings: SpreadSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with A = 3.

    Raises:
        ValueError: `episode_limit` < 1, or `local_ratio` not in 0..1.
    """
    if settings.episode_limit < 1:
        raise ValueError(f"episode_limit = {settings.episode_limit}: an episode needs at least 1 decision")
    if not 0 <= settings.local_ratio <= 1:
        raise ValueError(f"local_ratio = {settings.local_ratio}: must lie between 0 and 1")

    def reset(key: Array, parameters: EnvParams) -> tuple[SpreadState, TeamView]:
        state = _place(key)
        return state, _view(state, jnp.bool_(True))

    return JaxEnv(
        name="SimpleSpread",
        spec=BehaviorSpec((vector_sensor(OBS_SIZE),), ActionSpec(continuous_size=0, discrete_branches=(NUM_ACTIONS,))),
        members=AGENTS,
        parameters={},
        reset=reset,
        step=lambda _, state, actions: _step(settings, state, actions.discrete),
        truncates=not settings.terminates,
        draw=_draw,
    )


def _place(key: Array) -> SpreadState:
    """Place everything anywhere in the square, at rest."""
    places = jax.random.uniform(key, (AGENTS + LANDMARKS, 2), minval=-1.0, maxval=1.0)
    spots = [Spot(places[index, 0], places[index, 1]) for index in range(AGENTS + LANDMARKS)]
    rest = jnp.float32(0)
    agents = tuple(Particle(spot.x, spot.y, rest, rest) for spot in spots[:AGENTS])
    return SpreadState(agents=agents, landmarks=tuple(spots[AGENTS:]), clock=jnp.int32(0))


def _offset(start: Spot | Particle, end: Spot | Particle) -> Spot:
    return Spot(end.x - start.x, end.y - start.y)


def _length(offset: Spot) -> Array:
    return jnp.sqrt(offset.x * offset.x + offset.y * offset.y)


def _contact(one: Particle, other: Particle) -> Spot:
    """Compute the force on `one`; `other` feels its opposite. Rule 2, log(1 + exp(z)) in a form that cannot overflow.

    Two agents at exactly the same place push each other nowhere, where the formula has 0 / 0.
    """
    away = _offset(other, one)
    distance = _length(away)
    z = (2 * RADIUS - distance) / SOFTNESS
    strength = STIFFNESS * SOFTNESS * (jnp.maximum(z, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(z))))
    share = strength / jnp.maximum(distance, 1e-12)
    return Spot(away.x * share, away.y * share)


def _step(settings: SpreadSettings, state: SpreadState, actions: Array) -> tuple[SpreadState, TeamStep]:
    """Apply rules 1 to 5; `actions` int32 [A, 1]."""
    forces = [_chosen_force(actions[index, 0]) for index in range(AGENTS)]
    for first, second in combinations(range(AGENTS), 2):
        push = _contact(state.agents[first], state.agents[second])
        forces[first] = Spot(forces[first].x + push.x, forces[first].y + push.y)
        forces[second] = Spot(forces[second].x - push.x, forces[second].y - push.y)
    agents = tuple(_moved(agent, force) for agent, force in zip(state.agents, forces, strict=True))
    state = SpreadState(agents=agents, landmarks=state.landmarks, clock=state.clock + 1)
    over = state.clock >= settings.episode_limit
    uncovered, touching = _uncovered(state), _touching(state)
    reward = -AGENTS * (1 - settings.local_ratio) * uncovered - 2 * settings.local_ratio * touching
    ends = {"terminated" if settings.terminates else "truncated": over}
    figures = {"Uncovered Distance": uncovered, "Touching Pairs": touching}
    return state, team_step(_view(state, ~over), group_reward=reward, **ends, figures=figures)


def _chosen_force(action: Array) -> Spot:
    """Return the force that an action chooses (rule 1); `action` int32 []."""
    x = FORCE * ((action == 2).astype(jnp.float32) - (action == 1))
    y = FORCE * ((action == 4).astype(jnp.float32) - (action == 3))
    return Spot(x, y)


def _moved(agent: Particle, force: Spot) -> Particle:
    """Return the agent after it has moved (rule 3)."""
    return Particle(
        x=agent.x + agent.vx * DT,
        y=agent.y + agent.vy * DT,
        vx=agent.vx * KEPT_SPEED + force.x * DT,
        vy=agent.vy * KEPT_SPEED + force.y * DT,
    )


def _uncovered(state: SpreadState) -> Array:
    """Compute Σ over landmarks of the distance of the nearest agent, float32 []."""
    distances = ([_length(_offset(agent, landmark)) for agent in state.agents] for landmark in state.landmarks)
    return sum((reduce(jnp.minimum, of_agents) for of_agents in distances), jnp.float32(0))


def _touching(state: SpreadState) -> Array:
    """Count the pairs of agents that overlap, float32 []."""
    pairs = combinations(state.agents, 2)
    return sum((_length(_offset(*pair)) < 2 * RADIUS for pair in pairs), jnp.float32(0))


def _view(state: SpreadState, alive: Array) -> TeamView:
    """Compute the observations; all members are alive, or none."""
    silence, obs = jnp.float32(0), []
    for agent, mates in zip(state.agents, _MATES, strict=True):
        obs += [agent.vx, agent.vy, agent.x, agent.y]
        for place in (*state.landmarks, *(state.agents[mate] for mate in mates)):
            obs += _offset(agent, place)
        obs += [silence] * (2 * len(mates))
    return TeamView(
        obs=(jnp.stack(obs).reshape(AGENTS, OBS_SIZE),),
        action_mask=jnp.ones((AGENTS, NUM_ACTIONS), bool),
        alive=jnp.broadcast_to(alive, (AGENTS,)),
    )


def _draw(state: SpreadState) -> Scene:
    """Draw the square and half a metre around it; things farther away are not seen."""
    shapes = [
        Disc((float(spot.x) + 1.5, float(spot.y) + 1.5), LANDMARK_RADIUS * 2, "#37474f") for spot in state.landmarks
    ]
    colours = ("#1e88e5", "#43a047", "#fb8c00")
    for index, agent in enumerate(state.agents):
        shapes.append(Disc((float(agent.x) + 1.5, float(agent.y) + 1.5), RADIUS, colours[index], str(index)))
    return Scene(size=(3.0, 3.0), shapes=tuple(shapes))
