"""Pong: two paddles, a ball that gets faster, and one continuous action; a small game for self-play.

Written for this project, after the table game; Tennis of ML-Agents is played likewise. Team 0 keeps the line at
x = -1 and plays towards +x, team 1 the other way round; each team is one paddle, which moves along its line.

Rules. Lengths are in units of half the table's length, times in decisions. One decision goes in this order:
1. A paddle moves by its action, clipped to [-1, 1], times `pace`. Walls at y = ±`half_width` hold it in.
2. The ball moves by its velocity. Walls return it.
3. A ball that has passed a line is struck if its centre is at most `reach` from that paddle's: it is put back on the
   line, its speed grows by the factor `faster`, to `ball_speed` at most, and it leaves towards the other line at the
   angle `steepest` times where it was struck: straight on in the middle of a paddle, steep at its ends.
4. Else its paddle has missed: the other team gets the reward 1, this one -1, both terminate. After `episode_limit`
   decisions without a miss both are truncated.
A paddle that strikes the ball gets the reward `ball_touch`, an environment parameter, usually 0.

Observation, one vector of 7 numbers, about [-1, 1], in the team's own frame, whose x axis points to the other line (a
table turned by half a turn with the teams exchanged looks the same): place of my paddle, of the ball (2), its velocity
(2), place of the other paddle, and the ball's speed. Places along a line are divided by `half_width`, velocities by
`ball_speed`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

TEAMS = 2
_SIDE = np.array([1.0, -1.0], np.float32)  # [A], towards which end each plays


class PongSettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made."""

    half_width: float = 0.6
    reach: float = 0.15  # half the length of a paddle, with the ball
    pace: float = 0.05  # of a paddle, largest
    serve: float = 0.06  # speed of the ball at first
    faster: float = 1.15
    ball_speed: float = 0.15  # largest
    steepest: float = 1.0  # radians
    episode_limit: int = 200  # decisions


DEFAULTS = PongSettings()


class PongState(NamedTuple):
    """State of one table, seen from above: x to the line of team 1."""

    paddle: Array  # float32 [2], y of each
    ball: Array  # float32 [2]
    velocity: Array  # float32 [2], of the ball, per decision
    hits: Array  # int32 [], in this episode
    clock: Array  # int32 [], decisions made
    ball_touch: Array  # float32 [], reward of a paddle that strikes the ball


