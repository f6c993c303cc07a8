"""Statistics of finished episodes, through the slots that feed them."""

from __future__ import annotations

import pytest

from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.slots import Slots, Source
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((1,), branches=(2,))
SOURCE = Source(0, "Push?team=0")


def run(*messages, team_rows: bool = True) -> list[EpisodeRecords]:
    """Records of messages given as (ended, deciding), each a dict of fields with the agents under `agents`."""
    slots = Slots(SPEC, team_rows=team_rows, rows=1, members=1)
    records = []
    for ended, deciding in messages:
        steps = message(SPEC, terminal_steps(SPEC, **ended), decision_steps(SPEC, **deciding))
        records += slots.ingest({SOURCE: steps}).episodes
    return records


def team(*agents: int, group: int = 7, **fields) -> dict:
    return {"agents": list(agents), "groups": [group] * len(agents), **fields}


def test_u5_length_counts_decisions_before_the_last_transition() -> None:
    """Three requests and an end: two transitions between requests; the first reward belongs to no decision.

    An agent that ends without a request has no episode, as in ML-Agents, whose mean length is 2 here and not 1.
    """
    (record,) = run(
        ({}, {"agents": [1], "reward": [100.0]}),
        ({}, {"agents": [1], "reward": [1.0]}),
        ({}, {"agents": [1], "reward": [2.0]}),
        ({"agents": [1, 9], "reward": [4.0, 8.0]}, {}),
    )
    assert record.lengths == [2]
    assert record.returns == [1.0 + 2.0 + 4.0]
    assert record.undecided == [100.0, 8.0]
    assert record.team_returns == []


def test_a_zero_sum_game_stays_one_where_the_loser_is_paid_after_its_end() -> None:
    """1 earns 9 and 2 loses 9, but after EndEpisode: that comes with its next request. Returns are 9 and 0, then 9, 0.

    Returns and what no decision earned are 0 together once the last one is told.
    """
    game = {"agents": [1, 2], "reward": [9.0, 0.0]}
    asks, late = {"agents": [1, 2]}, {"agents": [1, 2], "reward": [0.0, -9.0]}
    records = run(({}, asks), (game, late), ({"agents": [1, 2], "reward": [0.0, 0.0]}, {}))
    assert [record.returns for record in records] == [[9.0, 0.0], [0.0, 0.0]]
    assert [record.undecided for record in records] == [[0.0, 0.0], [0.0, -9.0]]


def test_what_a_team_is_paid_before_its_first_decision_is_told_apart_once() -> None:
    """Both founders bring the same 7; what comes with 3, who joins later, 1 and 2 are told too."""
    (record,) = run(
        ({}, team(1, 2, group_reward=[7.0, 7.0])),
        ({}, team(1, 2, 3, group_reward=[1.0, 1.0, 1.0])),
        (team(1, 2, 3, group_reward=[2.0, 2.0, 2.0]), {}),
    )
    assert (record.team_returns, record.team_undecided) == ([3.0], [7.0])


def test_u48_m12_a_teams_return_is_what_it_earned_once_whoever_dies_comes_late_or_survives() -> None:
    """Paid 5, 1 and 2 while members live: 1 has 5, 2 has all, 3 comes after the 5 and 4 after the 1."""
    alone, whole = run(
        ({}, team(1, 2)),
        (team(1, group_reward=[5.0], reward=[0.5]), team(2, 3, group_reward=[5.0, 0.0])),
        ({}, team(2, 3, 4, group_reward=[1.0, 1.0, 0.0])),
        (team(2, 3, 4, group_reward=[2.0, 2.0, 2.0]), {}),
    )
    assert (alone.returns, alone.team_returns) == ([0.5], [])
    assert whole.returns == [0.0, 0.0, 0.0]
    assert whole.group_rewards == [8.0, 3.0, 2.0]
    assert whole.team_returns == [8.0]


def test_m12_a_team_of_which_only_newcomers_are_left_keeps_what_it_earned_before_them() -> None:
    """4 before 2 comes, 8 with both, -2 to 2 alone. The 8 that 1 misses because it ends first is not lost either."""
    for last in (8.0, 0.0):
        alone, whole = run(
            ({}, team(1)),
            ({}, team(1, 2, group_reward=[4.0, 0.0])),
            (team(1, group_reward=[last]), team(2, group_reward=[8.0])),
            (team(2, group_reward=[-2.0]), {}),
        )
        assert (alone.team_returns, whole.team_returns) == ([], [4.0 + 8.0 - 2.0])


def test_m12_a_newcomer_that_comes_while_others_wait_is_compared_with_them_later() -> None:
    """Paid 1, 2, 4, 8, 16 with steps 1 to 5. 1 asks after steps 2 and 4, 2 comes after step 3; 1 ends with step 4."""
    _, whole = run(
        ({}, team(1)),
        ({}, team(1, group_reward=[3.0])),
        ({}, team(2, group_reward=[4.0])),
        (team(1, group_reward=[12.0]), team(2, group_reward=[8.0])),
        (team(2, group_reward=[16.0]), {}),
    )
    assert whole.team_returns == [31.0]
    (whole,) = run(
        ({}, team(1)),
        ({}, team(1, group_reward=[3.0])),
        ({}, team(2, group_reward=[4.0])),
        ({}, team(1, 2, group_reward=[12.0, 8.0])),
        (team(1, 2, group_reward=[16.0, 16.0]), {}),
    )
    assert whole.team_returns == [31.0]


