"""Soccer Twos: two against two on a small field with walls, a ball and two goals.

After the scene of the same name of ML-Agents, as round bodies in a plane, written for this project. Team 0 defends
the goal at x = -`half_length` and attacks the one at x = +`half_length`; team 1 the other way round.

Rules. Lengths are in units of the field's half width, times in decisions. One decision goes in this order:
1. Actions, three branches of 3 as in the scene: along the way one looks (1 forward, 2 back), sideways (1 left,
   2 right), turn (1 left, 2 right); 0 does nothing. A player turns by `turn` radians. Then its velocity becomes `glide`
   times what it was plus `push` along its own axes, at most `push` in length.
2. Players move. Of each pair that overlaps, both are moved apart by half the overlap. They may step over the lines, by
   `run_off` at most: who cannot be behind a ball at a wall can only press it there, and games end in scrums.
3. Each player that overlaps the ball strikes it, along the line n from its centre to the ball's: the ball is moved out
   of the player, and its speed along n rises to the player's (if that is above 0) plus `kick`, if it is below.
4. The ball's velocity becomes `roll` times what it was, at most `ball_speed` in length, and it moves. Walls on
   the lines, which are for the ball alone, return it with `bounce` of its speed, except through the mouth of a goal.
5. Past the line within the mouth it is a goal: members of the team that attacks it get the group reward
   1 - `time_penalty` t / `episode_limit` after t decisions before this one, the others -1, and all terminate. After
   `episode_limit` decisions without a goal all are truncated, as in the scene: nobody sees the clock.
The environment parameter `time_penalty` is usually 1, as in the scene, where a late goal is worth less to one team than
it costs the other, so that both would rather have none; with 0 a goal is worth what it costs.
A player that strikes the ball gets the reward `ball_touch`, an environment parameter, usually 0. Each member gets the
group reward `ball_forward`, another one, times the way of the ball towards the goal that it attacks, in lengths of the
field: what its opponents lose (Ng et al. 1999, shaping by a potential, here with discount 1).

Observation of each player, one vector of 32 numbers, about [-1, 1]. A field turned by half a turn with the teams
exchanged looks the same: own place (2) and own way (2) are in the team's frame, whose x axis points to the goal that it
attacks; all else is (ahead, left) in the player's own frame. Places are divided by `half_length`, differences of places
by 2 `half_length`, velocities by their largest length. Then: own velocity (2) · to the ball (2), its velocity (2) · to
the middle of the goal that I attack (2), that I defend (2) · for my mate, the opponent with my place in its team and
the other one: to it (2), its velocity (2), its way (2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

MEMBERS = 2
PLAYERS = 4
BRANCHES = (3, 3, 3)
_SIDE = np.array([1.0, 1.0, -1.0, -1.0], np.float32)[:, None]  # [A, 1], towards which end each player attacks
SIGN = np.array([0.0, 1.0, -1.0], np.float32)  # direction of an action, the same in all branches
_OTHERS = np.array([[1, 2, 3], [0, 3, 2], [3, 0, 1], [2, 1, 0]])  # [A, 3], mate, opponent with my place, the other one


class SoccerSettings(NamedTuple):
    """Sizes and constants, fixed when the environment is made."""

    half_length: float = 1.5
    mouth: float = 0.4  # half the width of a goal
    player_radius: float = 0.12
    ball_radius: float = 0.08
    run_off: float = 0.12  # how far beyond the lines the middle of a player may be
    push: float = 0.08  # largest speed of a player, and what one decision adds to it
    glide: float = 0.5
    turn: float = 0.4  # radians
    kick: float = 0.06
    roll: float = 0.95
    bounce: float = 0.8
    ball_speed: float = 0.2
    episode_limit: int = 200  # decisions


DEFAULTS = SoccerSettings()


class SoccerState(NamedTuple):
    """State of one field, seen from above: x to the goal that team 0 attacks, y to the left of one who looks there."""

    position: Array  # float32 [4, 2], team 0 first
    velocity: Array  # float32 [4, 2], per decision
    way: Array  # float32 [4, 2], where each looks, of length 1
    ball: Array  # float32 [2]
    ball_velocity: Array  # float32 [2]
    clock: Array  # int32 [], decisions made
    ball_touch: Array  # float32 [], reward of a player that strikes the ball
    ball_forward: Array | float = 0.0  # float32 [], group reward for a ball that goes the length of the field
    time_penalty: Array | float = 1.0  # float32 [], loss in worth of a goal with the last decision


def make_soccer_twos(settings: SoccerSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment of two teams of two.

    Raises:
        ValueError: the ball does not fit through a goal, or a goal is wider than the field.
    """
    if not settings.ball_radius < settings.mouth < 1.0:
        raise ValueError(f"mouth = {settings.mouth}: must lie between ball_radius = {settings.ball_radius} and 1")
    defaults = {"ball_touch": 0.0, "ball_forward": 0.0, "time_penalty": 1.0}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[SoccerState, TeamView]:
        own_half = jnp.array([[-0.5 * settings.half_length, 0.4], [-0.5 * settings.half_length, -0.4]])
        usual = jnp.tile(own_half, (2, 1)) * _SIDE
        state = kicked_off(key, usual, 0.2, _SIDE, given(parameters, defaults))
        return state, _view(settings, state, jnp.bool_(False))

    def step(key: Array, state: SoccerState, actions: TeamActions) -> tuple[SoccerState, TeamStep]:
        new_state = run_players(settings, state, actions.discrete)
        new_state, struck = play_ball(settings, new_state._replace(clock=new_state.clock + 1))
        return new_state, _judge(settings, new_state, struck, way_forward(settings, state, new_state))

    return JaxEnv(
        name="SoccerTwos",
        spec=BehaviorSpec((vector_sensor(32),), ActionSpec(continuous_size=0, discrete_branches=BRANCHES)),
        members=MEMBERS,
        parameters=defaults,
        reset=reset,
        step=step,
        teams=PLAYERS // MEMBERS,
        truncates=True,
        draw=lambda state: draw_field(settings, state, (BLUE, BLUE, RED, RED), {-1.0: BLUE, 1.0: RED}),
    )


