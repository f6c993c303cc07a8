"""Who lives where, and what one message becomes. Numpy only. Ids name the behaviours of the sampler that must hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.rollout.booking.occupants import first_sizes
from jaxrl.rollout.booking.records import Ending, Ingested
from jaxrl.rollout.booking.slots import Slots, Source, next_power_of_two
from jaxrl.rollout.buffer.pages import Pages
from jaxrl.settings.teams import TeamCapacityError
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((2,), branches=(3,))
ONE, TWO = Source(0, "Push?team=0"), Source(1, "Push?team=0")


class Counted(Slots):
    """Slots, and how many states each row of a buffer would hold."""

    def __init__(self, *, team_rows: bool, rows: int, members: int) -> None:
        super().__init__(SPEC, team_rows=team_rows, rows=rows, members=members)
        self.pages = Pages(1000, rows)

    @property
    def size(self) -> np.ndarray:
        return self.pages.size

    def ingest(self, messages) -> Ingested:
        ingested = super().ingest(messages)
        self.pages.grow(self.rows)
        self.pages.append(ingested.steps)
        return ingested

    def taken(self) -> None:
        self.pages.taken(self.living)


def make_slots(rows: int = 4, members: int = 2, *, team_rows: bool = True) -> Counted:
    return Counted(team_rows=team_rows, rows=rows, members=members)


def ends(*agents: int, **fields):
    return terminal_steps(SPEC, agents, **fields)


def asks(*agents: int, **fields):
    return decision_steps(SPEC, agents, **fields)


def says(ended=None, deciding=None, source=ONE):
    return {source: message(SPEC, ended, deciding)}


def places(ingested, source=ONE) -> list[tuple[int, int]]:
    rows, members = np.divmod(ingested.decisions[source], ingested.rows.deciding.shape[1])
    return list(zip(rows.tolist(), members.tolist(), strict=True))


def test_u1_m4_agent_first_seen_ended_leaves_no_trace() -> None:
    """Nothing but its reward: ML-Agents reports no episode of it."""
    slots = make_slots()
    slots.ingest(says(deciding=asks(1, groups=[7])))
    before = slots.size.copy()
    ingested = slots.ingest(says(ends(99, groups=[7], reward=[5.0], truncated=[True])))
    assert ingested.finished == 0
    assert [record.lengths + record.returns + record.team_returns for record in ingested.episodes] == [[]]
    assert [record.undecided for record in ingested.episodes] == [[5.0]]
    assert (ingested.steps.ending == Ending.OPEN).all()
    assert not ingested.steps.present.any()
    np.testing.assert_array_equal(slots.size, before)
    known_too = slots.ingest(says(ends(1, 98, groups=[7, 7])))
    assert known_too.episodes[0].lengths == [0]
    assert known_too.finished == 1


def test_u2_agent_in_neither_list_keeps_its_open_decision() -> None:
    slots = make_slots()
    first = slots.ingest(says(deciding=asks(1, 2)))
    second = slots.ingest(says(deciding=asks(2, reward=[1.0])))
    row, member = places(first)[0]
    assert second.steps.ending[row, member] == Ending.OPEN
    assert not second.steps.deciding[row].any()
    third = slots.ingest(says(deciding=asks(1, 2, reward=[3.0, 4.0])))
    assert places(third) == places(first)
    assert third.steps.ending[row, member] == Ending.CONTINUES
    assert third.steps.reward[row, member, 0] == 3.0
    assert third.finished == 2


def test_u3_m11_observation_of_a_silent_mate_persists() -> None:
    slots = make_slots()
    slots.ingest(says(deciding=asks(1, 2, groups=[7, 7], obs=[[[1, 1], [2, 2]]])))
    steps = slots.ingest(says(deciding=asks(1, groups=[7], obs=[[[3, 3]]]))).steps
    assert steps.obs[0][1][0].tolist() == [[3, 3], [2, 2]]
    assert steps.present[1][0].tolist() == [True, True]
    assert steps.deciding[0].tolist() == [True, False]


def test_m1_size_of_a_row_grows_only_when_somebody_of_it_decides() -> None:
    slots = make_slots(rows=2)
    slots.ingest(says(deciding=asks(1, 2, 3, groups=[7, 7, 8])))
    slots.ingest(says(deciding=asks(1, groups=[7])))
    slots.ingest(says(deciding=asks(2, groups=[7])))
    assert slots.size.tolist() == [3, 1]
    slots.taken()
    assert slots.size.tolist() == [1, 1]
    slots.ingest(says(ends(1, 2, groups=[7, 7])))
    assert slots.size.tolist() == [1, 1]
    slots.taken()
    assert slots.size.tolist() == [0, 1]


def test_m2_u8_terminated_and_truncated_teams_differ() -> None:
    """Only an interrupted team gets a final state, in which all stand who ended with it."""
    slots = make_slots(rows=2)
    slots.ingest(says(deciding=asks(1, 2, 3, 4, groups=[7, 7, 8, 8])))
    ended = ends(1, 2, 3, 4, groups=[7, 7, 8, 8], truncated=[False, False, True, False])
    steps = slots.ingest(says(ended)).steps
    assert steps.ending.tolist() == [[Ending.TERMINATED] * 2, [Ending.TRUNCATED, Ending.TERMINATED]]
    assert steps.present[0].tolist() == [[False, False], [True, True]]
    assert steps.obs[0][0][1].tolist() == [[3, 3], [4, 4]]
    assert slots.size.tolist() == [1, 2]


def test_m6_u34_id_that_ends_and_restarts_in_one_message() -> None:
    """The end closes the old episode; the decision opens a new one that owes nothing to it."""
    slots = make_slots(rows=1, members=1)
    slots.ingest(says(deciding=asks(1, reward=[50.0])))
    ended = ends(1, reward=[2.0], truncated=[True], obs=[[[8, 8]]])
    ingested = slots.ingest(says(ended, asks(1, reward=[60.0], obs=[[[9, 9]]])))
    assert places(ingested) == [(0, 0)]
    assert ingested.finished == 1
    assert ingested.steps.ending.tolist() == [[Ending.TRUNCATED]]
    assert ingested.steps.reward.tolist() == [[[2.0, 0.0]]]
    assert [obs[0, 0].tolist() for obs in ingested.steps.obs[0]] == [[8, 8], [9, 9]]
    assert ingested.episodes[0].returns == [2.0]
    assert slots.size.tolist() == [3]


def test_m6_whole_team_restarts_under_its_group_id_in_one_message() -> None:
    slots = make_slots(rows=2)
    slots.ingest(says(deciding=asks(1, 2, 3, groups=[7, 7, 8])))
    ingested = slots.ingest(says(ends(1, 2, groups=[7, 7]), asks(4, 5, 3, groups=[7, 7, 8])))
    assert places(ingested) == [(0, 0), (0, 1), (1, 0)]
    assert ingested.steps.ending.tolist() == [[Ending.TERMINATED] * 2, [Ending.CONTINUES, Ending.OPEN]]
    assert ingested.steps.present[1].tolist() == [[True, True], [True, False]]


def test_m7_m8_reward_belongs_to_the_open_decision_and_the_first_one_to_none() -> None:
    slots = make_slots(rows=1, members=1)
    first = slots.ingest(says(deciding=asks(1, reward=[9.0], group_reward=[9.0])))
    assert first.steps.reward.tolist() == [[[0.0, 0.0]]]
    assert first.finished == 0
    slots.ingest({})
    later = slots.ingest(says(deciding=asks(1, reward=[0.5], group_reward=[0.25])))
    assert later.steps.reward.tolist() == [[[0.5, 0.25]]]


def test_m12_team_is_over_only_when_all_members_ended() -> None:
    """Who ends before is told what follows with the team's next state; who ends last ends the row."""
    slots = make_slots(rows=1, members=3)
    slots.ingest(says(deciding=asks(1, 2, 3, groups=[7, 7, 7])))
    alone = slots.ingest(says(ends(1, groups=[7], reward=[4.0], truncated=[True])))
    assert (alone.steps.ending == Ending.OPEN).all()
    assert alone.finished == 1
    state = slots.ingest(says(deciding=asks(2, groups=[7])))
    assert state.steps.ending.tolist() == [[Ending.LEFT, Ending.CONTINUES, Ending.OPEN]]
    assert state.steps.reward[0, 0, 0] == 4.0
    assert state.steps.present[1].tolist() == [[False, True, True]]
    last = slots.ingest(says(ends(2, 3, groups=[7, 7])))
    assert last.steps.ending.tolist() == [[Ending.OPEN, Ending.TERMINATED, Ending.TERMINATED]]


