"""What the host loop asks of an environment: specs, reset, step, parameters, close. Numpy only, no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxrl.types import Action, EnvMessage, JaxrlError, ParameterValue


class EnvironmentFailure(JaxrlError):
    """The environment died, hung or sent something invalid. The text says which worker, what happened, what to do."""


class EnvironmentClosed(EnvironmentFailure):
    """The player quit, or play mode was stopped in the Editor: no fault. A run saves and ends normally."""


class PortTakenError(EnvironmentFailure):
    """The port of a player is in use. Another process of the worker may take another one."""


class BadDataError(EnvironmentFailure):
    """What an agent sent cannot be used: a number that is not finite, a wrong shape, a broken image, too many entities.

    A fault of the environment's code or of its settings; `on_bad_data` says what it does.
    """


class HostEnv(Protocol):
    """One environment with any number of agents, as seen by a worker.

    An agent id names one agent at a time of one environment. It may stay with the agent over episodes, as Unity's do:
    one that ends may ask under the same id in the same message, and that is its next episode. A reset may keep ids too.
    A group id names a team; it may change from one request of an agent to the next, and may be used again for another
    team.
    """

    @property
    def about(self) -> str:
        """One line for the log about what was connected to; empty: nothing worth a line."""
        ...

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Start anew, also in the middle of a run, and return the first agents that ask for a decision.

        Open episodes are discarded: no agent of them is reported as ended.

        Args:
            parameters: environment parameters, for this and all later episodes: numbers, and samplers that each
                episode draws its own number from.
            seed: all that follows depends on it and the actions alone, as in a new environment, agent ids included.

        Raises EnvironmentFailure if there is a seed and the environment cannot be seeded again.
        """
        ...

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """Apply one action for each agent that asked in the last result, in the order in which they asked."""
        ...

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Environment parameters for episodes that begin from now on, without a reset. The others keep their values.

        Raises EnvironmentFailure if the environment takes parameters only with a reset.
        """
        ...

    def close(self) -> None:
        """Release processes, ports and files. May be called twice and after a failure."""
        ...
