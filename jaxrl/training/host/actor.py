"""An actor: a policy that decides for the agents of one behavior, and the streams of what they saw and did.

Knows no learner, no process and no file. `decide`, the one compiled call per environment result, acts and appends.
Whose policy it is, and who learns from its streams, is a matter of the host loop's routing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.rollout import noise, trajectory
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.rollout.pages import MESSAGE, Pages
from jaxrl.rollout.records import RowsMessage
from jaxrl.rollout.repaging import repage
from jaxrl.rollout.slots import Ingested, Slots, Source, first_size
from jaxrl.rollout.trajectory import TrajectoryState
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec

log = logging.getLogger(__name__)

SLACK = 1.5
"""Room of all pages over the states that hold the wanted decisions when everybody acts: dead members, uneven rows."""
MOST = 16
"""Room of all pages, at most, over the same; a buffer that would need more is learned from before it is full."""
UNTRAINED = 1024
"""Decisions that an actor keeps that nobody learns from: statistics are drawn from them."""


class ActorPrograms(NamedTuple):
    """The compiled programs of an actor."""

    decide: Callable[..., tuple[Action, TrajectoryState]]
    # Seldom. They do the same uncompiled, then as some 200 small programs, which takes seconds.
    allocate: Callable[..., TrajectoryState] = trajectory.init
    turn: Callable[..., TrajectoryState] = trajectory.turn
    discard: Callable[[TrajectoryState], TrajectoryState] = lambda buffer: trajectory.take(buffer)[1]


def decide(
    algorithm: Algorithm,
    time_horizon: int,
    policy: PolicyState,
    state: TrajectoryState,
    steps: RowsMessage,
    key_data: Any,
) -> tuple[Action, TrajectoryState]:
    """Choose actions for the new states and append them: the one call per environment result.

    Returns:
      Actions for the environment, dense [B, A, ...], and the buffer.
    """
    obs = tuple(o[1] for o in steps.obs)
    carry = trajectory.memory(state, steps)
    decision = algorithm.act(policy, obs, steps.action_mask, carry, noise.typed(key_data))
    state = trajectory.add(state, steps, decision.action, decision.extras, decision.carry, time_horizon=time_horizon)
    return decision.sent, state


def capacity(decisions: int, rows: int, members: int) -> int:
    """T, states of a page: with one for each row enough for `decisions` agent steps with slack, and for a message."""
    return math.ceil(SLACK * decisions / (rows * members)) + MESSAGE + 1


class Actor:
    """Acts for one behavior and keeps what happens.

    Args:
      keeps: agent decisions that the buffer is to hold.
      run_key: two words; with the number of a decision they fix its noise.
    """

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        programs: ActorPrograms,
        policy: PolicyState,
        run_key: list[int],
        *,
        keeps: int,
    ) -> None:
        self.name = name
        self.spec = spec
        self.algorithm = algorithm
        self.policy = policy  # whoever learns replaces it after each update
        self.decisions = 0  # calls of `decide`; with the run's key they fix the next action noise
        self.fresh = 0  # decisions whose reward has arrived since the last `taken`
        self.full = False  # there is no room for another message, and there shall be none
        self._programs = programs
        self._run_key = run_key
        self.keeps = keeps
        self._slots: Slots | None = None
        self._pages: Pages | None = None
        self._buffer: TrajectoryState | None = None

    @property
    def buffer(self) -> TrajectoryState | None:
        """What has been collected; None before the first message."""
        return self._buffer

    def act(self, messages: Mapping[Source, BehaviorMessage]) -> tuple[dict[Source, Action], list[EpisodeRecords], int]:
        """Book one message per source.

        Returns each source's actions in its agents' order, finished episodes, and how many decisions got their reward.
        """
        if self._slots is None:
            self._allocate(messages)
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        ingested = self._slots.ingest(messages)
        self._follow()
        self._turn(ingested.steps)
        key_data = noise.noise_key(self._run_key, self.decisions)
        action, self._buffer = self._programs.decide(self.policy, self._buffer, ingested.steps, key_data)
        self._pages.append(ingested.steps)
        self.decisions += 1
        self.fresh += ingested.finished
        chosen = Action(continuous=np.asarray(action.continuous), discrete=np.asarray(action.discrete))
        return _by_source(ingested, chosen), ingested.episodes, ingested.finished

    def taken(self, buffer: TrajectoryState) -> None:
        """Somebody has learned from the buffer: it goes on as `buffer`, of the same shapes."""
        assert self._slots is not None and self._pages is not None
        self._buffer = buffer
        self._pages.taken(self._slots.living)
        self.fresh, self.full = 0, False

    def begin_anew(self) -> None:
        """Nothing has been seen yet; only the number of decisions goes on."""
        self._slots, self._pages, self._buffer = None, None, None
        self.fresh, self.full = 0, False

    def discard(self) -> None:
        """Forget what was collected, as if somebody had learned from it."""
        assert self._buffer is not None
        self.taken(self._programs.discard(self._buffer))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, [N, *shape] and [N, M], for checking an exported policy."""
        if self._slots is None:
            zeros = tuple(np.zeros((1, *sensor.shape), sensor.dtype) for sensor in self.spec.observations)
            return zeros, np.ones((1, self.spec.action.mask_size), bool)
        return self._slots.recorded()

    def _allocate(self, messages: Mapping[Source, BehaviorMessage]) -> None:
        algorithm = self.algorithm
        rows, members = first_size(messages, team_rows=algorithm.team_rows)
        self._slots = Slots(self.spec, team_rows=algorithm.team_rows, rows=rows, members=members)
        self._pages = Pages(capacity(self.keeps, rows, members), rows)
        self._buffer = self._programs.allocate(
            self.spec, algorithm.extras, algorithm.carry, capacity=self._pages.capacity, rows=rows, members=members
        )

    def _follow(self) -> None:
        """Let the buffer follow the tables; compiled programs are then built once more.

        More rows need fewer states each. A page that already holds too many keeps its length, unless a page as long
        for every row would be far more than what is needed.
        """
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        slots, pages, (_, _, members) = self._slots, self._pages, self._buffer.shape
        rows = len(pages.page)
        if (slots.rows, slots.members) == (rows, members):
            return
        log.info(
            "%s: room for %d teams of %d agents (was %d of %d); the programs are compiled once more.",
            self.name, slots.rows, slots.members, rows, members,
        )  # fmt: skip
        fitting = capacity(self.keeps, slots.rows, slots.members)
        held = pages.capacity if pages.given > rows else int(pages.size.max()) + MESSAGE
        if held > fitting and slots.rows * pages.capacity > 2 * (slots.rows * fitting + pages.given * pages.capacity):
            self._buffer, self._pages = repage(self._buffer, pages, capacity=fitting)
            pages = self._pages
        elif held <= fitting:
            pages.capacity = fitting
        self._resize(pages.grow(slots.rows))

    def _turn(self, steps: RowsMessage) -> None:
        """Fresh pages for the rows that have no room left for this message."""
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        pages = self._pages
        if not pages.scarce:  # nearly every message
            return
        turning = pages.full(steps)
        if not turning.any():
            return
        waiting = np.asarray((self._buffer.open_at >= 0).any(-1))
        more = self._still_to_come(int(turning.sum()))
        page = pages.turn(turning, waiting)
        if pages.given > self._buffer.shape[1]:
            self._resize((), more)
        self._buffer = self._programs.turn(self._buffer, turning, page.astype(np.int32))
        self.full = self._cells(2 * pages.given) > MOST * capacity(self.keeps, 1, 1)

    def _still_to_come(self, turning: int) -> int:
        """Pages that so many rows, whose pages are full, will need after the next one, if all goes on like this."""
        assert self._pages is not None
        pages, room = self._pages, self._pages.capacity - MESSAGE
        states = (pages.given - len(pages.page)) * pages.capacity + int(pages.size.sum())
        rest = 1.1 * states * max(self.keeps / max(self.fresh, 1) - 1.0, 0.0)  # states of all rows
        share = turning * pages.capacity / states
        return turning * max(math.ceil(rest * share / (turning * room)) - 1, 0)

    def _cells(self, pages: int) -> int:
        """Cells of a buffer with so many pages."""
        assert self._buffer is not None
        states, _, members = self._buffer.shape
        return pages * states * members

    def _resize(self, fresh: Any, more: int = 0) -> None:
        """Room for all pages and `more`, as far as the bound allows; `fresh` are the pages of new rows."""
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        pages, (_, room, _) = self._pages, self._buffer.shape
        more = max(more, pages.given // 2) if not len(fresh) else more  # few programs, some room to spare
        while more and self._cells(pages.given + more) > MOST * capacity(self.keeps, 1, 1):
            more //= 2
        if pages.given > room:
            room = pages.given + more
            if not len(fresh):
                log.info(
                    "%s: rows are uneven, room for %d pages of %d states; the programs are compiled once more.",
                    self.name, room, pages.capacity,
                )  # fmt: skip
        self._buffer = trajectory.resize(
            self._buffer, capacity=pages.capacity, pages=room, members=self._slots.members, fresh=fresh
        )


def _by_source(ingested: Ingested, action: Action) -> dict[Source, Action]:
    return {
        source: Action(continuous=action.continuous[places], discrete=action.discrete[places])
        for source, places in ingested.decisions.items()
    }
