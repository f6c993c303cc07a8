"""Self-play in the compiled loop: who is seen and moved by whom, ratings and turns as the JAX-free ones, whole runs."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints, remove, require_latest
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.rollout.booking.episodes import GameEnd
from jaxrl.settings import RunSettings, SettingsError, load_run_settings
from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.tools.tournament import players
from jaxrl.training.compiled.checks import check_sides
from jaxrl.training.compiled.contest import TURN, Sides, contest, rivals_of, sides_of
from jaxrl.training.compiled.iteration import iterate
from jaxrl.training.compiled.opponents import Rivals, begin_pool, groups_of, rival_algorithm, scheduled
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.ratings import RivalSteps, rated, steps_of_rivals
from jaxrl.training.compiled.run import train
from jaxrl.training.compiled.saver import Subject, resumed
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.trainer import make_jitted_trainer, make_scene_trainer
from jaxrl.training.self_play import rating as elo
from jaxrl.training.self_play.game import Game, Played, Rotation, Schedule
from jaxrl.training.self_play.pool import LATEST, Pool
from jaxrl.training.trained_policy import load_trained
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.artifacts.test_csv_file import rows
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation, quick_jit

SPEC = BehaviorSpec((ObservationSpec("number", (1,)),), ActionSpec(0, (9,)))


def numbered(**teams: tuple[int, int]) -> JaxScene:
    """Behaviors of (teams, members); each agent sees its number in the scene, and the state is what all have sent."""
    parts = tuple(BehaviorPart(name, SPEC, members, count) for name, (count, members) in teams.items())
    sizes = [part.teams * part.members for part in parts]
    starts = np.concatenate([[0], np.cumsum(sizes)])

    def views() -> dict[str, TeamView]:
        return {
            part.name: TeamView(
                (jnp.arange(start, start + size, dtype=jnp.float32)[:, None] + 1,),
                jnp.ones((size, 9), bool),
                jnp.ones(size, bool),
            )
            for part, start, size in zip(parts, starts, sizes, strict=False)
        }

    def reset(key: Any, parameters: EnvParams) -> tuple[Any, dict[str, TeamView]]:
        return jnp.zeros(sum(sizes), jnp.int32), views()

    def step(key: Any, state: Any, actions: dict[str, TeamActions]) -> tuple[Any, SceneStep]:
        sent = jnp.concatenate([actions[part.name].discrete[:, 0] for part in parts])
        steps = {
            name: BehaviorStep(view, view.obs[0][:, 0], view.obs[0][:, 0], view.alive, ~view.alive)
            for name, view in views().items()
        }
        return sent, SceneStep(steps, jnp.bool_(False), {})

    return JaxScene("Numbered", parts, {}, reset, step)


@pytest.mark.parametrize(
    ("teams", "turn", "learner", "seen"),
    [
        ({"Duel": (2, 2)}, 0, "Duel", {"Duel": [1, 2], "rivals of Duel": [3, 4]}),
        ({"Duel": (2, 2)}, 1, "Duel", {"Duel": [3, 4], "rivals of Duel": [1, 2]}),
        ({"Duel": (3, 1)}, 1, "Duel", {"Duel": [2], "rivals of Duel": [3, 1]}),
        ({"Duel": (12, 1)}, 10, "Duel", {"Duel": [11], "rivals of Duel": [12, *range(1, 11)]}),
        ({"Two": (1, 2), "One": (1, 1)}, 0, "Two", {"Two": [1, 2], "rivals of Two": [0, 0], "rivals of One": [3]}),
        ({"Two": (1, 2), "One": (1, 1)}, 1, "One", {"One": [3], "Two": [0, 0], "rivals of Two": [1, 2]}),
        ({"Both": (2, 1), "One": (1, 1)}, 1, "Both", {"Both": [2], "rivals of Both": [1, 0], "rivals of One": [3]}),
        ({"Both": (2, 1), "One": (1, 1)}, 2, "One", {"Both": [0], "rivals of Both": [1, 2], "One": [3]}),
    ],
)
def test_one_team_learns_and_the_others_are_rivals(teams: Any, turn: int, learner: str, seen: dict[str, Any]) -> None:
    """0 stands for who is not there; what is sent reaches the agent that has seen it, wherever it stands."""
    scene = numbered(**teams)
    whole = contest(scene, sides_of(scene, list(teams)))
    check_jax_env(whole)
    state, views = whole.reset(jax.random.key(0), {TURN: jnp.float32(turn)})
    assert {name: views[name].obs[0][:, 0].tolist() for name in seen} == seen
    for name, view in views.items():
        assert view.alive.tolist() == (view.obs[0][:, 0] > 0).tolist(), name
    sent = {
        name: TeamActions(jnp.zeros((len(view.alive), 0)), view.obs[0].astype(jnp.int32))
        for name, view in views.items()
    }
    after, done = whole.step(jax.random.key(0), state, sent)
    assert after.state.tolist() == list(range(1, len(after.state) + 1))
    for name, of in done.behaviors.items():
        np.testing.assert_array_equal(of.reward, views[name].obs[0][:, 0])
        np.testing.assert_array_equal(of.terminated, views[name].alive)


class Sums(NamedTuple):
    reward: Any
    received: Any


def ended(reward: Any, *, terminated: Any = True, truncated: Any = False, stays: Any = False, total: Any = None) -> Any:
    """What `rated` reads of T = 1 decision in the areas of one seed, from rewards [E][M]; `total`: returns [E][M]."""
    reward = jnp.asarray(reward, jnp.float32)[None, None]
    whole = reward if total is None else jnp.asarray(total, jnp.float32)[None, None]

    def flags(x: Any) -> Any:
        return jnp.broadcast_to(jnp.asarray(x), reward.shape)

    return SimpleNamespace(
        reward=reward, group_reward=jnp.zeros_like(reward), terminated=flags(terminated), truncated=flags(truncated),
        stays=flags(stays), alive=flags(True), sums=Sums(whole, jnp.zeros_like(whole)),
    )  # fmt: skip


def rival(teams: int, slots: int, first: int = 0, groups: int = 2, **settings: Any) -> Rivals:
    part, none = BehaviorPart("rivals", SPEC, 1, slots), cast(Any, None)
    return Rivals(part, none, Sides(first, teams, slots), groups, SelfPlaySettings(window=3, **settings))


def rate(of: dict[str, Rivals], states: dict[str, Any], steps: dict[str, Any], rivals: Any = ()) -> Any:
    """`rated`, with the ends of the rivals by behavior, as `ended` with the members J; nobody's where they lack."""
    told = dict(steps)
    for name, each in steps.items():
        time, seeds, areas, _ = each.reward.shape
        nobody = jnp.zeros((time, seeds, areas, of[name].sides.slots, 1))
        ends = dict(rivals).get(name)
        empty = RivalSteps(jnp.zeros((time, seeds), jnp.int32), nobody + jnp.nan)
        told[rivals_of(name)] = empty if ends is None else steps_of_rivals(of[name], ends)
    return rated(of, states, told)


