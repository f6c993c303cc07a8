"""Replay: the newest finished decisions, stored in the order in which they came (Lin 1992).

Observations are stored once, in a ring. Decisions are stored in a second ring and name their observation and the next
one by number. Only the last observation of a rollout is stored twice, again as the first of the next rollout. Both
rings have a fixed size and hold every sensor in its own dtype; the cost of adding depends on the size of the rollout
alone. All functions are pure: a loop that donates the replay has it updated in place.

With memory the replay stores sequences of L decisions of a member, cut from the beginning of each rollout on, with the
memory before the first of them; observations are stored as above.

Letters: N decisions and S observations that the replay holds at most, n decisions of a minibatch, L of a sequence.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.learning.sequences import cut
from jaxrl.masks import where
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.rollout.rollout import Rollout
from jaxrl.rollout.transitions import Transitions, outcome
from jaxrl.types import Action, BehaviorSpec

LARGE = 4096
"""Bytes of a member's observation above which the ring holds an eighth more observations than decisions, not twice.

Twice as many are enough for rollouts of one decision. Large observations that exceed the eighth displace decisions.
"""


class Kept(NamedTuple):
    """Stored decisions [N, ...]; fields as in `Transitions`."""

    at: jax.Array  # uint32, number of the observation that the decision was made for
    after: jax.Array  # uint32, number of the next observation
    action_mask: jax.Array
    action: Action
    extras: dict[str, jax.Array]
    reward: jax.Array
    discount: jax.Array
    seen: jax.Array  # whether the next observation is stored: `after` is valid


class Replay(NamedTuple):
    """Replay of single decisions. Observation and decision number n are stored at n modulo the size of their ring."""

    obs: tuple[jax.Array, ...]  # [S, *shape], in the dtype of the sensor
    kept: Kept
    observed: jax.Array  # uint32 [], observations that came so far
    count: jax.Array  # uint32 [], decisions that came so far
    oldest: jax.Array  # uint32 [], number of the first decision that is held


def places(spec: BehaviorSpec, size: int) -> int:
    """Return S, the observations that a replay of `size` decisions has room for."""
    large = sum(math.prod(o.shape) * jnp.dtype(o.dtype).itemsize for o in spec.observations) > LARGE
    return size + max(size // 8, 1) if large else 2 * size


def empty(spec: BehaviorSpec, size: int, extras: Extras = ()) -> Replay:
    """Make a replay without decisions, with room for `size` of them. No array occurs in it twice."""
    action, room = spec.action, places(spec, size)

    def number() -> jax.Array:
        return jnp.zeros((), jnp.uint32)

    return Replay(
        obs=tuple(jnp.zeros((room, *sensor.shape), sensor.dtype) for sensor in spec.observations),
        kept=Kept(
            at=jnp.zeros(size, jnp.uint32),
            after=jnp.zeros(size, jnp.uint32),
            action_mask=jnp.zeros((size, action.mask_size), bool),
            action=Action(
                jnp.zeros((size, action.continuous_size)), jnp.zeros((size, len(action.discrete_branches)), jnp.int32)
            ),
            extras={name: jnp.zeros((size, *shape)) for name, shape in extras},
            reward=jnp.zeros(size),
            discount=jnp.zeros(size),
            seen=jnp.zeros(size, bool),
        ),
        observed=number(),
        count=number(),
        oldest=number(),
    )


def add(replay: Replay, rollout: Rollout) -> Replay:
    """Add the finished decisions of a rollout in the order of time, in place of the oldest."""
    obs, observed, new = _decisions(replay, rollout)
    decisions, count = _written(replay.kept, new, rollout.acted.reshape(-1), replay.count)
    return Replay(obs, decisions, observed, count, _oldest(decisions.at, count, observed, len(obs[0])))


def _decisions(replay: Replay | Sequences, rollout: Rollout) -> tuple[tuple[jax.Array, ...], jax.Array, Kept]:
    """Add a rollout's observations. Return their ring, the next number, and the decision of each state [T, B, A]."""
    length, rows, members = rollout.acted.shape
    next_state, over, seen = outcome(rollout)
    there = next_state, jnp.arange(rows)[:, None], jnp.arange(members)
    needed = (rollout.acted | jnp.zeros_like(rollout.acted).at[there].max(seen)).reshape(-1)
    number = (replay.observed + jnp.cumsum(needed, dtype=jnp.uint32) - 1).reshape(length, rows, members)
    new = Kept(
        at=number,
        after=jnp.where(seen, number[there], 0),
        action_mask=rollout.action_mask,
        action=rollout.action,
        extras=rollout.extras,
        reward=rollout.reward + rollout.group_reward,
        discount=jnp.where(over, 0.0, 1.0),
        seen=seen,
    )
    obs, observed = _written(replay.obs, rollout.obs, needed, replay.observed)
    return obs, observed, new


