"""Who is who in a player with one team or several: ids, groups, rewards and actions stay with their agents."""

from __future__ import annotations

import numpy as np

from jaxrl.envs.player.messages import PlayerMessages
from jaxrl.envs.player.teams import AreasOutcome, Teams
from jaxrl.types import Action, ActionSpec, BehaviorMessage, BehaviorSpec, DimensionProperty, ObservationSpec

SPEC = BehaviorSpec(
    (ObservationSpec("row", (1,), (DimensionProperty.NONE,)),), ActionSpec(continuous_size=0, discrete_branches=(9,))
)


def played(rows: int, *, ended=(), absent=(), reward: float = 0.0, again=()) -> AreasOutcome:
    """A step of two areas; `ended` and `absent` are (area, row). Who ended is absent too; obs is 10 * area + row.

    In the areas `again` all others end, and everybody is there in the next episode.
    """
    shape = (2, rows)
    over, away = np.zeros(shape, bool), np.zeros(shape, bool)
    for place in ended:
        over[place] = True
    for place in (*absent, *ended):
        away[place] = True
    begun = np.isin(np.arange(2), again)
    over, away = over | (begun[:, None] & ~away), away & ~begun[:, None]
    obs = (10 * np.arange(2)[:, None] + np.arange(rows))[..., None].astype(np.float32)
    gain = np.full(shape, reward, np.float32) * obs[..., 0]
    mask = np.ones((*shape, 9), bool)
    return AreasOutcome(over, np.zeros(shape, bool), gain, 2 * gain, (obs,), ~away, mask, (obs,), begun, {})


def started(members: int, teams: int) -> tuple[Teams, tuple]:
    book, step = Teams(SPEC, 2, members, teams), played(members * teams)
    book.restart(step)
    book.absorb(step)
    return book, book.ask(step, due=True)


def actions(*rows: list[int]) -> list[Action]:
    """By team, one action for each agent."""
    return [Action(np.zeros((len(row), 0), np.float32), np.array(row, np.int32).reshape(-1, 1)) for row in rows]


def test_one_team_has_one_group_in_each_area():
    _, (asking,) = started(members=2, teams=1)
    assert asking.agent_id.tolist() == [0, 1, 2, 3] and asking.group_id.tolist() == [1, 1, 2, 2]


def test_each_team_of_each_area_has_its_own_group():
    _, (first, second) = started(members=2, teams=2)
    assert first.agent_id.tolist() == [0, 1, 4, 5] and first.group_id.tolist() == [1, 1, 3, 3]
    assert second.agent_id.tolist() == [2, 3, 6, 7] and second.group_id.tolist() == [2, 2, 4, 4]
    assert second.obs[0][:, 0].tolist() == [2, 3, 12, 13]  # rows 2 and 3 of either area


def test_teams_of_one_are_no_groups():
    _, teams = started(members=1, teams=3)
    assert [team.group_id.tolist() for team in teams] == [[0, 0]] * 3


def test_actions_reach_the_rows_of_their_team():
    book, _ = started(members=2, teams=2)
    book.decide(actions([1, 2, 3, 4], [5, 6, 7, 8]))
    assert book.actions.discrete[..., 0].tolist() == [[1, 2, 5, 6], [3, 4, 7, 8]]
    step = played(4, ended=[(1, 2)], reward=1.0)
    (none, ended) = book.absorb(step)
    assert len(none.agent_id) == 0
    assert ended.agent_id.tolist() == [6] and ended.group_id.tolist() == [4]
    assert ended.reward.tolist() == [12.0] and ended.group_reward.tolist() == [24.0]
    first, second = book.ask(step, due=True)
    assert first.reward.tolist() == [0, 1, 10, 11] and second.reward.tolist() == [2, 3, 13]
    assert second.agent_id.tolist() == [2, 3, 7]
    book.decide(actions([1, 1, 1, 1], [2, 3, 4]))
    assert book.actions.discrete[..., 0].tolist() == [[1, 1, 2, 3], [1, 1, 0, 4]]  # nobody acts for who has ended
    step = played(4, absent=[(0, 0)], reward=1.0)
    (first, second) = (book.absorb(step), book.ask(step, due=True))[1]
    assert second.agent_id.tolist() == [2, 3, 8, 7] and second.group_id.tolist() == [2, 2, 4, 4]  # 8 is new in its row