def rated_state(rating: Any, opponent: Any, turn: int = 0, saves: int = 3) -> Any:
    return SimpleNamespace(
        rating=jnp.asarray([rating], jnp.float32), opponent=jnp.asarray([opponent]), turn=jnp.array([turn]), met=(),
        saves=jnp.array([saves]),
    )  # fmt: skip


def test_ratings_are_those_of_ml_agents() -> None:
    """Areas 0 and 1 meet snapshot 1, the others the newest policy; each member of a team tells the result."""
    before = [1210.0, 1190.0, 1200.0, 1230.0]
    state = rated_state(before, [[1], [LATEST]])
    of = {"Duel": rival(2, 1)}
    played = ended([[0.5, 0.5], [0, 0], [1, 1], [-1, -1]], terminated=[[True], [False], [True], [True]])
    won = rate(of, {"Duel": state}, {"Duel": played})
    change = elo.change(1230.0, 1190.0, 1.0)  # twice: both members
    np.testing.assert_allclose(won.rating["Duel"][0], [1210, 1190 - 2 * change, 1200, 1230 + 2 * change], rtol=1e-6)
    count, mean, _ = won.elo["Duel"]
    assert count.tolist() == [6] and mean.tolist() == pytest.approx([1230 + 2 * change])
    played = ended([[0.0]] * 4, stays=[[False], [True], [False], [False]])
    draw = rate(of, {"Duel": state}, {"Duel": played})
    change = elo.change(1230.0, 1190.0, 0.5)
    np.testing.assert_allclose(draw.rating["Duel"][0], [1210, 1190 - change, 1200, 1230 + change], rtol=1e-6)
    for nobody in ({"truncated": True}, {"terminated": False}, {"stays": True}, {"reward": [[np.nan]] * 4}):
        same = rate(of, {"Duel": state}, {"Duel": ended(**{"reward": [[1.0]] * 4, **nobody})})
        assert same.rating["Duel"].tolist() == [before] and same.elo["Duel"].count.tolist() == [0]


