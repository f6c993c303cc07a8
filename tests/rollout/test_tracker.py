"""Episodes as they are followed: who is in them, how long they last, what they earned, how they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.following.followed import Episode, Outcome, episode_id
from jaxrl.rollout.following.segments import Segments
from jaxrl.rollout.following.tracker import EpisodeTracker, Noticed
from jaxrl.types import NO_GROUP, NOTHING, Action, BehaviorMessage, EnvMessage
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((1,), branches=(2,))
PUSH, KEEP = "Push?team=0", "Keep?team=1"


def said(
    ask: Mapping[int, int] = NOTHING,
    end: Mapping[int, int] = NOTHING,
    infos: Mapping[int, Mapping[str, Any]] = NOTHING,
    **fields: Any,
) -> BehaviorMessage:
    """Agents that ask and end, by id their group."""
    ended = {name.removeprefix("end_"): value for name, value in fields.items() if name.startswith("end_")}
    deciding = {name: value for name, value in fields.items() if not name.startswith("end_")}
    return message(
        SPEC,
        terminal_steps(SPEC, list(end), groups=list(end.values()), **ended),
        decision_steps(SPEC, list(ask), groups=list(ask.values()), **deciding),
    )._replace(infos=infos)


class Told:
    """A tracker and the messages of its workers."""

    def __init__(self, seed: int = 7, begun_at: int = 0) -> None:
        self.tracker = EpisodeTracker(seed, begun_at)

    def __call__(self, push: BehaviorMessage | None = None, worker: int = 0, **more: Any) -> Noticed:
        steps = {} if push is None else {PUSH: push}
        if "keep" in more:
            steps[KEEP] = more.pop("keep")
        fields = {"new_specs": {}, "stats": (), "seconds": 0.0, **more}
        return self.tracker.observe(EnvMessage(worker=worker, steps=steps, **fields))


def returns(episode: Episode) -> list[tuple[int, float, float, int]]:
    return [(a.agent_id, a.own_return, a.group_return, a.decisions) for a in episode.agents]


def test_x8_an_episode_of_a_team_by_hand() -> None:
    """Members 1 and 2 begin, 1 dies with -4, 3 joins; the team ends with +5 for 2, who lived longest, and +3 for 3.

    Returns: 1: 1 - 4, 2: 2 + 8 + 0 + 16, 3: 32. What comes with a first decision belongs to none.
    """
    told = Told()
    (episode,) = told(said({1: 9, 2: 9}, reward=[100.0, 100.0])).begun
    assert told(said({1: 9, 2: 9}, reward=[1.0, 2.0], group_reward=[10.0, 10.0])).went_on == [episode]
    told(said({2: 9}, {1: 9}, reward=[8.0], end_reward=[-4.0]))
    noticed = told(said({2: 9, 3: 9}, reward=[0.0, 64.0]))
    assert [agent.agent_id for _, agent in noticed.newcomers] == [3] and noticed.begun == []
    noticed = told(said({}, {2: 9, 3: 9}, end_reward=[16.0, 32.0], end_group_reward=[5.0, 3.0]))
    assert (noticed.over, noticed.begun) == ([episode], [])
    assert returns(episode) == [(1, -3.0, 10.0, 2), (2, 26.0, 15.0, 4), (3, 32.0, 3.0, 1)]
    assert (episode.length, episode.group_return, episode.total_return) == (4, 15.0, -3.0 + 26.0 + 32.0 + 15.0)
    assert episode.over and not episode.truncated and not episode.faulty and episode.living == []
    assert [a.outcome for a in episode.agents] == [Outcome.TERMINATED] * 3


def test_m12_a_team_earns_once_whoever_dies_comes_late_or_survives() -> None:
    """Paid 4, 8 and -2: 1 has the first, 2 the last two and 3 the last alone. A lost worker's team has what it had."""
    told = Told()
    (team,) = told(said({1: 9})).begun
    told(said({1: 9, 2: 9}, group_reward=[4.0, 0.0]))
    assert team.group_return == 4.0
    told(said({2: 9, 3: 9}, {1: 9}, group_reward=[8.0, 0.0]))
    assert team.group_return == 12.0, "1 misses the 8, because it ends first"
    told(said({3: 9}, group_reward=[-2.0]))
    assert team.group_return == 10.0
    (next_team,) = told(said({4: 9}, {2: 9, 3: 9}, end_group_reward=[-2.0, 0.0])).begun
    assert (team.group_return, next_team.group_return) == (10.0, 0.0)
    told(said({4: 9}, group_reward=[1.0]))
    assert [lost.group_return for lost in told.tracker.lost(Loss(0, 0, "gone"), None)] == [1.0]