def test_member_that_ended_before_its_team_is_terminated_when_no_state_of_the_team_follows() -> None:
    """The row's next state is another team's, and must not be bootstrapped from."""
    slots = make_slots(rows=1, members=2)
    slots.ingest(says(deciding=asks(1, 2, groups=[7, 7])))
    slots.ingest(says(ends(1, groups=[7], reward=[4.0])))
    over = slots.ingest(says(ends(2, groups=[7]), asks(3, 4, groups=[8, 8])))
    assert over.steps.ending.tolist() == [[Ending.TERMINATED, Ending.TERMINATED]]
    assert over.steps.reward[0, :, 0].tolist() == [4.0, 0.0]
    slots.ingest(says(ends(3, groups=[8])))
    interrupted = slots.ingest(says(ends(4, groups=[8], truncated=[True])))
    assert interrupted.steps.ending.tolist() == [[Ending.LEFT, Ending.TRUNCATED]]
    assert interrupted.steps.present[0].tolist() == [[False, True]]


def test_m27_finished_counts_decisions_whose_reward_arrived() -> None:
    slots = make_slots(rows=2, members=2)
    counts = [
        slots.ingest(says(deciding=asks(1, 2, 3, groups=[7, 7, 8]))).finished,
        slots.ingest(says(ends(1, 50, groups=[7, 7]), asks(2, groups=[7]))).finished,
        slots.ingest({ONE: message(SPEC, ends(2, 3, groups=[7, 8]), asks(4)), TWO: message(SPEC)}).finished,
    ]
    assert counts == [0, 2, 2]