def chase_ball(obs: Array) -> Array:
    """Play by rules: run behind the ball, seen from the goal that the player attacks, and push it there.

    Observations [..., 8 + ...] of this scene, or of a striker's in `strikers_vs_goalie.py` → actions int32 [..., 3].
    """
    ball, goal = obs[..., 6:8], obs[..., 10:12]
    line = (goal - ball) / _length(goal - ball)  # on which it pushes
    behind = jnp.sum(ball * line, axis=-1, keepdims=True) > 0.7 * _length(ball)
    beside = jnp.sum(left_of(line) * ball, axis=-1, keepdims=True) < 0.0
    around = ball - 0.09 * line + 0.06 * jnp.where(beside, 1.0, -1.0) * left_of(line)
    return run_to(jnp.where(behind, ball, around))


def run_to(place: Array) -> Array:
    """Return the actions int32 [..., 3] that bring a player to a place, (ahead, left) [..., 2] as it sees it."""
    sign = jnp.where(jnp.abs(place) > 0.01, jnp.sign(place), 0.0)
    turn = jnp.where(jnp.abs(place[..., 1]) > 0.5 * jnp.abs(place[..., 0]), sign[..., 1], 0.0)
    wanted = jnp.concatenate([sign, turn[..., None]], axis=-1)
    return jnp.where(wanted < 0, 2, wanted).astype(jnp.int32)  # as `SIGN` reads them


def kicked_off(
    key: Array, usual: Array | np.ndarray, spread: float | np.ndarray, side: np.ndarray, parameters: dict[str, Array]
) -> SoccerState:
    """Put the ball near the middle and players near their `usual` places [A, 2], looking to their `side` [A, 1]."""
    draw = jax.random.uniform(key, (len(side) + 1, 3), minval=-1.0)
    angle = 0.5 * draw[1:, 2]
    return SoccerState(
        position=jnp.asarray(usual) + spread * draw[1:, :2],
        velocity=jnp.zeros((len(side), 2), jnp.float32),
        way=jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) * side,
        ball=0.2 * draw[0, :2],
        ball_velocity=jnp.zeros(2, jnp.float32),
        clock=jnp.int32(0),
        **parameters,
    )


def left_of(way: Array) -> Array:
    """Turn [..., 2] by a quarter to the left."""
    return jnp.stack([-way[..., 1], way[..., 0]], axis=-1)