def test_results_and_draws_of_pfsp_are_those_of_the_host_loop() -> None:
    """A win, a loss and a draw against row 1, and another win against the newest."""
    of = rival(
        2, 1, groups=2, opponent_sampling="pfsp", pfsp_power=1.0, swap_steps=1, play_against_latest_model_ratio=0.0
    )
    state = _begun(of, jnp.zeros((1, 2)), jax.random.key(0)[None])
    state = state.replace(opponent=jnp.array([[[1], [LATEST]]]), saves=jnp.array([3]))
    played = [
        ended([[first], [second]], terminated=[[True], [second > 0]]) for first, second in ((1, 1), (-1, 0), (0, 0))
    ]
    steps = SimpleNamespace(**jax.tree.map(lambda *x: jnp.concatenate(x), *(vars(each) for each in played)))
    met = rate({"Duel": of}, {"Duel": state}, {"Duel": steps}).met["Duel"]
    pool = Pool(3, 1200.0)
    for number in range(3):
        pool.save(number, number)
    for result in (1.0, 0.0, 0.5):
        pool.played(1, result)
    np.testing.assert_allclose(met[0, :3], pool.met, rtol=1e-6)
    # 900 draws by the weights 1 - x: row 0 was never beaten, row 1 not met, row 2 always: 3.5/4 : 1/2 : 0.5/4
    state = _begun(of._replace(groups=900), jnp.zeros((1, 2)), jax.random.key(0)[None])
    met = jnp.array([[[3.0, 0.0], [0.0, 0.0], [3.0, 3.0]]])
    state = state.replace(ghost=jnp.array([2]), saves=jnp.array([3]), met=met)
    nobody = jnp.zeros(1, jnp.int32)
    after, _ = scheduled({"Duel": of}, {"Duel": state}, {"Duel": jnp.zeros((1, 2))}, {"Duel": nobody}, nobody)
    drawn = np.bincount(np.asarray(after["Duel"].opponent).ravel())
    np.testing.assert_allclose(drawn, [525, 300, 75], atol=75)  # 5 standard deviations
    saved = {"Duel": jnp.array([30000])}
    after, _ = scheduled({"Duel": of}, {"Duel": state}, {"Duel": jnp.zeros((1, 2))}, saved, nobody)
    np.testing.assert_array_equal(after["Duel"].met[0, 0], 0.0)  # another one has the row
    # and games against snapshot 0, which plays on, are not booked as games against that one, snapshot 3
    gone = after["Duel"].replace(opponent=jnp.zeros((1, 2, 1), jnp.int32))
    later = rate({"Duel": of}, {"Duel": gone}, {"Duel": steps}).met["Duel"]
    np.testing.assert_array_equal(later, after["Duel"].met)


def test_ratings_of_two_behaviors_and_of_three_teams() -> None:
    of = {"Two": rival(1, 1, groups=1), "One": rival(1, 1, first=1, groups=1)}
    states = {"Two": rated_state([1200.0] * 4, [[0]], 1), "One": rated_state([1200.0, 1200, 1200, 1300], [[2]], 1)}
    steps = {"Two": ended([[0.0, 0.0]], terminated=False), "One": ended([[-1.0]])}
    found = rate(of, states, steps).rating
    change = elo.change(1300.0, 1200.0, 0.0)
    np.testing.assert_allclose(found["Two"][0], [1200 - change, 1200, 1200, 1200], rtol=1e-6)
    np.testing.assert_allclose(found["One"][0], [1200, 1200, 1200, 1300 + change], rtol=1e-6)


def three_sides(turn: int) -> tuple[dict[str, Any], Any, Any]:
    """Snapshots rated 900 and 1100 against a learner rated 1000 that beats the one and loses to the other.

    Team 1 learns: slot 0 stands for team 2, slot 1 for team 0. Area 1 is not over.
    """
    state = rated_state([950.0, 900, 1100, 1000], [[2, 1]], turn)
    learner = ended([[0.5], [1.0]], terminated=[[True], [False]])
    rivals = {"Duel": ended([[1.0, -1.0], [0.0, 0.0]], terminated=[[True], [False]])}
    return {"Duel": rival(3, 2, groups=1)}, state, (learner, rivals)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_each_of_three_teams_is_rated_by_its_own_result_and_rating(turn: int) -> None:
    """As `self_play.test_game` has it; whoever learns, slot 0 is the team behind it."""
    of, state, (learner, rivals) = three_sides(turn)
    found = rate(of, {"Duel": state}, {"Duel": learner}, rivals)
    first, second = elo.change(1000.0, 900.0, 1.0), elo.change(1000.0, 1100.0, 0.0)
    np.testing.assert_allclose(
        found.rating["Duel"][0], [950, 900 - first, 1100 - second, 1000 + first + second], rtol=1e-6
    )
    assert found.games["Duel"].tolist() == [[1.0, 0.5]] and found.decided["Duel"].mean.tolist() == [1.0]


def test_a_snapshot_that_plays_two_teams_has_played_one_game() -> None:
    of, state, (learner, rivals) = three_sides(1)
    met = jnp.zeros((1, 3, 2))
    for opponent, booked in (([2, 1], [[0, 0], [1, 1], [1, 0]]), ([2, 2], [[0, 0], [0, 0], [1, 0.5]])):
        playing = SimpleNamespace(**{**vars(state), "opponent": jnp.array([[opponent]]), "met": met})
        found = rate(of, {"Duel": playing}, {"Duel": learner}, rivals)
        np.testing.assert_allclose(found.met["Duel"][0], booked)


def test_the_sign_decides_against_a_team_that_plays_on() -> None:
    of, state, (learner, _) = three_sides(1)
    found = rate(of, {"Duel": state}, {"Duel": learner})
    gained = elo.change(1000.0, 900.0, 1.0) + elo.change(1000.0, 1100.0, 1.0)
    np.testing.assert_allclose(found.rating["Duel"][0, -1], 1000 + gained, rtol=1e-6)


