"""Soccer Twos: each rule by hand, both teams the same game, and the properties that the learner relies on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.drawing import Disc
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas, start_areas
from jaxrl.jax_envs.soccer_twos import SoccerSettings, SoccerState, chase_ball, make_soccer_twos

ENV = make_soccer_twos(SoccerSettings())  # half_length 1.5, mouth 0.4, radii 0.12 and 0.08, push 0.08, kick 0.06
REST, FORWARD, BACK, LEFT, TURN = (0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 0, 1)


def place(**changes) -> SoccerState:
    """Everybody far from the ball in the middle, looking at the goal that it attacks; nothing moves."""
    state = SoccerState(
        position=jnp.array([[-1.0, 0.5], [-1.0, -0.5], [1.0, -0.5], [1.0, 0.5]]),
        velocity=jnp.zeros((4, 2)),
        way=jnp.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]),
        ball=jnp.zeros(2),
        ball_velocity=jnp.zeros(2),
        clock=jnp.int32(0),
        ball_touch=jnp.float32(0.25),
        ball_forward=jnp.float32(0.0),
        time_penalty=jnp.float32(1.0),
    )
    return state._replace(**{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()})


def team_actions(actions) -> TeamActions:
    discrete = jnp.asarray(actions, jnp.int32)
    return TeamActions(continuous=jnp.zeros((*discrete.shape[:-1], 0)), discrete=discrete)


quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiled in half the time
compiled_step = quick_jit(lambda state, actions: ENV.step(jax.random.key(0), state, actions))
compiled_steps = quick_jit(jax.vmap(lambda state, actions: ENV.step(jax.random.key(0), state, actions)))


def act(state: SoccerState, *actions: tuple[int, int, int]) -> tuple[SoccerState, TeamStep]:
    """Those whose action is not given rest."""
    return compiled_step(state, team_actions([*actions, *[REST] * (4 - len(actions))]))


def test_players_run_turn_and_glide():
    state, step = act(place(), FORWARD, LEFT, FORWARD, TURN)
    # forward is towards the other goal: +x for team 0, -x for team 1; left of +x is +y
    np.testing.assert_allclose(state.position, [[-0.92, 0.5], [-1.0, -0.42], [0.92, -0.5], [1.0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(state.way[3], [-np.cos(0.4), -np.sin(0.4)], atol=1e-6)  # left of -x is -y
    assert not step.over and not step.reward.any() and not step.group_reward.any()
    state, _ = act(state, REST, (1, 2, 0), BACK)
    np.testing.assert_allclose(state.velocity[0], [0.04, 0.0], atol=1e-6)  # half of 0.08
    # velocity (0, 0.04) + (0.08, -0.08) = (0.08, -0.04), of length 0.0894, is cut to 0.08
    np.testing.assert_allclose(state.velocity[1], np.array([0.08, -0.04]) * 0.08 / np.hypot(0.08, 0.04), atol=1e-6)
    np.testing.assert_allclose(state.velocity[2], [0.04, 0.0], atol=1e-6)  # 0.5 * -0.08 + 0.08


def test_a_turn_comes_before_the_run():
    state, _ = act(place(), (1, 0, 1))
    np.testing.assert_allclose(state.velocity[0], [0.08 * np.cos(0.4), 0.08 * np.sin(0.4)], atol=1e-6)


def test_players_push_each_other_apart_and_stay_near_the_field():
    state, _ = act(place(position=[[0.5, 0.5], [0.6, 0.5], [1.0, -1.15], [1.65, 0.0]]))
    # 0.1 apart, radii add up to 0.24: each is moved by 0.07; centres get 0.12 over the lines, to 1.62 and 1.12
    np.testing.assert_allclose(state.position, [[0.43, 0.5], [0.67, 0.5], [1.0, -1.12], [1.62, 0.0]], atol=1e-6)


@pytest.mark.parametrize(
    ("ball", "behind", "action"),
    [
        ((0.3, 0.92), (0.3, 1.12), (0, 2, 0)),
        ((1.42, 0.8), (1.62, 0.8), (2, 0, 0)),
        ((1.42, 0.92), (1.56, 1.06), (2, 2, 0)),
    ],
)
def test_a_ball_at_a_wall_can_be_played_off_it(ball, behind, action):
    others = [[-1.0, -0.5], [1.0, -0.5], [1.0, 0.5]]
    state, step = act(place(position=[list(behind), *others], ball=list(ball)), action)
    away = np.sign(np.array(ball) - behind)  # from the wall, or from both
    assert step.reward[0] > 0
    moved = away * (state.ball - np.array(ball))  # without the step over the line it is pressed where it lies
    np.testing.assert_array_less(0.05 * np.abs(away), moved + 1e-6)


def test_a_struck_ball_leaves_with_the_players_speed_and_the_kick():
    state, step = act(place(position=[[0.0, 0.0], [-1.0, -0.5], [1.0, -0.5], [1.0, 0.5]], ball=[0.15, 0.0]), FORWARD)
    # the player comes to 0.08; the gap of 0.07 overlaps by 0.13; speed (0.08 + 0.06) * 0.95 = 0.133
    np.testing.assert_allclose(state.ball_velocity, [0.133, 0.0], atol=1e-6)
    np.testing.assert_allclose(state.ball, [0.15 + 0.13 + 0.133, 0.0], atol=1e-6)
    assert step.reward.tolist() == [0.25, 0.0, 0.0, 0.0]


def test_a_ball_that_leaves_faster_is_not_slowed_and_none_is_faster_than_the_limit():
    near = [[0.0, 0.0], [-1.0, -0.5], [1.0, -0.5], [1.0, 0.5]]
    state, step = act(place(position=near, ball=[0.19, 0.0], ball_velocity=[0.1, 0.0]), REST)
    np.testing.assert_allclose(state.ball_velocity, [0.095, 0.0], atol=1e-6)  # above the kick of 0.06
    assert step.reward[0] == 0.25
    state, _ = act(place(ball_velocity=[0.3, -0.4]))
    np.testing.assert_allclose(state.ball_velocity, [0.12, -0.16], atol=1e-6)  # 0.475 long, cut to 0.2


@pytest.mark.parametrize(
    ("ball", "velocity", "at", "after"),
    [
        ([0.0, 0.9], [0.02, 0.1], [0.019, 0.92], [0.019, -0.076]),  # 0.995 > 0.92; 0.8 * 0.095 comes back
        ([1.4, 0.8], [0.1, 0.0], [1.42, 0.8], [-0.076, 0.0]),  # beside the goal
        ([-1.4, -0.2], [-0.05, 0.0], [-1.4475, -0.2], [-0.0475, 0.0]),  # in its mouth, not past the line
    ],
)
def test_walls_return_the_ball_except_in_a_mouth(ball, velocity, at, after):
    state, step = act(place(ball=ball, ball_velocity=velocity))
    np.testing.assert_allclose(state.ball, at, atol=1e-6)
    np.testing.assert_allclose(state.ball_velocity, after, atol=1e-6)
    assert not step.over


@pytest.mark.parametrize(("side", "prizes"), [(1, [0.75, 0.75, -1, -1]), (-1, [-1, -1, 0.75, 0.75])])
def test_a_goal_pays_by_the_clock_and_ends_the_episode(side, prizes):
    _, step = act(place(ball=[1.45 * side, 0.1], ball_velocity=[0.1 * side, 0.0], clock=50))
    np.testing.assert_allclose(step.group_reward, prizes)  # 1 - 50 / 200
    assert step.over and step.terminated.all() and not step.truncated.any() and not step.view.alive.any()
    assert step.stats["Environment/Goal"] == 1 and step.stats["Environment/Goal Of Team 0"] == (side == 1)
    for penalty, prize in ((0.0, 1.0), (0.5, 0.875)):
        _, step = act(place(ball=[1.45 * side, 0.1], ball_velocity=[0.1 * side, 0.0], clock=50, time_penalty=penalty))
        assert step.group_reward.tolist() == [prize, prize, -1, -1][::side]


def test_the_way_of_the_ball_is_paid_where_it_is_worth_something():
    """From 0.3 to 0.3 + 0.95 * 0.1: 0.095 of 3, the length of the field, forward for team 0 and back for team 1."""
    _, step = act(place(ball=[0.3, 0.1], ball_velocity=[0.1, 0.0], ball_forward=2.0))
    np.testing.assert_allclose(step.group_reward, 2 * 0.095 / 3 * np.array([1, 1, -1, -1]), rtol=1e-5)
    _, step = act(place(ball=[1.45, 0.1], ball_velocity=[0.1, 0.0], ball_forward=2.0, clock=50))
    np.testing.assert_allclose(
        step.group_reward, np.array([0.75, 0.75, -1, -1]) + 2 * 0.095 / 3 * np.array([1, 1, -1, -1]), rtol=1e-5
    )


def test_the_scripted_player_goes_behind_the_ball_and_pushes():
    """Team 0 by rules, team 1 at rest: a goal from nearly every start within the limit."""

    @quick_jit
    @jax.vmap
    def play(key):
        def step(carry, _):
            state, obs, goal = carry
            sent = chase_ball(obs).at[2:].set(0)
            state, result = ENV.step(key, state, team_actions(sent))
            return (state, result.view.obs[0], goal | (result.stats["Environment/Goal Of Team 0"] > 0)), None

        state, view = ENV.reset(key, {})
        return jax.lax.scan(step, (state, view.obs[0], jnp.bool_(False)), length=160)[0][2]

    assert play(jax.random.split(jax.random.key(0), 16)).sum() >= 15


def test_the_limit_truncates_unless_it_is_a_goal():
    _, step = act(place(clock=199))
    assert step.over and step.truncated.all() and not step.terminated.any() and not step.group_reward.any()
    _, step = act(place(clock=199, ball=[1.45, 0.0], ball_velocity=[0.1, 0.0]))
    assert step.over and step.terminated.all() and not step.truncated.any()
    np.testing.assert_allclose(step.group_reward, [0.005, 0.005, -1, -1], rtol=1e-5)  # no draw
    assert not act(place(clock=198))[1].over


def test_an_observation_by_hand():
    way = [[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]  # player 0 at (-1, 0.5) looks along +y: left is -x
    view = act(place(way=way, ball=[0.5, 0.2], ball_velocity=[0.1, 0.0]))[1].view
    ball = [0.5 + 0.095, 0.2]
    expected = [
        *(-1 / 1.5, 0.5 / 1.5, 0, 1, 0, 0),  # place, way, velocity
        *((ball[1] - 0.5) / 3, -(ball[0] + 1) / 3, 0, -0.095 / 0.2),  # ahead is y, left is -x
        *(-0.5 / 3, -2.5 / 3, -0.5 / 3, 0.5 / 3),  # goals at (1.5, 0) and (-1.5, 0)
        *(-1 / 3, 0, 0, 0, 0, -1),  # mate at (-1, -0.5), looks to +x: my right
        *(-1 / 3, -2 / 3, 0, 0, 0, 1, 0, -2 / 3, 0, 0, 0, 1),  # opponents at (1, -0.5), (1, 0.5), look to -x
    ]
    np.testing.assert_allclose(view.obs[0][0], expected, atol=1e-6)
    assert view.action_mask.all() and view.action_mask.shape == (4, 9)


def crowd(count: int) -> tuple[SoccerState, jax.Array]:
    """Random states with many collisions, balls near walls and mouths among them, and random actions."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(-np.pi, np.pi, (count, 4))
    ball = rng.uniform(-1, 1, (count, 2)) * [1.5, 1.0]
    fields = {
        "position": np.clip(ball[:, None] + rng.uniform(-0.4, 0.4, (count, 4, 2)), -1.1, 1.1),
        "velocity": rng.uniform(-0.08, 0.08, (count, 4, 2)),
        "way": np.stack([np.cos(angle), np.sin(angle)], axis=-1),
        "ball": ball,
        "ball_velocity": rng.uniform(-0.2, 0.2, (count, 2)),
        "clock": rng.integers(0, 200, count),
        "ball_touch": rng.uniform(0, 1, count),
        "ball_forward": np.linspace(0, 1, count),
        "time_penalty": np.ones(count),
    }
    state = SoccerState(**{name: jnp.asarray(x, getattr(place(), name).dtype) for name, x in fields.items()})
    return state, jnp.asarray(rng.integers(0, 3, (count, 4, 3)), jnp.int32)