def _length(vector: Array) -> Array:
    """Compute lengths [..., 1] of [..., 2], never 0, so that one can divide by them."""
    return jnp.sqrt(jnp.maximum(jnp.sum(vector * vector, axis=-1, keepdims=True), 1e-12))


def at_most(vector: Array, longest: float) -> Array:
    """Shorten vectors [..., 2] that are longer than `longest`."""
    return vector * jnp.minimum(1.0, longest / _length(vector))


def run_players(settings: SoccerSettings, state: SoccerState, action: Array) -> SoccerState:
    """Turn and move any number A of players (rules 1 and 2); `action` int32 [A, 3]."""
    sign = jnp.asarray(SIGN)[action][..., None]  # [A, 3, 1]
    angle = settings.turn * sign[:, 2]
    way = jnp.cos(angle) * state.way + jnp.sin(angle) * left_of(state.way)
    way = way / _length(way)  # rounding must not add up
    velocity = settings.glide * state.velocity + settings.push * (sign[:, 0] * way + sign[:, 1] * left_of(way))
    velocity = at_most(velocity, settings.push)
    position = state.position + velocity
    apart = position[:, None] - position  # [A, A, 2], from the second to the first
    overlap = jnp.maximum(2.0 * settings.player_radius - _length(apart), 0.0)
    position += jnp.sum(0.5 * overlap * apart / _length(apart), axis=1)
    room = np.array([settings.half_length, 1.0], np.float32) + settings.run_off
    return state._replace(position=jnp.clip(position, -room, room), velocity=velocity, way=way)


def play_ball(settings: SoccerSettings, state: SoccerState, one_goal: bool = False) -> tuple[SoccerState, Array]:
    """Apply rules 3 and 4. Return also who struck the ball, bool [A]. `one_goal`: no goal at x = -`half_length`."""
    gap = state.ball - state.position
    overlap = settings.player_radius + settings.ball_radius - _length(gap)  # [A, 1]
    struck, line = overlap > 0.0, gap / _length(gap)
    speed = jnp.maximum(jnp.sum(state.velocity * line, axis=1, keepdims=True), 0.0) + settings.kick
    rise = jnp.maximum(speed - jnp.sum(state.ball_velocity * line, axis=1, keepdims=True), 0.0)
    velocity = state.ball_velocity + jnp.sum(jnp.where(struck, rise * line, 0.0), axis=0)
    velocity = at_most(settings.roll * velocity, settings.ball_speed)
    ball = state.ball + jnp.sum(jnp.where(struck, overlap * line, 0.0), axis=0) + velocity
    room = np.array([settings.half_length, 1.0], np.float32) - settings.ball_radius
    before_mouth = jnp.abs(ball[1]) < settings.mouth
    before_mouth = before_mouth & (ball[0] > 0.0) if one_goal else before_mouth
    open_line = jnp.stack([before_mouth, jnp.bool_(False)])
    out = (jnp.abs(ball) > room) & ~open_line
    velocity = jnp.where(out, -jnp.sign(ball) * settings.bounce * jnp.abs(velocity), velocity)
    ball = jnp.where(out, jnp.clip(ball, -room, room), ball)
    return state._replace(ball=ball, ball_velocity=velocity), struck[:, 0]


def way_forward(settings: SoccerSettings, before: SoccerState, after: SoccerState) -> Array:
    """Compute the reward for the ball's way to +x, float32 []."""
    return after.ball_forward * (after.ball[0] - before.ball[0]) / (2.0 * settings.half_length)


def _judge(settings: SoccerSettings, state: SoccerState, struck: Array, forward: Array) -> TeamStep:
    """Decide rewards and ends (rule 5)."""
    goal = jnp.abs(state.ball[0]) > settings.half_length  # elsewhere than in a mouth the wall held it
    attacker = _SIDE[:, 0] == jnp.sign(state.ball[0])
    late = (state.clock >= settings.episode_limit) & ~goal
    waited = (state.clock - 1) / settings.episode_limit  # below 1: the last goal pays something, or it were a draw
    prize = jnp.where(attacker, 1.0 - state.time_penalty * waited, -1.0)
    figures = {"Goal": goal, "Goal Of Team 0": goal & attacker[0], "Length": state.clock}
    return team_step(
        _view(settings, state, goal | late),
        reward=jnp.where(struck, state.ball_touch, 0.0),
        group_reward=jnp.where(goal, prize, 0.0) + _SIDE[:, 0] * forward,
        terminated=goal,
        truncated=late,
        figures=figures,
    )