@pytest.mark.parametrize(("result", "change", "decided"), [("final_reward", -0.5, 0.0), ("return", 0.5, 1.0)])
def test_the_result_is_the_sign_of_the_last_reward_or_of_the_return(result: Any, change: float, decided: float) -> None:
    """A step penalty: who has won 0.9 in all has lost 0.01 with its last step, and its opponent 0.02."""
    of, state = rival(2, 1, groups=1, result=result), rated_state([1000.0] * 4, [[0]])
    steps = {"Duel": ended([[-0.01]], total=[[0.9]])}
    found = rate({"Duel": of}, {"Duel": state}, steps, {"Duel": ended([[-0.02]], total=[[-1.1]])})
    assert found.rating["Duel"].tolist() == [[1000 - change, 1000, 1000, 1000 + change]]
    moments = found.decided["Duel"]
    assert (moments.count.tolist(), moments.mean.tolist()) == ([1.0], [decided])


@pytest.mark.parametrize("result", ["final_reward", "return"])
@pytest.mark.parametrize("teams", [2, 3, 5])
def test_games_are_rated_and_booked_as_in_the_host_loop(teams: int, result: Any) -> None:
    """Ten games, one after the other, in which some teams end earlier or later than the learner."""
    own = {"opponent_sampling": "pfsp", "result": result}
    draws, game = np.random.default_rng(teams), Game(np.random.default_rng(0))
    of = rival(teams, teams - 1, groups=1, **own)
    for team in range(teams):
        game.join("Duel", team, of.settings, 0)
    pool, numbers = game.sides["Duel"].pool, np.array([1, 3, LATEST, 3][: teams - 1])  # 1 has left the pool
    for number in range(1, 5):
        pool.save(number, number)
    ratings = draws.normal(1200.0, 100.0, 4)
    pool.ratings[:] = ratings.tolist()
    pool.opponents |= dict(enumerate(numbers.tolist(), start=1))
    paid, total = draws.choice([-1.0, -0.5, 0.0, 1.0], (2, 10, teams))
    over = draws.random((10, teams)) < 0.7
    decided = []
    for last, whole, ends in zip(paid, total, over, strict=True):
        each = [[GameEnd(0, *of)] if end else [] for *of, end in zip(last, whole, ends, strict=True)]
        played = {("Duel", team): Played(0, ended) for team, ended in enumerate(each)}
        decided += [rated.decided for rated in game.turn("Duel", played, 0).rated]

    def decisions(first: int, last: int) -> Any:
        games = [
            ended([x], total=[y], terminated=[z])
            for x, y, z in zip(*(a[:, first:last] for a in (paid, total, over)), strict=True)
        ]
        return SimpleNamespace(**jax.tree.map(lambda *x: jnp.concatenate(x), *map(vars, games)))

    begun = _begun(of, jnp.zeros((1, 1)), jax.random.key(0)[None])
    rating, opponent = jnp.asarray(ratings[None], jnp.float32), jnp.asarray(numbers)[None, None]
    state = begun.replace(opponent=opponent, saves=jnp.array([5]), rating=rating)
    found = rate({"Duel": of}, {"Duel": state}, {"Duel": decisions(0, 1)}, {"Duel": decisions(1, teams)})
    np.testing.assert_allclose(found.rating["Duel"][0], pool.ratings, rtol=1e-6)
    np.testing.assert_allclose(found.met["Duel"][0], pool.met, rtol=1e-5)
    moments = found.decided["Duel"]
    assert moments.count[0] == len(decided) and moments.total[0] == pytest.approx(sum(decided))


@pytest.mark.parametrize(("window", "ratio"), [(2, 1.0), (1, 0.0)])
def test_opponents_in_play_are_frozen_in_both_loops(window: int, ratio: float) -> None:
    """The policy is its trainer step; each iteration saves a snapshot, each fourth draws: the newest in both cases."""
    steps = {"save_steps": 20, "team_change": 10**6, "swap_steps": 80}
    settings = SelfPlaySettings(**steps, window=window, play_against_latest_model_ratio=ratio)
    game = Game(np.random.default_rng(0))
    for team in (0, 1):
        game.join("Duel", team, settings, 0)
    of = rival(2, 1, groups=1)._replace(settings=settings)
    state, playing, met = _begun(of, jnp.zeros((1, 1)), jax.random.key(0)[None]), 0, []
    for step in range(21, 170, 21):
        for sent in game.turn("Duel", {("Duel", 1): Played(21)}, step, step).sent:
            playing = sent.weights if sent.team == 1 else playing
        policy, now = {"Duel": jnp.full((1, 1), step, jnp.float32)}, jnp.array([step])
        states = {"Duel": state.replace(ghost=now)}
        state = scheduled({"Duel": of}, states, policy, {"Duel": now}, jnp.array([step], jnp.uint32))[0]["Duel"]
        met.append((playing, float(state.playing[0, 0, 0, 0])))
    right = [0, 0, 0, 84, 84, 84, 84, 168]
    assert met == list(zip(right, right, strict=True))


