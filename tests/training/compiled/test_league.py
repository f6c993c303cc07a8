"""A small league: whom exploiters meet, when they join the pool of their main agent, and how they begin anew."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import make_settings
from jaxrl.algorithms import make_algorithm
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.settings import SettingsError
from jaxrl.settings.behavior import LeagueSettings, SelfPlaySettings
from jaxrl.training.checks import check_leagues
from jaxrl.training.compiled import league
from jaxrl.training.compiled.checks import check_sides
from jaxrl.training.compiled.opponents import joined, scheduled
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.helpers import settings_of
from tests.training.compiled.test_self_play import _begun, configured, ended, rate, rival

OWN = {"exploiters": 1, "renew_steps": 100, "win_share": 0.7}
NOBODY = jnp.zeros(4, bool)


def begun(policy: Any, **settings: Any) -> tuple[Any, Any]:
    """Two leagues of a main agent and an exploiter, seeds 0 to 3, and their state."""
    of = rival(2, 1, league=OWN | settings.pop("league", {}), **settings)
    return of, _begun(of, policy, jax.random.split(jax.random.key(0), 4))


def test_an_exploiter_meets_the_newest_main_agent_alone() -> None:
    """It plays as since the last draw, and is rated in row 0 as it is now."""
    first, then = jnp.arange(4.0)[:, None], 10 + jnp.arange(4.0)[:, None]
    of, state = begun(first, swap_steps=1, save_steps=50, play_against_latest_model_ratio=0.5)
    np.testing.assert_array_equal(state.pool[:, 0, 0], [0, 0, 2, 2])
    ratings = state.rating.at[:, -1].set(jnp.array([1210.0, 1220, 1230, 1240]))
    state = state.replace(ghost=jnp.array([5, 5, 5, 0]), rating=ratings)
    steps = {"Duel": jnp.full(4, 60)}
    after, _ = scheduled({"Duel": of}, {"Duel": state}, {"Duel": then}, steps, jnp.zeros(4, jnp.uint32))
    after = after["Duel"]
    np.testing.assert_array_equal(after.playing[1::2, :, 0, 0], [[10] * 2, [2] * 2])  # that of seed 3 is not due
    np.testing.assert_array_equal(after.rating[:, 0], [1200, 1210, 1200, 1230])
    assert (after.opponent[1] == 0).all() and (after.opponent[3] == 0).all()
    assert after.saves.tolist() == [2, 1, 2, 1], "snapshots are of main agents"
    np.testing.assert_array_equal(after.pool[:, 1, 0], [10, 0, 12, 2])


def test_who_has_won_joins_the_pool_and_begins_anew() -> None:
    """Seed 1 has 15 of 20, seed 3 all of 19: one game too few, until its 100 steps are over."""
    policy = jnp.arange(4.0)[:, None]
    of, state = begun(policy, opponent_sampling="pfsp")
    played = jnp.array([[30.0, 30.0], [20, 15], [30, 30], [19, 19]])
    ratings = state.rating.at[:, -1].set(jnp.array([1210.0, 1220, 1230, 1240]))
    state = state.replace(league=state.league.replace(played=played), rating=ratings, met=state.met + 9)
    after, which = joined(of, state, policy, jnp.full(4, 100), ~NOBODY)
    assert which.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(after.pool[:, 1, 0], [1, 0, 2, 2])
    assert after.rating[0].tolist() == [1200, 1220, 1200, 1210] and after.met[0, 1].tolist() == [0, 0]
    assert after.rating[:, -1].tolist() == [1210, 1200, 1230, 1240], "new networks are nobody yet"
    assert after.saves.tolist() == [2, 1, 1, 1] and after.league.joined.tolist() == [1, 1, 0, 0]
    assert after.league.played.tolist() == [[30, 30], [0, 0], [30, 30], [19, 19]]
    assert after.league.begun.tolist() == [0, 100, 0, 0]
    later, which = joined(of, after, policy, jnp.full(4, 101), ~NOBODY)
    assert which.tolist() == [False, False, False, True] and later.pool[2, 1].tolist() == [3]
    twice = state.replace(league=state.league.replace(played=2 * played))  # seed 1 has 30 of 40
    for ready, share in ((NOBODY, 0.7), (~NOBODY, 0.76)):
        of, _ = begun(policy, league={"win_share": share})
        assert not joined(of, twice, policy, jnp.full(4, 100), ready)[1][1]
    copies, _ = begun(policy, league={"begin": "main"}, opponent_sampling="pfsp")
    assert joined(copies, state, policy, jnp.full(4, 100), ~NOBODY)[0].rating[1, -1] == 1210


def test_all_exploiters_of_a_main_agent_join_at_once() -> None:
    policy = jnp.arange(3.0)[:, None]
    of = rival(2, 1, league={"exploiters": 2, "renew_steps": 1})
    state = _begun(of, policy, jax.random.split(jax.random.key(0), 3))
    after, which = joined(of, state, policy, jnp.array([9, 2, 3]), jnp.ones(3, bool))
    assert which.tolist() == [False, True, True] and after.pool[0, :3, 0].tolist() == [0, 1, 2]
    assert after.saves.tolist() == [3, 1, 1] and after.league.joined.tolist() == [2, 1, 1]


def test_games_of_exploiters_are_counted() -> None:
    """A win, a draw and a loss of one member each, then as `sampling.remembered` forgets."""
    of, state = begun(jnp.zeros((4, 1)))
    one = jax.tree.map(lambda x: jnp.repeat(x, 4, axis=1), vars(ended([[1.0], [0.0], [-1.0], [1.0]])))
    one["terminated"] = one["terminated"].at[:, :, 3].set(False)
    found = rate({"Duel": of}, {"Duel": state}, {"Duel": type("Steps", (), one)}).games["Duel"]
    assert found.tolist() == [[3, 1.5]] * 4
    twice = league.with_games(league.with_games(state.league, found), found)
    np.testing.assert_allclose(twice.played[0], [3 * 0.98**3 + 3, 1.5 * 0.98**3 + 1.5], rtol=1e-6)
    told = league.figures(LeagueSettings(), twice)
    share = told[league.LEAGUE_SHARE]
    assert share.count.tolist() == [0, 1, 0, 1] and share.mean.tolist() == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("begin", ["fresh", "main"])
def test_an_exploiter_begins_anew_with_its_own_steps_and_draws(begin: str) -> None:
    spec = BehaviorSpec((ObservationSpec("number", (1,)),), ActionSpec(0, (2,)))
    settings = settings_of("ppo", {"network_settings__hidden_units": 4, "network_settings__num_layers": 1})
    algorithm, own = make_algorithm(spec, settings), LeagueSettings(begin=begin)  # type: ignore[arg-type]
    keys = jax.random.split(jax.random.key(0), 4)
    train = jax.vmap(algorithm.init)(keys).replace(step=jnp.arange(4))
    which = jnp.array([False, True, False, False])
    found = league.renewed(own, algorithm, train, which, keys, jnp.full(4, 7, jnp.uint32))
    assert found.step.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(jax.random.key_data(found.key), jax.random.key_data(train.key))

    def kernel(of: Any) -> np.ndarray:
        return np.asarray(of.policy.params["params"]["body"]["layer_0"]["kernel"])

    same = [(kernel(found)[seed] == kernel(train)[seed]).all() for seed in range(4)]
    assert same == [True, False, True, True]
    assert (kernel(found)[1] == kernel(train)[0]).all() == (begin == "main")


@pytest.mark.parametrize(
    ("env", "more", "text"),
    [
        (
            {"env_path": "jax:pong", "seeds": 3},
            {},
            "env_settings.seeds: got 3, expected a multiple of 2: a league of s",
        ),
        ({"num_envs": 3}, {}, "env_settings.num_envs: got 3, expected a multiple of 2: a league of self_play takes so"),
        ({"num_envs": 2}, {"threaded": True}, "Pong.threaded: got true, expected false with self_play.league"),
        ({"num_envs": 2}, {"count_by": "env_steps"}, 'Pong.count_by: got "env_steps", expected "agent_steps" with'),
    ],
)
def test_what_is_no_league_is_refused(env: Any, more: Any, text: str, tmp_path: Any) -> None:
    settings = configured(tmp_path, "run", changes={"self_play": {"league": {}}})
    behaviors = {name: of.model_copy(update=more) for name, of in settings.behaviors.items()}
    options = settings.env_settings.model_copy(update={"env_path": "player:pong", "seeds": 1} | env)
    changed = settings.model_copy(update={"env_settings": options, "behaviors": behaviors})
    with pytest.raises(SettingsError, match=text):
        check_leagues(changed)
    other = settings.behaviors["Pong"].model_copy(update={"self_play": SelfPlaySettings()})
    options = options.model_copy(update={"env_path": "player:pong", "num_envs": 2})
    mixed = settings.model_copy(update={"env_settings": options, "behaviors": {**settings.behaviors, "Other": other}})
    with pytest.raises(SettingsError, match=r"Other\.self_play\.league: got 0 exploiter\(s\), expected 1, as beh"):
        check_leagues(mixed)


def test_behaviors_of_one_contest_have_one_league() -> None:
    scene = ENVIRONMENTS["strikers_vs_goalie"]()
    settings = {
        "Striker": make_settings("ppo", self_play={"league": {}}),
        "Goalie": make_settings("ppo", self_play={}),
    }
    with pytest.raises(SettingsError, match=r"self_play\.league: got exploiters: 1 of Striker, 0 of Goalie: a seed is"):
        check_sides(scene, {}, settings, 2)
    settings["Goalie"] = settings["Striker"]
    with pytest.raises(SettingsError, match="seeds: got 3, expected a multiple of 2"):
        check_sides(scene, {}, settings, 3)
