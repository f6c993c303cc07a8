"""Open episodes: track them, and end those of a lost worker, or all of them at a reset.

Episodes are followed if callbacks or an episode window need single ones: they are tracked, handed to callbacks in
order, and their agents assigned to policies. Otherwise following costs the loop nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from jaxrl.callbacks import Follows
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.missing import missing_agents
from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.following.followed import AgentRecord, Episode, Trajectory
from jaxrl.rollout.following.segments import Segments
from jaxrl.rollout.following.tracker import EpisodeTracker, Noticed
from jaxrl.settings import RunSettings
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.hooks import Hooks
from jaxrl.training.host.policies import Policies
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.routing import Assignment, Router
from jaxrl.types import Action, EnvMessage

log = logging.getLogger(__name__)

WAITED = (
    "An agent whose episode was interrupted after %d messages without it (env_settings.missing: truncate) is back "
    "after %d: it had waited, and what it was paid for its last decision is lost. Set env_settings.missing_after to "
    "more messages than the longest wait, or env_settings.missing: carry."
)
Complete = list[tuple[AgentRecord, Trajectory]]


class Following:
    """Tracks the episodes of all workers and calls the callbacks.

    Args:
      tracker: finds episodes in messages.
      policies: policies that agents can follow.
      assignments: functions that assign a policy to an agent; the first one that answers decides.

    `router` splits messages by policy; None: without assignments each agent follows the policy of its behavior.
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
        """Book the messages; call every callback except `on_policy_updated` and those about files.

        Returns the episodes that are over. Raises CallbackError.
        """
        return [episode for result in results for episode in self._observe(result)]

    def decided(self, results: Sequence[EnvMessage], chosen: Mapping[int, Mapping[str, Action]]) -> None:
        """Book the actions of the results' deciding agents: worker → behavior id → actions in the agents' order."""
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
        """End the episodes of lost agents: call `on_faulty_episode`, then `on_episode_end` for each. Returns them.

        Episodes of a worker that was closed in order are truncated without a fault.
        """
        error = None if loss.in_order else EnvironmentFailure(loss.why)
        episodes = self.tracker.lost(loss, error)
        for tracker in (self.router, self._segments):
            if tracker is not None:
                tracker.forget(loss)
        for episode in episodes:
            if error is not None:
                self.hooks.call("on_faulty_episode", episode, error)
            self.hooks.call("on_episode_end", episode)
        return episodes

    def begin_anew(self, resets: Sequence[Loss], begun_at: int) -> None:
        """End all open episodes as truncated, at a reset of all environments; later ones begin after `begun_at`."""
        for loss in resets:
            self.lost(loss)
        self.tracker.begin_anew(begun_at)

    def removed(self, policy: str) -> None:
        """Map the agents of a removed policy again."""
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
        complete: Complete = []
        for behavior_id, steps in result.steps.items():
            source = Source(result.worker, behavior_id, result.incarnation)
            complete += self._segments.outcomes(source, steps, self._policies.horizon(behavior_id))
        return complete

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


class OpenEpisodes:
    """Open episodes of all workers, as actors, policies, callbacks and episode windows see them."""

    def __init__(self, settings: RunSettings, recorder: HostRecorder, behaviors: Behaviors, hooks: Hooks) -> None:
        self.following: Following | None = None  # set with the first behaviors, if episodes are followed
        self._settings = settings
        self._recorder = recorder
        self._behaviors = behaviors
        self._hooks = hooks
        self._missing = missing_agents(settings.env_settings)
        self._told_wait = 0  # in messages; the longest wait that was logged
        self._incarnations: dict[int, int] = {}  # incarnation of each worker's newest message

    @property
    def router(self) -> Router | None:
        """Router that knows which policy each agent follows; None: each follows its behavior's."""
        return None if self.following is None else self.following.router

    def follow(self) -> None:
        """Begin to follow episodes, if callbacks or an episode window need single ones."""
        windows = any(behavior.episode_window for _, behavior in self._settings.every_behavior())
        if self.following is not None or not (windows or self._hooks.callbacks):
            return
        policies = self._behaviors.policies
        seed, begun_at = self._settings.env_settings.seed, self._behaviors.decided()
        tracker = EpisodeTracker(seed, begun_at, observes=bool(self._hooks.callbacks))
        self.following = Following(self._hooks, tracker, policies, self._hooks.assignments())
        policies.removed = self.following.removed
        self._hooks.call("on_run_start", policies)

    def arrived(self, results: Sequence[EnvMessage]) -> tuple[Sequence[EnvMessage], list[Episode]]:
        """Add the ends of missing agents (`missing`) to the messages; return these and the followed ended episodes."""
        if self._missing is not None:
            results = [self._missing.complete(result) for result in results]
            if self._missing.longest_wait > 2 * self._told_wait:
                self._told_wait = self._missing.longest_wait
                log.warning(WAITED, self._settings.env_settings.missing_after, self._told_wait)
        return results, [] if self.following is None else self.following.observe(results)

    def decided(self, results: Sequence[EnvMessage], chosen: Mapping[int, Mapping[str, Action]]) -> None:
        """Book the actions of the results' deciding agents: worker → behavior id → actions in the agents' order."""
        if self.following is not None:
            self.following.decided(results, chosen)

    def count(self, results: Sequence[EnvMessage]) -> int:
        """Count the messages that are environment steps: all but the first one of each environment.

        Call it before any reset: `break_off` ends the episodes of the workers that have sent a message.
        """
        stepped = 0
        for result in results:
            stepped += self._incarnations.get(result.worker) == result.incarnation
            self._incarnations[result.worker] = result.incarnation
        return stepped

    def lose(self, loss: Loss) -> None:
        """End the episodes of a lost worker or copy as truncated; pending decisions are dropped."""
        for name, dropped in self._forget(loss).items():
            self._recorder.lost(name, loss, dropped)
        if self.following is not None:
            self.following.lost(loss)  # no statistics: the reward of a part of an episode is no return

    def break_off(self) -> None:
        """End the open episodes of all environments, before a reset, like those of a lost worker."""
        for loss in self._resets():
            self._forget(loss)
        self._await_first_messages()

    def begin_anew(self) -> None:
        """Drop all collected data, as in a run that is resumed from a checkpoint written now."""
        for behavior in self._behaviors.values():
            behavior.begin_anew()
        self._behaviors.policies.begin_anew()
        self._missing = missing_agents(self._settings.env_settings)
        self._await_first_messages()

    def _await_first_messages(self) -> None:
        """End followed episodes, and do not count each environment's next message as an environment step."""
        if self.following is not None:
            self.following.begin_anew(self._resets(), self._behaviors.decided())
        self._incarnations.clear()

    def _resets(self) -> list[Loss]:
        """Return one loss by reset for every worker that has sent a message."""
        return [Loss(*place, "was reset", in_order=True) for place in sorted(self._incarnations.items())]

    def _forget(self, loss: Loss) -> dict[str, int]:
        """Let all policies forget a lost worker's agents; return the number of dropped decisions by behavior."""
        dropped = {behavior.name: behavior.actor.lose(loss) for behavior in self._behaviors.values()}
        self._behaviors.policies.lose(loss)
        if self._missing is not None:
            self._missing.forget(loss)
        return dropped
