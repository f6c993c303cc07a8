"""Whole episodes alone are taken: what is learned from them does not depend on when, nor on pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import numpy as np
import pytest
from random_streams import RandomStream
from row_collector import EXTRINSIC, RowCollector, Transition, transitions
from script import ONE, Script

from jaxrl.rollout.booking.records import Ending, Ingested
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import whole_episodes
from jaxrl.rollout.buffer.running import RunningEpisodes
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import BehaviorMessage
from tests.algorithms.team_rollouts import returns_of
from tests.helpers import ppo_settings

TAKE = jax.jit(whole_episodes.take)
TURN = jax.jit(whole_episodes.turn)
LONG = 10_000
HALF = ppo_settings(hyperparameters__lambd=1.0, reward_signals__extrinsic__gamma=0.5)
RETURNS = jax.jit(partial(returns_of, HALF, False))


class WholeEpisodes(RowCollector):
    """A collector that takes whole episodes, and moves running ones on to fresh pages."""

    def __init__(self, **options) -> None:
        super().__init__(horizon=LONG, **options)
        self.running = RunningEpisodes()
        self.left_out: np.ndarray | None = None  # of the next messages

    def feed(self, messages: Mapping[Source, BehaviorMessage]) -> Ingested:
        ingested = super().feed(messages)
        self.running.note(ingested.steps, self.pages, self.left_out)
        return ingested

    def turn(self, turning: np.ndarray) -> None:
        if not turning.any():
            return
        self.turned += int(turning.sum())
        begin = self.running.begin.copy()
        page = self.pages.turn(turning, self.running.length(self.pages))
        if self.pages.given > self.buffer.shape[1]:
            self.resize(())
        self.buffer = TURN(self.buffer, turning, page.astype(np.int32), begin)
        self.running.turned(turning)
        self.check()

    def take(self, *, check: bool = True) -> list[Transition]:
        self.rollout, self.buffer = TAKE(self.buffer, self.running.begin)
        before = self.running.complete
        self.running.taken(self.pages)
        self.check()
        assert int(np.asarray(self.rollout.acted).sum()) == before
        return transitions(self.rollout) if check else []


def returns_of(rollout: Rollout, trained: list[Transition]) -> dict[tuple[int, int], float]:
    """By (uid, serial): r + γ r' + γ² r'' + ... to the end of the episode, γ = 0.5, V = 0 but where it is truncated."""
    r = jax.tree.map(np.asarray, rollout)
    value = np.where(r.present, r.obs[0][..., 2], 0.0).sum(-1, keepdims=True)
    value = np.broadcast_to(value, r.present.shape)[..., None].astype(np.float32)
    found = np.asarray(RETURNS(rollout, value))[..., 0]
    names = {
        (int(r.obs[0][at][0]), int(r.obs[0][at][1])): float(found[at]) for at in zip(*np.nonzero(r.acted), strict=True)
    }
    assert names.keys() == {(t.uid, t.serial) for t in trained}
    return names


@pytest.mark.parametrize("team_rows", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["teams", "single"])
def test_m13_r51_taken_in_pieces_as_if_taken_at_once(team_rows: bool) -> None:
    """The same stream into two buffers: one is taken often and has short pages, one is taken once, at the end."""
    sizes = {"team_rows": team_rows, "rows": 32, "members": 4 if team_rows else 1}
    stream, rng = RandomStream(3), np.random.default_rng(7)
    often = WholeEpisodes(**sizes, capacity=36, turns=True)
    once = WholeEpisodes(**sizes, capacity=400)
    pieces: list[Transition] = []
    returns: dict[tuple[int, int], float] = {}
    for _ in range(150):
        arrived = stream.message()
        often.feed(arrived)
        once.feed(arrived)
        if rng.random() < 0.03:
            pieces += (new := often.take())
            returns |= returns_of(often.rollout, new)
    pieces += (new := often.take())
    returns |= returns_of(often.rollout, new)
    whole = once.take()
    assert often.turned > 5 and len(whole) > 500
    assert sorted(pieces) == whole
    # who moves with the last of its team goes on from its own next observation, which is a cut; nothing else is
    allowed = {"continues", "terminated", "truncated", "left", *(["cut"] if team_rows else [])}
    assert {t.ending for t in whole} <= allowed
    expected = returns_of(once.rollout, whole)
    assert returns.keys() == expected.keys()
    np.testing.assert_allclose([returns[name] for name in expected], list(expected.values()), rtol=1e-5, atol=1e-5)


def lone(**options) -> tuple[Script, WholeEpisodes]:
    collector = WholeEpisodes(team_rows=False, **({"rows": 2, "capacity": 16} | options))
    return Script(collector), collector