def test_r14_r17_a_team_that_ends_and_begins_in_one_message_is_two_episodes() -> None:
    told = Told()
    (first,) = told(said({1: 9})).begun
    noticed = told(said({2: 9}, {1: 9}, end_truncated=[True]))
    assert noticed.over == [first] and first.truncated
    (second,) = noticed.begun
    assert second is not first and second.length == 0 and first.length == 1
    assert told(said({}, {2: 9})).over == [second] and not second.truncated


def test_agents_without_a_team_have_episodes_of_their_own() -> None:
    told = Told()
    one, two = told(said({1: 0, 2: 0})).begun
    assert told(said({2: 0}, {1: 0}, end_group_reward=[3.0], end_reward=[1.0])).over == [one]
    assert (one.total_return, two.over, two.length) == (4.0, False, 1)


def test_a_team_of_two_behaviors_is_one_episode_and_ends_with_its_last_member() -> None:
    told = Told()
    noticed = told(said({1: 9}), keep=said({1: 9}))
    (episode,) = noticed.begun
    assert [a.behavior for a in episode.agents] == ["Push", "Keep"]
    assert told(said({}, {1: 9}), keep=said({1: 9})).over == []
    assert told(keep=said({}, {1: 9}, end_truncated=[True])).over == [episode]
    assert episode.truncated, "how it ended is told by who ended last"


def test_r22_m4_first_seen_ended_leaves_no_trace() -> None:
    noticed = Told()(said({}, {1: 9}))
    assert noticed == Noticed(went_on=[], over=[], begun=[], newcomers=[])


def test_whoever_changes_its_team_leaves_one_episode_and_keeps_its_policy_in_the_next() -> None:
    """The reward that comes with the change belongs to the decision before it."""
    told = Told()
    (first,) = told(said({1: 8, 2: 8})).begun
    first.agents[0].policy, first.agents[0].mapped = "Old", True
    noticed = told(said({1: 9, 2: 8}, reward=[5.0, 0.0]))
    (second,) = noticed.begun
    assert first.agents[0].outcome is Outcome.MOVED and returns(first)[0] == (1, 5.0, 0.0, 1)
    assert [(a.policy, a.mapped) for a in second.agents] == [("Old", True)] and returns(second) == [(1, 0.0, 0.0, 1)]
    noticed = told(said({2: 9}))
    assert noticed.over == [first] and first.truncated, "its last member lives on elsewhere"


def test_x8_x13_an_episode_lasts_as_long_as_its_agents_are_spoken_of() -> None:
    """Of the next five messages of the worker, two have agents of team 9, one a newcomer, two only strangers."""
    told = Told()
    (team,) = told(said({1: 9})).begun
    messages = [said({5: 0}), said({1: 9, 5: 0}), said({5: 0}), said({2: 9, 5: 0}), said({5: 0}, {1: 9, 2: 9})]
    went_on = [told(each).went_on for each in messages]
    assert [team in episodes for episodes in went_on] == [False, True, False, True, True]
    assert team.over and team.length == 3 and went_on[-1][0] is team
    assert went_on[-1][1].length == 4, "the stranger begins with the first of them"


