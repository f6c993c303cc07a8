"""Intrinsic rewards of one size, whatever the task (`normalize_rewards: true`): r / σ, beyond ML-Agents.

σ² is the variance of all that the signal has paid in the run, what it pays now included. Errors of networks differ in
size by orders of magnitude from task to task, and fade as they learn: divided by their deviation one `strength` serves
for many tasks, and for a whole run. Nothing is subtracted, so that what pays nothing still does.

After Burda et al. 2018 (arXiv 1810.12894), who divide by the deviation of discounted sums of rewards. That of the
rewards is taken here, because a replay has no sums and those of a rollout depend on its length; with a discount γ
theirs is larger by up to 1 / (1 - γ), which a smaller `strength` makes up for.
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
"""σ over the mean below which it is rounding, and nothing is divided."""


class Paid(NamedTuple):
    """Statistics of what was paid, float32 []."""

    count: jax.Array
    mean: jax.Array
    m2: jax.Array  # sum of squared distances from the mean


def with_more(before: Paid, paid: jax.Array, mask: jax.Array) -> Paid:
    """Take in what was `paid` where `mask`, both [...]."""
    state = NormalizerState(mean=before.mean[None], m2=before.m2[None], count=before.count)
    after = normalizer.update(state, paid[..., None], mask)
    return Paid(after.count, after.mean[0], after.m2[0])


def normalized(made: RewardSignal) -> RewardSignal:
    """The signal, which sees transitions and learns from minibatches, with rewards divided by their deviation.

    Its state is {"signal": what it was, "paid": `Paid`}.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        return {"signal": made.init(key), "paid": Paid(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))}

    def paid(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> tuple[jax.Array, Paid]:
        """What the signal pays, and the statistics with that."""
        found = made.reward(state["signal"], seen, cooperative=cooperative)
        return found, with_more(state["paid"], found, seen.valid)

    def reward(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> jax.Array:
        found, statistics = paid(state, seen, cooperative=cooperative)
        variance = statistics.m2 / jnp.maximum(statistics.count, 1.0)
        spread = variance > jnp.square(_LEAST * statistics.mean)
        return found * jnp.where(spread, jax.lax.rsqrt(variance), 1.0)

    def watch(state: dict[str, Any], seen: Transitions) -> dict[str, Any]:
        statistics = paid(state, seen, cooperative=False)[1]
        return {"signal": made.watch(state["signal"], seen), "paid": statistics}

    def gradient(state: dict[str, Any], seen: Transitions, key: jax.Array) -> tuple[Any, Metrics]:
        assert made.gradient is not None
        return made.gradient(state["signal"], seen, key)

    def apply(state: dict[str, Any], gradient: Any) -> dict[str, Any]:
        return {**state, "signal": made.apply(state["signal"], gradient)}

    return made._replace(reward=reward, init=init, gradient=gradient, apply=apply, watch=watch)
