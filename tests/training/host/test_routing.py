"""Messages split by policy and actions put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.callbacks import Follows
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.following.followed import AgentRecord, Episode
from jaxrl.rollout.following.tracker import EpisodeTracker
from jaxrl.training.host.hooks import Hooks
from jaxrl.training.host.open_episodes import Following
from jaxrl.training.host.routing import Chosen, Router, Share, blank, decide, join, whole
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
        return self.router.split([heard(said(ask, end, taken))])


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
    shares = agents.router.split([heard(steps)])
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
    for share in agents.router.split([message_]).values():
        asked = share.messages[SOURCE].deciding.agent_id
        join(chosen, share, {SOURCE: Action(asked[:, None] / 2, (asked % 3)[:, None])})
    whole = chosen[0][PUSH]
    assert whole.continuous[:, 0].tolist() == [2.0, 0.5, 1.0, 1.5] and whole.continuous.dtype == np.float32
    assert whole.discrete[:, 0].tolist() == [1, 1, 2, 0] and whole.discrete.dtype == np.int32


class Constant:
    """A policy that always does the same."""

    def __init__(self, value: float) -> None:
        self.value, self.asked = value, list[int]()

    def act(self, messages: Any, untrained: Any) -> Any:
        self.asked += [agent for steps in messages.values() for agent in steps.deciding.agent_id.tolist()]
        counts = {source: len(steps.deciding.agent_id) for source, steps in messages.items()}
        return {s: Action(np.full((n, 1), self.value), np.zeros((n, 1), int)) for s, n in counts.items()}, []


def test_a_team_meets_who_is_assigned_to_it_in_an_episode() -> None:
    """Of two teams of one behavior the second meets the newest opponent in even workers, an older one in odd ones."""

    def opponents(agent: AgentRecord, episode: Episode) -> Follows | None:
        return Follows(f"past {episode.worker % 2}") if agent.behavior_id.endswith("team=1") else None

    class Everything:
        def check(self, name: str, behavior_id: str) -> None: ...
        def horizon(self, behavior_id: str) -> int:
            return 1

        def own(self, worker: int, behavior_id: str) -> str:
            return "Push"

    tracker = EpisodeTracker(0)
    following = Following(Hooks([]), tracker, Everything(), [opponents])
    teams = {"Push?team=0": said([1, 2]), "Push?team=1": said([3])}
    results = [EnvMessage(worker, teams, {}, (), 0.0) for worker in (0, 1)]
    following.observe(results)
    policies = {"Push": Constant(1.0), "past 0": Constant(2.0), "past 1": Constant(3.0)}
    assert following.router is not None
    chosen = blank(results, lambda _: SPEC.action)
    decide(following.router.split(results), policies, chosen)
    assert [policies[name].asked for name in policies] == [[1, 2, 1, 2], [3], [3]]
    done = {w: [a.continuous[:, 0].tolist() for a in here.values()] for w, here in chosen.items()}
    assert done == {0: [[1.0, 1.0], [2.0]], 1: [[1.0, 1.0], [3.0]]}

    unassigned: Chosen = {0: {}, 1: {}}
    decide(whole(results), policies, unassigned)
    assert policies["Push"].asked[4:] == [1, 2, 3] * 2 and len(unassigned[1]["Push?team=1"].discrete) == 1

    policies = {"Push": Constant(1.0), "past": Constant(2.0)}
    decide(whole(results, lambda _, team: "past" if team.endswith("1") else "Push"), policies, {0: {}, 1: {}})
    assert [policies[name].asked for name in policies] == [[1, 2, 1, 2], [3, 3]], "a team's own policy"


def test_a_lost_worker_is_forgotten() -> None:
    agents = Agents()
    agents.split([1])
    agents.router.forget(Loss(0, 0, "it is gone"))
    assert ids(agents.split([], [1])) == {"Push": ([1], [])}, "as if it were first seen"
