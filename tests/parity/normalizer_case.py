"""Family e: the running normaliser after each batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.networks import normalizer
from tests.parity.cases import Case
from tests.parity.compare import Comparison


def run_normalizer(case: Case) -> Comparison:
    """State, normalised batch and normalised probe after each batch."""
    comparison = Comparison()
    probe = jnp.asarray(case.arrays["probe"])
    state, update, normalize = (
        normalizer.init(probe.shape[1]),
        jax.jit(normalizer.update),
        jax.jit(normalizer.normalize),
    )
    comparison.add("0/normalized_probe", normalize(state, probe), case.arrays["0/normalized_probe"])
    for i in range(1, len(case.meta["batches"]) + 1):
        x = case.below(f"{i}/")
        state = update(state, jnp.asarray(x["batch"]), None)
        comparison.add(f"{i}/mean", state.mean, x["mean"])
        comparison.add(f"{i}/variance_sum", state.m2, x["variance_sum"])
        comparison.add(f"{i}/steps", state.count, x["steps"])
        comparison.add(f"{i}/normalized_batch", normalize(state, jnp.asarray(x["batch"])), x["normalized_batch"])
        comparison.add(f"{i}/normalized_probe", normalize(state, probe), x["normalized_probe"])
    return comparison
