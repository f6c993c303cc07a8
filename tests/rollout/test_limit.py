"""X20: `max_episode_length` interrupts episodes that the environment does not end."""

from __future__ import annotations

import numpy as np
import pytest
from script import ONE, Script
from test_whole_episodes import WholeEpisodes

from jaxrl.rollout.booking import slots
from jaxrl.rollout.booking.slots import Slots


def limited(most: int, **options) -> tuple[Script, WholeEpisodes, list]:
    collector = WholeEpisodes(**({"team_rows": False, "rows": 2, "capacity": 32} | options))
    collector.slots.max_length = most
    told: list = []
    ingest = collector.slots.ingest
    collector.slots.ingest = lambda *said: (told.append(found := ingest(*said)), found)[1]  # type: ignore
    return Script(collector), collector, told


def test_x20_an_endless_episode_is_interrupted_after_so_many_decisions() -> None:
    """Three decisions with rewards 1, 2, 4, then a new episode of the same id; it bootstraps from what is seen then."""
    play, collector, told = limited(3)
    play.say(ask={1: 10})
    for weight, reward in ((11, 1.0), (12, 2.0), (13, 4.0), (14, 8.0)):
        play.say(ask={1: weight}, reward=[reward])
    assert [r.returns for found in told for r in found.episodes] == [[7.0]]
    assert [r.lengths for found in told for r in found.episodes] == [[2]], "as ML-Agents counts: before the last one"
    trained = collector.take()
    assert [(t.serial, t.reward, t.ending, t.bootstrap) for t in trained] == [
        (1, 1.0, "continues", 11.0), (2, 2.0, "continues", 12.0), (3, 4.0, "truncated", 13.0),
    ]  # fmt: skip
    begins = [bool(found.steps.deciding[0, 0] and found.steps.ending[0, 0] != 1) for found in told[-1:]]
    assert begins == [False], "the fifth message continues the second episode"
    play.say(ask={1: 15}, reward=[16.0])
    play.say(ask={1: 16}, reward=[32.0])
    assert [r.returns for found in told for r in found.episodes] == [[7.0], [56.0]]


def test_a_team_that_began_together_ends_together() -> None:
    play, collector, told = limited(2, team_rows=True, rows=2, members=2)
    play.say(ask={1: 10, 2: 20})
    play.say(ask={1: 11, 2: 21}, reward=[1.0, 1.0])
    play.say(ask={1: 12, 2: 22}, reward=[1.0, 1.0])
    assert {(t.uid, t.serial, t.ending, t.bootstrap) for t in collector.take()} == {
        (1, 1, "continues", 32.0), (2, 1, "continues", 32.0), (1, 2, "truncated", 34.0), (2, 2, "truncated", 34.0),
    }  # fmt: skip
    assert (len(told[-1].episodes[0].returns), len(told[-1].episodes[0].team_returns)) == (2, 1)


def test_an_environments_own_end_begins_the_count_anew() -> None:
    """2 decisions, an end, 2 decisions: nobody has made 3 in one episode."""
    play, collector, told = limited(3)
    play.say(ask={1: 10})
    play.say(ask={1: 11})
    play.say(end={1: 12}, ask={1: 13})
    play.say(ask={1: 14})
    play.say(end={1: 15})
    assert [t.ending for t in collector.take()] == ["continues", "terminated", "continues", "terminated"]
    assert [r.lengths for found in told for r in found.episodes] == [[1], [1]]


def test_without_a_limit_messages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    play, collector, _ = limited(3)
    collector.slots.max_length = None
    monkeypatch.setattr(slots, "limited", None)
    for weight in range(10, 20):
        play.say(ask={1: weight})
    assert collector.running.complete == 0 and isinstance(collector.slots, Slots) and ONE.worker == 0
    assert np.asarray(collector.buffer.size).tolist() == [10, 0]
