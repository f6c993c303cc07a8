"""Gives each kind of agents one name, in all workers of a run, in its evaluation and when it is resumed.

Agents of environments of others are distinguished by an `Identity`: their common name and their spaces. Workers name
the kinds that they see, and may see different agents first. So the pool translates each worker's names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from jaxrl.envs.interface import HostEnv
from jaxrl.types import Action, EnvMessage, Identity, ParameterValue

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class BehaviorNames:
    """Behavior names by identity. Identities of one name are called NAME, NAME-2, ... in the order of their spaces.

    Identities that are seen later are numbered as they come.

    Args:
        remembered: names that an earlier session of the run gave. They count again, unless the spaces have changed.
    """

    def __init__(self, remembered: Mapping[str, Identity] | None = None) -> None:
        self._names: dict[Identity, str] = {}
        self._remembered: dict[Identity, str] = {}
        self.remember(remembered or {})

    def remember(self, names: Mapping[str, Identity]) -> None:
        """Add names that an earlier session gave."""
        self._remembered |= {identity: name for name, identity in names.items()}

    def add(self, identities: Iterable[Identity]) -> set[Identity]:
        """Name identities together. Return those that are seen for the first time."""
        new = set(identities) - self._names.keys()
        known = new & self._remembered.keys()
        self._names |= {identity: self._remembered.pop(identity) for identity in known}
        for identity in sorted(new - known):
            self._names[identity] = self._next_name(identity)
        return new

    def __getitem__(self, identity: Identity) -> str:
        """Return the name of an identity that was added."""
        return self._names[identity]

    def identity_of(self, name: str) -> Identity | None:
        """Return the identity of a name; None: the name was not given."""
        return next((identity for identity, known in self._names.items() if known == name), None)

    def _next_name(self, identity: Identity) -> str:
        taken, name, number = set(self._names.values()), identity.name, 1
        while name in taken:
            number += 1
            name = f"{identity.name}-{number}"
        earlier = next((old_identity for old_identity, known in self._remembered.items() if known == name), None)
        if earlier is not None:
            del self._remembered[earlier]
            log.warning(
                "%s: its spaces have changed since the run was saved, from %s to %s: it goes on with the policy of "
                "that name.", name, earlier.spaces, identity.spaces,
            )  # fmt: skip
        return name


class SharedNames:
    """Translates between the workers' names and those of the run."""

    def __init__(self, names: BehaviorNames) -> None:
        self.names = names
        self._of_workers: dict[int, dict[str, str]] = {}  # by worker, the run's name of each of its own names

    def received(self, results: Sequence[EnvMessage]) -> list[EnvMessage]:
        """Return results in the names of the run. New identities of all of them are named together."""
        self.names.add(identity for result in results for identity in result.identities.values())
        return [self._translated(result) for result in results]

    def sent(self, worker: int, actions: Mapping[str, Action]) -> Mapping[str, Action]:
        """Return actions in the names of the worker."""
        names = self._of_workers.get(worker)
        return actions if not names else _renamed(actions, {shared: name for name, shared in names.items()})

    def lost(self, worker: int, agents: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return a worker's mapping by behavior in the names of the run."""
        return _renamed(agents, self._of_workers.get(worker, {}))

    def _translated(self, result: EnvMessage) -> EnvMessage:
        names_here = self._of_workers.setdefault(result.worker, {})
        for name, identity in result.identities.items():
            names_here.pop(name, None)  # of an earlier process
            if self.names[identity] != name:
                names_here[name] = self.names[identity]
        if not names_here:
            return result
        return result._replace(
            steps=_renamed(result.steps, names_here),
            new_specs=_renamed(result.new_specs, names_here),
            identities=_renamed(result.identities, names_here),
            faults=tuple(fault._replace(agents=_renamed(fault.agents, names_here)) for fault in result.faults),
        )


class NamedEnvironment:
    """Single environment whose behaviors have the names of a run that is played in it."""

    def __init__(self, env: HostEnv, names: BehaviorNames) -> None:
        self._env, self._names = env, SharedNames(names)
        self.set_parameters, self.close = env.set_parameters, env.close

    @property
    def about(self) -> str:
        """Line for the log about the environment."""
        return self._env.about

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Start all episodes anew. Raises as the environment."""
        (message,) = self._names.received([self._env.reset(parameters, seed)])
        return message

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """Step the environment. Raises as the environment."""
        (message,) = self._names.received([self._env.step(self._names.sent(0, actions))])
        return message


def _renamed(by_behavior: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Rename the keys; a team (`?team=1`) stays at the end of its behavior's name."""
    renamed = {}
    for behavior_id, value in by_behavior.items():
        name, mark, team = behavior_id.partition("?")
        renamed[f"{names.get(name, name)}{mark}{team}"] = value
    return renamed
