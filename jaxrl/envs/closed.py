"""The end of an environment that is no fault. Light: the trainer's process imports it without gRPC."""

from __future__ import annotations

from jaxrl.envs.interface import EnvironmentFailure


class EnvironmentClosed(EnvironmentFailure):
    """The player quit, or play mode was stopped in the Editor. A run saves and ends normally."""