def make_pong(settings: PongSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment of two teams of one.

    Raises:
        ValueError: a paddle is longer than its line, or the ball is served faster than it may become.
    """
    if not 0.0 < settings.reach < settings.half_width:
        raise ValueError(f"reach = {settings.reach}: must lie between 0 and half_width = {settings.half_width}")
    if not 0.0 < settings.serve <= settings.ball_speed:
        raise ValueError(f"serve = {settings.serve}: must lie between 0 and ball_speed = {settings.ball_speed}")
    defaults = {"ball_touch": 0.0}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[PongState, TeamView]:
        state = _serve(settings, key, **given(parameters, defaults))
        return state, _view(settings, state, jnp.bool_(False))

    def step(key: Array, state: PongState, actions: TeamActions) -> tuple[PongState, TeamStep]:
        state, struck = _play(settings, state, actions.continuous[:, 0])
        return state, _judge(settings, state, struck)

    return JaxEnv(
        name="Pong",
        spec=BehaviorSpec((vector_sensor(7),), ActionSpec(continuous_size=1, discrete_branches=())),
        members=1,
        parameters=defaults,
        reset=reset,
        step=step,
        teams=TEAMS,
        truncates=True,
        draw=lambda state: _draw(settings, state),
    )


def follow_ball(obs: Array) -> Array:
    """Return actions [..., 1] of a scripted player that follows the ball at full speed, from observations [..., 7]."""
    return jnp.clip(20.0 * (obs[..., 2:3] - obs[..., 0:1]), -1.0, 1.0)


def _serve(settings: PongSettings, key: Array, ball_touch: Array) -> PongState:
    """Begin an episode: the ball leaves the middle towards one of the lines."""
    side_key, angle_key, paddle_key = jax.random.split(key, 3)
    side = jnp.where(jax.random.bernoulli(side_key), 1.0, -1.0)
    angle = 0.6 * settings.steepest * jax.random.uniform(angle_key, minval=-1.0)
    room = settings.half_width - settings.reach
    return PongState(
        paddle=room * jax.random.uniform(paddle_key, (TEAMS,), minval=-1.0),
        ball=jnp.zeros(2, jnp.float32),
        velocity=settings.serve * jnp.stack([side * jnp.cos(angle), jnp.sin(angle)]),
        hits=jnp.int32(0),
        clock=jnp.int32(0),
        ball_touch=ball_touch,
    )


def _play(settings: PongSettings, state: PongState, action: Array) -> tuple[PongState, Array]:
    """Apply rules 1 to 3; `action` float32 [2], in each team's own frame. Return also who struck the ball, bool [2]."""
    room = settings.half_width - settings.reach
    paddle = jnp.clip(state.paddle + settings.pace * _SIDE * jnp.clip(action, -1.0, 1.0), -room, room)
    ball, velocity = state.ball + state.velocity, state.velocity
    beyond = jnp.abs(ball[1]) > settings.half_width
    ball = ball.at[1].set(jnp.where(beyond, 2.0 * settings.half_width * jnp.sign(ball[1]) - ball[1], ball[1]))
    velocity = velocity.at[1].set(jnp.where(beyond, -velocity[1], velocity[1]))
    keeps = jnp.asarray(_SIDE) * ball[0] < -1.0  # [2], whose line it has passed
    offset = (ball[1] - paddle) / settings.reach
    struck = keeps & (jnp.abs(offset) <= 1.0)
    angle = settings.steepest * jnp.sum(jnp.where(struck, offset, 0.0))
    speed = jnp.minimum(settings.faster * jnp.linalg.norm(velocity), settings.ball_speed)
    away = -jnp.sign(ball[0])
    hit = struck.any()
    velocity = jnp.where(hit, speed * jnp.stack([away * jnp.cos(angle), jnp.sin(angle)]), velocity)
    ball = ball.at[0].set(jnp.where(hit, jnp.sign(ball[0]), ball[0]))
    hits, clock = state.hits + hit, state.clock + 1
    return state._replace(paddle=paddle, ball=ball, velocity=velocity, hits=hits, clock=clock), struck


def _judge(settings: PongSettings, state: PongState, struck: Array) -> TeamStep:
    """Decide rewards and ends (rule 4)."""
    missed = jnp.abs(state.ball[0]) > 1.0  # a struck ball lies on the line
    won = jnp.sign(state.ball[0]) == _SIDE  # the ball is behind the other's line
    late = (state.clock >= settings.episode_limit) & ~missed
    reward = jnp.where(missed, jnp.where(won, 1.0, -1.0), 0.0) + jnp.where(struck, state.ball_touch, 0.0)
    figures = {"Missed": missed, "Won By Team 0": missed & won[0], "Hits": state.hits, "Length": state.clock}
    view = _view(settings, state, missed | late)
    return team_step(view, reward=reward, terminated=missed, truncated=late, figures=figures)


def _view(settings: PongSettings, state: PongState, over: Array) -> TeamView:
    """Compute observations and the living; the layout of the observation is in the module's docstring."""
    wide = np.array([1.0, settings.half_width], np.float32)
    places = _SIDE[:, None] * (state.ball / wide)  # [2, 2]
    velocity = _SIDE[:, None] * state.velocity / settings.ball_speed
    mine = _SIDE * state.paddle / settings.half_width
    other = _SIDE * state.paddle[::-1] / settings.half_width
    speed = jnp.full(TEAMS, jnp.linalg.norm(state.velocity) / settings.ball_speed)
    columns = [mine, places[:, 0], places[:, 1], velocity[:, 0], velocity[:, 1], other, speed]
    obs = jnp.stack(columns, axis=1).astype(jnp.float32)
    return TeamView(obs=(obs,), action_mask=jnp.ones((TEAMS, 0), bool), alive=jnp.full(TEAMS, ~over))


def _draw(settings: PongSettings, state: PongState) -> Scene:
    """Draw the table, both paddles and the ball."""
    strip, wide = 0.1, settings.half_width
    shapes: list[Shape] = [Box((1.0 + strip, wide), (2.0, 2 * wide), "#1d3557")]
    for side, colour, y in zip((-1.0, 1.0), ("#3a6ea5", "#c1440e"), state.paddle, strict=True):
        place = (1.0 + strip + side * (1.0 + strip / 4), float(y) + wide)
        shapes.append(Box(place, (strip / 2, 2 * settings.reach), colour))
    shapes.append(Disc((float(state.ball[0]) + 1.0 + strip, float(state.ball[1]) + wide), 0.03, "#ffffff"))
    return Scene((2 * (1.0 + strip), 2 * wide), tuple(shapes))
