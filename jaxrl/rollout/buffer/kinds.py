"""Trajectory buffers of several kinds of members that share rows (`Slots(beside=...)`), on the device.

Each kind has its own observations, actions and arrays. Rows, pages and states are common: a state is written for all
kinds whenever a member of any kind decides, and conditions on a whole row include all kinds. The functions apply those
of `buffer.trajectory`, `whole_episodes`, `external_actions` and `repaging` to each kind. K kinds; letters as in
`buffer.trajectory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.rollout.buffer import external_actions, repaging, trajectory, whole_episodes
from jaxrl.rollout.buffer.pages import Pages
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState, rollout_of
from jaxrl.rollout.rollout import Rollout


@partial(jax.tree_util.register_dataclass, data_fields=("kinds",), meta_fields=())
@dataclass(frozen=True)
class KindTrajectories:
    """The buffers of K kinds, in the order of the slots."""

    kinds: tuple[TrajectoryState, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """T, P, and A of all kinds together."""
        capacity, pages, _ = self.kinds[0].shape
        return capacity, pages, sum(state.shape[2] for state in self.kinds)

    @property
    def open_at(self) -> jax.Array:
        """Index of each pending decision in its page, int32 [B, A], the members of one kind after the other."""
        return jnp.concatenate([state.open_at for state in self.kinds], axis=1)

    @property
    def sizes(self) -> Any:
        """Sizes for which programs are compiled."""
        return tuple((state.shape, state.clock.shape) for state in self.kinds)

    def each(self) -> Iterator[tuple[TrajectoryState, tuple[TrajectoryState, ...]]]:
        """Yield each kind's buffer, and those of the others."""
        for number, state in enumerate(self.kinds):
            yield state, (*self.kinds[:number], *self.kinds[number + 1 :])


def take(state: KindTrajectories, *begin: Any) -> tuple[tuple[Rollout, ...], KindTrajectories]:
    """Take the rollout of each kind, [T, P, A of the kind, ...], over common states. Return them and the new buffers.

    `begin`: where running episodes begin, for `batch_mode: complete_episodes`.
    """
    take_kind = whole_episodes.take if begin else trajectory.take
    rollouts, buffers = zip(*(take_kind(kind, *begin, *others) for kind, others in state.each()), strict=True)
    return rollouts, KindTrajectories(buffers)


def rollouts_of(state: KindTrajectories) -> tuple[Rollout, ...]:
    """Return the contents of the buffers as rollouts."""
    return tuple(rollout_of(kind, beside=others) for kind, others in state.each())


def turn(state: KindTrajectories, turning: Any, page: Any) -> KindTrajectories:
    """Apply `trajectory.turn` to each kind."""
    return KindTrajectories(tuple(trajectory.turn(kind, turning, page, *others) for kind, others in state.each()))


def turn_whole(state: KindTrajectories, turning: Any, page: Any, begin: Any) -> KindTrajectories:
    """Apply `whole_episodes.turn` to each kind."""
    return KindTrajectories(tuple(whole_episodes.turn(kind, turning, page, begin) for kind in state.kinds))


def leave_out(state: KindTrajectories, members: Sequence[Any]) -> KindTrajectories:
    """Apply `external_actions.leave_out` to each kind; `members`: bool [B, A] of each."""
    return KindTrajectories(tuple(map(external_actions.leave_out, state.kinds, members)))


def resize(
    state: KindTrajectories, *, capacity: int, pages: int, members: Sequence[int], fresh: Any = ()
) -> KindTrajectories:
    """Apply `repaging.resize` to each kind; `members`: those of each."""
    room = partial(repaging.resize, capacity=capacity, pages=pages, fresh=fresh)
    return KindTrajectories(tuple(room(kind, members=count) for kind, count in zip(state.kinds, members, strict=True)))


def repage(state: KindTrajectories, pages: Pages, *, capacity: int) -> tuple[KindTrajectories, Pages]:
    """Apply `repaging.repage` to each kind: all are cut alike."""
    cut = [repaging.repage(kind, pages, capacity=capacity, beside=others) for kind, others in state.each()]
    return KindTrajectories(tuple(kind for kind, _ in cut)), cut[0][1]
