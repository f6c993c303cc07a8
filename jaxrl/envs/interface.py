"""The interface of an environment for the host loop: specs, reset, step, parameters, close. Numpy only, no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxrl.types import Action, EnvMessage, JaxrlError, ParameterValue


class EnvironmentFailure(JaxrlError):
    """The environment died, hung or sent invalid data. The text says which worker, the cause, and what to do."""


class EnvironmentClosed(EnvironmentFailure):
    """The player quit, or play mode was stopped in the Editor: no fault. A run saves and ends normally."""


class PortTakenError(EnvironmentFailure):
    """The port of a player is in use. Another process of the worker may take another one."""


class BadDataError(EnvironmentFailure):
    """An agent's data cannot be used: a number that is not finite, a wrong shape, a broken image, too many entities.

    A fault of the environment's code or of its settings; `on_bad_data` decides what happens.
    """


class HostEnv(Protocol):
    """Environment with any number of agents, as seen by a worker.

    An agent id names one agent at a time of one environment. It may stay with the agent over episodes, as in Unity: an
    agent that ends may ask under its id in the same message, which begins its next episode. A reset may keep ids too. A
    group id names a team; it may change from one request of an agent to the next, and be used again for another team.
    """

    @property
    def about(self) -> str:
        """Line for the log about the connected environment; empty: none."""
        ...

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Start anew, also in the middle of a run, and return the first agents that ask for a decision.

        Open episodes are discarded: no agent of them is reported as ended.

        Args:
            parameters: environment parameters, for this and all later episodes: numbers, and samplers from which
                each episode draws its own number.
            seed: all that follows depends on it and the actions alone, as in a new environment, agent ids included.

        Raises EnvironmentFailure if a seed is given and the environment cannot be seeded again.
        """
        ...

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """Apply one action for each agent that asked in the last result, in the order in which they asked."""
        ...

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Set environment parameters for episodes that begin from now on, without a reset. Others keep their values.

        Raises EnvironmentFailure if the environment takes parameters only with a reset.
        """
        ...

    def close(self) -> None:
        """Release processes, ports and files. May be called twice and after a failure."""
        ...
