"""Memory: numbers by hand, stepping against sequences, what begins anew inside a row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.memory import Memory, Sequences, features, part, start
from jaxrl.settings import MemorySettings

LSTM, GRU = MemorySettings(memory_size=6), MemorySettings(memory_size=5, memory_type="gru")
KINDS = pytest.mark.parametrize("shape", [LSTM, GRU], ids=["lstm", "gru"])
INPUTS = 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def made(shape: MemorySettings, seed: int = 0):
    memory = Memory(shape)
    key, noise = jax.random.split(jax.random.key(seed))
    params = memory.init(key, jnp.zeros((1, INPUTS)), start(shape, (1,)))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(noise, len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return memory, jax.tree.unflatten(tree, moved)


def test_an_lstm_of_one_unit_by_hand():
    """x = 1, h = 0.5, c = -1; gates i, f, g, o of 2x + h + 1 - 0.5: all kernels 2 and 1, biases 1 and -0.5."""
    shape = MemorySettings(memory_size=2)
    params = {
        "kernel": jnp.full((1, 4), 2.0),
        "recurrent": jnp.full((1, 4), 1.0),
        "bias": jnp.full(4, 1.0),
        "recurrent_bias": jnp.full(4, -0.5),
    }
    h, after = Memory(shape).apply({"params": params}, jnp.ones((1, 1)), jnp.array([[0.5, -1.0]]))
    gate = 2.0 + 0.5 + 1.0 - 0.5
    c = sigmoid(gate) * -1.0 + sigmoid(gate) * np.tanh(gate)
    expected = sigmoid(gate) * np.tanh(c)
    np.testing.assert_allclose(h, [[expected]], atol=1e-6)
    np.testing.assert_allclose(after, [[expected, c]], atol=1e-6)


def test_a_gru_of_one_unit_by_hand():
    """x = 1, h = 0.5; r and z read 2 + 0.5, n reads 2 + r (0.5 + 0.25): kernels 2 and 1, the last bias 0.25."""
    shape = MemorySettings(memory_size=1, memory_type="gru")
    params = {
        "kernel": jnp.full((1, 3), 2.0),
        "recurrent": jnp.full((1, 3), 1.0),
        "bias": jnp.zeros(3),
        "recurrent_bias": jnp.array([0.0, 0.0, 0.25]),
    }
    h, after = Memory(shape).apply({"params": params}, jnp.ones((1, 1)), jnp.array([[0.5]]))
    z = r = sigmoid(2.5)
    expected = (1 - z) * np.tanh(2.0 + r * 0.75) + z * 0.5
    np.testing.assert_allclose(h, [[expected]], rtol=1e-6)
    np.testing.assert_array_equal(h, after)


@KINDS
def test_going_along_sequences_equals_stepping_with_episodes_that_begin_and_members_that_wait(shape: MemorySettings):
    """Five sequences of 9 states of 3 members; where memory begins in a row it begins from what is stored."""
    rng, lead = np.random.default_rng(1), (5, 9, 3)
    memory, params = made(shape)
    x = jnp.asarray(rng.normal(size=(*lead, INPUTS)), jnp.float32)
    begin, moves = jnp.asarray(rng.random(lead) < 0.2), jnp.asarray(rng.random(lead) < 0.7)
    stored = jnp.asarray(rng.normal(size=(*lead, shape.memory_size)), jnp.float32)
    along, last = jax.jit(memory.apply)(params, x, Sequences(stored, begin, moves))
    assert along.shape == (*lead, features(shape)) and last.shape == (5, 3, shape.memory_size)
    step, carry = jax.jit(memory.apply), stored[:, 0]
    for t in range(lead[1]):
        carry = jnp.where(begin[:, t, :, None], stored[:, t], carry)
        h, after = step(params, x[:, t], carry)
        np.testing.assert_allclose(along[:, t], h, atol=1e-5)
        carry = jnp.where(moves[:, t, :, None], after, carry)
    np.testing.assert_allclose(last, carry, atol=1e-5)


@KINDS
def test_gradients_flow_back_to_the_first_state_of_a_sequence_but_not_across_the_beginning_of_an_episode(shape):
    """The last of four states depends on the first; if an episode begins at state 2, on 2 and 3 alone."""
    memory, params = made(shape)
    x, everywhere = jnp.ones((1, 4, INPUTS)), jnp.ones((1, 4), bool)
    zeros = jnp.zeros((1, 4, shape.memory_size))

    def last(x, begin):
        return memory.apply(params, x, Sequences(zeros, begin, everywhere))[0][0, -1].sum()

    through = jnp.abs(jax.grad(last)(x, ~everywhere)).sum(-1)[0]
    cut = jnp.abs(jax.grad(last)(x, jnp.arange(4)[None] == 2))
    assert (through > 0).all()
    assert (cut.sum(-1)[0] > 0).tolist() == [False, False, True, True]


@KINDS
def test_gradients_along_sequences_are_those_of_stepping(shape: MemorySettings):
    """Of all parameters and inputs; what was stored is data, and none flows into it."""
    rng, lead = np.random.default_rng(2), (3, 6)
    memory, params = made(shape)
    x = jnp.asarray(rng.normal(size=(*lead, INPUTS)), jnp.float32)
    weights = jnp.asarray(rng.normal(size=(*lead, features(shape))), jnp.float32)
    begin, moves = jnp.asarray(rng.random(lead) < 0.3), jnp.asarray(rng.random(lead) < 0.7)
    stored = jnp.asarray(rng.normal(size=(*lead, shape.memory_size)), jnp.float32)

    def along(params, x):
        h, last = memory.apply(params, x, Sequences(stored, begin, moves))
        return (h * weights).sum() + last.sum()

    def stepping(params, x):
        total, carry = 0.0, stored[:, 0]
        for t in range(lead[1]):
            carry = jnp.where(begin[:, t, None], stored[:, t], carry)
            h, after = memory.apply(params, x[:, t], carry)
            total += (h * weights[:, t]).sum()
            carry = jnp.where(moves[:, t, None], after, carry)
        return total + carry.sum()

    ours, theirs = (jax.jit(jax.grad(f, argnums=(0, 1)))(params, x) for f in (along, stepping))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    assert not jax.grad(lambda s: memory.apply(params, x, Sequences(s, begin, moves))[0].sum())(stored).any()


@KINDS
def test_initial_kernels_are_uniform_per_gate_and_nothing_is_drawn_orthogonal(shape: MemorySettings):
    """A QR decomposition inside jit(vmap(init)) deadlocks XLA's CPU backend on two cores."""
    big = shape.model_copy(update={"memory_size": 200})
    memory, hidden = Memory(big), features(big)
    draw = jax.vmap(lambda key: memory.init(key, jnp.zeros((1, 64)), start(big, (1,)))["params"])
    assert " qr" not in str(jax.make_jaxpr(draw)(jax.random.split(jax.random.key(0), 2)))
    params = jax.jit(draw)(jax.random.split(jax.random.key(0), 2))
    for name, inputs in (("kernel", 64), ("recurrent", hidden)):
        limit = (6 / (inputs + hidden)) ** 0.5
        assert 0.99 * limit < float(jnp.abs(params[name]).max()) <= limit
        np.testing.assert_allclose(float(params[name].std()), limit / 3**0.5, rtol=0.03)
    ones = np.zeros(params["bias"].shape[1])
    if big.memory_type == "lstm":
        ones[hidden : 2 * hidden] = 1
    for name in ("bias", "recurrent_bias"):
        np.testing.assert_array_equal(params[name][0], ones)


def test_parts_of_what_several_networks_remember():
    flags = jnp.zeros((1, 1), bool)
    both = Sequences({"actor": 1, "critic": 2}, flags, flags)
    assert part(both, "critic").stored == 2 and part({"actor": 1}, "actor") == 1
    assert part((), "actor") == () and start(None, (3,)) == ()
