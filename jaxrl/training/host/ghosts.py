"""Frozen policies that teams follow in self-play, with the weights and the number of decisions of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from jaxrl.algorithms.interface import PolicyState
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.training.host.policies import Frozen, Policies


class Weights:
    """Frozen weights of a policy."""

    def __init__(self, policy: PolicyState) -> None:
        self.policy = policy

    @cached_property
    def name(self) -> str:
        """Return the name of the file that stores it."""
        return earlier.pack(self.policy)[0]


class Ghosts:
    """Frozen policies of a run by name. New weights have the same shapes, so that nothing is compiled again."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._frozen: dict[str, Frozen] = {}
        self._acting: dict[str, Weights] = {}
        self._counted: dict[str, int] = {}  # decisions

    def __contains__(self, name: str) -> bool:
        return name in self._frozen

    def add(self, name: str, like: str, weights: Weights, decisions: int = 0) -> None:
        """Add a frozen policy of behavior `like`, which had made `decisions` decisions before a resume."""
        self._frozen[name] = self._policies.freeze(name, like, weights.policy)
        self._frozen[name].actor.decisions = decisions
        self._acting[name], self._counted[name] = weights, 0

    def send(self, name: str, weights: Weights) -> None:
        """Replace the weights that a frozen policy acts with."""
        self._acting[name] = weights
        self._frozen[name].actor.act_as(weights.policy)

    def steps(self, name: str) -> int:
        """Return the number of its decisions that got their outcome since the last call."""
        finished = self._frozen[name].actor.finished
        steps, self._counted[name] = finished - self._counted[name], finished
        return steps

    def state(self, name: str, kept: Callable[[Weights], str] | None) -> dict[str, Any]:
        """Return its state as JSON values; `kept` names the file of its weights, None if these are the learner's."""
        weights = None if kept is None else kept(self._acting[name])
        return {"weights": weights, "decisions": self._frozen[name].actor.decisions}

    def restore(
        self, name: str, like: str, state: Mapping[str, Any] | None, latest: Weights, read: Callable[[str], Weights]
    ) -> None:
        """Add a frozen policy from a `state` whose weights are `read`; without state or weights, use `latest`."""
        known = state or {"weights": None, "decisions": 0}
        self.add(name, like, latest if known["weights"] is None else read(known["weights"]), known["decisions"])
