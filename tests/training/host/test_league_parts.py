"""Exploiters and frozen policies of the host loop, piece by piece: games, turns and what is left in a pool, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.interface import PolicyState
from jaxrl.rollout.booking.episodes import NO_EPISODES, GameEnd
from jaxrl.settings.behavior import LeagueSettings
from jaxrl.training.host.ghosts import Ghosts, Weights
from jaxrl.training.host.league import League
from jaxrl.training.host.programs import key_of
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.league import GAMES, Standing


def stub(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def policy(number: float) -> PolicyState:
    return PolicyState(params={"w": np.full(2, number)}, normalizer=())


class Pool:
    """Notes what is saved."""

    def __init__(self, elo: float) -> None:
        self.elo, self.saved = elo, list[Any]()

    def save(self, weights: Weights, step: int, elo: float) -> None:
        self.saved.append((weights, step, elo))


class Playing:
    """Notes which frozen policies are sent what, and tells how many decisions they have made."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.made = 0

    def steps(self, _name: str) -> int:
        return self.made

    def send(self, name: str, weights: Any) -> None:
        self.sent.append((name, weights))


def league_of(**section: Any) -> tuple[Any, Any, Any, Any]:
    """A league, the side of its main agent at step 900, that agent and an exploiter at step 70."""
    league = object.__new__(League)
    league._ghosts = Playing()  # pyright: ignore[reportAttributeAccessIssue]
    league._seed = 3
    league._recorder = stub(told=lambda *_: None)
    settings = stub(swap_steps=10, initial_elo=1200.0, league=LeagueSettings(**section))
    side = stub(settings=settings, teams=[0, 1], latest="newest main agent", pool=Pool(1300.0))
    main = stub(name="Duel", step=900, state="main's", unfinished=lambda: True)
    exploiter = stub(name="Duel.exploiter", step=70, state=stub(policy=policy(1.0)), renewed=[], stop=lambda: None)
    exploiter.renew = lambda key, state: exploiter.renewed.append((key, state))
    league.standings = {exploiter.name: Standing(1250.0)}
    return league, side, main, exploiter


def test_games_of_an_exploiter_are_rated_against_the_main_agent_that_was_met() -> None:
    """A win and a loss against one of 1400, which is of another behavior."""
    league, side, _, exploiter = league_of()
    side.name, side.settings.result = "Duel", "final_reward"
    league._behaviors = {"Duel": stub(exploiters=[exploiter])}
    ends = [GameEnd(1, 1.0, -9.0), GameEnd(1, -2.0, 9.0)]
    foe: Any = stub(side=stub(name="Duel", pool=Pool(1400.0)), team=1)
    league._book(side, 0, {exploiter.name: [NO_EPISODES._replace(games=ends)]}, [foe])
    first = 1250.0 + rating.change(1250.0, 1400.0, 1.0)
    standing = league.standings[exploiter.name]
    assert standing.elo == pytest.approx(first + rating.change(first, 1400.0, 0.0))
    assert (standing.games, standing.score) == pytest.approx((1.98, 0.98))


def test_an_exploiter_meets_the_newest_main_agent_when_its_ghosts_have_made_their_steps() -> None:
    """3 decisions of each of two teams with each message, more than 10 from one change to the next; or at once."""
    league, side, main, exploiter = league_of()
    league._ghosts.made = 3
    due = []
    for _ in range(5):
        before = len(league._ghosts.sent)
        league._play(side, main, exploiter, False)
        due.append(len(league._ghosts.sent) > before)
    assert due == [False, True, False, True, False]
    league._play(side, main, exploiter, True)
    names = [f"{exploiter.name}?team={team}" for team in (0, 1)]
    assert league._ghosts.sent[-2:] == [(name, "newest main agent") for name in names]


def test_an_exploiter_leaves_a_copy_of_its_policy_and_begins_anew() -> None:
    """It has won enough, or had 60 steps of its own: not the main agent's. The next one has another key."""
    league, side, main, exploiter = league_of(win_share=0.7, renew_steps=60)
    assert league._learned(side, main, exploiter), "70 steps"
    weights, step, elo = side.pool.saved[0]
    exploiter.state.policy.params["w"][:] = 9.0  # as its next update does
    assert weights.policy.params["w"].tolist() == [1.0, 1.0] and (step, elo) == (900, 1250.0)
    standing = league.standings[exploiter.name]
    assert (standing.elo, standing.begun, standing.joined) == (1200.0, 70, 1)
    exploiter.step = 130
    assert not league._learned(side, main, exploiter), "60 steps since, not more"
    standing.games = standing.score = float(GAMES)
    assert league._learned(side, main, exploiter)
    keys, states = zip(*exploiter.renewed, strict=True)
    expected = [jax.random.fold_in(key_of(3, exploiter.name), number) for number in (1, 2)]
    mine, other = (jax.random.key_data(jnp.stack(of)) for of in (keys, expected))
    np.testing.assert_array_equal(mine, other)
    assert states == (None, None)
    assert (standing.games, standing.score, standing.begun) == (0.0, 0.0, 130)


def ghosts_of() -> tuple[Ghosts, dict[str, Any]]:
    """No frozen policy yet; and those that are made, by name."""
    made: dict[str, Any] = {}

    def freeze(name: str, _like: str, given: PolicyState) -> Any:
        actor = stub(finished=0, decisions=0, acts=[given])
        actor.act_as = actor.acts.append
        made[name] = stub(actor=actor)
        return made[name]

    return Ghosts(stub(freeze=freeze)), made


def test_a_frozen_policy_tells_its_decisions_once_and_acts_with_what_it_was_sent() -> None:
    ghosts, made = ghosts_of()
    first, second = Weights(policy(1.0)), Weights(policy(2.0))
    ghosts.add("Duel?team=1", "Duel", first, decisions=40)
    actor = made["Duel?team=1"].actor
    assert actor.decisions == 40
    actor.finished = 7
    assert [ghosts.steps("Duel?team=1") for _ in range(2)] == [7, 0]
    actor.finished = 9
    assert ghosts.steps("Duel?team=1") == 2
    ghosts.send("Duel?team=1", second)
    assert actor.acts == [first.policy, second.policy]
    state = ghosts.state("Duel?team=1", lambda weights: weights.name)
    assert state == {"weights": second.name, "decisions": 40} and first.name != second.name
    again, made = ghosts_of()
    again.restore("Duel?team=1", "Duel", state, first, {second.name: second}.__getitem__)
    actor = made["Duel?team=1"].actor
    assert actor.acts == [second.policy] and actor.decisions == 40
    again.restore("Duel?team=0", "Duel", {"weights": None, "decisions": 3}, first, {}.__getitem__)
    assert made["Duel?team=0"].actor.acts == [first.policy]
