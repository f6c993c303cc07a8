"""The two halves of an algorithm's `learn`, for benchmarks that time them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax

from jaxrl.algorithms import mappo, poca, ppo, preparing, updating
from jaxrl.networks import filters
from jaxrl.rewards.signals import bind
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


class Phases(NamedTuple):
    """What `learn` of PPO, MAPPO or MA-POCA goes through."""

    prepare: Callable[..., Any]  # (state, rollout) → (state, batch, metrics)
    update: Callable[..., Any]  # (state, batch) → (state, metrics)


def phases_of(trainer: str, spec: BehaviorSpec, settings: BehaviorSettings) -> Phases:
    """The phases with the parts that the algorithm has."""
    parts = {"ppo": ppo, "mappo": mappo, "poca": poca}[trainer].parts_of(spec, settings)
    prepare = partial(preparing.prepare, parts, bind(spec, settings))
    return Phases(prepare, partial(updating.update, parts))


def counted(function: Callable[..., Any], *given: Any) -> Any:
    """`function` compiled for its counts: XLA counts a loop once, so images go through their layers all at once."""
    with mock.patch.object(filters, "tiles_of", lambda images, pixels: (1, images)):
        return jax.jit(lambda *given: function(*given)).lower(*given).compile()  # a trace of its own