def test_a_snapshot_is_rated_as_the_learner_is() -> None:
    of = rival(2, 1, save_steps=20)
    state = _begun(of, jnp.zeros((1, 2)), jax.random.key(0)[None])
    state = state.replace(rating=jnp.array([[1100.0, 1200, 1300, 1400]]))
    steps, nobody = {"Duel": jnp.array([21])}, jnp.zeros(1, jnp.uint32)
    after, _ = scheduled({"Duel": of}, {"Duel": state}, {"Duel": jnp.ones((1, 2))}, steps, nobody)
    assert after["Duel"].rating.tolist() == [[1100, 1400, 1300, 1400]]


@pytest.mark.parametrize("sampling", ["uniform", "pfsp"])
def test_which_snapshot_is_drawn_does_not_depend_on_whether_one_is(sampling: Any) -> None:
    """Of 2,000 draws a half is the newest, and of the others a half each of two snapshots, up to 5 deviations."""
    own = {"swap_steps": 1, "opponent_sampling": sampling, "pfsp_power": 0.0}
    of = rival(2, 1, groups=1, **own)
    state = _begun(of, jnp.zeros((2000, 2)), jax.random.split(jax.random.key(0), 2000))
    state = state.replace(ghost=jnp.full(2000, 2), saves=jnp.full(2000, 2))
    nobody = jnp.zeros(2000, jnp.int32)
    after, _ = scheduled(
        {"Duel": of}, {"Duel": state}, {"Duel": jnp.ones((2000, 2))}, {"Duel": nobody}, nobody.astype(jnp.uint32)
    )
    drawn = np.bincount(np.asarray(after["Duel"].opponent).ravel() + 1, minlength=3)
    np.testing.assert_allclose(drawn, [1000, 500, 500], atol=110)


@pytest.mark.parametrize("behaviors", [("Duel",), ("Two", "One")])
def test_the_schedule_is_that_of_the_host_loop(behaviors: tuple[str, ...]) -> None:
    """Random steps of 40 iterations: turns, snapshots and draws are due where `self_play.game.Schedule` says so."""
    settings = SelfPlaySettings(save_steps=20, team_change=70, swap_steps=15, window=3)
    alone = len(behaviors) == 1
    of = {
        name: Rivals(None, None, Sides(i, 2 if alone else 1, 1), 2, settings)  # pyright: ignore[reportArgumentType]
        for i, name in enumerate(behaviors)
    }
    clocks, rotation = {name: Schedule(settings) for name in behaviors}, Rotation()
    for side in (0, 1):
        rotation.join(side)
    draws, step, ghost = np.random.default_rng(0), dict.fromkeys(behaviors, 0), dict.fromkeys(behaviors, 0)
    policy = {name: jnp.zeros((1, 2)) for name in behaviors}
    states: dict[str, Any] = {
        name: _begun(of[name], policy[name], jax.random.key(i)[None]) for i, name in enumerate(behaviors)
    }
    saves = dict.fromkeys(behaviors, 1)
    for number in range(40):
        learns = behaviors[0] if alone else behaviors[rotation.learning or 0]
        for name in behaviors:
            more = int(draws.integers(12))
            step[name] += more if name == learns else 0
            ghost[name] += more if alone or name != learns else 0
            policy[name] = jnp.full((1, 2), step[name], jnp.float32)
            states[name] = states[name].replace(ghost=jnp.array([ghost[name]], jnp.int32))
        before = {name: states[name].opponent for name in behaviors}
        steps = {name: jnp.array([step[name]]) for name in behaviors}
        states, new = scheduled(of, states, policy, steps, jnp.array([number], jnp.uint32))
        changed = clocks[learns].change_due(step[learns]) and rotation.change()
        assert new.tolist() == [changed]
        for name in behaviors:
            state, clock = states[name], clocks[name]
            assert state.turn.tolist() == [rotation.learning]
            if clock.save_due(step[name]):
                assert state.pool[0, saves[name] % 3].tolist() == [step[name]] * 2
                saves[name] += 1
            assert state.saves.tolist() == [saves[name]]
            if clock.swap_due(ghost[name], changed=changed):
                newest = np.asarray(state.opponent) == LATEST
                assert (np.asarray(state.playing)[newest] == step[name]).all()
                assert set(np.unique(state.opponent)) <= {*range(max(saves[name] - 3, 0), saves[name]), LATEST}
            else:
                np.testing.assert_array_equal(state.opponent, before[name])
            assert int(state.swapped[0]) == clock.last_swap and int(state.changed[0]) == clock.last_change
    assert min(saves.values()) > 3 and rotation.learning is not None


def _begun(rivals: Rivals, policy: Any, keys: Any) -> Any:
    from jaxrl.training.compiled.opponents import begin

    play: Any = ()
    return begin(rivals, policy, play, keys)


