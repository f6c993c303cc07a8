"""What algorithms that learn from a replay share: what is held, what decisions pay for, and a turn of updates.

An algorithm's own file gives networks, losses and one update. Decisions are counted as they come (`counted`), each pays
for 1 / `steps_per_update` of an update, and a turn makes as many as are paid (`turn`): their number is traced, so that
nothing is compiled again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from jaxrl.algorithms.interface import Counts, Metrics, Storage, TrainState
from jaxrl.learning import replay as replays
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.networks import MemorySettings
from jaxrl.types import BehaviorSpec

COLLECTED = 64
"""Decisions from one turn of updates to the next, at least. ML-Agents waits for trajectories of `time_horizon`."""

ROWS = 16
"""With memory, sequences from one turn to the next: of more agents at once, each leaves shorter ones."""

Learner = TypeVar("Learner")
"""What moves with an update: a pytree."""


class ReplayHyperparameters(Protocol):
    """What is read of an algorithm's hyperparameters."""

    batch_size: int
    buffer_size: int
    buffer_init_steps: int
    steps_per_update: float
    save_replay_buffer: bool


def collect_size(hyper: ReplayHyperparameters, memory: MemorySettings | None) -> int:
    """Decisions from one turn to the next. Where runs of one program differ in `steps_per_update`, it is traced here:
    how much they collect was read of the settings before.
    """
    least, paying = COLLECTED if memory is None else ROWS * memory.sequence_length, hyper.steps_per_update
    return least if isinstance(paying, jax.Array) else max(least, math.ceil(paying))


def storage_of(
    spec: BehaviorSpec, hyper: ReplayHyperparameters, memory: MemorySettings | None, memories: Extras = ()
) -> Storage:
    """The replay: single transitions; with memory, sequences of them and the `memories` before each."""
    if memory is None:
        length, empty = 1, partial(replays.empty, spec, hyper.buffer_size)
        add, sample = replays.add, replays.sample
    else:
        length = memory.sequence_length
        empty = partial(replays.no_sequences, spec, hyper.buffer_size, length, memories)
        add, sample = replays.add_sequences, replays.sample_sequences
    return Storage(
        init=empty,
        add=lambda store, rollout: add(store, masked(rollout)),
        can_sample=partial(_can_sample, hyper, hyper.batch_size // length),
        sample=partial(sample, size=hyper.batch_size),
        kept=lambda store: store,
        saved=hyper.save_replay_buffer,
    )


def _can_sample(hyper: ReplayHyperparameters, minibatch: int, store: Any, counts: Counts) -> Any:
    """An update is paid for, and a minibatch is there, also where a resumed run began with nothing.

    A first turn without an update would tell zeros of it.
    """
    there = (replays.held(store) >= minibatch) | (counts.fresh >= hyper.batch_size)
    return (counts.total >= hyper.buffer_init_steps + hyper.steps_per_update) & there


def counted(hyper: ReplayHyperparameters, state: TrainState, rollout: Rollout) -> TrainState:
    """`own["fresh"]` grows by the decisions of a rollout that pay: those before `buffer_init_steps` do not."""
    step = state.step + rollout.acted.sum(dtype=jnp.int32)
    fresh = state.own["fresh"] + jnp.maximum(step - jnp.maximum(state.step, hyper.buffer_init_steps), 0)
    return state.replace(own={**state.own, "fresh": fresh})


def turn(
    update: Callable[[Learner, Transitions, jax.Array], tuple[Learner, Metrics]],
    learner: Learner,
    owed: jax.Array,
    last: Metrics,
    draw: Callable[[jax.Array], Transitions],
    key_of: Callable[[jax.Array], jax.Array],
) -> tuple[Learner, jax.Array, Metrics]:
    """As many updates as are owed.

    Args:
      update: (learner, minibatch, key) → the learner after it, and what is told of it.
      learner: a pytree.
      owed: float32 [], updates that decisions have paid for.
      last: what was told of the turn before.
      draw: (key) → a minibatch.
      key_of: (number of the update in this turn, int32 []) → its key.

    Returns:
      The learner, what is still owed (less than one), and the means over these updates; where none was due, `last`.
    """
    count = jnp.floor(owed).astype(jnp.int32)

    def one(number: jax.Array, carry: tuple[Learner, Metrics]) -> tuple[Learner, Metrics]:
        drawn, noise = jax.random.split(key_of(number))
        after, told = update(carry[0], draw(drawn), noise)
        return after, jax.tree.map(jnp.add, carry[1], told)

    learner, sums = jax.lax.fori_loop(0, count, one, (learner, jax.tree.map(jnp.zeros_like, last)))
    told = jax.tree.map(lambda x, before: jnp.where(count > 0, x / jnp.maximum(count, 1), before), sums, last)
    return learner, owed - count.astype(jnp.float32), told
