"""3D Ball: a plate that turns about two axes keeps a ball from falling off.

After the example scene "3D Ball" of ML-Agents, with a small physics of its own in place of Unity's.

Rules. The plate is a square of side 5 around the origin, y points up. A decision sets how fast it turns for 5 physics
steps of 0.02 s: action 0 about the z axis, action 1 about the x axis, 1 meaning +2 degrees a physics step. The sine of
half of each angle stays within 0.25 (29 degrees). Each decision that leaves the ball in play earns 0.1. If the ball is
more than 3 from the centre along x or z, or 2 below it, it has fallen: -1 and the episode terminates. After
`episode_limit` decisions the episode is truncated. A perfect episode earns 100, as ML-Agents' documentation gives it.

Physics. The ball is a solid sphere of radius r that falls freely, v' = g, or rolls on the plate without slipping: with
friction f, m a = m g_t - f and f r = (2/5) m r^2 (a / r) leave it a = (5/7) g_t of gravity along the plate.
Semi-implicit Euler steps. It lands without bouncing. The plate pushes a ball that it meets out of itself, but its
turning alone gives the ball no speed (as a Unity object that is moved through its transform).

Observation, one vector of 8, in metres and seconds: sine of half the plate's angle about z, about x · the ball's place
(3) and velocity (3).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from jaxrl.jax_envs.drawing import Box, Disc, Point, Polygon, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

HALF_PLATE = 2.5
MOST_TILT = 2.0 * math.asin(0.25)  # radians
TURN = math.radians(2.0)  # per physics step and unit of action
PHYSICS_STEPS = 5  # per decision
SECONDS = 0.02  # per physics step
ROLLING = 5.0 / 7.0
AWAY, BELOW = 3.0, -2.0  # the ball has fallen beyond these
KEPT_REWARD, FALLEN_REWARD = 0.1, -1.0
DEFAULTS = {"scale": 1.0, "gravity": 9.81}  # the ball's diameter in metres; metres per second squared


class BallState(NamedTuple):
    """State of one area. Vectors are (x, y, z) in metres."""

    tilt: Array  # float32 [2], radians about z and about x
    place: Array  # float32 [3], the ball's centre
    velocity: Array  # float32 [3], metres per second
    clock: Array  # int32 [], decisions made
    radius: Array  # float32 [], of the ball
    gravity: Array  # float32 [], metres per second squared, downwards


def make_ball3d(episode_limit: int = 1000) -> JaxEnv:
    """Make 3D Ball with episodes of at most `episode_limit` decisions.

    Parameters: `scale`, the ball's diameter in metres (ML-Agents randomises it from 0.75 to 3), and `gravity`.

    Raises:
        ValueError: `episode_limit` < 1.
    """
    if episode_limit < 1:
        raise ValueError(f"episode_limit = {episode_limit}: an episode needs at least 1 decision")
    return JaxEnv(
        name="3DBall",
        spec=BehaviorSpec((vector_sensor(8),), ActionSpec(continuous_size=2, discrete_branches=())),
        members=1,
        parameters=DEFAULTS,
        reset=_reset,
        step=partial(_step, episode_limit),
        truncates=True,
        draw=draw,
    )


def _reset(key: Array, parameters: EnvParams = DEFAULTS) -> tuple[BallState, TeamView]:
    """Tilt the plate by up to 10 degrees, the ball 4 above it, up to 1.5 off the middle. The key is consumed."""
    scale, gravity = given(parameters, DEFAULTS).values()
    chance = jax.random.uniform(key, (4,), minval=-1.0)
    place = jnp.stack([1.5 * chance[2], jnp.float32(4.0), 1.5 * chance[3]])
    state = BallState(
        tilt=math.radians(10.0) * chance[:2],
        place=place,
        velocity=jnp.zeros(3, jnp.float32),
        clock=jnp.int32(0),
        radius=0.5 * scale,
        gravity=gravity,
    )
    return state, _view(state, jnp.bool_(True))


def _step(episode_limit: int, key: Array, state: BallState, actions: TeamActions) -> tuple[BallState, TeamStep]:
    """Advance by one decision: five physics steps, then reward and end. Nothing is random; the key is not used."""
    turn = TURN * jnp.clip(actions.continuous[0], -1.0, 1.0)
    state = state._replace(clock=state.clock + 1)

    def physics(_: Array, state: BallState) -> BallState:
        return _move(state._replace(tilt=jnp.clip(state.tilt + turn, -MOST_TILT, MOST_TILT)))

    state = jax.lax.fori_loop(0, PHYSICS_STEPS, physics, state)
    x, y, z = state.place
    fallen = (jnp.abs(x) > AWAY) | (jnp.abs(z) > AWAY) | (y < BELOW)
    late = ~fallen & (state.clock >= episode_limit)
    view, reward = _view(state, ~(fallen | late)), jnp.where(fallen, FALLEN_REWARD, KEPT_REWARD)
    return state, team_step(view, reward=reward, terminated=fallen, truncated=late, figures={"Ball Kept": late})


def _frame(tilt: Array) -> tuple[Array, Array, Array]:
    """Compute the plate's own x axis, normal and z axis, each [3]: first turned about x, then about z."""
    (sin_z, sin_x), (cos_z, cos_x) = jnp.sin(tilt), jnp.cos(tilt)
    right = jnp.stack([cos_z, sin_z, jnp.zeros_like(cos_z)])
    normal = jnp.stack([-sin_z * cos_x, cos_z * cos_x, sin_x])
    forward = jnp.stack([sin_z * sin_x, -cos_z * sin_x, cos_x])
    return right, normal, forward