def test_draws_follow_the_ratio() -> None:
    """Of 800 draws with a ratio of 0.75, 600 are the newest policy, up to 5 standard deviations of 12.2."""
    of = rival(2, 1, groups=8, swap_steps=1, play_against_latest_model_ratio=0.75)
    state = _begun(of, jnp.zeros((100, 2)), jax.random.split(jax.random.key(0), 100)).replace(ghost=jnp.full(100, 2))
    state, nobody = state.replace(saves=jnp.full(100, 5)), jnp.zeros(100, jnp.int32)
    new = {"Duel": jnp.ones((100, 2))}
    after, _ = scheduled({"Duel": of}, {"Duel": state}, new, {"Duel": nobody}, nobody.astype(jnp.uint32))
    drawn = np.bincount(np.asarray(after["Duel"].opponent).ravel() + 1)  # the newest, then snapshots by number
    assert abs(drawn[0] - 600) < 61 and drawn[3:].min() > 40 and drawn.sum() == 800 and len(drawn) == 6


def test_each_group_and_slot_follows_its_own_policy() -> None:
    """The grouped decision is what each policy decides alone for its areas and members."""
    settings = settings_of("ppo", {"network_settings__hidden_units": 4, "network_settings__num_layers": 1})
    algorithm = ALGORITHMS["ppo"](SPEC, settings)._replace(noise=None)
    init = quick_jit(jax.vmap(jax.vmap(lambda key: algorithm.init(key).policy)))
    policies = init(jax.random.split(jax.random.key(0), (2, 3)))
    obs, mask = jax.random.normal(jax.random.key(1), (4, 6, 1)), jnp.ones((4, 6, 9), bool)
    grouped = rival_algorithm(algorithm, groups=2, slots=3)
    assert grouped.noise is not None
    noise = grouped.noise(jax.random.key(2), (4, 6))
    found = quick_jit(grouped.act)(policies, (obs,), mask, (), noise)
    act = quick_jit(algorithm.act)
    for group in range(2):
        for slot in range(3):
            at = np.s_[2 * group : 2 * group + 2, 2 * slot : 2 * slot + 2]
            one = jax.tree.map(lambda x, at=(group, slot): x[at], policies)
            alone = act(one, (obs[at],), mask[at], (), noise[group, slot])
            np.testing.assert_array_equal(found.action.discrete[at], alone.action.discrete)
            np.testing.assert_allclose(found.extras["log_prob"][at], alone.extras["log_prob"], rtol=1e-5)
    assert [groups_of(n) for n in (1, 6, 16, 20, 7)] == [1, 6, 8, 5, 7]
    assert [x.shape for x in begin_pool(jnp.zeros((2, 5)), 3, (2, 4, 1))] == [(2, 3, 5), (2, 4, 1, 5)]


@pytest.mark.parametrize("draws", [True, False], ids=["drawn before", "drawn by itself"])
def test_groups_and_slots_with_one_policy_act_differently(draws: bool) -> None:
    """In equal views, 4 x 2 of them with 16 members each, which choose among 9 actions."""
    settings = settings_of("ppo", {"network_settings__hidden_units": 4, "network_settings__num_layers": 1})
    algorithm = ALGORITHMS["ppo"](SPEC, settings)
    algorithm = algorithm if draws else algorithm._replace(noise=None)
    one = algorithm.init(jax.random.key(0)).policy
    policies = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, 2, *x.shape)), one)
    grouped = rival_algorithm(algorithm, groups=4, slots=2)
    assert grouped.noise is not None
    noise = grouped.noise(jax.random.key(2), (4, 32))
    decided = grouped.act(policies, (jnp.zeros((4, 32, 1)),), jnp.ones((4, 32, 9), bool), (), noise)
    chosen = np.asarray(decided.action.discrete).reshape(8, 16)
    assert len({row.tobytes() for row in chosen}) == 8


SMALL = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 32, "buffer_size": 64, "num_epoch": 1, "learning_rate_schedule": "constant"},
    "network_settings": {"hidden_units": 4, "num_layers": 1},
    "summary_freq": 128,
    "checkpoint_interval": 256,
    "max_steps": 500,
    "self_play": {"save_steps": 100, "team_change": 200, "swap_steps": 60, "window": 2},
}


def configured(folder: Path, run_id: str, *, changes: Any = None, env: Any = None, **options: Any) -> RunSettings:
    written = {
        "behaviors": {"Pong": {**SMALL, **(changes or {})}},
        "env_settings": {"env_path": "jax:pong", "num_areas": 4, "seed": 3, "seeds": 2, **(env or {})},
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder), **options},
    }
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def arrays(run: Path) -> dict[str, np.ndarray]:
    return dict(checkpoint.read_arrays(require_latest(run / "Pong")))