def test_r16_r24_infos_are_the_newest_of_agent_and_worker() -> None:
    told = Told()
    (episode,) = told(said({1: 9}, infos={1: {"hp": 3}}), infos={"map": "a"}).begun
    assert (episode.agents[0].infos, episode.infos) == ({"hp": 3}, {"map": "a"})
    told(said({1: 9}))
    assert (episode.agents[0].infos, episode.infos) == ({"hp": 3}, {"map": "a"}), "nothing new was said"
    told(said({}, {1: 9}, infos={1: {"hp": 0}}), infos={"map": "b"})
    assert (episode.agents[0].infos, episode.infos) == ({"hp": 0}, {"map": "b"})


def test_r10_x11_a_lost_worker_leaves_faulty_episodes_and_its_ids_are_others_afterwards() -> None:
    told, error = Told(), RuntimeError("killed")
    (mine,) = told(said({1: 9})).begun
    (theirs,) = told(said({1: 9}), worker=1).begun
    assert told.tracker.lost(Loss(0, 0, ""), error) == [mine] and told.tracker.lost(Loss(5, 0, ""), error) == []
    assert mine.faulty and mine.error is error and mine.over and mine.agents[0].outcome is Outcome.LOST
    (again,) = told(said({1: 9}), incarnation=1).begun
    assert again.incarnation == 1 and again.episode_id != mine.episode_id and not theirs.over
    assert told.tracker.record(Source(0, PUSH, 1), 1) is again.agents[0]
    assert told.tracker.record(Source(0, PUSH, 0), 1) is None


def test_m28_x18_ids_follow_from_the_seed_and_are_unique() -> None:
    """Of 3 workers in 2 incarnations with 50 episodes each, in whatever order their messages come."""

    def ids(seed: int, workers: list[int], begun_at: int = 0) -> dict[tuple[int, int, int], str]:
        told, found = Told(seed, begun_at), {}
        for incarnation in (0, 1):
            for number in range(50):
                for worker in workers:
                    (episode,) = told(said({number: 0}), worker=worker, incarnation=incarnation).begun
                    found[worker, incarnation, number] = episode.episode_id
        return found

    first = ids(7, [0, 1, 2])
    assert first == ids(7, [2, 0, 1]) and len(set(first.values())) == 300
    assert not set(first.values()) & set(ids(8, [0, 1, 2]).values())
    assert not set(first.values()) & set(ids(7, [0, 1, 2], begun_at=1000).values()), "a resumed run repeats none"
    assert first[1, 0, 2] == episode_id(7, 0, 1, 0, 2) and len(first[1, 0, 2]) == 16


def test_r5_active_episodes_are_kept_by_environment_and_each_builds_its_own_trajectories() -> None:
    """Two workers with agent 1 each: worker 1 earns 10 a step, worker 0 earns 1 and ends; what is open stays apart."""
    told, segments = Told(), Segments()

    def goes_on(worker: int, reward: float, end: bool = False) -> dict[str, float]:
        """Rewards of the pieces that are complete, by episode."""
        push = said(end={1: NO_GROUP}, end_reward=[reward]) if end else said({1: NO_GROUP}, reward=[reward])
        before = {id(agent): episode.episode_id for episode, agent in told.tracker.living()}
        told(push, worker)
        source = Source(worker, PUSH)
        done = segments.outcomes(source, push, 64)
        records = [record for record in [told.tracker.record(source, 1)] if record is not None]
        count = len(push.deciding.agent_id)
        segments.decided(source, push, records, Action(np.zeros((count, 0)), np.zeros((count, 1), np.int32)))
        return {before[id(agent)]: float(piece.reward.sum()) for agent, piece in done}

    for _ in range(3):
        assert goes_on(0, 1.0) == goes_on(1, 10.0) == {}
    active = {episode.worker: episode for episode, _ in told.tracker.living()}
    assert {worker: episode.length for worker, episode in active.items()} == {0: 2, 1: 2}
    assert goes_on(0, 1.0, end=True) == {active[0].episode_id: 3.0}, "what came with the first decision belongs to none"
    assert [episode.worker for episode, _ in told.tracker.living()] == [1] and active[0].over
    assert goes_on(1, 10.0, end=True) == {active[1].episode_id: 30.0}
    assert told.tracker.living() == []
