"""Crawler: a body of masses and springs runs along the ground on two legs of two muscles each.

After the example scene "Crawler" of ML-Agents, in a plane, with a small physics of its own in place of Unity's.

Rules. x points forward, y up. The trunk is five masses (three below, two above), each leg one more, its foot, which
hangs from two neighbouring masses of the trunk's underside by two springs that are muscles: their two lengths say where
the foot is. Four actions set the lengths that the muscles strive for, 1 meaning 40 % longer, -1 as much shorter; they
move there by at most 3 m/s. A decision is 10 physics steps of 0.005 s. It is paid 1 for each metre that the centre of
the masses has come forward, less `effort` times the sum of the squared actions. When an upper mass of the trunk touches
the ground, the body lies on its back and the episode terminates; after `episode_limit` decisions it is truncated.

Physics, every mass 1 kg. A spring of length l and rest length l0 pulls its ends together with
k (l - l0) + c dl/dt, k = 2000 N/m, c = 12 N s/m. The ground pushes a mass at y < 0 up with n = -3000 y - 30 y', if that
is more than 0, and rubs it with -friction n tanh(x' / 0.1 m/s). Semi-implicit Euler steps.

Observation, one vector of 35: places of the masses seen from their centre, the centre's height (15, metres) ·
velocities of the masses (14, metres per second) · lengths that the muscles have, as actions (4) · whether each foot
touches the ground (2).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Polygon, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

AT_REST = np.array(
    [[-0.8, 0.6], [0.0, 0.6], [0.8, 0.6], [-0.5, 1.1], [0.5, 1.1], [-0.4, 0.0], [0.4, 0.0]], dtype=np.float32
)
"""Places of the masses at rest, metres: underside from behind, upper side from behind, hind foot, front foot."""
UPPER, FEET = slice(3, 5), slice(5, 7)
TRUNK = ((0, 1), (1, 2), (3, 4), (0, 3), (1, 3), (1, 4), (2, 4), (0, 4), (2, 3))
MUSCLES = ((0, 5), (1, 5), (1, 6), (2, 6))
_ENDS = np.array(TRUNK + MUSCLES)
_LENGTHS = np.linalg.norm(AT_REST[_ENDS[:, 0]] - AT_REST[_ENDS[:, 1]], axis=1)
_OF_MUSCLES = _LENGTHS[len(TRUNK) :]

SECONDS, PHYSICS_STEPS = 0.005, 10  # of a physics step; of a decision
STIFFNESS, DAMPING = 2000.0, 12.0
GROUND_STIFFNESS, GROUND_DAMPING, SLIP = 3000.0, 30.0, 0.1
STRETCH, FASTEST = 0.4, 3.0  # a muscle's most, as a share of its length at rest; metres per second
DEFAULTS = {"gravity": 9.81, "friction": 1.0, "effort": 0.005}


class CrawlerState(NamedTuple):
    """State of one area."""

    place: Array  # float32 [7, 2], metres
    velocity: Array  # float32 [7, 2], metres per second
    muscles: Array  # float32 [4], rest lengths now, as actions: 0 at rest
    clock: Array  # int32 [], decisions made
    gravity: Array  # float32 [], metres per second squared
    friction: Array  # float32 []
    effort: Array  # float32 [], cost of a squared action


def make_crawler(episode_limit: int = 200) -> JaxEnv:
    """Make Crawler with episodes of at most `episode_limit` decisions, each a twentieth of a second.

    Parameters: `gravity`, `friction` of the ground, and `effort`, what a squared action costs.

    Raises:
        ValueError: `episode_limit` < 1.
    """
    if episode_limit < 1:
        raise ValueError(f"episode_limit = {episode_limit}: an episode needs at least 1 decision")
    size = 5 * len(AT_REST)
    return JaxEnv(
        name="Crawler",
        spec=BehaviorSpec((vector_sensor(size),), ActionSpec(continuous_size=len(MUSCLES), discrete_branches=())),
        members=1,
        parameters=DEFAULTS,
        reset=_reset,
        step=partial(_step, episode_limit),
        truncates=True,
        draw=draw,
    )


def _reset(key: Array, parameters: EnvParams = DEFAULTS) -> tuple[CrawlerState, TeamView]:
    """Begin an episode: the body stands, each mass up to 0.02 m off. The key is consumed."""
    place = jnp.asarray(AT_REST) + 0.02 * jax.random.uniform(key, AT_REST.shape, minval=-1.0)
    muscles = jnp.zeros(len(MUSCLES), jnp.float32)
    state = CrawlerState(place, jnp.zeros_like(place), muscles, clock=jnp.int32(0), **given(parameters, DEFAULTS))
    return state, _view(state, jnp.bool_(True))


def _step(episode_limit: int, key: Array, state: CrawlerState, actions: TeamActions) -> tuple[CrawlerState, TeamStep]:
    """Advance by one decision: ten physics steps, then reward and end. Nothing is random; the key is not used."""
    goal, before = jnp.clip(actions.continuous[0], -1.0, 1.0), state.place[:, 0].mean()
    state = state._replace(clock=state.clock + 1)
    state = jax.lax.fori_loop(0, PHYSICS_STEPS, lambda _, state: _move(state, goal), state)
    far = state.place[:, 0].mean()
    fallen = (state.place[UPPER, 1] < 0.0).any()
    late = ~fallen & (state.clock >= episode_limit)
    view, reward = _view(state, ~(fallen | late)), far - before - state.effort * jnp.square(goal).sum()
    figures = {"Metres": far, "Fallen": fallen}  # it began at about 0
    return state, team_step(view, reward=reward, terminated=fallen, truncated=late, figures=figures)


def _move(state: CrawlerState, goal: Array) -> CrawlerState:
    """Advance all masses by one physics step."""
    most = FASTEST * SECONDS / (STRETCH * _OF_MUSCLES)
    muscles = state.muscles + jnp.clip(goal - state.muscles, -most, most)
    rest = jnp.concatenate([_LENGTHS[: len(TRUNK)], _OF_MUSCLES * (1.0 + STRETCH * muscles)])
    first, second = _ENDS.T
    apart, drift = state.place[second] - state.place[first], state.velocity[second] - state.velocity[first]
    length = jnp.sqrt(jnp.maximum(jnp.square(apart).sum(-1), 1e-6))
    along = apart / length[:, None]
    pull = STIFFNESS * (length - rest) + DAMPING * (drift * along).sum(-1)
    force = jnp.zeros_like(state.place).at[first].add(pull[:, None] * along).at[second].add(-pull[:, None] * along)
    (speed, rise), height = state.velocity.T, state.place[:, 1]
    normal = jnp.where(height < 0.0, jnp.maximum(-GROUND_STIFFNESS * height - GROUND_DAMPING * rise, 0.0), 0.0)
    ground = jnp.stack([-state.friction * normal * jnp.tanh(speed / SLIP), normal - state.gravity], axis=-1)
    velocity = state.velocity + SECONDS * (force + ground)
    return state._replace(place=state.place + SECONDS * velocity, velocity=velocity, muscles=muscles)


def _view(state: CrawlerState, alive: Array) -> TeamView:
    centre = state.place.mean(0)
    parts = (state.place - centre, centre[1], state.velocity, state.muscles, state.place[FEET, 1] < 0.0)
    obs = jnp.concatenate([jnp.ravel(part).astype(jnp.float32) for part in parts])
    return TeamView(obs=(obs[None],), action_mask=jnp.ones((1, 0), bool), alive=alive[None])


_PICTURE, _GROUND = (8.0, 4.0), 0.8


def draw(state: Any) -> Scene:
    """Draw the body over ground with a mark at every metre, in the middle of the picture."""
    shift = np.array([0.5 * _PICTURE[0] - float(state.place[:, 0].mean()), _GROUND])
    seen = [(float(x), float(y)) for x, y in np.asarray(state.place) + shift]
    first = int(np.floor(-shift[0]))
    marks = [Box((metre + shift[0], 0.6), (0.06, 0.3), "#8a8371") for metre in range(first, first + 10)]
    ground: list[Shape] = [Box((0.5 * _PICTURE[0], 0.5 * _GROUND), (_PICTURE[0], _GROUND), "#c9c2ae"), *marks]
    legs = [Line(seen[a], seen[b], 0.09, "#d1603d") for a, b in MUSCLES]
    trunk = Polygon((seen[0], seen[1], seen[2], seen[4], seen[3]), "#31577f")
    return Scene(size=_PICTURE, shapes=(*ground, *legs, trunk, *(Disc(foot, 0.1, "#5b2c1b") for foot in seen[FEET])))
