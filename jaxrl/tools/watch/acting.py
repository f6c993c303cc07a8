"""Whoever plays for a film where nobody was trained."""

from __future__ import annotations

from typing import Any

from jax import Array

from jaxrl.jax_envs.contract import random_actions
from jaxrl.jax_envs.interface import TeamActions
from jaxrl.training.acting import Act, Moment
from jaxrl.types import ActionSpec


def untrained_actions(action: ActionSpec) -> Act:
    """Random allowed actions."""

    def act(policy: None, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        return random_actions(action, moment.view, key), memory

    return act
