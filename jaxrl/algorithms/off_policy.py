"""Common parts of algorithms that learn from a replay: its storage, the count of decisions, and rounds of updates.

An algorithm's own file gives networks, losses and one update. Decisions are counted as they come (`counted`), each
allows 1 / `steps_per_update` of an update, and `turn` makes the updates that are due. Their number is traced, so that
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
"""Least number of decisions between rounds of updates. ML-Agents waits for trajectories of `time_horizon`."""

ROWS = 16
"""Sequences between rounds of updates, with memory. With more agents at once each leaves shorter sequences."""

Learner = TypeVar("Learner")
"""State that an update changes: a pytree."""


class ReplayHyperparameters(Protocol):
    """Hyperparameters that this module reads."""

    batch_size: int
    buffer_size: int
    buffer_init_steps: int
    steps_per_update: float
    save_replay_buffer: bool


def collect_size(hyper: ReplayHyperparameters, memory: MemorySettings | None) -> int:
    """Return the decisions between rounds of updates. Sizes are static: a traced `steps_per_update` is ignored."""
    least, paying = COLLECTED if memory is None else ROWS * memory.sequence_length, hyper.steps_per_update
    return least if isinstance(paying, jax.Array) else max(least, math.ceil(paying))


def storage_of(
    spec: BehaviorSpec, hyper: ReplayHyperparameters, memory: MemorySettings | None, memories: Extras = ()
) -> Storage:
    """Make the replay of single transitions; with memory of sequences and the `memories` before each."""
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
    """Return whether an update is due and a minibatch is stored, also after a resume with an empty replay.

    A first round without an update would report zeros as its metrics.
    """
    there = (replays.held(store) >= minibatch) | (counts.fresh >= hyper.batch_size)
    return (counts.total >= hyper.buffer_init_steps + hyper.steps_per_update) & there


def counted(hyper: ReplayHyperparameters, state: TrainState, rollout: Rollout) -> TrainState:
    """Add the decisions of a rollout to `own["fresh"]`, without those before `buffer_init_steps`."""
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
    """Run the updates that are due.

    Args:
      update: (learner, minibatch, key) → (new learner, metrics).
      learner: a pytree.
      owed: float32 [], updates that are due.
      last: metrics of the last round.
      draw: (key) → a minibatch.
      key_of: (number of the update in this round, int32 []) → its key.

    Returns:
      The learner, the rest of `owed` (less than one), and the mean metrics of these updates; `last` without updates.
    """
    count = jnp.floor(owed).astype(jnp.int32)

    def add_update(number: jax.Array, carry: tuple[Learner, Metrics]) -> tuple[Learner, Metrics]:
        drawn, noise = jax.random.split(key_of(number))
        new_learner, metrics = update(carry[0], draw(drawn), noise)
        return new_learner, jax.tree.map(jnp.add, carry[1], metrics)

    learner, sums = jax.lax.fori_loop(0, count, add_update, (learner, jax.tree.map(jnp.zeros_like, last)))
    told = jax.tree.map(lambda x, before: jnp.where(count > 0, x / jnp.maximum(count, 1), before), sums, last)
    return learner, owed - count.astype(jnp.float32), told