def test_r51_a_running_episode_waits_and_its_returns_go_to_its_end() -> None:
    """1 decides three times and ends, rewards 1 2 4; 2 decides through the first update and ends after it.

    With γ = λ = 0.5 and 1 the returns of 1 are 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4 and 4.
    Those of 2, with rewards 1 1 1 8: 1 + 1/2 + 1/4 + 8/8 = 2.75, 1 + 1/2 + 8/4 = 3.5, 1 + 8/2 = 5 and 8.
    """
    play, collector = lone()
    play.say(ask={1: 10, 2: 20})
    play.say(ask={1: 11, 2: 21}, reward=[1.0, 1.0])
    play.say(ask={1: 12, 2: 22}, reward=[2.0, 1.0])
    play.say(end={1: 13}, end_reward=[4.0], ask={2: 23}, reward=[1.0])
    assert collector.running.complete == 3
    first = collector.take()
    assert [(t.uid, t.serial, t.ending) for t in first] == [
        (1, 1, "continues"),
        (1, 2, "continues"),
        (1, 3, "terminated"),
    ]
    assert returns_of(collector.rollout, first) == {(1, 1): 3.0, (1, 2): 4.0, (1, 3): 4.0}
    assert collector.running.complete == 0 and collector.take() == []
    play.say(end={2: 24}, end_reward=[8.0])
    second = collector.take()
    assert returns_of(collector.rollout, second) == {(2, 1): 2.75, (2, 2): 3.5, (2, 3): 5.0, (2, 4): 8.0}
    assert [t.reward for t in second] == [1.0, 1.0, 1.0, 8.0]


def test_an_episode_that_begins_with_the_end_of_another_is_not_taken_with_it() -> None:
    """The id ends and asks in one message: its row goes on with the next episode, whose first state stays."""
    play, collector = lone(rows=1)
    play.say(ask={1: 10})
    play.say(end={1: 11}, end_reward=[1.0], ask={1: 12}, truncated=True)
    assert [(t.serial, t.ending, t.bootstrap) for t in collector.take()] == [(1, "truncated", 11.0)]
    play.say(ask={1: 13}, reward=[5.0])
    assert collector.take() == []
    play.say(end={1: 14}, end_reward=[6.0])
    assert [(t.serial, t.reward, t.ending) for t in collector.take()] == [(3, 5.0, "continues"), (4, 6.0, "terminated")]


def test_a_team_is_over_with_its_last_member() -> None:
    """1 dies, 2 goes on, silent for a message; both are taken when 2 has ended."""
    play = Script(collector := WholeEpisodes(rows=1, members=2, capacity=16))
    play.say(ask={1: 10, 2: 20})
    play.say(end={1: 11})
    play.say(ask={2: 21})
    assert collector.running.complete == 0 and collector.take() == []
    play.say(end={2: 22})
    assert [(t.uid, t.serial, t.ending) for t in collector.take()] == [
        (1, 1, "left"), (2, 1, "continues"), (2, 2, "terminated"),
    ]  # fmt: skip


def test_who_moves_to_another_page_leaves_nothing_there() -> None:
    """Pages of 6: an episode of 2 states has ended, one of 3 runs and moves on; nothing is trained twice or lost."""
    play, collector = lone(rows=1, capacity=6, turns=True)
    play.say(ask={1: 10})
    play.say(end={1: 11}, ask={2: 20})
    play.say(ask={2: 21})
    play.say(ask={2: 22})
    assert collector.turned == 0 and collector.pages.size.tolist() == [4]
    play.say(ask={2: 23})
    play.say(ask={2: 24})
    assert collector.turned == 1 and collector.running.begin.tolist() == [0]
    assert [(t.uid, t.serial) for t in collector.take()] == [(1, 1)]
    play.say(end={2: 25})
    assert [(t.uid, t.serial) for t in collector.take()] == [(2, serial) for serial in (1, 2, 3, 4, 5)]


def test_decisions_whose_outcome_nobody_will_know_do_not_bring_an_update() -> None:
    """1 is lost with its second decision open; of its episode the first one alone is learned from, and counts."""
    play, collector = lone(rows=1)
    play.say(ask={1: 10})
    play.say(ask={1: 11}, reward=[1.0])
    assert collector.slots.discard(ONE) == 1
    play.say(ask={2: 20})
    assert collector.running.complete == 1
    assert [(t.uid, t.serial, t.reward) for t in collector.take()] == [(1, 1, 1.0)]


def test_decisions_that_nobody_shall_learn_from_do_not_either() -> None:
    """Two agents end with one message, and the decision of the first is left out."""
    play, collector = lone(rows=2)
    play.say(ask={1: 10, 2: 20})
    collector.left_out = np.array([[True], [False]])
    play.say(end={1: 11, 2: 21})
    assert collector.running.complete == 1


def test_what_is_cut_by_hand_counts_as_complete() -> None:
    running = RunningEpisodes()
    play, collector = lone(rows=1)
    play.say(ask={1: 10})
    play.say(ask={1: 11})
    running = collector.running
    running.cut(np.array([True]))
    assert running.complete == 1 and running.length(collector.pages).tolist() == [2]
    running.forget()
    assert running.complete == 0
    assert Ending.CUT.value == 5 and EXTRINSIC