def test_sources_share_rows_but_never_ids_or_teams() -> None:
    slots = make_slots(rows=2, members=2)
    both = {ONE: message(SPEC, None, asks(1, 2, groups=[7, 7])), TWO: message(SPEC, None, asks(1, 2, groups=[7, 7]))}
    first = slots.ingest(both)
    assert places(first, ONE) == [(0, 0), (0, 1)]
    assert places(first, TWO) == [(1, 0), (1, 1)]
    steps = slots.ingest(says(ends(1, 2, groups=[7, 7]), source=TWO)).steps
    assert steps.ending.tolist() == [[Ending.OPEN] * 2, [Ending.TERMINATED] * 2]


def test_lone_agents_have_a_row_each_and_without_team_rows_everybody_has() -> None:
    ids = {"groups": [0, 0, 7, 7]}
    assert places(make_slots().ingest(says(deciding=asks(1, 2, 3, 4, **ids)))) == [(0, 0), (1, 0), (2, 0), (2, 1)]
    single = make_slots(members=1, team_rows=False).ingest(says(deciding=asks(1, 2, 3, 4, **ids)))
    assert places(single) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_lowest_free_row_is_taken_first() -> None:
    slots = make_slots(rows=4, members=1)
    slots.ingest(says(deciding=asks(1, 2, 3, 4)))
    slots.ingest(says(ends(4, 2)))
    assert places(slots.ingest(says(deciding=asks(5, 6)))) == [(1, 0), (3, 0)]


def test_m9_next_owner_of_a_slot_inherits_nothing() -> None:
    slots = make_slots(rows=1, members=1)
    slots.ingest(says(deciding=asks(1, action_mask=[[True, False, False]])))
    slots.ingest(says(ends(1)))
    steps = slots.ingest(says(deciding=asks(2, reward=[3.0], group_reward=[3.0]))).steps
    assert steps.ending.tolist() == [[Ending.OPEN]]
    assert steps.action_mask.all()
    ended = slots.ingest(says(ends(2, reward=[1.0])))
    assert ended.episodes[0].returns == [1.0]
    assert ended.episodes[0].lengths == [0]


