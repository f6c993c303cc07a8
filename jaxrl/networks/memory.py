"""Recurrent memory: LSTM (Hochreiter & Schmidhuber 1997) as in ML-Agents, and GRU (Cho et al. 2014).

Both are given in torch's form, with one bias for the input and one for the recurrent part:
    LSTM: i, f, g, o = σ(·), σ(·), tanh(·), σ(·) of x W + b + h U + d;   c' = f c + i g;   h' = o tanh(c')
    GRU:  r, z = σ(·) of x W + b + h U + d;   n = tanh(x W + b + r (h U + d));   h' = (1 - z) n + z h
A memory is `memory_size` numbers: h and c of the LSTM, one half each, or h of the GRU. Heads read h'.

A memory is called in two ways. Acting takes one step from a carry. Learning takes `Sequences`, and computes all terms
that do not depend on the step before as one matrix product for the whole sequence. Both give the same numbers.

Kernels are drawn Xavier-uniform per gate, both biases of the LSTM's forget gate are 1 (as in ML-Agents), all others 0.
Nothing is drawn orthogonal: see `initializers`. Letters: N sequences of L states, m memory, F inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.shapes import as_row
from jaxrl.settings.networks import MemorySettings

Carry = Any
"""Memory between two decisions of an agent, float32 [..., m]; `()` without memory."""


Parts = tuple[jax.Array, ...]
"""A memory of rows [n, h], first the part that heads read: h and c of the LSTM, or h."""
Cell = Callable[[jax.Array, jax.Array, Parts], Parts]
"""(x W + b, h U + d, memory) → the new memory."""


class Sequences(NamedTuple):
    """Sequences of states along which a memory is computed. Leading axes [N, L, ...]."""

    stored: Any  # float32 [N, L, ..., m], memory before each state when the agent acted; or a dict of such arrays
    begin: jax.Array  # bool [N, L, ...], the memory restarts here from `stored`
    moves: jax.Array  # bool [N, L, ...], the agent decides here, which updates its memory


def start(memory: MemorySettings | None, lead: tuple[int, ...] = ()) -> Carry:
    """Make the memory before the first decision: zeros float32 [*lead, m], or `()` without memory."""
    return () if memory is None else jnp.zeros((*lead, memory.memory_size), jnp.float32)


def features(memory: MemorySettings) -> int:
    """Return the number of features of a memory that heads read."""
    return memory.memory_size // 2 if memory.memory_type == "lstm" else memory.memory_size


def part(memory: Any, name: str) -> Any:
    """Return one network's part of a dict of carries, or of `Sequences` whose `stored` is a dict."""
    if isinstance(memory, Sequences):
        return memory._replace(stored=memory.stored[name])
    return memory[name] if memory else ()


def of_both(memory: Carry | Sequences) -> tuple[Any, Any]:
    """Split a memory [..., 2, m] of two networks into its two parts; () gives ()."""
    if isinstance(memory, Sequences):
        first, second = (memory._replace(stored=memory.stored[..., i, :]) for i in range(2))
        return first, second
    return ((), ()) if isinstance(memory, tuple) else (memory[..., 0, :], memory[..., 1, :])


def both_of(first: Carry, second: Carry) -> Carry:
    """Undo `of_both` for carries; () gives ()."""
    return () if isinstance(first, tuple) else jnp.stack([first, second], axis=-2)


def side_by_side(memory: Carry | Sequences) -> Carry | Sequences:
    """Broadcast the masks of sequences to a memory [N, L, ..., 2, m], for one network with two memories."""
    if not isinstance(memory, Sequences):
        return memory
    lead = memory.stored.shape[:-1]
    return memory._replace(
        begin=jnp.broadcast_to(memory.begin[..., None], lead), moves=jnp.broadcast_to(memory.moves[..., None], lead)
    )