def held(replay: Replay | Sequences) -> jax.Array:
    """Return the number of decisions, or sequences, that the replay holds, int32 []."""
    return (replay.count - replay.oldest).astype(jnp.int32)


def sample(replay: Replay, key: jax.Array, size: int) -> Transitions:
    """Draw `size` decisions [n, ...] with replacement; none is valid from an empty replay. The key is consumed."""
    count = held(replay)
    drawn = jax.random.randint(key, (size,), 0, jnp.maximum(count, 1)).astype(jnp.uint32)
    return at(replay, replay.oldest + drawn, jnp.broadcast_to(count > 0, (size,)))


def at(replay: Replay, numbers: jax.Array, valid: jax.Array) -> Transitions:
    """Return the decisions with these numbers, uint32 [n], all of which the replay must hold."""
    decisions = jax.tree.map(lambda x: x[numbers % len(x)], replay.kept)
    return _transitions(replay.obs, decisions, valid, carry=(), begin=jnp.zeros_like(valid))


def _transitions(
    ring: tuple[jax.Array, ...], kept: Kept, valid: jax.Array, *, carry: Any, begin: jax.Array
) -> Transitions:
    """Return stored decisions with their observations and the next ones, [n, ...]; `obs` again for an unknown next."""

    def seen_by(number: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(where(valid, x[number % len(x)], 0) for x in ring)

    return Transitions(
        obs=seen_by(kept.at),
        carry=carry,
        begin=begin,
        action_mask=kept.action_mask,
        action=kept.action,
        extras=kept.extras,
        reward=kept.reward,
        discount=kept.discount,
        next_obs=seen_by(jnp.where(kept.seen, kept.after, kept.at)),
        seen=kept.seen & valid,
        valid=valid,
    )


class Pieces(NamedTuple):
    """Sequences [N / L, ...] without their observations."""

    kept: Kept  # [N / L, L, ...]
    begin: jax.Array  # bool [N / L, L]
    valid: jax.Array  # bool [N / L, L], False behind the end of a short sequence
    carry: Any  # memory before the first decision, [N / L, ...]
    since: jax.Array  # uint32 [N / L], number of the first observation of the rollout


class Sequences(NamedTuple):
    """Replay of sequences. Sequence number n is stored at n modulo the size of the ring."""

    obs: tuple[jax.Array, ...]  # as in `Replay`
    pieces: Pieces
    observed: jax.Array  # uint32 [], observations that came so far
    count: jax.Array  # uint32 [], sequences that came so far
    oldest: jax.Array  # uint32 [], number of the first sequence that is held


def no_sequences(spec: BehaviorSpec, size: int, length: int, memories: Extras, extras: Extras = ()) -> Sequences:
    """Make a replay without sequences, with room for `size` decisions in sequences of `length`."""
    count = max(size // length, 1)
    none = empty(spec, count * length, extras)
    pieces = Pieces(
        kept=jax.tree.map(lambda x: x.reshape(count, length, *x.shape[1:]), none.kept),
        begin=jnp.zeros((count, length), bool),
        valid=jnp.zeros((count, length), bool),
        carry={name: jnp.zeros((count, *shape)) for name, shape in memories},
        since=jnp.zeros(count, jnp.uint32),
    )
    return Sequences(none.obs, pieces, none.observed, none.count, none.oldest)


def add_sequences(replay: Sequences, rollout: Rollout) -> Sequences:
    """Add the sequences of a rollout with single members [T, B, 1], in place of the oldest.

    The sequences of a rollout are dropped with its first observation, since rows do not end in the order of time.
    """
    obs, observed, new = _decisions(replay, rollout)
    length = replay.pieces.valid.shape[1]
    states = Pieces(new, rollout.begin, rollout.acted, rollout.carry, jnp.full(rollout.acted.shape, replay.observed))
    cut_off = jax.tree.map(lambda x: x[:, :, 0], cut(states, rollout.acted, length))
    short = length - cut_off.valid.shape[1]
    full = jax.tree.map(lambda x: jnp.pad(x, [(0, 0), (0, short)] + [(0, 0)] * (x.ndim - 2)), cut_off)
    full = full._replace(carry=jax.tree.map(lambda x: x[:, 0], full.carry), since=full.since[:, 0])
    pieces, count = _written(replay.pieces, full, full.valid.any(1), replay.count)
    return Sequences(obs, pieces, observed, count, _oldest(pieces.since, count, observed, len(obs[0])))


def sample_sequences(replay: Sequences, key: jax.Array, size: int) -> Transitions:
    """Draw with replacement the sequences [n, L, ...] that hold `size` decisions; the key is consumed.

    `carry` is the memory at the first decision of each sequence, and zero behind it.
    """
    count, length = held(replay), replay.pieces.valid.shape[1]
    drawn = jax.random.randint(key, (max(size // length, 1),), 0, jnp.maximum(count, 1)).astype(jnp.uint32)
    numbers = replay.oldest + drawn
    found = jax.tree.map(lambda x: x[numbers % len(x)], replay.pieces)
    valid = found.valid & (count > 0)
    first = jnp.broadcast_to(jnp.arange(length) == 0, valid.shape)
    carry = jax.tree.map(lambda x: where(first, x[:, None], 0), found.carry)
    return _transitions(replay.obs, found.kept, valid, carry=carry, begin=found.begin)


def behind(begin: jax.Array, burn_in: int) -> jax.Array:
    """Return which states of sequences [n, L, ...] count after a burn-in (Kapturowski et al. 2019, R2D2), bool.

    The memory before a sequence was computed by older networks; the first `burn_in` states recompute it with those of
    now. Where an episode begins (`begin`, bool) the memory is not stale, and all states from there on count.
    """
    index = jnp.arange(begin.shape[1]).reshape(1, -1, *[1] * (begin.ndim - 2))
    return (index >= burn_in) | (jnp.cumsum(begin, axis=1) > 0)


def _written(ring: Any, new: Any, which: jax.Array, before: jax.Array) -> tuple[Any, jax.Array]:
    """Write the elements `which` [T·B·A] of `new` [T, B, A, ...] to the ring, numbered from `before` on.

    Only the newest are written if there are more than it holds. Return the ring and the next number.
    """
    size, number = len(jax.tree.leaves(ring)[0]), jnp.cumsum(which, dtype=jnp.uint32) - 1
    count = which.sum(dtype=jnp.uint32)
    place = jnp.where(which & (number + size >= count), (before + number) % size, size)  # `size`: is not written
    written = jax.tree.map(
        lambda into, x: into.at[place].set(x.reshape(len(which), *into.shape[1:]).astype(into.dtype), mode="drop"),
        ring,
        new,
    )
    return written, before + count


def _oldest(at: jax.Array, count: jax.Array, observed: jax.Array, room: int) -> jax.Array:
    """Find the oldest element whose observations, from number `at` on, are still stored. Bisects: `at` never falls."""
    size = len(at)
    low = jnp.where(count > size, count - size, 0).astype(jnp.uint32)

    def narrowed(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        lost, here = bounds  # everything before `lost` is gone; `here` and all after it are there
        middle = lost + (here - lost) // 2
        gone = (observed - at[middle % size] > room) & (lost < here)
        return jnp.where(gone, middle + 1, lost), jnp.where(gone, here, middle)

    return jax.lax.fori_loop(0, size.bit_length() + 1, narrowed, (low, count))[0]
