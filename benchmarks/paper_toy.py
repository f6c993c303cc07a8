"""The toy regression of the MA-POCA paper: what absorbing inputs cost a fully connected network.

An input is ten numbers, uniform in [0.25, 0.75], of which k at random places, k uniform in 0 .. K, are replaced by an
absorbing value; to be told is the mean of the others. K is 0, 2, 4, 6 or 8. Two networks learn it by the same protocol:
- mlp: the ten numbers as they are, 2 x 32 ReLU units, one output;
- attention: each number embedded in 16 ReLU units, averaged over those that are present with the weights of four heads,
  softmax of a learned linear score; then 32 ReLU units and one output.
Adam 1e-3, batches of 500, 201 epochs, 20 seeds vmapped, mean squared error. Both can hold the answer without absorbing
inputs exactly, as a linear function; with them the attention still can, by equal weights, and the mlp no more.

From the paper (arXiv 2111.05992): the numbers above, but not the attention network. Assumed, because no source for it
could be read: the absorbing value is 0; an epoch is five batches of fresh samples, so that 201 epochs see 502,500;
Flax's initialisers. With one batch an epoch the curves would end where epoch 40 is now. The test error of an epoch is
taken on 500 samples of its own before the epoch's updates.

The attention is simpler than MA-POCA's own layer (`networks.attention.TeamAttention`), for its cost. That layer (16
units, K = 8) was tried: after 201 batches no better than the mlp (2.5e-3 and 2.7e-3, 20 seeds), its layer norm hides
the size of a single number at first; after 1,500 batches 3e-5 and 8e-4 (4 seeds).

    python benchmarks/paper.py --tasks --out FOLDER     # the toy alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

NUMBERS, LOW, HIGH, ABSORBING = 10, 0.25, 0.75, 0.0
MOST_ABSORBED = (0, 2, 4, 6, 8)
BATCH, EPOCHS, LEARNING_RATE, SEEDS = 500, 201, 1e-3, 20
BATCHES = 5  # of an epoch
UNITS, EMBEDDING, HEADS = 32, 16, 4

Sample = tuple[Array, Array, Array]
"""float32 [N, 10] with absorbing values, bool [N, 10] which are present, float32 [N] the mean of those."""


def draw(key: Array, most: Array | int, count: int = BATCH) -> Sample:
    """`count` samples with at most `most` absorbing values. `key` is consumed."""
    value_key, number_key, place_key = jax.random.split(key, 3)
    values = jax.random.uniform(value_key, (count, NUMBERS), minval=LOW, maxval=HIGH)
    absorbed = jax.random.randint(number_key, (count, 1), 0, most + 1)
    order = jax.random.uniform(place_key, (count, NUMBERS))
    present = jnp.sum(order[:, :, None] > order[:, None, :], axis=-1) >= absorbed  # the rank of each place
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
    """[N, 10], present bool [N, 10] → [N]; head j of the weights averages its own quarter of the embedding."""

    @nn.compact
    def __call__(self, values: Array, present: Array) -> Array:
        x = nn.relu(nn.Dense(EMBEDDING)(values[..., None]))  # [N, 10, 16]
        scores = jnp.where(present[..., None], nn.Dense(HEADS)(x), -jnp.inf)
        weights = jnp.repeat(nn.softmax(scores, axis=1), EMBEDDING // HEADS, axis=-1)
        pooled = jnp.sum(weights * x, axis=1)
        return nn.Dense(1)(nn.relu(nn.Dense(UNITS)(pooled)))[:, 0]


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "attention": Attention}


def errors(network: nn.Module, epochs: int, most: Array, key: Array) -> Array:
    """Test error before each epoch's update, float32 [epochs], of one training. `key` is consumed."""
    init_key, train_key, test_key = jax.random.split(key, 3)
    optimizer = optax.adam(LEARNING_RATE)

    def loss(parameters: Any, sample: Sample) -> Array:
        values, present, target = sample
        told: Any = network.apply(parameters, values, present)
        return jnp.mean(jnp.square(told - target))

    def learn(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
        parameters, state = carry
        updates, state = optimizer.update(jax.grad(loss)(parameters, draw(key, most)), state)
        return (optax.apply_updates(parameters, updates), state), None

    def epoch(carry: tuple[Any, Any], keys: tuple[Array, Array]) -> tuple[tuple[Any, Any], Array]:
        error = loss(carry[0], draw(keys[1], most))
        return jax.lax.scan(learn, carry, jax.random.split(keys[0], BATCHES))[0], error

    parameters = network.init(init_key, jnp.zeros((1, NUMBERS)), jnp.ones((1, NUMBERS), bool))
    keys = jax.random.split(train_key, epochs), jax.random.split(test_key, epochs)
    return jax.lax.scan(epoch, (parameters, optimizer.init(parameters)), keys)[1]


def run(seeds: int = SEEDS, epochs: int = EPOCHS, most: Sequence[int] = MOST_ABSORBED) -> dict[str, np.ndarray]:
    """Test errors by "network-K", float64 [seeds, epochs].

    Seeds are vmapped and spread over as many devices as divide them; each has the same key in every case.
    """
    devices = max(n for n in range(1, jax.device_count() + 1) if seeds % n == 0)
    spread = NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("seeds",)), PartitionSpec("seeds"))
    keys = jax.device_put(jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32)), spread)
    found = {}
    for name, make in NETWORKS.items():
        program = jax.jit(jax.vmap(partial(errors, make(), epochs), in_axes=(None, 0)))
        for absorbed in most:
            found[f"{name}-{absorbed}"] = np.asarray(program(np.int32(absorbed), keys), np.float64)
    return found