def exchange(state: SoccerState) -> SoccerState:
    """The field turned by half a turn, the teams exchanged."""
    turned = {name: -getattr(state, name)[:, [2, 3, 0, 1]] for name in ("position", "velocity", "way")}
    return state._replace(**turned, ball=-state.ball, ball_velocity=-state.ball_velocity)


def test_exchanged_teams_play_the_exchanged_game():
    state, actions = crowd(512)
    after, step = compiled_steps(state, team_actions(actions))
    mirrored, other = compiled_steps(exchange(state), team_actions(actions[:, [2, 3, 0, 1]]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), exchange(after), mirrored)
    assert step.over.sum() > 5 and (step.reward > 0).sum() > 100  # the states are worth the name
    for field in ("reward", "group_reward", "terminated", "truncated"):
        np.testing.assert_allclose(getattr(step, field)[:, [2, 3, 0, 1]], getattr(other, field), atol=1e-6)
    np.testing.assert_allclose(step.view.obs[0][:, [2, 3, 0, 1]], other.view.obs[0], atol=5e-6)


def test_many_fields_are_single_fields():
    state, actions = crowd(512)
    many = compiled_steps(state, team_actions(actions))
    for index in (0, 17):
        alone = compiled_step(jax.tree.map(lambda x: x[index], state), team_actions(actions[index]))  # noqa: B023
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[index], b, atol=2e-6), many, alone)  # noqa: B023


