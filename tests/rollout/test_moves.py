"""An agent's group is read at every message: whoever asks under another group id has moved to another team.

The bootstrap of a transition is the sum of the weights of the state that follows it, so it tells where it comes from.
"""

from __future__ import annotations

from row_collector import RowCollector
from script import ONE, Script, brief, script

from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.types import NO_GROUP
from tests.helpers import decision_steps, make_spec, message, terminal_steps


def play(*, rows: int = 4, members: int = 2, **groups: int) -> Script:
    """Agents 1, 2 ... of the groups `a1=..., a2=...`, else 7; over 100: 8."""
    script_ = script(rows=rows, members=members)
    script_.group = {int(name[1:]): group for name, group in groups.items()}
    return script_


def test_agents_registered_from_their_second_decision_on_are_a_team_from_then_on() -> None:
    """The first decision of each is followed by what it sees itself (11, 21), all others by the team (12 + 22)."""
    say = play(a1=NO_GROUP, a2=NO_GROUP)
    say.say(ask={1: 10, 2: 20})
    say.group = {}
    say.say(ask={1: 11, 2: 21}, reward=[1.0, 2.0])
    say.say(ask={1: 12, 2: 22}, reward=[3.0, 4.0])
    say.say(end={1: 1, 2: 2})
    trained = say.collector.take()
    assert brief(trained) == [
        (1, 1, "cut", 11.0),
        (1, 2, "continues", 34.0),
        (1, 3, "terminated", 0.0),
        (2, 1, "cut", 21.0),
        (2, 2, "continues", 34.0),
        (2, 3, "terminated", 0.0),
    ]
    assert [t.reward for t in trained] == [1.0, 3.0, 0.0, 2.0, 4.0, 0.0]
    assert [len(t.state) for t in trained] == [1, 2, 2, 1, 2, 2]
    assert say.collector.finished == 6


def test_the_winner_is_followed_by_nothing_when_its_mate_moved_on() -> None:
    """1 wins in the message in which 2 turns up in group 8. The next episode's team 7 (250 + 6) is not theirs."""
    say = play()
    say.say(ask={1: 10, 2: 20})
    say.group = {2: 8}
    say.say(end={1: 11}, ask={2: 21}, end_reward=[5.0], reward=[2.0])
    say.group = {2: 8, 3: 7, 4: 7}
    say.say(ask={2: 22, 3: 250, 4: 6})
    trained = say.collector.take()
    assert brief(trained) == [(1, 1, "terminated", 0.0), (2, 1, "cut", 21.0), (2, 2, "continues", 22.0)]
    assert [t.reward for t in trained] == [5.0, 2.0, 0.0]


def test_who_moved_on_and_is_followed_by_itself_has_what_it_was_paid_itself() -> None:
    """The group has 5 when 1 wins; 2 has moved away by then, and 1 of its own. What follows it is its own state (21).

    It was paid 5 + 21 until issue 17: what its team earned without it, and what it lives on with.
    """
    say = play()
    say.say(ask={1: 10, 2: 20})
    say.group = {2: 8}
    say.say(end={1: 11}, ask={2: 21}, end_group_reward=[5.0], group_reward=[1.0])
    say.collector.take()
    rollout = say.collector.rollout
    assert rollout is not None
    paid, obs = EXTRINSIC.reward((), rollout, cooperative=True), rollout.obs[0]
    assert {int(obs[at][0]): float(paid[at]) for at in zip(*rollout.acted.nonzero(), strict=True)} == {1: 5.0, 2: 1.0}


def test_the_winner_is_followed_by_nothing_when_its_mate_moves_on_later() -> None:
    """1 wins, then 2 asks under group 8 without having asked under 7; a new team 7 asks in that very message."""
    say = play()
    say.say(ask={1: 10, 2: 20})
    say.say(end={1: 11})
    say.group = {2: 8}
    say.say(ask={2: 21, 3: 250, 4: 6})
    assert brief(say.collector.take()) == [(1, 1, "terminated", 0.0), (2, 1, "cut", 21.0)]


