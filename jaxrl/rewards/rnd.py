"""Random network distillation (Burda et al. 2018, arXiv 1810.12894): observations that are predicted badly are new.

A fixed random network f and a predictor g of the same form see an observation, and

    r = Σ_h (g(s) − f(s))²        g minimises its mean over decisions, with Adam at a constant rate.

Parity. Equal to ML-Agents 1.1.0: networks, reward without any bound, loss, one step for each minibatch of the policy.
The stream goes on past an end of the episode. Different on purpose: masked rows do not count in the loss; with
`normalize` each decision enters the statistics once, when it is paid; in ML-Agents again with every minibatch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.learning.adam import ADAM
from jaxrl.learning.losses import masked_mean
from jaxrl.networks import normalizer
from jaxrl.rewards.interface import Metrics, RewardSignal
from jaxrl.rewards.network import body_of, one_row, stepped
from jaxrl.rewards.normalized import normalized
from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.rewards import RNDSettings
from jaxrl.types import BehaviorSpec


def make_rnd(spec: BehaviorSpec, settings: RNDSettings) -> RewardSignal:
    """Make the signal for agents with this spec. Its state holds predictor, target, optimizer and normaliser."""
    network = body_of(spec, settings.network_settings)

    def init(key: jax.Array) -> dict[str, Any]:
        predictor, target = (network.init(k, one_row(spec), ()) for k in jax.random.split(key))
        statistics = normalizer.init_for(spec, settings.network_settings)
        return {"params": predictor, "target": target, "optimizer": ADAM.init(predictor), "normalizer": statistics}

    def error(params: Any, state: dict[str, Any], seen: Transitions) -> jax.Array:
        """Compute Σ_h (g − f)², [...]."""
        obs = normalizer.normalize_all(state["normalizer"], seen.obs)
        foreseen, known = (network.apply(x, obs, ())[0] for x in (params, state["target"]))
        return jnp.square(foreseen - known).sum(-1)

    def reward(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> jax.Array:
        return error(state["params"], state, seen)

    def watch(state: dict[str, Any], seen: Transitions) -> dict[str, Any]:
        return {**state, "normalizer": normalizer.update_all(state["normalizer"], seen.obs, seen.valid)}

    def gradient(state: dict[str, Any], seen: Transitions, _key: jax.Array) -> tuple[Any, Metrics]:
        def loss(params: Any) -> tuple[jax.Array, Metrics]:
            mean = masked_mean(error(params, state, seen), seen.valid)
            return mean, {"loss": mean}

        return jax.grad(loss, has_aux=True)(state["params"])

    def apply(state: dict[str, Any], gradient: Any) -> dict[str, Any]:
        return stepped(state, gradient, settings.learning_rate)

    signal = RewardSignal(reward=reward, init=init, gradient=gradient, apply=apply, watch=watch, lasting=True)
    return normalized(signal) if settings.normalize_rewards else signal
