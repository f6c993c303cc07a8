"""A source that is no more: its rows end as truncated, its ids are forgotten, no episode is reported (U7, R10, A19).

What came of its open decisions nobody knows: they are dropped, and their states are what those before bootstrap from.
"""

from __future__ import annotations

from script import ONE, Script, brief, script

from jaxrl.rollout.booking.slots import Slots, Source
from tests.helpers import decision_steps, make_spec, message, terminal_steps

OTHER = Source(1, "Push?team=0")


def started() -> Script:
    """Two teams, one of which asked twice."""
    say = script(rows=2, members=2)
    say.say(ask={1: 10, 2: 20, 101: 100})
    say.say(ask={1: 11, 2: 21}, reward=[1.0, 2.0])
    return say


def test_r10_open_decisions_are_dropped_and_those_before_bootstrap_from_the_newest_state() -> None:
    """Five decisions: two have their reward, three are open when the source is lost."""
    say = started()
    assert say.collector.slots.discard(ONE) == 3
    assert say.collector.slots.discard(ONE) == 0
    ingested = say.collector.feed({})
    assert (ingested.finished, ingested.episodes) == (0, [])
    trained = say.collector.take()
    assert brief(trained) == [(1, 1, "continues", 32.0), (2, 1, "continues", 32.0)]
    assert [t.reward for t in trained] == [1.0, 2.0]
    assert say.collector.pages.size.tolist() == [0, 0]
    assert say.collector.feed({}).finished == 0


def test_r64_of_a_source_that_goes_on_only_these_agents_are_dropped() -> None:
    """The team of agents 1 and 2 is lost: two open decisions of five. Agent 101 is paid and asks again."""
    say = started()
    slots = say.collector.slots
    assert slots.discard(ONE, [1, 2, 77]) == 2 and slots.discard(ONE, [1]) == 0
    say.say(ask={101: 101, 3: 30}, reward=[5.0, 0.0])
    trained = say.collector.take()
    assert brief(trained) == [(1, 1, "continues", 32.0), (2, 1, "continues", 32.0), (101, 1, "continues", 101.0)]
    assert [t.reward for t in trained] == [1.0, 2.0, 5.0]
    assert sorted(slots._occupants.of(ONE)) == [3, 101]


def test_it_is_told_with_the_next_message_of_anybody_also_after_an_update() -> None:
    """The open decisions of a row outlive the update, not the next message; then its rows are free."""
    say = started()
    say.collector.slots.discard(ONE)
    assert [t[:2] for t in say.collector.take()] == [(1, 1), (2, 1)]
    assert say.collector.slots.living.all()
    say.collector.feed({OTHER: message(say.collector.slots.spec)})
    assert say.collector.take() == []
    assert say.collector.slots.rows == 2 and not say.collector.slots.living.any()


def test_what_is_open_when_the_horizon_is_reached_does_not_age_the_next_episode() -> None:
    """Horizon 2: the lost agent's one finished decision does not count for whoever takes its row."""
    say = script(rows=1, members=1, horizon=2)
    say.say(ask={1: 10})
    say.say(ask={1: 11}, reward=[1.0])
    say.collector.slots.discard(ONE)
    for weight, reward in ((12, 50.0), (13, 2.0), (14, 3.0)):
        say.say(ask={2: weight}, reward=[reward])
    assert [(t.uid, t.serial, t.ending, t.bootstrap) for t in say.collector.take()] == [
        (1, 1, "continues", 11.0),
        (2, 1, "continues", 13.0),
        (2, 2, "cut", 14.0),
    ]


def test_ids_that_come_again_are_new_agents_in_the_same_message() -> None:
    say = started()
    say.collector.slots.discard(ONE)
    say.say(ask={1: 12, 2: 22}, reward=[50.0, 60.0])
    say.say(ask={1: 13, 2: 23}, reward=[3.0, 4.0])
    trained = [t for t in say.collector.take() if t.uid < 100]
    assert [(t.serial, t.ending, t.bootstrap, t.reward) for t in trained] == [
        (1, "continues", 32.0, 1.0),
        (3, "continues", 36.0, 3.0),
        (1, "continues", 32.0, 2.0),
        (3, "continues", 36.0, 4.0),
    ]


def test_a_member_that_had_left_is_credited_with_what_the_others_last_saw() -> None:
    say = started()
    say.say(end={1: 12}, end_reward=[7.0])
    say.collector.slots.discard(ONE)
    say.collector.feed({})
    assert brief([t for t in say.collector.take() if t.serial == 2]) == [(1, 2, "left", 21.0)]


def test_other_sources_go_on_and_an_unknown_one_is_no_error() -> None:
    spec = make_spec((1,), branches=(2,))
    slots = Slots(spec, team_rows=True, rows=2, members=1)
    asks = message(spec, None, decision_steps(spec, [1], groups=[7], reward=[1.0]))
    slots.ingest({ONE: asks, OTHER: asks})
    slots.discard(ONE)
    slots.discard(Source(5, "Nobody"))
    ingested = slots.ingest({OTHER: asks})
    assert ingested.finished == 1
    assert ingested.steps.present[0].tolist() == [[True], [False]]
    assert ingested.steps.reward[:, 0, 0].tolist() == [0.0, 1.0]
    over = slots.ingest({OTHER: message(spec, terminal_steps(spec, [1], groups=[7], reward=[4.0], group_reward=[8.0]))})
    assert (over.episodes[0].returns, over.episodes[0].team_returns) == ([5.0], [8.0])


def test_sums_and_team_of_discarded_agents_are_dropped() -> None:
    """Agent 1 and its team begin at zero; of the two in it before, nobody is waited for."""
    spec = make_spec((1,), branches=(2,))
    slots = Slots(spec, team_rows=True, rows=1, members=2)
    asks = message(spec, None, decision_steps(spec, [1, 2], groups=[7, 7], reward=[9.0, 9.0]))
    slots.ingest({ONE: asks})
    slots.ingest({ONE: asks})
    slots.discard(ONE)
    slots.ingest({ONE: message(spec, None, decision_steps(spec, [1], groups=[7]))})
    over = slots.ingest({ONE: message(spec, terminal_steps(spec, [1], groups=[7], reward=[4.0], group_reward=[8.0]))})
    assert over.episodes[0]._asdict() == {
        "returns": [4.0],
        "lengths": [0],
        "group_rewards": [8.0],
        "mates_returns": [0.0],
        "team_returns": [8.0],
        "games": [(0, 12.0, 12.0)],
        "undecided": [0.0],
        "team_undecided": [0.0],
    }