def test_random_play_keeps_the_contract():
    areas, steps = 64, 450
    parameters = {"ball_touch": jnp.zeros(areas)}

    def one(carry, key):
        running, view = carry
        actions = team_actions(jax.random.randint(key, (areas, 4, 3), 0, 3))
        running, result = advance_areas(ENV, running, actions, parameters)
        return (running, result.view), (view.alive, result)

    @quick_jit
    def play(key):
        return jax.lax.scan(one, start_areas(ENV, key, areas, parameters), jax.random.split(key, steps))[1]

    before, result = jax.tree.map(np.asarray, play(jax.random.key(1)))
    step = result.step
    ended = step.terminated | step.truncated
    assert before.all() and result.view.alive.all()  # nobody is ever absent
    np.testing.assert_array_equal(ended, np.broadcast_to(step.over[..., None], ended.shape))
    np.testing.assert_array_equal(step.view.alive, ~ended)
    for obs in (*step.view.obs, *result.view.obs):
        assert np.isfinite(obs).all() and abs(obs).max() < 1.3
    goals, wins = step.terminated[..., 0], step.terminated & (step.group_reward > 0)
    np.testing.assert_array_equal(wins.sum(-1), 2 * goals)  # one team wins
    np.testing.assert_array_equal((step.group_reward == -1).sum(-1), 2 * goals)
    assert wins[..., 0].sum() > 5 and wins[..., 2].sum() > 5  # also by chance, on both sides
    starts = {obs.tobytes() for obs in result.view.obs[0][step.over]}
    assert len(starts) == step.over.sum() > areas


