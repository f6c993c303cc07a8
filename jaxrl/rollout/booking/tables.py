"""What every member of every row sees, earns and is asked: the numbers of a message, dense over rows. Numpy only.

Nobody has a name here: `booking.slots` knows who lives where. What becomes of a member that leaves is told with the
next state of its row, or when the row's last member has gone: told earlier, its decision would bootstrap from the first
state of the team that takes the row next.
"""

from __future__ import annotations

import numpy as np

from jaxrl.rollout.booking.episodes import reward_columns
from jaxrl.rollout.booking.occupants import Places
from jaxrl.rollout.booking.records import Ending, Gone, RowsMessage
from jaxrl.types import BehaviorSpec, DecisionSteps


class Tables:
    """Arrays over B rows and A members, none of either before `resize`. The newest observations stay."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.alive = np.zeros((0, 0), bool)
        self.gone_now = np.zeros((0, 0), bool)  # left with this message
        self._gone = np.zeros((0, 0), np.uint8)  # `Gone` since the row's newest state
        self.departed_with = np.zeros((0, 0, 2), np.float32)  # rewards of who left last
        # The fields of `RowsMessage`:
        self._obs = tuple(np.zeros((2, 0, 0, *s.shape), s.dtype) for s in spec.observations)
        self._action_mask = np.ones((0, 0, spec.action.mask_size), bool)
        self._reward = np.zeros((0, 0, 2), np.float32)
        self._earned = np.zeros((0, 0), np.float32)
        self._ending = np.zeros((0, 0), np.uint8)
        self._present = np.zeros((2, 0, 0), bool)
        self._deciding = np.zeros((0, 0), bool)

    def resize(self, rows: int, members: int) -> None:
        """Room for so many, not fewer than before; contents keep their place, and nobody lives in the new ones."""

        def fit(x: np.ndarray, axis: int, fill: float = 0) -> np.ndarray:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, rows - x.shape[axis])
            widths[axis + 1] = (0, members - x.shape[axis + 1])
            return np.pad(x, widths, constant_values=fill)

        self.alive = fit(self.alive, 0)
        self.gone_now = fit(self.gone_now, 0)
        self._gone = fit(self._gone, 0)
        self.departed_with = fit(self.departed_with, 0)
        self._obs = tuple(fit(x, 1) for x in self._obs)
        self._action_mask = fit(self._action_mask, 0, fill=True)
        self._reward = fit(self._reward, 0)
        self._earned = fit(self._earned, 0)
        self._ending = fit(self._ending, 0)
        self._present = fit(self._present, 1)
        self._deciding = fit(self._deciding, 0)

    def begin_message(self) -> None:
        """Nothing has arrived yet."""
        self._reward[:] = self._earned[:] = 0.0
        self._ending[:] = Ending.OPEN
        self._present[:] = False
        self._deciding[:] = False
        self.gone_now[:] = False

    def depart(self, places: Places, how: np.ndarray, rewards: np.ndarray, obs: tuple[np.ndarray, ...]) -> None:
        """Members leave, with the reward of their open decision and their last observation.

        Args:
          how: `Gone` [N].
          rewards: float32 [N, 2], own and group reward.
          obs: of each sensor [N, *shape].
        """
        self.alive[places] = False
        self._gone[places] = how
        self.gone_now[places] = True
        self.departed_with[places] = rewards
        self._earned[places] = rewards[:, 0]
        for table, last in zip(self._obs, obs, strict=True):
            table[0][places] = last

    def drop(self, places: Places) -> None:
        """Members vanish, and what became of their open decision will never be known."""
        count = len(places[0])
        self.depart(places, np.full(count, Gone.DROPPED), np.zeros((count, 2), np.float32), self.newest(places))

    def newest(self, places: Places) -> tuple[np.ndarray, ...]:
        """What members [N] saw when they last asked, of each sensor [N, *shape]."""
        return tuple(table[1][places] for table in self._obs)

    def close(self) -> np.ndarray:
        """Tell what followed for everybody who left a row whose last member has gone with this message.

        An interrupted team has a final state of all that went with this message, also of those that did not end by
        interruption. So has one whose last members moved, of these alone: they live on, but not in what comes next in
        this row: their returns restart from the value of their own state, and they have what they were paid themselves.
        Who ended before is credited with what an interrupted team would have earned, else with nothing more.

        Returns these rows, int64 [K].
        """
        if not self.gone_now.any():
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

    def decide(self, places: Places, again: np.ndarray | slice, deciding: DecisionSteps) -> tuple[Places, np.ndarray]:
        """Members ask for an action; those in `again` had a decision before, whose reward this is.

        Returns their places [K], and float32 [K, 2], own and group reward.
        """
        self._deciding[places] = True
        self._action_mask[places] = deciding.action_mask
        for table, obs in zip(self._obs, deciding.obs, strict=True):
            table[1][places] = obs
        # The reward in an agent's first request belongs to no decision of its own and is left out, as in ML-Agents.
        old = places[0][again], places[1][again]
        rewards = reward_columns(deciding.reward, deciding.group_reward)[again]
        self._reward[old] = rewards
        self._earned[old] = rewards[:, 0]
        self._ending[old] = Ending.CONTINUES
        return old, rewards

    def finish_message(self) -> RowsMessage:
        """Rows in which somebody asks get a new state, and who left them before is told so.

        Returns the whole message: views of the tables, valid until the next one begins.
        """
        acts = np.asarray(self._deciding.any(-1))
        if self._gone.any():
            self._tell(np.flatnonzero(acts), np.uint8(Ending.LEFT))
        self._present[1] = self.alive & acts[:, None]
        return RowsMessage(
            obs=self._obs,
            action_mask=self._action_mask,
            reward=self._reward,
            earned=self._earned,
            ending=self._ending,
            present=self._present,
            deciding=self._deciding,
        )

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest observations [N, *shape] and masks [N, M] of living members, else of all, repeated: N = B · A."""
        living = np.flatnonzero(self.alive) if self.alive.any() else np.arange(self.alive.size)
        at = np.unravel_index(np.resize(living, self.alive.size), self.alive.shape)
        return tuple(table[1][at] for table in self._obs), self._action_mask[at]

    def _tell(self, rows: np.ndarray, ending: np.ndarray | np.uint8) -> None:
        """Endings and rewards of the members of `rows` that left: [K, A], or one for all."""
        at, members = np.nonzero(self._gone[rows])
        left = rows[at], members
        self._reward[left] = self.departed_with[left]
        self._ending[left] = np.broadcast_to(ending, (len(rows), self.alive.shape[1]))[at, members]
        self._gone[left] = Gone.NOBODY
