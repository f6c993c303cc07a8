"""Strikers vs Goalie: what differs from Soccer Twos, whose physics it plays with: one goal, who is paid what, views."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.drawing import Box, Disc
from jaxrl.jax_envs.interface import TeamActions
from jaxrl.jax_envs.scene import SceneStep
from jaxrl.jax_envs.soccer_twos import SoccerState
from jaxrl.jax_envs.strikers_vs_goalie import make_strikers_vs_goalie

ENV = make_strikers_vs_goalie()
FORWARD = (1, 0, 0)


def test_a_player_serves_its_behaviors_as_two_teams() -> None:
    """Else self-play in the host loop would find nobody to play against."""
    assert {part.name: part.first_team for part in ENV.parts} == {"Striker": 0, "Goalie": 1}


def place(**changes) -> SoccerState:
    state = SoccerState(
        position=jnp.array([[-1.0, 0.5], [-1.0, -0.5], [1.2, 0.0]]), velocity=jnp.zeros((3, 2)),
        way=jnp.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), ball=jnp.zeros(2), ball_velocity=jnp.zeros(2),
        clock=jnp.int32(0), ball_touch=jnp.float32(0.25),
    )  # fmt: skip
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


compiled = jax.jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))


def act(state: SoccerState, *actions: tuple[int, int, int]) -> tuple[SoccerState, SceneStep]:
    """Those whose action is not given rest; the goalie is the last."""
    sent = jnp.array([*actions, *[(0, 0, 0)] * (3 - len(actions))], jnp.int32)
    by_name = {"Striker": sent[:2], "Goalie": sent[2:]}
    return compiled(state, {name: TeamActions(jnp.zeros((len(x), 0)), x) for name, x in by_name.items()})


def test_everybody_runs_and_time_is_the_goalies_friend():
    check_jax_env(ENV)
    state, step = act(place(), FORWARD, FORWARD, FORWARD)
    np.testing.assert_allclose(state.position, [[-0.92, 0.5], [-0.92, -0.5], [1.12, 0.0]], atol=1e-6)
    strikers, goalie = step.behaviors["Striker"], step.behaviors["Goalie"]
    np.testing.assert_allclose(strikers.reward, [-0.005] * 2)  # 1 / 200
    np.testing.assert_allclose(goalie.reward, [0.005])
    assert not step.over and not strikers.group_reward.any() and strikers.view.alive.all()
    _, step = act(place(position=[[-0.1, 0.0], [-1.0, -0.5], [1.2, 0.0]]))
    np.testing.assert_allclose(step.behaviors["Striker"].reward, [0.245, -0.005], atol=1e-6)


def test_a_goal_and_a_game_that_was_held():
    _, step = act(place(ball=[1.45, 0.3], ball_velocity=[0.1, 0.0], clock=199))
    assert step.over and step.behaviors["Striker"].group_reward.tolist() == [1.0, 1.0]
    assert step.behaviors["Goalie"].group_reward.tolist() == [-1.0] and step.stats["Environment/Goal"] == 1
    _, step = act(place(clock=199))
    assert step.over and step.behaviors["Striker"].group_reward.tolist() == [-1.0, -1.0]
    assert step.behaviors["Goalie"].group_reward.tolist() == [1.0] and step.stats["Environment/Goal"] == 0
    for part in step.behaviors.values():
        assert part.terminated.all() and not part.truncated.any() and not part.view.alive.any()


def test_the_other_line_is_a_wall():
    state, step = act(place(ball=[-1.4, 0.1], ball_velocity=[-0.1, 0.0]))
    np.testing.assert_allclose(state.ball_velocity, [0.076, 0.0], atol=1e-6)  # 0.8 * 0.95 * 0.1
    np.testing.assert_allclose(state.ball, [-1.42, 0.1], atol=1e-6)
    assert not step.over


def test_observations_by_hand():
    views = act(place())[1].view
    striker = [
        *(-1 / 1.5, 0.5 / 1.5, 1, 0, 0, 0),  # place, way, velocity
        *(1 / 3, -0.5 / 3, 0, 0, 2.5 / 3, -0.5 / 3),  # ball, its velocity, the goal
        *(0, -1 / 3, 0, 0, 1, 0),  # the mate, to my right
        *(2.2 / 3, -0.5 / 3, 0, 0, -1, 0),  # the goalie
    ]
    goalie = [
        *(-1.2 / 1.5, 0, 1, 0, 0, 0),
        *(1.2 / 3, 0, 0, 0, -0.3 / 3, 0),  # the goal is behind it
        *(2.2 / 3, -0.5 / 3, 0, 0, -1, 0, 2.2 / 3, 0.5 / 3, 0, 0, -1, 0),  # strikers at +y are to its right
    ]
    np.testing.assert_allclose(views["Striker"].obs[0][0], striker, atol=1e-6)
    np.testing.assert_allclose(views["Goalie"].obs[0][0], goalie, atol=1e-6)


def test_the_goalie_stays_in_its_area():
    """1.0 to 1.62 and 0.6 to both sides; who runs against its edge stands there, also one that is pushed."""
    goalie = [[-1.0, 0.5], [-1.0, -0.5], [1.05, 0.55]]
    state, _ = act(place(position=goalie), (0, 0, 0), (0, 0, 0), (1, 2, 0))  # forward is -x, its right is +y
    np.testing.assert_allclose(state.position[2], [1.0, 0.6], atol=1e-6)
    np.testing.assert_allclose(state.velocity[2], 0.0)
    state, _ = act(place(position=goalie), (0, 0, 0), (0, 0, 0), (0, 2, 0))
    np.testing.assert_allclose(state.position[2], [1.05, 0.6], atol=1e-6)
    pushed = [[1.15, 0.0], [-1.0, -0.5], [1.01, 0.0]]  # both are moved by half of 0.24 - 0.14
    state, _ = act(place(position=pushed))
    np.testing.assert_allclose(state.position, [[1.2, 0.0], [-1.0, -0.5], [1.0, 0.0]], atol=1e-6)
    state, _ = act(place(position=[[0.9, 0.9], [-1.0, -0.5], [1.2, 0.0]]), FORWARD)
    np.testing.assert_allclose(state.position[0], [0.98, 0.9], atol=1e-6)  # strikers go where they like


def test_the_picture_has_one_goal():
    shapes = ENV.draw(place()).shapes
    assert sum(isinstance(shape, Box) for shape in shapes) == 3 and sum(isinstance(x, Disc) for x in shapes) == 4