def test_an_id_stays_with_its_agent_over_episodes_until_it_is_gone() -> None:
    """Rows 0 and 1 of two areas. Agent 1 is gone before area 0 is over: another with its group comes in its place."""
    book, _ = started(members=2, teams=1)
    book.absorb(played(2, ended=[(0, 1)]))
    step = played(2, absent=[(0, 1)], again=[0])
    (ended,), (asking,) = book.absorb(step), book.ask(step, due=True)
    assert ended.agent_id.tolist() == [0] and asking.agent_id.tolist() == [0, 4, 2, 3]
    assert asking.group_id.tolist() == [1, 1, 2, 2]
    step = played(2, absent=[(1, 0)], again=[0])  # who pauses keeps its id
    (ended,), (asking,) = book.absorb(step), book.ask(step, due=True)
    assert ended.agent_id.tolist() == [0, 4] and asking.agent_id.tolist() == [0, 4, 3]
    step = played(2, again=[1])
    assert book.absorb(step)[0].agent_id.tolist() == [2, 3]


def test_an_episode_that_ends_before_its_first_decision_is_told_of_new_agents_alone() -> None:
    """Decisions are due with the last step only. The second ending of agent 0 is not told, nor the pay that it lost."""
    book, _ = started(members=2, teams=1)
    told = [book.absorb(played(2, again=[0], ended=ended))[0].agent_id.tolist() for ended in ([], [], [(0, 1)])]
    assert told == [[0, 1], [], []]
    book, _ = started(members=2, teams=1)
    told = [book.absorb(played(2, **step))[0].agent_id.tolist() for step in ({"ended": [(0, 1)]}, {}, {"again": [0]})]
    assert told == [[1], [], [0, 4]], "agent 4 has come with the second step and never asked"


def test_a_message_names_the_teams_that_have_agents_and_explains_each_once():
    book, deciding = started(members=1, teams=2)
    talk = PlayerMessages("Duel", SPEC, teams=2)
    ended = book.absorb(played(2))
    first = BehaviorMessage(ended=ended[0], deciding=deciding[0])
    second = BehaviorMessage(ended=ended[1], deciding=deciding[1])
    silent = BehaviorMessage(ended=ended[1], deciding=deciding[1]._replace(agent_id=deciding[1].agent_id[:0]))
    said = [talk.output(steps, b"").unity_output for steps in ([first, silent], [first, second], [first, second])]
    assert [list(message.rl_output.agentInfos) for message in said[:1]] == [["Duel?team=0"]]
    assert sorted(said[1].rl_output.agentInfos) == ["Duel?team=0", "Duel?team=1"]
    brains = [[b.brain_name for b in message.rl_initialization_output.brain_parameters] for message in said]
    assert brains == [["Duel?team=0"], ["Duel?team=1"], []]
    goalie = PlayerMessages("Goalie", SPEC, first_team=1).output([first], b"").unity_output
    assert list(goalie.rl_output.agentInfos) == ["Goalie?team=1"]


def test_behaviors_that_are_mates_share_their_group_ids() -> None:
    """Two areas: a seer of behavior 0 and two runners of behavior 1 of 3; ids of agents stay apart."""
    seer = Teams(SPEC, 2, 1, 1, first=0, stride=3, group=0)
    runners = Teams(SPEC, 2, 2, 1, first=1, stride=3, group=0)
    groups = []
    for book, members in ((seer, 1), (runners, 2)):
        step = played(members)
        book.restart(step)
        book.absorb(step)
        (asked,) = book.ask(step, due=True)
        groups.append(asked.group_id.tolist())
    assert groups == [[1, 4], [1, 1, 4, 4]]