def test_a_member_that_moved_away_is_followed_by_the_next_state_of_its_old_team() -> None:
    """1 goes from 7 to 8, where 101 lives. 2 stays and asks one message later: its state (23) follows both."""
    say = play()
    say.say(ask={1: 10, 2: 20, 101: 100})
    say.group = {1: 8}
    say.say(ask={1: 11, 101: 101}, reward=[3.0, 0.0])
    say.say(ask={1: 12, 2: 23, 101: 102})
    trained = say.collector.take()
    assert brief(trained) == [
        (1, 1, "left", 23.0),
        (1, 2, "continues", 114.0),
        (2, 1, "continues", 23.0),
        (101, 1, "continues", 112.0),
        (101, 2, "continues", 114.0),
    ]
    assert trained[0].reward == 3.0


def test_a_member_that_moved_away_is_followed_by_its_own_observation_when_its_old_team_ends_for_good() -> None:
    """1 goes from 7 to 8, then 2 ends: nothing follows 2, but 1 lives on. Interrupted, 2's last state follows both."""
    for truncated, expected in (
        (False, [(1, 1, "cut", 11.0), (2, 1, "terminated", 0.0)]),
        (True, [(1, 1, "left", 24.0), (2, 1, "truncated", 24.0)]),
    ):
        say = play()
        say.say(ask={1: 10, 2: 20})
        say.group = {1: 8}
        say.say(ask={1: 11})
        say.say(end={2: 24}, ask={3: 250}, truncated=truncated)
        assert brief(say.collector.take()) == expected


def test_a_team_registered_anew_as_a_whole_goes_on_and_starts_in_the_row_it_left() -> None:
    say = play(rows=1)
    say.say(ask={1: 10, 2: 20})
    say.group = {1: 8, 2: 8}
    say.say(ask={1: 11, 2: 21}, reward=[1.0, 2.0])
    say.say(ask={1: 12, 2: 22})
    assert say.collector.slots.rows == 1
    assert brief(say.collector.take()) == [
        (1, 1, "cut", 32.0),
        (1, 2, "continues", 34.0),
        (2, 1, "cut", 32.0),
        (2, 2, "continues", 34.0),
    ]


def test_agents_that_change_places_belong_to_new_teams() -> None:
    """1 in 7 and 101 in 8 are alone; each takes the other's group, which was over before."""
    say = play()
    say.say(ask={1: 10, 101: 100})
    say.group = {1: 8, 101: 7}
    say.say(ask={1: 11, 101: 101})
    assert brief(say.collector.take()) == [(1, 1, "cut", 11.0), (101, 1, "cut", 101.0)]


def test_an_unregistered_agent_goes_on_alone() -> None:
    say = play()
    say.say(ask={1: 10, 2: 20})
    say.group = {1: NO_GROUP}
    say.say(ask={1: 11, 2: 21})
    say.say(ask={1: 12, 2: 22})
    assert brief(say.collector.take()) == [
        (1, 1, "left", 21.0),
        (1, 2, "continues", 12.0),
        (2, 1, "continues", 21.0),
        (2, 2, "continues", 22.0),
    ]


def test_rows_of_single_agents_know_no_teams() -> None:
    say = Script(RowCollector(team_rows=False, rows=1, members=1))
    say.say(ask={1: 10})
    say.group = {1: 8}
    say.say(ask={1: 11})
    assert brief(say.collector.take()) == [(1, 1, "continues", 11.0)]
    assert say.collector.slots.rows == 1


SPEC = make_spec((1,), branches=(2,))


