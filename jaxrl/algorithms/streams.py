"""The reward streams of a behavior (axis R): what each signal keeps, pays and learns. Called by every algorithm.

Functions raise AssertionError where shapes differ from those named, OwnCodeError for what is wrong in a signal of
one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jaxrl.algorithms.interface import Metrics, TrainState
from jaxrl.learning import losses
from jaxrl.rewards import make_signal
from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

_INIT, _LEARN = 0x51610000, 0x516C0000
"""What keys of signals are folded with: large numbers, since `split` gives the keys that small ones give."""


def init(spec: BehaviorSpec, settings: BehaviorSettings, key: jax.Array) -> dict[str, Any]:
    """The state of each signal, () where it learns nothing. The key may be used further."""
    signals = enumerate(settings.reward_signals.items())
    return {
        name: make_signal(name, spec, signal).init(jax.random.fold_in(key, _INIT + i)) for i, (name, signal) in signals
    }


def rewards(
    spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout, *, cooperative: bool
) -> dict[str, jax.Array]:
    """What each signal pays, float32 [T, B, A] before `strength`; 0 where a member did not act."""
    return {
        name: make_signal(name, spec, signal).reward(state.signals[name], rollout, cooperative=cooperative)
        for name, signal in settings.reward_signals.items()
    }


def extrinsic(rollout: Rollout, *, cooperative: bool) -> dict[str, jax.Array]:
    """The same where there is no signal but the environment's own reward."""
    return {"extrinsic": EXTRINSIC.reward((), rollout, cooperative=cooperative)}


def means(settings: BehaviorSettings, paid: Mapping[str, jax.Array], rollout: Rollout) -> Metrics:
    """Per signal `reward/<name>`, the mean of strength · reward over the decisions of the rollout.

    Without the environment's own: its episodes are added up where they are played.
    """
    return {
        f"reward/{name}": losses.masked_mean(signal.strength * paid[name], rollout.acted)
        for name, signal in settings.reward_signals.items()
        if name != "extrinsic"
    }


def learn(
    spec: BehaviorSpec, settings: BehaviorSettings, state: TrainState, rollout: Rollout
) -> tuple[TrainState, Metrics]:
    """Every signal learns from the rollout, after the policy has. What `loss` is to it, is `loss/<signal>` here."""
    learned, metrics = {}, {}
    for i, (name, signal) in enumerate(settings.reward_signals.items()):
        key = jax.random.fold_in(state.key, _LEARN + i)
        learned[name], found = make_signal(name, spec, signal).learn(state.signals[name], rollout, key)
        metrics |= {f"{metric}/{name}": value for metric, value in found.items()}
    return state.replace(signals=learned), metrics
