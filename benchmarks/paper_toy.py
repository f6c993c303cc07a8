"""The toy regression of the MA-POCA paper: what absorbing inputs cost a fully connected network.

An input is ten numbers, uniform in [0.25, 0.75], of which k at random places, k uniform in 0 .. K, are replaced by an
absorbing value; to be told is the mean of the others. K is 0, 2, 4, 6 or 8. Two networks learn it by the same protocol:
- mlp: the ten numbers as they are, 2 x 32 ReLU units, one output;
- attention: each number embedded in 32 units, MA-POCA's residual self-attention in 4 heads over those that are present
  (`networks.attention.TeamAttention`), its mean, one linear output.
Adam 1e-3, batches of 500, 201 epochs, 20 seeds vmapped, mean squared error.

From the paper (arXiv 2111.05992): the numbers above. Assumed, because no source for it could be read: the absorbing
value is 0; an epoch is one batch of 500 fresh samples, so that 201 epochs see 100,500 samples; Flax's initialisers,
with uniform biases in the embedding (of a single number without bias, layer norm would leave nothing). The test error
of an epoch is taken on 500 samples of its own before the update.

    python benchmarks/paper.py --tasks --out FOLDER     # the toy alone
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from jaxrl.networks.attention import TeamAttention

NUMBERS, LOW, HIGH, ABSORBING = 10, 0.25, 0.75, 0.0
MOST_ABSORBED = (0, 2, 4, 6, 8)
BATCH, EPOCHS, UNITS, LEARNING_RATE, SEEDS = 500, 201, 32, 1e-3, 20

Sample = tuple[Array, Array, Array]
"""float32 [N, 10] with absorbing values, bool [N, 10] which are present, float32 [N] the mean of those."""


def draw(key: Array, most: int, count: int = BATCH) -> Sample:
    """`count` samples with at most `most` absorbing values. `key` is consumed."""
    value_key, number_key, place_key = jax.random.split(key, 3)
    values = jax.random.uniform(value_key, (count, NUMBERS), minval=LOW, maxval=HIGH)
    absorbed = jax.random.randint(number_key, (count, 1), 0, most + 1)
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(place_key, (count, NUMBERS)), axis=1), axis=1)
    present = rank >= absorbed
    target = jnp.sum(values * present, axis=1) / jnp.sum(present, axis=1)
    return jnp.where(present, values, ABSORBING), present, target


class Mlp(nn.Module):
    """[N, 10] → [N]; does not look at what is present."""

    @nn.compact
    def __call__(self, values: Array, present: Array) -> Array:
        x = values
        for _ in range(2):
            x = nn.relu(nn.Dense(UNITS)(x))
        return nn.Dense(1)(x)[:, 0]


class Attention(nn.Module):
    """[N, 10], present bool [N, 10] → [N]."""

    @nn.compact
    def __call__(self, values: Array, present: Array) -> Array:
        x = nn.Dense(UNITS, bias_init=_uniform)(values[..., None])
        return nn.Dense(1)(TeamAttention(UNITS).value_only(x, present))[:, 0]


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "attention": Attention}


def _uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -1.0, 1.0)


def errors(network: nn.Module, most: int, epochs: int, key: Array) -> Array:
    """Test error before each epoch's update, float32 [epochs], of one training. `key` is consumed."""
    init_key, train_key, test_key = jax.random.split(key, 3)
    optimizer = optax.adam(LEARNING_RATE)

    def loss(parameters: Any, sample: Sample) -> Array:
        values, present, target = sample
        return jnp.mean(jnp.square(network.apply(parameters, values, present) - target))

    def epoch(carry: tuple[Any, Any], keys: tuple[Array, Array]) -> tuple[tuple[Any, Any], Array]:
        parameters, state = carry
        error = loss(parameters, draw(keys[1], most))
        updates, state = optimizer.update(jax.grad(loss)(parameters, draw(keys[0], most)), state)
        return (optax.apply_updates(parameters, updates), state), error

    zeros = jnp.zeros((1, NUMBERS))
    parameters = network.init(init_key, zeros, zeros == 0)
    keys = jax.random.split(train_key, epochs), jax.random.split(test_key, epochs)
    return jax.lax.scan(epoch, (parameters, optimizer.init(parameters)), keys)[1]


def run(seeds: int = SEEDS, epochs: int = EPOCHS, most: tuple[int, ...] = MOST_ABSORBED) -> dict[str, np.ndarray]:
    """Test errors by "network-K", float64 [seeds, epochs]. Seeds are vmapped; each has the same key in every case."""
    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    found = {}
    for name, make in NETWORKS.items():
        for absorbed in most:
            program = jax.jit(jax.vmap(partial(errors, make(), absorbed, epochs)))
            found[f"{name}-{absorbed}"] = np.asarray(program(keys), np.float64)
    return found