def test_group_id_that_goes_on_counts_every_episode_by_itself() -> None:
    """The next episode starts in the message that ends the last one, also without rows for teams."""
    for team_rows in (True, False):
        first, second = run(
            ({}, team(1, 2)),
            (team(1, 2, group_reward=[1.0, 1.0]), team(3, 4, group_reward=[50.0, 50.0])),
            (team(3, 4, group_reward=[2.0, 2.0]), {}),
            team_rows=team_rows,
        )
        assert first.team_returns == [1.0]
        assert second.team_returns == [2.0]


@pytest.mark.parametrize("team_rows", [True, False])
def test_a_team_is_over_with_its_last_member_though_another_moves_in_with_that_message(team_rows: bool) -> None:
    """With rows of single agents, PPO's, nothing was told of 1. The 3 that 2 was paid before is its old team's."""
    over, last = run(
        ({}, {"agents": [1, 2], "groups": [7, 8]}),
        (team(1, group_reward=[5.0]), team(2, group_reward=[3.0])),
        (team(2, group_reward=[1.0]), {}),
        team_rows=team_rows,
    )
    assert (over.team_returns, over.games) == ([5.0], [(0, 5.0, 5.0)])
    assert (last.team_returns, last.games) == ([1.0], [(0, 1.0, 4.0)])


def test_restart_under_the_same_id_starts_at_zero() -> None:
    first, second = run(
        ({}, {"agents": [1]}),
        ({"agents": [1], "reward": [3.0]}, {"agents": [1], "reward": [9.0]}),
        ({"agents": [1], "reward": [4.0]}, {}),
    )
    assert first.returns == [3.0]
    assert second.returns == [4.0]


def test_sums_survive_growth_of_the_tables() -> None:
    (record,) = run(
        ({}, team(1)),
        ({}, team(1, reward=[1.0])),
        ({}, {**team(1, 2, 3, reward=[2.0, 0.0, 0.0])}),
        ({}, {"agents": [20, 21, 22, 23]}),
        (team(1, reward=[4.0]), {}),
    )
    assert record.returns == [7.0]
    assert record.lengths == [2]


def test_every_reward_of_an_agent_and_those_of_its_mates() -> None:
    """What the extrinsic signal credits: also with one member's reward in the message in which another ends."""
    first, second, third = run(
        ({}, team(1, 2, 3)),
        ({}, team(1, 2, reward=[1.0, 2.0], group_reward=[10.0, 10.0])),  # 3 does not ask: its decision stays open
        (team(1, reward=[4.0], group_reward=[0.0]), team(2, 3, reward=[8.0, 16.0], group_reward=[10.0, 20.0])),
        (team(2, reward=[32.0]), {}),
        (team(3, reward=[64.0], group_reward=[5.0]), {}),
    )
    assert (first.returns, first.group_rewards, first.mates_returns) == ([5.0], [10.0], [2.0 + 24.0])
    assert (second.returns, second.group_rewards, second.mates_returns) == ([42.0], [20.0], [1.0 + 4.0 + 16.0])
    assert (third.returns, third.group_rewards, third.mates_returns) == ([80.0], [25.0], [3.0 + 12.0 + 32.0])


def test_what_is_earned_before_an_agent_asks_or_after_its_end_is_not_its_mates_return() -> None:
    early, late = run(
        ({}, team(1)),
        ({}, team(1, 2, reward=[1.0, 0.0])),  # paid for a decision that 2 did not see
        (team(1, reward=[2.0]), team(2, reward=[4.0])),
        (team(2, reward=[8.0]), {}),
    )
    assert (early.mates_returns, late.mates_returns) == ([4.0], [2.0])
    (alone,) = run(({}, team(1, 2)), (team(1, 2, reward=[1.0, 2.0]), {}), team_rows=False)
    assert alone.mates_returns == [0.0, 0.0]


def test_what_was_paid_before_a_team_had_its_second_member_is_not_its_mates_return() -> None:
    (record,) = run(({}, team(1)), ({}, team(1, reward=[1.0])), ({}, team(1, 2)), (team(2, 1), {}))
    assert (record.returns, record.mates_returns) == ([0.0, 1.0], [0.0, 0.0])


def test_mates_returns_of_an_agent_that_moves_to_another_team() -> None:
    """The reward that an old mate gets with the message of the move is still shared: both had acted side by side."""
    moved, stayed = run(
        ({}, team(1, 2)),
        ({}, team(1, 2, reward=[1.0, 2.0])),
        ({}, {"agents": [1, 2], "groups": [8, 7], "reward": [4.0, 8.0]}),
        (team(1, group=8, reward=[16.0]), team(2, reward=[32.0])),
        (team(2, reward=[64.0]), {}),
    )
    assert (moved.returns, moved.mates_returns) == ([21.0], [2.0 + 8.0])
    assert (stayed.returns, stayed.mates_returns) == ([106.0], [1.0 + 4.0])