def _move(state: BallState) -> BallState:
    """Advance the ball by one physics step over the plate as it stands."""
    right, normal, forward = _frame(state.tilt)
    over_plate = (jnp.abs(state.place @ right) <= HALF_PLATE) & (jnp.abs(state.place @ forward) <= HALF_PLATE)
    depth = state.radius - state.place @ normal  # how far the ball is inside the plate
    touches = over_plate & (depth >= 0.0) & (depth <= 2.0 * state.radius)
    place = state.place + jnp.where(touches, depth, 0.0) * normal
    down = jnp.stack([jnp.zeros_like(state.gravity), -state.gravity, jnp.zeros_like(state.gravity)])
    along = down - (down @ normal) * normal
    velocity = state.velocity + SECONDS * jnp.where(touches, ROLLING * along, down)
    inwards = jnp.minimum(velocity @ normal, 0.0)
    velocity = velocity - jnp.where(touches, inwards, 0.0) * normal
    return state._replace(place=place + SECONDS * velocity, velocity=velocity)


def _view(state: BallState, alive: Array) -> TeamView:
    obs = jnp.concatenate([jnp.sin(0.5 * state.tilt), state.place, state.velocity])
    return TeamView(obs=(obs[None].astype(jnp.float32),), action_mask=jnp.ones((1, 0), bool), alive=alive[None])


_AROUND, _ABOVE = math.radians(30.0), math.radians(35.0)  # where the viewer stands
_TO_RIGHT = np.array([math.cos(_AROUND), 0.0, -math.sin(_AROUND)])
_TO_VIEWER = np.array([-math.sin(_AROUND) * math.cos(_ABOVE), math.sin(_ABOVE), -math.cos(_AROUND) * math.cos(_ABOVE)])
_TO_TOP = np.array([math.sin(_AROUND) * math.sin(_ABOVE), math.cos(_ABOVE), math.cos(_AROUND) * math.sin(_ABOVE)])
_PICTURE, _MIDDLE = (8.6, 8.4), (4.3, 3.7)
_THICKNESS = 0.4


def draw(state: Any) -> Scene:
    """Draw the plate, the ball and its shadow, seen from above and aside; `state` is a `BallState` of numpy arrays."""
    right, normal, forward = (np.asarray(axis) for axis in _frame(jnp.asarray(state.tilt)))
    place, radius = np.asarray(state.place), float(state.radius)
    plate = [*_faces(right, normal, forward), *_shadow(place, radius, right, normal, forward)]
    middle = _seen(place)
    shine = (middle[0] - 0.3 * radius, middle[1] + 0.3 * radius)
    ball = [Disc(middle, radius, "#d1603d"), Disc(shine, 0.3 * radius, "#e58e6f")]
    post = Box((_MIDDLE[0], _MIDDLE[1] - 2.2), (0.6, 4.0), "#a8a293")
    before = place @ normal > 0.0 or place @ _TO_VIEWER > 0.0
    shapes = (post, *plate, *ball) if before else (*ball, post, *plate)
    return Scene(size=_PICTURE, shapes=shapes)


def _seen(point: ArrayLike) -> Point:
    """Project a point [3] onto the picture, without perspective."""
    point = np.asarray(point)
    return float(point @ _TO_RIGHT) + _MIDDLE[0], float(point @ _TO_TOP) + _MIDDLE[1]


def _faces(right: np.ndarray, normal: np.ndarray, forward: np.ndarray) -> list[Shape]:
    """Draw the faces of the plate, a box under its surface, that look at the viewer; no two of them overlap."""
    shapes: list[Shape] = []
    middle = -0.5 * _THICKNESS * normal
    half = {"right": HALF_PLATE * right, "normal": 0.5 * _THICKNESS * normal, "forward": HALF_PLATE * forward}
    for axis, colour in (("right", "#31577f"), ("normal", "#6f9bc8"), ("forward", "#264767")):
        along, across = (edge for name, edge in half.items() if name != axis)
        outwards = half[axis] if half[axis] @ _TO_VIEWER > 0.0 else -half[axis]
        corners = (along + across, along - across, -along - across, across - along)
        shapes.append(Polygon(tuple(_seen(middle + outwards + corner) for corner in corners), colour))
    return shapes


def _shadow(
    place: np.ndarray, radius: float, right: np.ndarray, normal: np.ndarray, forward: np.ndarray
) -> list[Shape]:
    """Draw a disc straight below the ball, if that point is on the plate."""
    foot = place - np.array([0.0, place @ normal / normal[1], 0.0])
    reach = HALF_PLATE - 0.8 * radius
    if place @ normal < 0.0 or normal @ _TO_VIEWER < 0.0 or max(abs(foot @ right), abs(foot @ forward)) > reach:
        return []
    angles = np.linspace(0.0, 2.0 * math.pi, 24, endpoint=False)
    rim = (foot + 0.8 * radius * (math.cos(angle) * right + math.sin(angle) * forward) for angle in angles)
    return [Polygon(tuple(map(_seen, rim)), "#4f7dab")]
