"""Records of one message of the environment(s), dense over rows for the trajectory buffer. No JAX here.

A row holds one team (MA-POCA) or one agent (PPO, A = 1) at a time and is a stream of states: ends of episodes are marks
inside it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.occupants import Places, Source
from jaxrl.types import Action


class Ending(IntEnum):
    """Outcome of a member's decision when its reward arrived.

    A team is over when its last living member ends, also if another one asks in the same message under the same group
    id: this is how every scene begins its next episode, and nothing on the wire shows a replacement.
    """

    OPEN = 0  # nothing arrived yet
    CONTINUES = 1  # the member decides again
    TERMINATED = 2  # its episode ended, and with it the whole row: nothing follows
    TRUNCATED = 3  # interrupted, and with it the whole row: bootstrap from the final state
    LEFT = 4  # ended before its team: bootstrap from the team's next state (posthumous credit), with which it arrives
    # The return restarts from the value of the row's next state: time_horizon reached, or it moved to another team with
    # the last members of this row, and its own state is the next and final one here.
    CUT = 5
    DROPPED = 6  # its outcome will never be known: not trained on, and the state only bootstraps the decisions before


class Gone(IntEnum):
    """How a member left its row. Its `Ending` is known with the team's next state, or when the team has none."""

    NOBODY = 0
    TERMINATED = 1
    TRUNCATED = 2
    MOVED = 3  # lives on in another team
    DROPPED = 4  # lost with its source: its pending decision is not trained on


class RowsMessage(NamedTuple):
    """Message of the environments, dense over rows. Index 0 of a leading axis of 2: final states, 1: new states."""

    obs: tuple[np.ndarray, ...]  # each sensor's dtype [2, B, A, *shape]; newest known observation of each member
    action_mask: np.ndarray  # bool [B, A, M], True: allowed
    reward: np.ndarray  # float32 [B, A, 2], own and group reward of the pending decision
    earned: np.ndarray  # float32 [B, A], individual rewards that arrived now, also where the ending arrives later
    ending: np.ndarray  # uint8 [B, A], Ending of the pending decision; OPEN where none arrived
    present: np.ndarray  # bool [2, B, A], members that are part of the state
    deciding: np.ndarray  # bool [B, A], members that ask for an action now


class Moved(NamedTuple):
    """Members that ask in another slot than before, because they have changed their team."""

    origin: np.ndarray  # int32 [B, A], former slot of a member, row * A + member, or -1
    reward: np.ndarray  # float32 [B, A, 2], own and group reward of its decision there, which may arrive there later


class OfKind(NamedTuple):
    """Results of a message for one kind of members, in teams that have several."""

    finished: int
    episodes: list[EpisodeRecords]
    taken: tuple[np.ndarray, Action] | None  # over the members of the kind, as `Ingested.taken`


class Ingested(NamedTuple):
    """Message per source, turned into rows."""

    steps: RowsMessage  # of the first kind of members; views, valid until the next `ingest`
    decisions: dict[Source, Places]  # slots of its deciding agents, in their order
    finished: int  # decisions whose reward arrived, or never will: the trainer step grows by this number
    episodes: list[EpisodeRecords]
    vanished: int = 0  # agents whose episode was interrupted because they had not asked for long
    waited: int = 0  # messages of silence after which an agent interrupted in this way came back; 0: none did
    # Decisions that were pending before this message:
    taken: tuple[np.ndarray, Action] | None = None  # bool [B, A], and the actions of their agents instead [B, A, ...]
    left_out: np.ndarray | None = None  # bool [B, A], their outcome arrives now, and they are not learned from
    moved: Moved | None = None  # None: no member has
    beside: tuple[RowsMessage, ...] = ()  # one for each other kind, in its own order of members, over the same rows
    everybody: RowsMessage | None = None  # of all members, without observations and masks; None: `steps`
    kinds: tuple[OfKind, ...] = ()  # results by kind if there are several

    @property
    def rows(self) -> RowsMessage:
        """Flags and rewards of all members."""
        return self.steps if self.everybody is None else self.everybody