def of_all(memories: Iterable[Carry | Sequences], axis: int) -> Any:
    """Concatenate memories of several kinds of members on the axis of members; () gives ()."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=axis), *memories)


class Memory(nn.Module):
    """Module (x [..., F], carry [..., m] or Sequences) -> (h' [..., m / 2] or [..., m], carry after the last state).

    Raises AssertionError for other shapes.
    """

    shape: MemorySettings

    @nn.compact
    def __call__(self, x: jax.Array, memory: Carry | Sequences) -> tuple[jax.Array, Carry]:
        hidden, gates = features(self.shape), 4 if self.shape.memory_type == "lstm" else 3
        biases = _forgetful if self.shape.memory_type == "lstm" else nn.initializers.zeros
        kernel = self.param("kernel", _by_gate, (x.shape[-1], gates * hidden), gates)
        recurrent = self.param("recurrent", _by_gate, (hidden, gates * hidden), gates)
        bias = self.param("bias", biases, (gates * hidden,))
        recurrent_bias = self.param("recurrent_bias", biases, (gates * hidden,))
        lead = x.shape[:-1]
        inputs = x.reshape(-1, x.shape[-1]) @ kernel
        inputs = (inputs + as_row(bias, inputs)).reshape(*lead, -1)
        cell = _lstm if self.shape.memory_type == "lstm" else _gru
        row = as_row(recurrent_bias, inputs.reshape(-1, gates * hidden))
        if isinstance(memory, Sequences):
            chex.assert_shape(memory.stored, (*lead, self.shape.memory_size))
            chex.assert_shape((memory.begin, memory.moves), lead)
            return _along(cell, inputs, recurrent, row, memory)
        chex.assert_shape(memory, (*lead, self.shape.memory_size))
        before = _parts(memory.reshape(-1, self.shape.memory_size), hidden)
        state = cell(inputs.reshape(-1, gates * hidden), before[0] @ recurrent + row, before)
        return state[0].reshape(*lead, -1), jnp.concatenate(state, axis=-1).reshape(*lead, -1)


def _parts(memory: jax.Array, hidden: int) -> Parts:
    return tuple(jnp.split(memory, memory.shape[-1] // hidden, axis=-1))


def _along(
    cell: Cell, given: jax.Array, recurrent: jax.Array, bias: jax.Array, sequences: Sequences
) -> tuple[jax.Array, jax.Array]:
    """Compute h' of every state, [N, L, ..., h], and the memory after the last; inside, time is the first axis."""
    lead, length = given.shape[:-1], given.shape[1]
    streams = math.prod(lead) // length

    def by_time(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x, 0, 1).reshape(length, streams, *x.shape[len(lead) :])

    given, stored, begin, moves = map(by_time, (given, *sequences))
    stored = _parts(stored, len(recurrent))
    h, last = cast(Any, _recurrence(cell, given, recurrent, bias, stored, begin[..., None], moves[..., None]))
    last = jnp.concatenate(last, axis=-1)
    return jnp.swapaxes(h.reshape(length, lead[0], *lead[2:], -1), 0, 1), last.reshape(lead[0], *lead[2:], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(cell: Cell, *arrays: Any) -> tuple[jax.Array, Parts]:
    """Compute h' [L, n, h] and the memory after the last state, parts [n, h]. `stored` is data and gets no gradient.

    given [L, n, gates * h], recurrent [h, gates * h], bias [1, gates * h], stored [L, n, h], begin and moves [L, n, 1].
    Parts stay separate along the loop: joining and cutting them was a third of its time.

    It defines its own gradient: that of the recurrent kernel is one product after the backward loop, where
    differentiation would add one small product at each step.
    """
    return _walk(cell, *arrays)[0]


def _walk(
    cell: Cell,
    given: jax.Array,
    recurrent: jax.Array,
    bias: jax.Array,
    stored: Parts,
    begin: jax.Array,
    moves: jax.Array,
) -> tuple[tuple[jax.Array, Parts], Any]:
    """Compute `_recurrence`, and the residuals of its gradient."""

    def step(carry: Parts, now: tuple[Any, ...]) -> tuple[Parts, tuple[Any, ...]]:
        given, stored, begin, moves = now
        before = _where(begin, stored, carry)
        repeated = before[0] @ recurrent + bias
        new_memory = cell(given, repeated, before)
        return _where(moves, new_memory, before), (new_memory[0], before, repeated)

    last, (h, before, repeated) = jax.lax.scan(step, tuple(x[0] for x in stored), (given, stored, begin, moves))
    return (h, last), (given, before, repeated, recurrent, begin, moves)


def _where(mask: jax.Array, this: Parts, that: Parts) -> Parts:
    return tuple(jnp.where(mask, x, y) for x, y in zip(this, that, strict=True))


def _walk_back(cell: Cell, kept: Any, gradients: tuple[jax.Array, Parts]) -> tuple[Any, ...]:
    given, before, repeated, recurrent, begin, moves = kept
    of_h, of_last = gradients
    transposed, nothing = jnp.swapaxes(recurrent, 0, 1), tuple(jnp.zeros_like(x) for x in of_last)

    def step(of_next: Parts, now: tuple[Any, ...]) -> tuple[Parts, tuple[jax.Array, jax.Array]]:
        given, before, repeated, begin, moves, of_h = now
        of_after, stays = _where(moves, of_next, nothing), _where(moves, nothing, of_next)
        back = jax.vjp(cell, given, repeated, before)[1]
        of_given, of_repeated, of_before = back((of_after[0] + of_h, *of_after[1:]))
        h, *others = (x + y for x, y in zip(of_before, stays, strict=True))
        return _where(begin, nothing, (h + of_repeated @ transposed, *others)), (of_given, of_repeated)

    _, (of_given, of_repeated) = jax.lax.scan(
        step, of_last, (given, before, repeated, begin, moves, of_h), reverse=True
    )
    rows = of_repeated.reshape(-1, of_repeated.shape[-1])
    of_recurrent = jnp.swapaxes(before[0].reshape(-1, len(recurrent)), 0, 1) @ rows
    return of_given, of_recurrent, rows.sum(0, keepdims=True), jax.tree.map(jnp.zeros_like, before), None, None


_recurrence.defvjp(_walk, _walk_back)


def _lstm(given: jax.Array, repeated: jax.Array, before: Parts) -> Parts:
    """Compute h and c after one step: given and repeated [n, 4 h], gates in the order i, f, g, o."""
    i, f, g, o = jnp.split(given + repeated, 4, axis=-1)
    c = jax.nn.sigmoid(f) * before[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(given: jax.Array, repeated: jax.Array, before: Parts) -> Parts:
    """Compute h after one step: given and repeated [n, 3 h], gates in the order r, z, n."""
    r, z, n = jnp.split(given, 3, axis=-1)
    of_r, of_z, of_n = jnp.split(repeated, 3, axis=-1)
    z = jax.nn.sigmoid(z + of_z)
    n = jnp.tanh(n + jax.nn.sigmoid(r + of_r) * of_n)
    return ((1.0 - z) * n + z * before[0],)


def _by_gate(key: jax.Array, shape: tuple[int, int], gates: int) -> jax.Array:
    """Draw [inputs, gates * h] Xavier-uniform per gate: ± sqrt(6 / (inputs + h)). The key is consumed."""
    limit = math.sqrt(6.0 / (shape[0] + shape[1] // gates))
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)


def _forgetful(key: jax.Array, shape: tuple[int]) -> jax.Array:
    """Make zeros [4 h] with ones for the forget gate, the second one. The key is not used."""
    h = shape[0] // 4
    return jnp.zeros(shape, jnp.float32).at[h : 2 * h].set(1.0)
