"""Streams that callbacks get: cut at the horizon, ended, moved; with what the mates did meanwhile (R57)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from script import ONE

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.following.followed import AgentRecord, Outcome, Trajectory
from jaxrl.rollout.following.segments import Segments
from jaxrl.types import Action, BehaviorMessage, Taken
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((1,), continuous=1)


class Streams:
    """Segments with a horizon of 3. Agent i sees 10 i + number of the message, and does its negative."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.records = [AgentRecord(i, ONE.behavior_id, "Push") for i in range(4)]
        self.number = 0

    def say(self, ask: Sequence[int], end: Sequence[int] = (), taken: Taken | None = None, **rewards: Sequence[float]):
        def seen(agents: Sequence[int]) -> list[np.ndarray]:
            return [np.array([[10.0 * i + self.number] for i in agents]).reshape(-1, 1)]

        steps: BehaviorMessage = message(
            SPEC,
            terminal_steps(SPEC, end, obs=seen(end), reward=rewards.get("end_reward")),
            decision_steps(SPEC, ask, obs=seen(ask), reward=rewards.get("reward")),
        )._replace(taken=taken)
        complete = self.segments.outcomes(ONE, steps, 3)
        action = Action(-np.asarray(steps.deciding.obs[0]), np.zeros((len(ask), 0), np.int32))
        self.segments.decided(ONE, steps, [self.records[i] for i in ask], action)
        self.number += 1
        return {record.agent_id: brief(trajectory) for record, trajectory in complete}


def brief(t: Trajectory) -> tuple[list[float], list[float], list[float], float, Outcome | None]:
    return (
        t.obs[0][:, 0].tolist(),
        t.action.continuous[:, 0].tolist(),
        t.reward.tolist(),
        float(t.last_obs[0][0]),
        t.outcome,
    )


def test_a20_cut_after_three_decisions_and_ended_by_hand() -> None:
    streams = Streams()
    assert streams.say([1, 2]) == streams.say([1], reward=[1.0]) == streams.say([1, 2], reward=[2.0, 7.0]) == {}
    assert streams.say([1, 2], reward=[4.0, 8.0]) == {
        1: ([10.0, 11.0, 12.0], [-10.0, -11.0, -12.0], [1.0, 2.0, 4.0], 13.0, Outcome.CUT)
    }
    assert streams.say([], [1, 2], end_reward=[16.0, 32.0]) == {
        1: ([13.0], [-13.0], [16.0], 14.0, Outcome.TERMINATED),
        2: ([20.0, 22.0, 23.0], [-20.0, -22.0, -23.0], [7.0, 8.0, 32.0], 24.0, Outcome.TERMINATED),
    }
    assert streams.say([], [1]) == {}, "it is over"


def test_mates_are_told_up_to_their_last_finished_decision() -> None:
    streams = Streams()
    streams.say([1, 2, 3])
    streams.say([2], [1], reward=[5.0], end_reward=[1.0])
    found = streams.segments.of_mates([streams.records[2], streams.records[3]])
    assert {mate.agent_id: brief(t) for mate, t in found.items()} == {2: ([20.0], [-20.0], [5.0], 21.0, None)}


def test_what_an_agent_did_itself_stands_in_its_stream() -> None:
    streams = Streams()
    streams.say([1])
    taken = Taken(np.array([1]), Action(np.array([[0.5]], np.float32), np.zeros((1, 0), np.int32)))
    assert streams.say([], [1], taken)[1][1] == [0.5]


def test_a_stream_ends_where_the_agent_moves_and_with_its_worker() -> None:
    streams = Streams()
    streams.say([0, 1])
    streams.records[0].outcome = Outcome.MOVED
    assert streams.say([0, 1], reward=[3.0, 0.0]) == {0: ([0.0], [0.0], [3.0], 1.0, Outcome.MOVED)}
    streams.segments.forget(Loss(0, 0, "it is gone"))
    assert streams.say([], [0, 1]) == {}
