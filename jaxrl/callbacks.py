"""Your own code on the episodes of a run: subclass `Callbacks`, override what you need.

    jaxrl train config.yaml --callbacks mine:MyCallbacks            # or `callbacks: [mine:MyCallbacks]` in the file
    train(settings, callbacks=[MyCallbacks()])                      # in Python, jaxrl.training.host.run

They run in the trainer's process, in the order in which they were given, before the actions are sent: slow code
keeps the environments waiting. A callback that raises ends the run, which is saved first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxrl import own_code
from jaxrl.rollout.following.followed import AgentRecord, Episode, Trajectory
from jaxrl.types import JaxrlError


class CallbackError(JaxrlError):
    """A callback cannot be imported, or raised an error. The text names it."""


class Follows(NamedTuple):
    """Answer of a mapping that says more than the policy's name."""

    policy: str
    samples: bool = True  # False: the agent acts, and nobody learns from it


PolicyMapping = Callable[[AgentRecord, Episode, int], "str | Follows | None"]
"""Function (agent, episode, worker) → answer of `Callbacks.policy_mapping`."""


class Run(Protocol):
    """Interface of a run for its callbacks."""

    @property
    def policy_names(self) -> list[str]:
        """Policies that agents can follow now."""
        ...

    def add_policy(
        self, name: str, *, like: str, weights: str | os.PathLike[str] | None = None, trains: bool = False
    ) -> None:
        """Add a new policy. See `Policies.add_policy`."""
        ...

    def remove_policy(self, name: str) -> None:
        """Forget a policy that was added; agents that follow it are mapped again. See `Policies.remove_policy`."""
        ...

    def report(self, tag: str, value: float) -> None:
        """Report a statistic: summaries of every behavior show its mean, a lesson can be measured by its tag."""
        ...

    def step(self, behavior: str | None = None) -> int:
        """Return the trainer step (decisions); `behavior` may be left out where there is one. Raises PolicyError."""
        ...

    def max_steps(self, behavior: str | None = None) -> int:
        """Return the step after which a behavior learns no more; `behavior` as in `step`."""
        ...

    def save(self) -> None:
        """Save a checkpoint of every behavior once present messages are booked; with `exact` after the next update."""
        ...

    def stop(self) -> None:
        """End the run once the present messages are booked, and save it, as at max_steps."""
        ...


class Callbacks:
    """Called in this order; every method does nothing unless it is overridden.

    For each message of an environment: of the episodes that it concerns `on_episode_step`, then of streams that are cut
    or ended `on_trajectory_complete`, then of episodes that are over `on_episode_end`; then of new ones
    `on_episode_created`, `policy_mapping` of their agents and `on_episode_start`. Numbers of an episode reach the
    statistics before its samples are learned from.
    """

    def on_run_start(self, run: Run) -> None:
        """Handle the start: behaviors are known, no episode has begun. Keep `run` to add and remove policies later."""

    def on_episode_created(self, episode: Episode) -> None:
        """Handle a new episode; its agents follow no policy yet."""

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str | Follows | None:
        """Return the policy that a new agent follows as long as it lives; None: its behavior's policy.

        Asked again when the policy is removed. The first of several callbacks that gives a name decides.
        """

    def on_episode_start(self, episode: Episode) -> None:
        """Handle an episode whose first agents are known, with the policy that each follows."""

    def on_episode_step(self, episode: Episode) -> None:
        """Handle a message, after its first, with data of one of the episode's agents; also the last one."""

    def on_trajectory_complete(
        self, episode: Episode, agent: AgentRecord, trajectory: Trajectory, mates: Mapping[AgentRecord, Trajectory]
    ) -> None:
        """Handle a stream cut at time_horizon or ended. `mates`: trajectories of the episode's other agents meanwhile.

        Both are copies, and writing to one is an error: the setting `postprocess` changes the data for learning.
        """

    def on_faulty_episode(self, episode: Episode, error: Exception) -> None:
        """Handle the loss of the episode's worker; `on_episode_end` follows."""

    def on_episode_end(self, episode: Episode) -> None:
        """Handle the end; values written into `custom_metrics`, `hist_data` and `media` still count."""

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        """Handle an update of a policy: metrics by the algorithm's names, in their own units, and trainer step."""

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        """Handle a checkpoint of this trainer step, which is on disk."""


def overrides(callbacks: Callbacks, method: str) -> bool:
    """Return whether the callbacks override this method."""
    return getattr(type(callbacks), method) is not getattr(Callbacks, method)


def load_callbacks(names: Sequence[str]) -> list[Callbacks]:
    """Make one object of each `module:Class` or `FILE.py:Class`. Modules of the current folder are found, too.

    Raises CallbackError if one cannot be imported or made, or is no `Callbacks`.
    """
    return [_load(name) for name in names]


def _load(name: str) -> Callbacks:
    place, _, attribute = name.rpartition(":")
    outer, *inner = attribute.split(".")
    if not place or not outer:
        raise CallbackError(
            f"callbacks: got {name!r}, expected module:Class or FILE.py:Class, such as mine:MyCallbacks"
        )
    try:
        callbacks_class: Any = own_code.load(f"{place}:{outer}", what="class")
    except own_code.OwnCodeError as error:
        raise CallbackError(f"callbacks: {error}") from error
    try:
        for part in inner:
            callbacks_class = getattr(callbacks_class, part)
        hook = callbacks_class()
    except Exception as error:  # whatever somebody else's class does when it is made
        raise CallbackError(f"callbacks: {name} cannot be used: {own_code.told(error)}") from error
    if not isinstance(hook, Callbacks):
        raise CallbackError(f"callbacks: {name} makes a {type(hook).__name__}, expected a subclass of jaxrl.Callbacks")
    return hook
