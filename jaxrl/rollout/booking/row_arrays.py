"""Observations, rewards and flags of every member of every row: a message, dense over rows. Numpy only.

Slots have no ids here: `booking.slots` maps agents to slots. The ending of a member that leaves is reported with the
next state of its row, or when the row's last member has gone. Reported earlier, its decision would bootstrap from the
first state of the team that takes the row next.

Members of one row may be of several kinds, each with its own observations and actions. Flags and rewards are arrays
over all members; observations and masks of a kind are arrays over its own members, so that no kind is padded to
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.rollout.booking.episodes import pairs, reward_columns
from jaxrl.rollout.booking.occupants import Places, fit
from jaxrl.rollout.booking.records import Ending, Gone, RowsMessage
from jaxrl.types import BehaviorSpec, DecisionSteps


class _Kind:
    """Members of one spec. Arrays over B rows and its own members."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.columns = np.zeros(0, np.int64)  # its members among all of a row, in the order in which they came
        self.obs = tuple(np.zeros((2, 0, 0, *s.shape), s.dtype) for s in spec.observations)
        self.action_mask = np.ones((0, 0, spec.action.mask_size), bool)
        # Views of these over the places of its members, [B * A, *shape]:
        self.last, self.newest, self.masks = self.obs, self.obs, self.action_mask

    def resize(self, rows: int, members: int) -> None:
        """Make room for `rows` and `members`; contents keep their place."""
        self.obs = tuple(fit(x, rows, members, axis=1) for x in self.obs)
        self.action_mask = fit(self.action_mask, rows, members, fill=True)
        self.last, self.newest = (tuple(by_place(x[i]) for x in self.obs) for i in range(2))
        self.masks = by_place(self.action_mask)


class _ByPlace(NamedTuple):
    """Views over places [B * A] of the arrays of `RowArrays` that are written for every deciding member."""

    deciding: np.ndarray
    earned: np.ndarray
    ending: np.ndarray
    reward: np.ndarray  # complex64, own and group reward as `pairs`