@pytest.mark.usefixtures("runs")
@pytest.mark.timeout(400)
def test_a_run_and_one_that_was_resumed_are_equal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pool, ratings, turns and clocks included; it goes on within a turn, with opponents that have left the pool.

    Seed 4 is an exploiter of seed 3: it joins that one's pool with every second iteration.
    """
    league = {"exploiters": 1, "renew_steps": 100}
    own = {"self_play": SMALL["self_play"] | {"team_change": 300, "swap_steps": 150, "league": league}}
    with quick_compilation(), caplog.at_level(logging.INFO, "jaxrl"):
        train(configured(tmp_path, "whole", changes=own))
        assert "without self_play" not in caplog.text and "ELO: 1" in caplog.text
        shutil.copytree(tmp_path / "whole", tmp_path / "half")
        remove(checkpoints(tmp_path / "half" / "Pong")[-1])
        assert checkpoints(tmp_path / "half" / "Pong")[-1].step == 256
        begun = arrays(tmp_path / "half")
        gone = (begun["rivals/opponent"][0] >= 0) & (begun["rivals/opponent"][0] < begun["rivals/saves"][0] - 2)
        assert gone.any(), "they play, and are no longer in the pool"
        train(configured(tmp_path, "half", changes=own, resume=True))
        whole, half = arrays(tmp_path / "whole"), arrays(tmp_path / "half")
        assert whole.keys() == half.keys() and all(whole[name].tobytes() == half[name].tobytes() for name in whole)
        assert whole["rivals/turn"].tolist() == [1, 1] and whole["rivals/league/joined"].tolist() == [4, 4]
        assert whole["rivals/saves"].tolist() == [9, 1]  # 1, with every 128 steps its own and its exploiter's
        assert whole["train/step"].tolist() == [
            512,
            512,
        ]  # 64 an iteration: 16 decisions of one of two teams in 4 areas
        tags = {name: of for _, name, of, *_ in rows(tmp_path / "whole" / "Pong" / "exploiter_4" / "metrics.csv")}
        assert float(tags["Self-play/ELO"]) > 1000 and float(tags["League/Exploiters in Pool so far"]) > 1
        assert 0 < float(tags["League/Score against Main Agent"]) < 1
        tags = {name for _, name, *_ in rows(tmp_path / "whole" / "Pong" / "seed_3" / "metrics.csv")}
        assert "League/Exploiters in Pool so far" in tags and "League/Score against Main Agent" not in tags
        newest = load_trained(tmp_path / "whole", behavior="Pong")
        pool = players.of_pool(tmp_path / "whole", newest)
        assert [of.name for of in pool] == ["snapshot7", "snapshot8"], "9 were taken, 2 are kept"
        at = json.loads((tmp_path / "whole/run_logs/training_status.json").read_text())["Pong"]["seed"] - 3
        bias = "params/params/body/layer_0/bias"
        rows_of = [np.asarray(of.policy.params["params"]["body"]["layer_0"]["bias"]) for of in pool]
        np.testing.assert_array_equal(rows_of, whole[f"rivals/pool/{bias}"][at][[1, 0]])
        path, fresh = require_latest(tmp_path / "whole" / "Pong"), ()
        info, folder = checkpoint.read_info(path), RunFolder(tmp_path, "whole")
        for name, leaf in ((f"rivals/pool/{bias}", [2, 3, 5]), ("rivals/rating", [3]), ("rivals/saves", [9])):
            theirs = info._replace(leaves={**info.leaves, name: {"dtype": "float32", "shape": leaf}})
            with pytest.raises(CheckpointError, match="the pool in it is not one of this policy"):
                list(players._compiled_pool(path, theirs, folder, newest))
        for changes, text in (
            ({"window": 3}, "Pong.self_play.window: got 3, and the pool in this checkpoint was made with 2"),
            ({"opponent_sampling": "pfsp"}, "self_play.opponent_sampling: got pfsp, .* was made with uniform"),
            ({"window": 2}, r"self_play.league: got 0 exploiter\(s\), .* was made with 1 exploiter\(s\), which"),
            (None, "Pong.self_play: got None, and the pool in this checkpoint was made with on, .*: set it back"),
        ):
            own = configured(tmp_path, "whole", changes={"self_play": changes and SMALL["self_play"] | changes})
            subject = Subject("Pong", newest.spec, own.behaviors["Pong"], (3, 4), 4)
            with pytest.raises(CheckpointError, match=text):
                resumed(path, subject, fresh)  # type: ignore[arg-type]
        noted = json.loads((tmp_path / "whole/run_logs/training_status.json").read_text())["Pong"]
        assert noted["seed"] == 3 and noted["elo"] == whole["rivals/rating"][0, -1], "no exploiter is exported"
        kept = {"max_steps": 1, "self_play": SMALL["self_play"] | {"swap_steps": 1000}}
        train(configured(tmp_path, "other", changes=kept, initialize_from="whole"))
    other = arrays(tmp_path / "other")
    kernel = next(name for name in other if name.startswith("rivals/pool/params") and name.endswith("kernel"))
    first = whole[kernel.replace("rivals/pool", "train/policy")]
    assert (other[kernel][:, 0] == other[kernel][:, 1]).all()  # a pool of what it began with alone
    assert (other[kernel.replace("pool", "playing")][:, :, 0] == other[kernel][:, :1]).all(), "who plays too"
    assert any((first[seed] == other[kernel][0, 0]).all() for seed in range(2))
    assert checkpoints(tmp_path / "other" / "Pong")


def test_an_iteration_of_three_teams_keeps_the_shapes_of_its_state() -> None:
    """With members in teams, pfsp and results by return; nothing is compiled."""
    changes = {
        "network_settings__hidden_units": 4, "network_settings__num_layers": 1,
        "self_play": {"opponent_sampling": "pfsp", "result": "return", "window": 2},
    }  # fmt: skip
    settings, scene = settings_of("poca", changes), numbered(Duel=(3, 2))
    algorithm = ALGORITHMS["poca"](SPEC, settings)
    plan = plan_of(scene, {"Duel": algorithm}, {"Duel": settings}, areas=4, seeds=2)
    state = jax.eval_shape(partial(start, plan), jnp.zeros(2, jnp.uint32))
    after, logs = jax.eval_shape(partial(iterate, plan), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert logs["Duel"].episodes.stats["Self-play/Decided Games"].mean.shape == (2,)


@pytest.mark.timeout(400)
def test_two_behaviors_learn_by_turns() -> None:
    """While the strikers learn the goalie stands still, and the other way round; both in one program."""
    env = ENVIRONMENTS["strikers_vs_goalie"](episode_limit=4)
    written = {
        "hyperparameters__batch_size": 32, "hyperparameters__buffer_size": 64, "hyperparameters__num_epoch": 1,
        "network_settings__hidden_units": 4, "network_settings__num_layers": 1,
        "self_play": {"save_steps": 60, "team_change": 100, "swap_steps": 40, "window": 2},
    }  # fmt: skip
    settings = {
        "Striker": settings_of("ppo", written),  # 8 decisions of 2 in 4 areas; of one, below
        "Goalie": settings_of("ppo", written | {"hyperparameters__buffer_size": 32}),
    }
    algorithms = {name: ALGORITHMS[of.trainer_type](env.part(name).spec, of) for name, of in settings.items()}
    with quick_compilation():
        trainer = make_scene_trainer(env, algorithms, settings, areas=4)
        state, told = trainer.init([1]), []
        for _ in range(8):
            before = {name: trainer.read(part.train) for name, part in state.parts.items()}
            turn = int(state.parts["Striker"].rivals.turn[0])
            state, logs = trainer.run(state, 1)
            learns, rests = ("Striker", "Goalie")[turn], ("Goalie", "Striker")[turn]
            after = {name: trainer.read(part.train) for name, part in state.parts.items()}
            same = jax.tree.map(lambda x, y: np.array_equal(x, y), before[rests].policy, after[rests].policy)
            assert all(jax.tree.leaves(same)) and after[rests].step == before[rests].step
            assert after[learns].step > before[learns].step and (logs[rests].updates == 0).all()
            told.append((turn, int(logs[learns].episodes.stats["Self-play/ELO"].count[0])))
    assert {turn for turn, _ in told} == {0, 1}
    assert min(rated for turn, rated in told if turn == 0) >= 2 and all(rated for _, rated in told)
    assert all((np.asarray(state.parts[name].rivals.rating)[0, -1] != 1200) for name in settings)
    ghosts = {name: int(part.rivals.ghost[0]) for name, part in state.parts.items()}
    assert ghosts["Goalie"] * 2 == int(after["Striker"].step[0]), ghosts
    # Whose numbers were not finite makes no more steps: its turn would never end, and the other's max_steps never come.
    learns, rests = ("Striker", "Goalie")[turn := int(state.parts["Striker"].rivals.turn[0])], 1 - turn
    left = state.parts[learns].replace(frozen=jnp.array([True]))
    state, _ = trainer.run(trainer.place(state.replace(parts={**state.parts, learns: left})), 1)
    assert state.parts["Striker"].rivals.turn.tolist() == [rests]


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("basic", {}, "behaviors.Basic.self_play: Basic has one team of Basic and no other behavior with self_play"),
        (
            "pong",
            {"connectors": [{"type": "frame_stack", "frames": 2}]},
            "behaviors.Pong.connectors: not together with self_play in a compiled run",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(name: str, changes: Any, text: str) -> None:
    env = ENVIRONMENTS[name]()
    settings = settings_of("ppo", {"self_play": {}, **changes})
    with pytest.raises(SettingsError, match=text):
        make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings)


def test_two_behaviors_of_several_teams_each_are_refused() -> None:
    settings = settings_of("ppo", {"self_play": {}})
    with pytest.raises(
        SettingsError, match="self_play: One and Two of Numbered have several teams each, and a compiled"
    ):
        check_sides(numbered(One=(2, 1), Two=(2, 1)), {}, {"One": settings, "Two": settings})


def test_a_behavior_without_self_play_stays_as_it_is() -> None:
    scene = numbered(Duel=(2, 1), Other=(2, 1))
    whole = contest(scene, sides_of(scene, ["Duel"]))
    assert [part.name for part in whole.parts] == ["Duel", "Other", rivals_of("Duel")]
    _, views = whole.reset(jax.random.key(0), {TURN: 1.0})
    assert views["Other"].obs[0][:, 0].tolist() == [3, 4] and views["Duel"].obs[0][:, 0].tolist() == [2]
