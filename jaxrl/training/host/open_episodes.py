"""Episodes that are open: who knows of them, and how those of a lost process, or all of them, are given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.missing import missing_agents
from jaxrl.rollout.following.followed import Episode
from jaxrl.rollout.following.tracker import EpisodeTracker
from jaxrl.settings import RunSettings
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.following import Following
from jaxrl.training.host.hooks import Hooks
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.routing import Router
from jaxrl.types import Action, EnvMessage


class OpenEpisodes:
    """What actors, policies and those who follow episodes know of all workers."""

    def __init__(
        self,
        settings: RunSettings,
        recorder: HostRecorder,
        behaviors: Behaviors,
        hooks: Hooks,
    ) -> None:
        self.following: Following | None = None  # from the first behaviors on, where somebody follows episodes
        self._settings = settings
        self._recorder = recorder
        self._behaviors = behaviors
        self._hooks = hooks
        self._missing = missing_agents(settings.env_settings)
        self._incarnations: dict[int, int] = {}  # by worker, of its last message

    @property
    def router(self) -> Router | None:
        """Which policy each agent follows; None: that of its behavior."""
        return None if self.following is None else self.following.router

    def follow(self) -> None:
        """Follow episodes from here on, if callbacks or an episode window ask for single ones."""
        windows = any(behavior.episode_window for _, behavior in self._settings.every_behavior())
        if self.following is not None or not (windows or self._hooks.callbacks):
            return
        policies = self._behaviors.policies
        seed, begun_at = self._settings.env_settings.seed, self._behaviors.decided()
        tracker = EpisodeTracker(seed, begun_at, observes=bool(self._hooks.callbacks))
        self.following = Following(self._hooks, tracker, policies, self._hooks.assignments())
        self._hooks.call("on_run_start", policies)

    def removed(self, policy: str) -> None:
        """The policy is no more: its agents are assigned again (R41)."""
        if self.following is not None:
            self.following.removed(policy)

    def arrived(self, results: Sequence[EnvMessage]) -> tuple[Sequence[EnvMessage], list[Episode]]:
        """The messages with the ends of agents that stay away (`missing`), and the followed episodes that are over."""
        if self._missing is not None:
            results = [self._missing.complete(result) for result in results]
        return results, [] if self.following is None else self.following.observe(results)

    def decided(self, results: Sequence[EnvMessage], chosen: Mapping[int, Mapping[str, Action]]) -> None:
        """What the deciding agents of the results do: worker → behavior id → actions in their order."""
        if self.following is not None:
            self.following.decided(results, chosen)

    def count(self, results: Sequence[EnvMessage]) -> int:
        """How many of the messages are environment steps: all but the first one of each environment.

        Who has sent one has open episodes, which `break_off` ends: so this comes before anything is reset.
        """
        stepped = 0
        for result in results:
            stepped += self._incarnations.get(result.worker) == result.incarnation
            self._incarnations[result.worker] = result.incarnation
        return stepped

    def lose(self, loss: Loss) -> None:
        """A process, or a copy in it, is no more: its agents' episodes end as truncated, less open decisions (R10)."""
        for name, dropped in self._forget(loss).items():
            self._recorder.lost(name, loss, dropped)
        if self.following is not None:
            self.following.lost(loss)  # no statistics: a part is no return

    def break_off(self) -> None:
        """All environments are reset: the open episodes of each end as those of a lost process."""
        for loss in self._resets():
            self._forget(loss)
        self._await_first_messages()

    def begin_anew(self) -> None:
        """Nothing has been collected yet, as in a run that is resumed from a checkpoint of this moment."""
        for behavior in self._behaviors.values():
            behavior.begin_anew()
        self._behaviors.policies.begin_anew()
        self._missing = missing_agents(self._settings.env_settings)
        self._await_first_messages()

    def _await_first_messages(self) -> None:
        """Followed episodes are over; what each environment sends next is no environment step."""
        if self.following is not None:
            self.following.begin_anew(self._resets(), self._behaviors.decided())
        self._incarnations.clear()

    def _resets(self) -> list[Loss]:
        """Of every worker that has answered."""
        return [Loss(*place, "was reset", in_order=True) for place in sorted(self._incarnations.items())]

    def _forget(self, loss: Loss) -> dict[str, int]:
        """Nobody who acts knows the agents of a process any more; by behavior, the open decisions that are dropped."""
        dropped = {behavior.name: behavior.actor.lose(loss) for behavior in self._behaviors.values()}
        self._behaviors.policies.lose(loss)
        if self._missing is not None:
            self._missing.forget(loss)
        return dropped