def test_an_id_that_ends_and_asks_under_another_group_is_a_new_agent() -> None:
    """It owes its old team an ending, not a state."""
    slots = Slots(SPEC, team_rows=True, rows=2, members=1)
    slots.ingest({ONE: message(SPEC, None, decision_steps(SPEC, [1], groups=[7]))})
    ended = terminal_steps(SPEC, [1], groups=[7], reward=[3.0])
    ingested = slots.ingest({ONE: message(SPEC, ended, decision_steps(SPEC, [1], groups=[8], reward=[9.0]))})
    assert ingested.steps.ending[:, 0].tolist() == [Ending.TERMINATED, Ending.OPEN]
    assert ingested.finished == 1
    assert [record.returns for record in ingested.episodes] == [[3.0]]


def test_return_and_length_of_an_agent_are_those_of_its_whole_episode_and_its_team_is_the_last_one() -> None:
    """1 earned 1 + 2 alone and 4 in team 8; the team is over with it, since 2 had gone on to group 9.

    The team was paid 0.25 twice before 1 came, and 1 with it; what 1 brought along is not the team's. 2 alone is 9's.
    """
    for team_rows in (True, False):
        slots = Slots(SPEC, team_rows=team_rows, rows=1, members=1)

        def says(ended: dict | None = None, *, slots: Slots = slots, **asks) -> list:
            part = message(SPEC, terminal_steps(SPEC, **(ended or {"agents": []})), decision_steps(SPEC, **asks))
            return slots.ingest({ONE: part}).episodes

        says(agents=[1, 2], groups=[0, 8])
        says(agents=[1, 2], groups=[0, 8], reward=[1.0, 0.0], group_reward=[0.5, 0.25])
        says(agents=[1, 2], groups=[8, 8], reward=[2.0, 0.0], group_reward=[0.5, 0.25])
        says(agents=[1, 2], groups=[8, 9])
        (first,) = says({"agents": [1], "groups": [8], "reward": [4.0], "group_reward": [1.0]}, agents=[2], groups=[9])
        assert (first.returns, first.lengths) == ([7.0], [3])
        assert first.team_returns == [0.5 + 1.0]
        (second,) = says({"agents": [2], "groups": [9]}, agents=[])
        assert (second.returns, second.lengths, second.team_returns) == ([0.0], [4], [0.0])


def test_a_team_whose_last_agent_moves_on_reports_no_group_return() -> None:
    slots = Slots(SPEC, team_rows=True, rows=2, members=2)
    slots.ingest({ONE: message(SPEC, None, decision_steps(SPEC, [1, 2], groups=[7, 7]))})
    ended = terminal_steps(SPEC, [1], groups=[7], group_reward=[1.0])
    slots.ingest({ONE: message(SPEC, ended, decision_steps(SPEC, [2], groups=[7]))})
    moved = slots.ingest({ONE: message(SPEC, None, decision_steps(SPEC, [2, 3], groups=[8, 7]))})
    assert moved.episodes == []
    over = slots.ingest({ONE: message(SPEC, terminal_steps(SPEC, [3], groups=[7], group_reward=[2.0]))})
    assert over.episodes[0].team_returns == [2.0]


def test_teams_of_the_same_group_id_in_two_incarnations_of_a_worker_are_two() -> None:
    """The new process counts from 0 again: agent 0 of group 1 is another agent in another row."""
    again = Source(ONE.worker, ONE.behavior_id, incarnation=1)
    slots = Slots(SPEC, team_rows=True, rows=2, members=1)
    slots.ingest({ONE: message(SPEC, None, decision_steps(SPEC, [0], groups=[1]))})
    slots.discard(ONE)
    ingested = slots.ingest({again: message(SPEC, None, decision_steps(SPEC, [0], groups=[1], reward=[5.0]))})
    assert ingested.finished == 0
    assert ingested.steps.ending.tolist() == [[Ending.DROPPED], [Ending.OPEN]]
    assert ingested.steps.reward.tolist() == [[[0.0, 0.0]], [[0.0, 0.0]]]
    both = slots.ingest({again: message(SPEC, None, decision_steps(SPEC, [0], groups=[1], reward=[6.0]))})
    assert (both.finished, both.steps.reward[0].tolist()) == (1, [[6.0, 0.0]])
