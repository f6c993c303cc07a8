"""Frozen policies that teams follow in self-play, what each acts with, and the decisions that it has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from jaxrl.algorithms.interface import PolicyState
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.training.host.policies import Frozen, Policies


class Weights:
    """A policy as it was."""

    def __init__(self, policy: PolicyState) -> None:
        self.policy = policy

    @cached_property
    def name(self) -> str:
        """Of the file that keeps it."""
        return earlier.pack(self.policy)[0]


class Ghosts:
    """Those of a run, by name. Other weights of one are arrays of the same shapes: nothing is compiled."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._frozen: dict[str, Frozen] = {}
        self._acting: dict[str, Weights] = {}
        self._counted: dict[str, int] = {}  # decisions

    def __contains__(self, name: str) -> bool:
        return name in self._frozen

    def add(self, name: str, like: str, weights: Weights, decisions: int = 0) -> None:
        """A policy of behavior `like`, which has made so many decisions before the run went on."""
        self._frozen[name] = self._policies.freeze(name, like, weights.policy)
        self._frozen[name].actor.decisions = decisions
        self._acting[name], self._counted[name] = weights, 0

    def send(self, name: str, weights: Weights) -> None:
        """It acts with these from now on."""
        self._acting[name] = weights
        self._frozen[name].actor.act_as(weights.policy)

    def steps(self, name: str) -> int:
        """Its decisions with their outcome since the last call."""
        finished = self._frozen[name].actor.finished
        steps, self._counted[name] = finished - self._counted[name], finished
        return steps

    def state(self, name: str, kept: Callable[[Weights], str] | None) -> dict[str, Any]:
        """As plain JSON values; `kept`: what stands for its weights, None where these are the learner's."""
        weights = None if kept is None else kept(self._acting[name])
        return {"weights": weights, "decisions": self._frozen[name].actor.decisions}

    def restore(
        self, name: str, like: str, state: Mapping[str, Any] | None, latest: Weights, read: Callable[[str], Weights]
    ) -> None:
        """As `add`, from a `state` whose weights are `read`; without one, or without weights, with the `latest`."""
        known = state or {"weights": None, "decisions": 0}
        self.add(name, like, latest if known["weights"] is None else read(known["weights"]), known["decisions"])