def test_the_environment_says_what_it_is_and_knows_its_parameter():
    env = ENVIRONMENTS["soccer_twos"]()
    assert (env.name, env.teams, env.members, env.truncates) == ("SoccerTwos", 2, 2, True)
    reset = quick_jit(lambda key: (env.reset(key, {})[0], env.reset(key, {"ball_touch": 0.5})[0]))
    usual, paid = reset(jax.random.key(0))
    assert usual.ball_touch == 0.0 and paid.ball_touch == 0.5 and usual.time_penalty == paid.time_penalty == 1.0
    with pytest.raises(ValueError, match=r"mouth = 0.05: must lie between ball_radius = 0.08 and 1"):
        make_soccer_twos(SoccerSettings(mouth=0.05))


def test_the_picture_shows_players_and_ball_where_they_are():
    assert ENV.draw is not None
    scene = ENV.draw(jax.tree.map(np.asarray, place()))
    np.testing.assert_allclose(scene.size, (3.48, 2.48))  # the field and 0.24 around it, for players beyond the lines
    discs = [shape for shape in scene.shapes if isinstance(shape, Disc)]
    centres = [(0.74, 1.74), (0.74, 0.74), (2.74, 0.74), (2.74, 1.74), (1.74, 1.24)]
    np.testing.assert_allclose([disc.centre for disc in discs], centres)
