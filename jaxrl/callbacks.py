"""Your own code on the episodes of a run: subclass `Callbacks`, override what you need.

    jaxrl train config.yaml --callbacks mine:MyCallbacks            # or `callbacks: [mine:MyCallbacks]` in the file
    train(settings, callbacks=[MyCallbacks()])                      # in Python, jaxrl.training.host.run

They run in the trainer's process, in the order in which they were given, before the actions are sent: what takes long
there keeps the environments waiting. One that raises ends the run, which is saved first.
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
    """What a mapping may answer instead of the name alone."""

    policy: str
    samples: bool = True  # False: the agent acts, and nobody learns from it


PolicyMapping = Callable[[AgentRecord, Episode, int], "str | Follows | None"]
"""(agent, episode, worker) → what `Callbacks.policy_mapping` answers."""


class Run(Protocol):
    """What callbacks can do with the run that they belong to."""

    @property
    def policy_names(self) -> list[str]:
        """Policies that agents can follow now."""
        ...

    def add_policy(
        self, name: str, *, like: str, weights: str | os.PathLike[str] | None = None, trains: bool = False
    ) -> None:
        """A new policy. See `Policies.add_policy`."""
        ...

    def remove_policy(self, name: str) -> None:
        """Forget a policy that was added; agents that follow it are mapped again. See `Policies.remove_policy`."""
        ...

    def report(self, tag: str, value: float) -> None:
        """A statistic of one's own: summaries of every behavior show its mean, a lesson can be measured by its tag."""
        ...

    def step(self, behavior: str | None = None) -> int:
        """Trainer step, finished agent decisions; `behavior` may be left out where there is one. Raises PolicyError."""
        ...

    def max_steps(self, behavior: str | None = None) -> int:
        """The step after which a behavior learns no more; as `step`."""
        ...

    def save(self) -> None:
        """A checkpoint of every behavior once the present messages are booked; with `exact` after the next update."""
        ...

    def stop(self) -> None:
        """The run ends once the present messages are booked, and saves, as at max_steps."""
        ...


class Callbacks:
    """Called in this order; every method does nothing unless it is overridden.

    For each message of an environment: of the episodes that it concerns `on_episode_step`, then of streams that are cut
    or ended `on_trajectory_complete`, then of episodes that are over `on_episode_end`; then of new ones
    `on_episode_created`, `policy_mapping` of their agents and `on_episode_start`. Numbers of an episode reach the
    statistics before its samples are learned from.
    """

    def on_run_start(self, run: Run) -> None:
        """The first behaviors are known, no episode has begun. Keep `run` to add and remove policies later."""

    def on_episode_created(self, episode: Episode) -> None:
        """A new episode; its agents follow no policy yet."""

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str | Follows | None:
        """The policy that a new agent follows as long as it lives; None: that of its behavior.

        Asked again when the policy is removed. The first of several callbacks that gives a name decides.
        """

    def on_episode_start(self, episode: Episode) -> None:
        """The agents with which it begins are known, and whose policy each follows."""

    def on_episode_step(self, episode: Episode) -> None:
        """A message after its first has brought something of one of its agents; also the last one."""

    def on_trajectory_complete(
        self, episode: Episode, agent: AgentRecord, trajectory: Trajectory, mates: Mapping[AgentRecord, Trajectory]
    ) -> None:
        """A stream was cut at time_horizon or ended. `mates`: what the others of the episode did meanwhile.

        Both are copies, and writing to one is an error: what is learned from is changed by the setting `postprocess`.
        """

    def on_faulty_episode(self, episode: Episode, error: Exception) -> None:
        """Its worker was lost; `on_episode_end` follows."""

    def on_episode_end(self, episode: Episode) -> None:
        """It is over; what is written into `custom_metrics`, `hist_data` and `media` still counts."""

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        """A policy has learned; metrics as the algorithm names them, in their own units, and the trainer step."""

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        """A checkpoint of this trainer step is on disk."""


def overrides(callbacks: Callbacks, method: str) -> bool:
    """Whether the callbacks do something of their own there."""
    return getattr(type(callbacks), method) is not getattr(Callbacks, method)


def load_callbacks(names: Sequence[str]) -> list[Callbacks]:
    """One object of each `module:Class` or `FILE.py:Class`. Modules of the current folder are found, too.

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
        found: Any = own_code.load(f"{place}:{outer}", what="class")
    except own_code.OwnCodeError as error:
        raise CallbackError(f"callbacks: {error}") from error
    try:
        for part in inner:
            found = getattr(found, part)
        made = found()
    except Exception as error:  # whatever somebody else's class does when it is made
        raise CallbackError(f"callbacks: {name} cannot be used: {own_code.told(error)}") from error
    if not isinstance(made, Callbacks):
        raise CallbackError(f"callbacks: {name} makes a {type(made).__name__}, expected a subclass of jaxrl.Callbacks")
    return made