def test_tables_grow_to_powers_of_two_and_keep_what_they_hold() -> None:
    slots = make_slots(rows=1, members=1)
    slots.ingest(says(deciding=asks(1, groups=[7], obs=[[[5, 6]]])))
    grown = slots.ingest(says(deciding=asks(2, 3, 10, 11, 12, groups=[7, 7, 0, 0, 8], obs=[np.full((5, 2), 2)])))
    assert (slots.rows, slots.members) == (4, 4)
    assert places(grown) == [(0, 1), (0, 2), (1, 0), (2, 0), (3, 0)]
    assert grown.steps.obs[0].shape == (2, 4, 4, 2)
    assert grown.steps.obs[0][1][0, :3].tolist() == [[5, 6], [2, 2], [2, 2]]
    assert grown.steps.present[1][0].tolist() == [True, True, True, False]
    assert slots.size.tolist() == [2, 1, 1, 1]
    after = slots.ingest(says(ends(1, 2, 3, groups=[7] * 3, reward=[1.0, 2.0, 3.0])))
    assert after.steps.reward[0, :, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
    assert [next_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 1025)] == [1, 1, 2, 4, 4, 8, 2048]


def test_first_size_fits_the_first_messages_exactly() -> None:
    first = {
        ONE: message(SPEC, None, asks(1, 2, 3, 4, groups=[7, 7, 7, 0])),
        TWO: message(SPEC, None, asks(1, groups=[7])),
    }
    assert first_sizes(first, team_rows=True) == (3, [3])
    assert first_sizes(first, team_rows=False) == (5, [1])
    assert first_sizes({ONE: message(SPEC)}, team_rows=True) == (1, [1])


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(6)), silent=st.sets(st.integers(0, 5)))
def test_order_of_a_message_does_not_move_agents(order: list[int], silent: set[int]) -> None:
    """Slots belong to agents; `decisions` follows the order of each message."""
    slots = make_slots(rows=2, members=4)
    home = places(slots.ingest(says(deciding=asks(*range(6), groups=[1, 1, 1, 2, 2, 2]))))
    agents = [agent for agent in order if agent not in silent]
    ingested = slots.ingest(says(deciding=asks(*agents, groups=[1 + agent // 3 for agent in agents], reward=agents)))
    assert places(ingested) == [home[agent] for agent in agents]
    assert [ingested.steps.reward[place][0] for place in places(ingested)] == agents
    assert int(ingested.steps.deciding.sum()) == len(agents)


def test_a_member_has_the_lowest_free_place_of_its_team_and_the_next_episode_has_the_same() -> None:
    """Whose policy it follows (share_policy: false). Of three there is room for three, not for four."""
    spec = make_spec((1,), branches=(2,))
    slots = Slots(spec, team_rows=True, rows=1, members=1, most=(3,))

    def places(asks: list[int], ended: tuple[int, ...] = ()) -> list[int]:
        gone = terminal_steps(spec, ended, groups=[7] * len(ended))
        part = message(spec, gone, decision_steps(spec, asks, groups=[7] * len(asks)))
        return slots.ingest({ONE: part}).decisions[ONE].tolist()

    assert places([4, 5]) == [0, 1]
    assert places([4, 5, 6]) == [0, 1, 2] and slots.members == 3
    assert places([6, 5]) == [2, 1], "whoever pauses keeps its place"
    assert places([5, 6, 8], ended=(4,)) == [1, 2, 0], "a newcomer has that of who died"
    assert places([9, 10, 11], ended=(5, 6, 8)) == [0, 1, 2], "all at once begin anew, in their order"
    with pytest.raises(TeamCapacityError, match=r"team_capacity: 3, but this behavior has teams of 4 members"):
        places([9, 10, 11, 12])


def test_places_of_one_source_stay_right_where_a_team_of_another_grows_in_the_same_message() -> None:
    slots = make_slots(rows=4, members=1)
    ingested = slots.ingest(
        says(deciding=asks(1, 2, groups=[7, 8])) | says(deciding=asks(1, 2, groups=[7, 7]), source=TWO)
    )
    assert slots.members == 2
    assert places(ingested) == [(0, 0), (1, 0)] and places(ingested, TWO) == [(2, 0), (2, 1)]
    assert ingested.steps.deciding.tolist() == [[True, False], [True, False], [True, True], [False, False]]
