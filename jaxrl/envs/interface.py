"""What the host loop asks of an environment: specs, reset, step, close. Numpy only, no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxrl.types import Action, JaxrlError, StepResult


class EnvironmentFailure(JaxrlError):
    """The environment died, hung or sent something invalid. The text says which worker, what happened, what to do."""


class EnvironmentClosed(EnvironmentFailure):
    """The player quit, or play mode was stopped in the Editor: no fault. A run saves and ends normally."""


class HostEnv(Protocol):
    """One environment with any number of agents, as seen by a worker.

    Agent and group ids are unique within one environment for its whole life (an id names one episode of one agent).
    """

    def reset(self, parameters: Mapping[str, float] | None = None) -> StepResult:
        """Start anew, discard open episodes, and return the first agents that ask for a decision."""
        ...

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Apply one action for each agent that asked in the last result, in the order in which they asked."""
        ...

    def close(self) -> None:
        """Release processes, ports and files. May be called twice and after a failure."""
        ...