class RowArrays:
    """Arrays over B rows and A members, both 0 before `resize`. The newest observations persist between messages."""

    def __init__(self, specs: Sequence[BehaviorSpec]) -> None:
        self.alive = np.zeros((0, 0), bool)
        self.gone_now = np.zeros((0, 0), bool)  # left with this message
        self._gone = np.zeros((0, 0), np.uint8)  # `Gone` since the row's newest state
        self._departures, self._untold = False, False  # whether any `gone_now`, any `_gone`: mostly False
        self.departed_with = np.zeros((0, 0, 2), np.float32)  # rewards of the last member that left
        self._kinds = [_Kind(spec) for spec in specs]
        self._place = np.zeros(0, np.int64)  # [A], index of each member among those of its kind
        # The fields of `RowsMessage`:
        self._reward = np.zeros((0, 0, 2), np.float32)
        self._earned = np.zeros((0, 0), np.float32)
        self.ending = np.zeros((0, 0), np.uint8)
        self._present = np.zeros((2, 0, 0), bool)
        self._deciding = np.zeros((0, 0), bool)
        self._by_place: _ByPlace

    def columns(self, kind: int) -> np.ndarray:
        """Return the members of a kind among all of a row, int64 [A of the kind]."""
        return self._kinds[kind].columns

    def resize(self, rows: int, members: Sequence[int]) -> None:
        """Make room for `rows`, and members of each kind, not fewer than before; contents keep their place.

        The new ones are empty and come behind the old ones.
        """
        for kind, count in zip(self._kinds, members, strict=True):
            known, more = len(self._place), count - len(kind.columns)
            self._place = np.concatenate([self._place, np.arange(len(kind.columns), count)])
            kind.columns = np.concatenate([kind.columns, np.arange(known, known + more)])
            kind.resize(rows, count)
        everybody = len(self._place)
        for name in ("alive", "gone_now", "_gone", "departed_with", "_reward", "_earned", "ending", "_deciding"):
            setattr(self, name, fit(getattr(self, name), rows, everybody))
        self._present = fit(self._present, rows, everybody, axis=1)
        self._by_place = _ByPlace(*map(by_place, (self._deciding, self._earned, self.ending, pairs(self._reward))))

    def begin_message(self) -> None:
        """Clear the rewards and flags of the last message."""
        self._reward[:] = self._earned[:] = 0.0
        self.ending[:] = Ending.OPEN
        self._present[:] = False
        self._deciding[:] = False
        if self._departures:
            self.gone_now[:] = self._departures = False

    def depart(
        self, kind: int, places: Places, how: np.ndarray, rewards: np.ndarray, obs: tuple[np.ndarray, ...]
    ) -> None:
        """Remove members of a kind, with the reward of their pending decision and their last observation.

        Args:
          how: `Gone` [N].
          rewards: float32 [N, 2], own and group reward.
          obs: of each sensor [N, *shape].
        """
        self._departures = self._untold = True
        self.alive.put(places, False)
        self._gone.put(places, how)
        self.gone_now.put(places, True)
        self.departed_with.reshape(-1, 2)[places] = rewards
        self._earned.put(places, rewards[:, 0])
        own = self.own(kind, places)
        for table, last in zip(self._kinds[kind].last, obs, strict=True):
            table[own] = last

    def drop(self, places: Places) -> None:
        """Remove members of any kind without an outcome of their pending decision."""
        for number, kind in enumerate(self._kinds):
            gone = places[np.isin(places % len(self._place), kind.columns)]
            if len(gone):
                reasons, rewards = np.full(len(gone), Gone.DROPPED), np.zeros((len(gone), 2), np.float32)
                self.depart(number, gone, reasons, rewards, self.newest(number, gone))

    def newest(self, kind: int, places: Places) -> tuple[np.ndarray, ...]:
        """Return the observations of members [N] of a kind when they last asked, [N, *shape] by sensor."""
        kind_places = self.own(kind, places)
        return tuple(table[kind_places] for table in self._kinds[kind].newest)

    def close(self) -> np.ndarray:
        """Report the endings of all members that left a row whose last member has gone with this message.

        An interrupted team has a final state with all members that went with this message, interrupted or not. A team
        whose last members moved has a final state with these alone: they live on, but not in the next states of this
        row. Their returns restart from the value of their own state, and they keep their own rewards. A member that
        ended before is credited with the value of an interrupted team, else with nothing more.

        Returns these rows, int64 [K].
        """
        if not self._departures:
            return np.zeros(0, np.int64)
        rows = np.flatnonzero(self.gone_now.any(-1) & ~self.alive.any(-1))
        gone, now = self._gone[rows], self.gone_now[rows]
        moved, dropped = gone == Gone.MOVED, gone == Gone.DROPPED
        interrupted = (now & (dropped | (gone == Gone.TRUNCATED))).any(-1, keepdims=True)
        final = now & (moved | interrupted)
        final |= moved & ~final.any(-1, keepdims=True)  # moved before, and the others ended for good
        bootstrap = np.where(final, np.where(interrupted, Ending.TRUNCATED, Ending.CUT), Ending.LEFT)
        follows = np.where(now, gone != Gone.TERMINATED, moved | interrupted)
        self._present[0][rows] = final
        ending = np.where(follows, bootstrap, Ending.TERMINATED)
        self._tell(rows, np.where(dropped, Ending.DROPPED, ending).astype(np.uint8))
        return rows

    def decide(
        self, kind: int, places: Places, again: np.ndarray | slice, deciding: DecisionSteps
    ) -> tuple[Places, np.ndarray]:
        """Write the requests of members of a kind; the ones in `again` had a decision before, which gets this reward.

        Returns the places [K] of these, and their own and group rewards, float32 [K, 2].
        """
        here, mine, kind_places = self._by_place, self._kinds[kind], self.own(kind, places)
        here.deciding[places] = True
        mine.masks[kind_places] = deciding.action_mask
        for table, obs in zip(mine.newest, deciding.obs, strict=True):
            table[kind_places] = obs
        # The reward in an agent's first request belongs to no decision of its own and is left out, as in ML-Agents.
        old = places[again]
        rewards = reward_columns(deciding.reward, deciding.group_reward)[again]
        here.reward[old] = pairs(rewards)
        here.earned[old] = rewards[:, 0]
        here.ending[old] = Ending.CONTINUES
        return old, rewards

    def finish_message(self) -> tuple[list[RowsMessage], RowsMessage | None]:
        """Give a new state to rows with deciding members, and report the endings of members that left them before.

        Returns a message for each kind over the same rows: a row may have a new state in which no member of a kind
        asks. They are views of these arrays, valid until the next message begins; copies if there are several kinds.
        Then the flags and rewards of all members are returned as well.
        """
        acts = np.asarray(self._deciding.any(-1))
        if self._untold:
            self._tell(np.flatnonzero(acts), np.uint8(Ending.LEFT))
            self._untold = bool(self._gone.any())
        self._present[1] = self.alive & acts[:, None]
        flags = self._reward, self._earned, self.ending, self._present, self._deciding
        if len(self._kinds) == 1:
            return [_message(self._kinds[0], *flags)], None
        reward, *others = flags
        nothing = np.zeros((*self.alive.shape, 0), bool)
        return [
            _message(kind, reward[:, kind.columns], *(x[..., kind.columns] for x in others)) for kind in self._kinds
        ], RowsMessage((), nothing, *flags)

    def recorded(self, number: int = 0) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return newest observations [N, *shape] and masks [N, M] of a kind's living members, or of all if none lives.

        They are repeated to N = B · A.
        """
        kind = self._kinds[number]
        alive = self.alive[:, kind.columns]
        living = np.flatnonzero(alive) if alive.any() else np.arange(alive.size)
        at = np.unravel_index(np.resize(living, alive.size), alive.shape)
        return tuple(table[1][at] for table in kind.obs), kind.action_mask[at]

    def own(self, kind: int, places: Places) -> Places:
        """Convert places of members of a kind to places in rows of that kind alone."""
        if len(self._kinds) == 1:
            return places
        rows, members = np.divmod(places, len(self._place))
        return rows * len(self._kinds[kind].columns) + self._place[members]

    def _tell(self, rows: np.ndarray, ending: np.ndarray | np.uint8) -> None:
        """Write endings, [K, A] or one for all, and rewards of the members of `rows` that left."""
        at, members = np.nonzero(self._gone[rows])
        left = rows[at], members
        self._reward[left] = self.departed_with[left]
        self.ending[left] = np.broadcast_to(ending, (len(rows), self.alive.shape[1]))[at, members]
        self._gone[left] = Gone.NOBODY


def by_place(table: np.ndarray) -> np.ndarray:
    """View a table [B, A, *shape] as [B * A, *shape]."""
    return table.reshape(table.shape[0] * table.shape[1], *table.shape[2:])


def _message(kind: _Kind, reward: Any, earned: Any, ending: Any, present: Any, deciding: Any) -> RowsMessage:
    return RowsMessage(kind.obs, kind.action_mask, reward, earned, ending, present, deciding)
