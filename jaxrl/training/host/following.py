"""Episodes of a run that somebody follows: tracked, handed to callbacks in order, and assigned to policies.

In use only with callbacks or an episode window; otherwise the loop has none and pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxrl.callbacks import Follows
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.followed import AgentRecord, Episode, Trajectory
from jaxrl.rollout.following.segments import Segments
from jaxrl.rollout.following.tracker import EpisodeTracker, Noticed
from jaxrl.training.host.hooks import Hooks
from jaxrl.training.host.policies import Policies
from jaxrl.training.host.routing import Assignment, Router
from jaxrl.types import Action, EnvMessage

Complete = list[tuple[AgentRecord, Trajectory]]


class Following:
    """Tracks the episodes of all workers and calls the callbacks.

    Args:
      tracker: what notices them.
      policies: that agents can follow.
      assignments: the first one that answers says which.

    `router` splits messages by policy; None: nobody is assigned, each agent follows the policy of its behavior.
    """

    def __init__(
        self, hooks: Hooks, tracker: EpisodeTracker, policies: Policies, assignments: Sequence[Assignment]
    ) -> None:
        self.hooks = hooks
        self.tracker = tracker
        self.router = Router(tracker.record, policies.own) if assignments else None
        self._assignments = assignments
        self._policies = policies
        self._segments = Segments() if hooks.wants("on_trajectory_complete") else None
        self._steps = hooks.wants("on_episode_step")

    def observe(self, results: Sequence[EnvMessage]) -> list[Episode]:
        """Book what arrived; every callback but `on_policy_updated` and those of files is called here.

        Returns the episodes that are over. Raises CallbackError.
        """
        return [episode for result in results for episode in self._observe(result)]

    def decided(self, results: Sequence[EnvMessage], chosen: Mapping[int, Mapping[str, Action]]) -> None:
        """What the deciding agents of the results do: worker → behavior id → actions in their order."""
        if not self.hooks.callbacks:
            return
        for result in results:
            for behavior_id, steps in result.steps.items():
                source = Source(result.worker, behavior_id, result.incarnation)
                action = chosen[result.worker][behavior_id]
                records = self.tracker.decided(source, steps, action)
                if self._segments is not None:
                    self._segments.decided(source, steps, records, action)

    def lost(self, loss: Loss) -> list[Episode]:
        """These agents are no more: `on_faulty_episode`, then `on_episode_end` of each of their episodes.

        Those of a process that was closed in order are truncated without a fault. Returns the episodes.
        """
        error = None if loss.in_order else EnvironmentFailure(loss.why)
        episodes = self.tracker.lost(loss, error)
        for kept in (self.router, self._segments):
            if kept is not None:
                kept.forget(loss)
        for episode in episodes:
            if error is not None:
                self.hooks.call("on_faulty_episode", episode, error)
            self.hooks.call("on_episode_end", episode)
        return episodes

    def begin_anew(self, resets: Sequence[Loss], begun_at: int) -> None:
        """All environments are reset: open episodes are over, truncated, and those to come begin after `begun_at`."""
        for loss in resets:
            self.lost(loss)
        self.tracker.begin_anew(begun_at)

    def removed(self, policy: str) -> None:
        """The policy is no more: its agents are mapped again (R41)."""
        if self.router is None:
            return
        self.router.removed(policy)
        for episode, agent in self.tracker.living():
            if agent.policy == policy:
                agent.policy, agent.samples = agent.behavior, True
                self._map(episode, agent)

    def _observe(self, result: EnvMessage) -> list[Episode]:
        noticed = self.tracker.observe(result)
        complete = self._complete(result)
        for episode in noticed.went_on:
            if self._steps:
                self.hooks.call("on_episode_step", episode)
            self._hand_on(episode, complete)
            if episode.over:
                self.hooks.call("on_episode_end", episode)
        for episode in noticed.begun:
            self.hooks.call("on_episode_created", episode)
        self._meet(noticed)
        for episode in noticed.begun:
            self.hooks.call("on_episode_start", episode)
        return noticed.over

    def _meet(self, noticed: Noticed) -> None:
        for episode, agent in noticed.newcomers:
            if not agent.mapped:
                self._map(episode, agent)

    def _map(self, episode: Episode, agent: AgentRecord) -> None:
        agent.mapped = True
        answers = (assignment(agent, episode) for assignment in self._assignments)
        answer = next((answer for answer in answers if answer is not None), None)
        agent.policy, agent.samples = answer or Follows(self._policies.own(episode.worker, agent.behavior_id))
        if answer is not None:
            self._policies.check(agent.policy, agent.behavior_id)

    def _complete(self, result: EnvMessage) -> Complete:
        if self._segments is None:
            return []
        found: Complete = []
        for behavior_id, steps in result.steps.items():
            source = Source(result.worker, behavior_id, result.incarnation)
            found += self._segments.outcomes(source, steps, self._policies.horizon(behavior_id))
        return found

    def _hand_on(self, episode: Episode, complete: Complete) -> None:
        if self._segments is None:
            return
        mine = {agent: trajectory for agent, trajectory in complete if agent in episode.agents}
        if not mine:
            return
        everybody = self._segments.of_mates(episode.living) | mine
        for agent, trajectory in mine.items():
            mates = {mate: theirs for mate, theirs in everybody.items() if mate is not agent}
            self.hooks.call("on_trajectory_complete", episode, agent, trajectory, mates)
