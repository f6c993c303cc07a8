"""Strikers vs Goalie: two who attack a goal, one who keeps it; two behaviors that play by different rules.

After the scene of the same name of ML-Agents, with the field and the bodies of `soccer_twos.py`, whose rules 1 to 4
hold. Behaviors: Striker, a team of two; Goalie, a team of one. The only goal is at x = +`half_length`, `mouth` is 0.5;
the other line is a wall. The goalie stays in its area, x >= `half_length` - `AREA[0]` and |y| <= `AREA[1]`, and stops
at its edge.

Rule 5. Past the line within the mouth it is a goal: strikers get the group reward 1, the goalie -1. After
`episode_limit` decisions without one the goalie has held: it gets 1, the strikers -1. Everybody terminates. (In the
scene of ML-Agents that game is interrupted: nobody has won it, so that no rating knows of a goalie that holds.)
Before, each decision costs a striker 1 / `episode_limit` of its own and gives the goalie as much, as in the scene. A
striker that strikes the ball gets the reward `ball_touch`, an environment parameter, usually 0; strikers get the group
reward `ball_forward`, another one, for a ball that goes the length of the field, and the goalie the opposite.

Observation of each player, one vector of 24 numbers as in `soccer_twos.py`, with one goal and two others: own place and
way from the strikers' side (a goalie: from its own), own velocity, to the ball, its velocity, to the middle of the
goal; for a striker its mate and the goalie, for the goalie both strikers: to it, its velocity, its way.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView, given, vector_sensor
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.jax_envs.soccer_twos import (
    BLUE,
    BRANCHES,
    DEFAULTS,
    RED,
    SoccerSettings,
    SoccerState,
    chase_ball,
    draw_field,
    kicked_off,
    play_ball,
    run_players,
    run_to,
    seen_by_players,
    way_forward,
)
from jaxrl.types import ActionSpec, BehaviorSpec

STRIKERS, GOALIES = 2, 1
PLAYERS = STRIKERS + GOALIES
USUAL = DEFAULTS._replace(mouth=0.5)
AREA = (0.5, 0.6)
"""Depth and half the width of the goalie's area."""
_SIDE = np.array([1.0, 1.0, -1.0], np.float32)[:, None]  # [A, 1], towards which end each player looks at first
_SPREAD = np.array([0.2, 0.2, 0.1], np.float32)[:, None]  # [A, 1], how far from its usual place a player begins
_OTHERS = np.array([[1, 2], [0, 2], [0, 1]])  # [A, 2]
_SIZES = {"Striker": slice(0, STRIKERS), "Goalie": slice(STRIKERS, PLAYERS)}
_SPEC = BehaviorSpec((vector_sensor(24),), ActionSpec(continuous_size=0, discrete_branches=BRANCHES))


def make_strikers_vs_goalie(settings: SoccerSettings = USUAL) -> JaxScene:
    """Bind `settings` into a scene of two behaviors.

    Raises:
        ValueError: the ball does not fit through the goal, or it is wider than the field.
    """
    if not settings.ball_radius < settings.mouth < 1.0:
        raise ValueError(f"mouth = {settings.mouth}: must lie between ball_radius = {settings.ball_radius} and 1")
    defaults = {"ball_touch": 0.0, "ball_forward": 0.0}
    length = settings.half_length
    usual = np.array([[-0.5 * length, 0.4], [-0.5 * length, -0.4], [0.8 * length, 0.0]], np.float32)
    area = (length - 0.5 * AREA[0], 0.0, AREA[0], 2.0 * AREA[1])

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[SoccerState, dict[str, TeamView]]:
        state = kicked_off(key, usual, _SPREAD, _SIDE, given(parameters, defaults))
        return state, _views(settings, state, jnp.bool_(False))

    def step(key: Array, state: SoccerState, actions: dict[str, TeamActions]) -> tuple[SoccerState, SceneStep]:
        action = jnp.concatenate([actions[name].discrete for name in _SIZES])
        new_state = _stay_home(settings, run_players(settings, state, action))
        new_state, struck = play_ball(settings, new_state._replace(clock=new_state.clock + 1), one_goal=True)
        return new_state, _judge(settings, new_state, struck, way_forward(settings, state, new_state))

    return JaxScene(
        name="StrikersVsGoalie",
        parts=tuple(
            BehaviorPart(name, _SPEC, rows.stop - rows.start, first_team=team)
            for team, (name, rows) in enumerate(_SIZES.items())
        ),
        parameters=defaults,
        reset=reset,
        step=step,
        draw=lambda state: draw_field(settings, state, (BLUE, BLUE, RED), {1.0: RED}, [area]),
    )


def keep_goal(obs: Array) -> Array:
    """Play a goalie by rules: stand before the middle of its goal, on the line to the ball.

    Observations [..., 24] → actions int32 [..., 3].
    """
    ball, goal = obs[..., 6:8], obs[..., 10:12]
    way = ball - goal
    reach = jnp.linalg.norm(way, axis=-1, keepdims=True)
    return run_to(goal + way * jnp.minimum(1.0, 0.1 / jnp.maximum(reach, 1e-6)))


SCRIPTED = {"Striker": chase_ball, "Goalie": keep_goal}
"""Scripted players by behavior."""


def _stay_home(settings: SoccerSettings, state: SoccerState) -> SoccerState:
    """Hold the goalie in its area, even when it is pushed; its velocity across the edge is lost."""
    low = jnp.array([settings.half_length - AREA[0], -AREA[1]])
    high = jnp.array([settings.half_length + settings.run_off, AREA[1]])
    position = jnp.clip(state.position[STRIKERS:], low, high)
    velocity = jnp.where(position == state.position[STRIKERS:], state.velocity[STRIKERS:], 0.0)
    return state._replace(
        position=state.position.at[STRIKERS:].set(position), velocity=state.velocity.at[STRIKERS:].set(velocity)
    )


def _judge(settings: SoccerSettings, state: SoccerState, struck: Array, forward: Array) -> SceneStep:
    """Decide rewards and ends (rule 5)."""
    goal = state.ball[0] > settings.half_length  # elsewhere than in the mouth the wall held it
    held = (state.clock >= settings.episode_limit) & ~goal
    over, side = goal | held, jnp.asarray(_SIDE[:, 0])
    prize = (jnp.where(goal, side, jnp.where(held, -side, 0.0)) + side * forward).astype(jnp.float32)
    reward = -side / settings.episode_limit + jnp.where(struck & (side > 0), state.ball_touch, 0.0)
    views, steps = _views(settings, state, over), {}
    for name, rows in _SIZES.items():
        members = rows.stop - rows.start
        ended, cut = jnp.full(members, over), jnp.zeros(members, bool)
        steps[name] = BehaviorStep(views[name], reward[rows].astype(jnp.float32), prize[rows], ended, cut)
    figures = {"Goal": goal, "Length": state.clock}
    stats = {f"Environment/{name}": value.astype(jnp.float32) for name, value in figures.items()}
    return SceneStep(steps, over, stats)


def _views(settings: SoccerSettings, state: SoccerState, over: Array) -> dict[str, TeamView]:
    """Compute views by behavior; the layout of the observation is in the module's docstring."""
    goal = np.full((PLAYERS, 2), [settings.half_length, 0.0], np.float32)
    obs = seen_by_players(settings, state, _SIDE, (goal,), _OTHERS)
    everything = jnp.ones((PLAYERS, sum(BRANCHES)), bool)
    alive = jnp.full(PLAYERS, ~over)
    return {name: TeamView((obs[rows],), everything[rows], alive[rows]) for name, rows in _SIZES.items()}
