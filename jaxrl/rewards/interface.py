"""What a reward signal is: three pure functions over a state of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl.rollout.trajectory import Rollout
from jaxrl.settings import RewardSignalSettings
from jaxrl.types import BehaviorSpec

Metrics = dict[str, jax.Array]


class RewardSignal(NamedTuple):
    """One reward stream (axis R). Its state holds parameters and an optimizer of its own; () where it learns nothing.

    init:   (spec, settings, key) → state; the key is consumed.
    reward: (state, rollout, *, cooperative) → float32 [T, B, A], before `strength`, 0 where a member did not act;
            `cooperative`: rewards of a member's mates are its own.
    learn:  (state, rollout, key) → (state, metrics by name); after the policy has learned; the key is consumed.
    """

    init: Callable[[BehaviorSpec, RewardSignalSettings, jax.Array], Any]
    reward: Callable[..., jax.Array]
    learn: Callable[[Any, Rollout, jax.Array], tuple[Any, Metrics]]