def _view(settings: SoccerSettings, state: SoccerState, over: Array) -> TeamView:
    """Compute observation, action mask and the living; the layout of the observation is in the module's docstring."""
    goal = np.array([settings.half_length, 0.0], np.float32) * _SIDE  # [4, 2], the one that I attack
    obs = seen_by_players(settings, state, _SIDE, (goal, -goal), _OTHERS)
    everything = jnp.ones((PLAYERS, sum(BRANCHES)), bool)
    return TeamView(obs=(obs,), action_mask=everything, alive=jnp.full(PLAYERS, ~over))


def seen_by_players(
    settings: SoccerSettings, state: SoccerState, side: np.ndarray, goals: Sequence[np.ndarray], others: np.ndarray
) -> Array:
    """Compute observations float32 [A, 8 + 2 + 2 * goals + 6 * others], laid out as in the module's docstring.

    Args:
      side: float32 [A, 1], 1 where a player attacks towards +x, else -1.
      goals: float32 [A, 2] each, of which players see where they are.
      others: int [A, O], players that each sees, in order.
    """
    players, span, other = len(side), 2.0 * settings.half_length, state.position[others]  # [A, O, 2]
    ball_velocity = jnp.broadcast_to(state.ball_velocity / settings.ball_speed, (players, 2))
    mine = [state.velocity / settings.push, (state.ball - state.position) / span, ball_velocity]
    mine += [(end - state.position) / span for end in goals]
    them = [(other - state.position[:, None]) / span, state.velocity[others] / settings.push, state.way[others]]
    around = jnp.stack(them, axis=2).reshape(players, 3 * others.shape[1], 2)
    vector = jnp.concatenate([jnp.stack(mine, axis=1), around], axis=1)
    frame = jnp.stack([state.way, left_of(state.way)], axis=1)  # [A, 2, 2], ahead and left
    own_frame = jnp.sum(vector[:, :, None] * frame[:, None], axis=-1).reshape(players, -1)
    obs = jnp.concatenate([state.position * side / settings.half_length, state.way * side, own_frame], axis=1)
    return obs.astype(jnp.float32)


BLUE, RED = "#3a6ea5", "#c1440e"


def draw_field(
    settings: SoccerSettings,
    state: SoccerState,
    colours: Sequence[str],
    goals: Mapping[float, str],
    areas: Sequence[tuple[float, float, float, float]] = (),
) -> Scene:
    """Draw the field with a strip around it, the goals behind the lines, players with their direction, and the ball.

    `goals`: the side of each goal, 1 for +x or -1, and the colour of the team that defends it.
    `areas`: parts of the field that are marked, x and y of the middle and both lengths.
    """
    strip, length = max(0.2, settings.run_off + settings.player_radius), settings.half_length
    middle = np.array([length, 1.0]) + strip

    def point(place: Array | np.ndarray) -> tuple[float, float]:
        x, y = np.asarray(place) + middle
        return float(x), float(y)

    shapes: list[Shape] = [Box(point(np.zeros(2)), (2 * length, 2.0), "#7fb069")]
    shapes += [Box(point(np.array([x, y])), (width, height), "#91c483") for x, y, width, height in areas]
    for side, colour in goals.items():
        shapes.append(Box(point(np.array([side * (length + strip / 2), 0.0])), (strip, 2 * settings.mouth), colour))
    shapes.append(Line(point(np.array([0.0, -1.0])), point(np.array([0.0, 1.0])), 0.02, "#ffffff"))
    for place, way, colour in zip(state.position, state.way, colours, strict=True):
        shapes.append(Disc(point(place), settings.player_radius, colour))
        shapes.append(Line(point(place), point(place + settings.player_radius * way), 0.03, "#ffffff"))
    shapes.append(Disc(point(state.ball), settings.ball_radius, "#ffffff"))
    return Scene((2 * (length + strip), 2 * (1.0 + strip)), tuple(shapes))
