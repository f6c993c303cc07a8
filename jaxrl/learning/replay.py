"""Replay: finished decisions, kept in the order in which they came, the newest so many of them (Lin 1992).

What members saw stands in one ring, once, and a decision names the two places of what it saw before and after it. Only
where a rollout begins does a member see again what the one before has ended with. Both rings have a fixed size and
hold every sensor in its own dtype; adding costs what the rollout costs. Pure: a loop that donates the replay has it
updated in place.

With memory what is kept are sequences of L decisions of a member, cut from the beginning of each rollout on, with
the memory before the first of them; observations stand in the same ring.

Letters: N decisions that are held at most, S observations, n of a minibatch, L of a sequence.
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
"""Bytes of one member's observations above which room is left for an eighth of additional ones, not for twice as many.

Twice as many are enough for rollouts of one decision; of large observations each then takes the place of a decision.
"""


class Kept(NamedTuple):
    """Decisions [N, ...]; fields as in `Transitions`."""

    at: jax.Array  # uint32, number of the observations that the decision was made for
    after: jax.Array  # uint32, number of those that followed
    action_mask: jax.Array
    action: Action
    extras: dict[str, jax.Array]
    reward: jax.Array
    discount: jax.Array
    seen: jax.Array  # `after` means something


class Replay(NamedTuple):
    """What is held. Whatever comes as number n stands in place n modulo the size of its ring."""

    obs: tuple[jax.Array, ...]  # [S, *shape], in the dtype of the sensor
    kept: Kept
    observed: jax.Array  # uint32 [], observations that came so far
    count: jax.Array  # uint32 [], decisions that came so far
    oldest: jax.Array  # uint32 [], number of the first decision that is held


def places(spec: BehaviorSpec, size: int) -> int:
    """S, of a replay of `size` decisions."""
    large = sum(math.prod(o.shape) * jnp.dtype(o.dtype).itemsize for o in spec.observations) > LARGE
    return size + max(size // 8, 1) if large else 2 * size


def empty(spec: BehaviorSpec, size: int, extras: Extras = ()) -> Replay:
    """No decision yet, room for `size` of them. No array is there twice."""
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
    """The finished decisions of a rollout take the places of the oldest, in the order of time."""
    obs, observed, new = _decisions(replay, rollout)
    kept, count = _written(replay.kept, new, rollout.acted.reshape(-1), replay.count)
    return Replay(obs, kept, observed, count, _oldest(kept.at, count, observed, len(obs[0])))


def _decisions(replay: Replay | Sequences, rollout: Rollout) -> tuple[tuple[jax.Array, ...], jax.Array, Kept]:
    """The ring with the observations of a rollout, the next number, and what is kept of each state [T, B, A]."""
    length, rows, members = rollout.acted.shape
    after, over, seen = outcome(rollout)
    there = after, jnp.arange(rows)[:, None], jnp.arange(members)
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
    """How many decisions are held, or sequences, int32 []."""
    return (replay.count - replay.oldest).astype(jnp.int32)


def sample(replay: Replay, key: jax.Array, size: int) -> Transitions:
    """`size` decisions [n, ...], drawn with replacement, each as likely as any other; the key is consumed.

    None is valid where nothing is held.
    """
    count = held(replay)
    drawn = jax.random.randint(key, (size,), 0, jnp.maximum(count, 1)).astype(jnp.uint32)
    return at(replay, replay.oldest + drawn, jnp.broadcast_to(count > 0, (size,)))


def at(replay: Replay, numbers: jax.Array, valid: jax.Array) -> Transitions:
    """The decisions of these numbers, uint32 [n], which are held."""
    kept = jax.tree.map(lambda x: x[numbers % len(x)], replay.kept)
    return _transitions(replay.obs, kept, valid, carry=(), begin=jnp.zeros_like(valid))


def _transitions(
    ring: tuple[jax.Array, ...], kept: Kept, valid: jax.Array, *, carry: Any, begin: jax.Array
) -> Transitions:
    """What is kept [n, ...], with what was seen before and after it; in place of what nobody saw, what was before."""

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
    """Sequences [N / L, ...] without what was seen."""

    kept: Kept  # [N / L, L, ...]
    begin: jax.Array  # bool [N / L, L]
    valid: jax.Array  # bool [N / L, L], false behind the end of a short one
    carry: Any  # memory before the first decision, [N / L, ...]
    since: jax.Array  # uint32 [N / L], number of the first observation of the rollout


class Sequences(NamedTuple):
    """Sequences of decisions that are held. Number n stands in place n modulo their number."""

    obs: tuple[jax.Array, ...]  # as of a `Replay`
    pieces: Pieces
    observed: jax.Array  # uint32 [], observations that came so far
    count: jax.Array  # uint32 [], sequences that came so far
    oldest: jax.Array  # uint32 [], number of the first sequence that is held


def no_sequences(spec: BehaviorSpec, size: int, length: int, memories: Extras, extras: Extras = ()) -> Sequences:
    """No sequence yet, room for as many of `length` decisions as hold `size` of them."""
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
    """The sequences of a rollout with single members [T, B, 1] take the places of the oldest.

    Those of a rollout are held until the first of its observations gives way: rows do not end in the order of time.
    """
    obs, observed, new = _decisions(replay, rollout)
    length = replay.pieces.valid.shape[1]
    found = Pieces(new, rollout.begin, rollout.acted, rollout.carry, jnp.full(rollout.acted.shape, replay.observed))
    cut_off = jax.tree.map(lambda x: x[:, :, 0], cut(found, rollout.acted, length))
    short = length - cut_off.valid.shape[1]
    full = jax.tree.map(lambda x: jnp.pad(x, [(0, 0), (0, short)] + [(0, 0)] * (x.ndim - 2)), cut_off)
    full = full._replace(carry=jax.tree.map(lambda x: x[:, 0], full.carry), since=full.since[:, 0])
    pieces, count = _written(replay.pieces, full, full.valid.any(1), replay.count)
    return Sequences(obs, pieces, observed, count, _oldest(pieces.since, count, observed, len(obs[0])))


def sample_sequences(replay: Sequences, key: jax.Array, size: int) -> Transitions:
    """As many sequences [n, L, ...] as hold `size` decisions, with replacement; the key is consumed.

    Where no memory begins, `carry` is zero behind the first decision.
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
    """States of sequences [n, L, ...] that count after a burn-in (Kapturowski et al. 2019, R2D2), bool.

    The memory before a sequence was stored when its networks were others; its first `burn_in` states lead it on with
    those of now. Where an episode has begun (`begin`, bool) there is nothing stale, and all states from there on count.
    """
    index = jnp.arange(begin.shape[1]).reshape(1, -1, *[1] * (begin.ndim - 2))
    return (index >= burn_in) | (jnp.cumsum(begin, axis=1) > 0)


def _written(ring: Any, new: Any, which: jax.Array, before: jax.Array) -> tuple[Any, jax.Array]:
    """`ring` with those of `new` [T, B, A, ...] that `which` [T·B·A] names, numbered on from `before`; the next number.

    Of more than it holds, the newest.
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
    """Number of the first whose observations, from `at` on, are still in the ring, by bisection: `at` never falls."""
    size = len(at)
    low = jnp.where(count > size, count - size, 0).astype(jnp.uint32)

    def narrowed(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        lost, here = bounds  # everything before `lost` is gone; `here` and all after it are there
        middle = lost + (here - lost) // 2
        gone = (observed - at[middle % size] > room) & (lost < here)
        return jnp.where(gone, middle + 1, lost), jnp.where(gone, here, middle)

    return jax.lax.fori_loop(0, size.bit_length() + 1, narrowed, (low, count))[0]
