"""Intrinsic rewards of one size, whatever the task (`normalize_rewards: true`): r / σ, beyond ML-Agents.

σ² is the variance of all rewards of the signal in the run, including the current ones. Errors of networks differ in
size by orders of magnitude from task to task, and fade as they learn: divided by their deviation one `strength` serves
for many tasks, and for a whole run. Nothing is subtracted: a reward of 0 stays 0.

After Burda et al. 2018 (arXiv 1810.12894), who divide by the deviation of discounted sums of rewards. Here it is the
deviation of the rewards, because a replay has no sums and those of a rollout depend on its length. With a discount γ
that of the sums is larger by up to 1 / (1 - γ), which a smaller `strength` makes up for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.networks import normalizer
from jaxrl.networks.normalizer import NormalizerState
from jaxrl.rewards.interface import Metrics, RewardSignal
from jaxrl.rollout.transitions import Transitions

_LEAST = 1e-4
"""Smallest σ relative to the mean: a smaller σ is rounding, and rewards are not divided."""


class Paid(NamedTuple):
    """Statistics of the rewards of a signal, float32 []."""

    count: jax.Array
    mean: jax.Array
    m2: jax.Array  # sum of squared distances from the mean


def with_more(before: Paid, paid: jax.Array, mask: jax.Array) -> Paid:
    """Add the rewards `paid` to the statistics where `mask`, both [...]."""
    state = NormalizerState(mean=before.mean[None], m2=before.m2[None], count=before.count)
    new_state = normalizer.update(state, paid[..., None], mask)
    return Paid(new_state.count, new_state.mean[0], new_state.m2[0])


def normalized(made: RewardSignal) -> RewardSignal:
    """Divide the rewards of a signal, which sees transitions and learns from minibatches, by their deviation.

    Its state becomes {"signal": state, "paid": `Paid`}.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        return {"signal": made.init(key), "paid": Paid(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))}

    def paid(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> tuple[jax.Array, Paid]:
        """Return the rewards of the signal, and the statistics that include them."""
        found = made.reward(state["signal"], seen, cooperative=cooperative)
        return found, with_more(state["paid"], found, seen.valid)

    def reward(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> jax.Array:
        rewards, statistics = paid(state, seen, cooperative=cooperative)
        variance = statistics.m2 / jnp.maximum(statistics.count, 1.0)
        spread = variance > jnp.square(_LEAST * statistics.mean)
        return rewards * jnp.where(spread, jax.lax.rsqrt(variance), 1.0)

    def watch(state: dict[str, Any], seen: Transitions) -> dict[str, Any]:
        statistics = paid(state, seen, cooperative=False)[1]
        return {"signal": made.watch(state["signal"], seen), "paid": statistics}

    def gradient(state: dict[str, Any], seen: Transitions, key: jax.Array) -> tuple[Any, Metrics]:
        assert made.gradient is not None
        return made.gradient(state["signal"], seen, key)

    def apply(state: dict[str, Any], gradient: Any) -> dict[str, Any]:
        return {**state, "signal": made.apply(state["signal"], gradient)}

    return made._replace(reward=reward, init=init, gradient=gradient, apply=apply, watch=watch)
