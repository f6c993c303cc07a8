"""Messages split by policy and actions put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.following.followed import AgentRecord
from jaxrl.training.host.routing import Router, Share, blank, join
from jaxrl.types import Action, BehaviorMessage, EnvMessage, Taken
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((2,), continuous=1, branches=(3,))
PUSH = "Push?team=0"
SOURCE = Source(0, PUSH)


class Agents:
    """A router over agents whose policies the test decides: `even` and `odd` by id unless it says otherwise."""

    def __init__(self, silent: Sequence[int] = ()) -> None:
        self.policy: dict[int, str] = {}
        self.silent = silent
        self.router = Router(self.record)

    def record(self, source: Source, agent: int) -> AgentRecord:
        policy = self.policy.get(agent, "odd" if agent % 2 else "even")
        return AgentRecord(agent, source.behavior_id, policy, samples=agent not in self.silent)

    def split(self, ask: Sequence[int], end: Sequence[int] = (), taken: Taken | None = None) -> Mapping[str, Share]:
        return self.router.split([heard(said(ask, end, taken))], lambda name: name.partition("?")[0])


def said(ask: Sequence[int], end: Sequence[int] = (), taken: Taken | None = None) -> BehaviorMessage:
    reward = [float(agent) for agent in ask]
    return message(SPEC, terminal_steps(SPEC, end), decision_steps(SPEC, ask, reward=reward))._replace(taken=taken)


def heard(steps: BehaviorMessage) -> EnvMessage:
    return EnvMessage(worker=0, steps={PUSH: steps}, new_specs={}, stats=(), seconds=0.0)


def ids(shares: Mapping[str, Share]) -> dict[str, tuple[list[int], list[int]]]:
    """By policy, ids of ended and deciding agents."""
    parts = {name: share.messages[SOURCE] for name, share in shares.items()}
    return {name: (part.ended.agent_id.tolist(), part.deciding.agent_id.tolist()) for name, part in parts.items()}


def test_each_policy_gets_its_agents_in_their_order_and_endings_go_where_they_acted() -> None:
    agents = Agents()
    shares = agents.split([4, 1, 2, 3])
    assert ids(shares) == {"even": ([], [4, 2]), "odd": ([], [1, 3])}
    odd = shares["odd"].messages[SOURCE].deciding
    assert odd.reward.tolist() == [1.0, 3.0] and odd.obs[0].tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert ids(agents.split([6, 3], [1, 2])) == {"even": ([2], [6]), "odd": ([1], [3])}


def test_a_message_of_one_policy_passes_whole() -> None:
    agents = Agents()
    steps = said([2, 4])
    shares = agents.router.split([heard(steps)], lambda name: name)
    assert list(shares) == ["even"] and shares["even"].messages[SOURCE] is steps


def test_u1_first_seen_ended_is_told_to_its_behavior() -> None:
    assert ids(Agents().split([1], [8])) == {"Push": ([8], []), "odd": ([], [1])}


def test_r41_what_agents_of_a_removed_policy_bring_is_no_ones_until_they_ask() -> None:
    agents = Agents()
    agents.split([1, 2, 3])
    agents.router.removed("odd")
    agents.policy = {3: "even"}
    assert ids(agents.split([2, 3], [1])) == {"even": ([], [2, 3])}, "1 followed a policy that is no more"
    assert ids(agents.split([], [2, 3])) == {"even": ([2, 3], [])}


def test_r45_ids_that_leave_no_samples_go_along() -> None:
    shares = Agents(silent=[2, 3]).split([1, 2, 3, 4])
    assert {name: share.untrained for name, share in shares.items()} == {"even": {SOURCE: {2}}, "odd": {SOURCE: {3}}}


def test_what_agents_did_themselves_goes_where_they_followed() -> None:
    agents = Agents()
    agents.split([1, 2])
    action = Action(np.array([[0.1], [0.2]], np.float32), np.array([[1], [2]], np.int32))
    shares = agents.split([1], [2], Taken(np.array([1, 2]), action))
    even = shares["even"].messages[SOURCE].taken
    assert even is not None and even.agent_id.tolist() == [2] and even.action.discrete.tolist() == [[2]]


def test_actions_stand_where_their_agents_asked() -> None:
    agents = Agents()
    message_ = heard(said([4, 1, 2, 3]))
    chosen = blank([message_], lambda _: SPEC.action)
    for share in agents.router.split([message_], lambda name: name).values():
        asked = share.messages[SOURCE].deciding.agent_id
        join(chosen, share, {SOURCE: Action(asked[:, None] / 2, (asked % 3)[:, None])})
    whole = chosen[0][PUSH]
    assert whole.continuous[:, 0].tolist() == [2.0, 0.5, 1.0, 1.5] and whole.continuous.dtype == np.float32
    assert whole.discrete[:, 0].tolist() == [1, 1, 2, 0] and whole.discrete.dtype == np.int32


def test_a_lost_worker_is_forgotten() -> None:
    agents = Agents()
    agents.split([1])
    agents.router.forget(0, 0)
    assert ids(agents.split([], [1])) == {"Push": ([1], [])}, "as if it were first seen"
