"""An actor: a policy that decides for the agents of one behavior, and the streams of what they saw and did.

Knows no learner, no process and no file. `decide`, the one compiled call per environment result, acts and appends.
Whose policy it is, and who learns from its streams, is a matter of the host loop's routing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState, nothing_remembered
from jaxrl.rollout import noise
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.rollout.occupants import first_size
from jaxrl.rollout.pages import MESSAGE, Pages
from jaxrl.rollout.records import Ingested, RowsMessage
from jaxrl.rollout.repaging import repage, resize
from jaxrl.rollout.running import RunningEpisodes
from jaxrl.rollout.slots import Slots, Source
from jaxrl.rollout.trajectory_state import TrajectoryState
from jaxrl.training.host import connecting
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec

log = logging.getLogger(__name__)

SLACK = 1.5
"""Room of all pages over the states that hold the wanted decisions when everybody acts: dead members, uneven rows."""
MOST = 16
"""Room of all pages, at most, over the same; a buffer that would need more is learned from before it is full."""
UNTRAINED = 1024
"""Decisions that an actor keeps that nobody learns from: statistics are drawn from them."""


def capacity(decisions: int, rows: int, members: int) -> int:
    """T, states of a page: with one for each row enough for `decisions` agent steps with slack, and for a message."""
    return math.ceil(SLACK * decisions / (rows * members)) + MESSAGE + 1


class Actor:
    """Acts for one behavior and keeps what happens.

    Args:
      keeps: agent decisions that the buffer is to hold.
      leave_out_taken: nobody learns from decisions that agents took otherwise than they were told.
      run_key: two words; with the number of a decision they fix its noise.
      env_steps: environment steps of each worker that the buffer is to hold instead; None: `keeps` counts.
      max_length: decisions after which an agent's episode is interrupted; None: never.
      whole_episodes_only: keep running episodes at each update, for a later one, and do not cut them.
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
        env_steps: int | None = None,
        max_length: int | None = None,
        whole_episodes_only: bool = False,
        leave_out_taken: bool = False,
    ) -> None:
        self.name = name
        self.spec = spec
        self.algorithm = algorithm
        self.policy = policy  # whoever learns replaces it after each update
        self.decisions = 0  # calls of `decide`; with the run's key they fix the next action noise
        self.fresh = 0  # decisions whose reward has arrived since the last `taken`
        self.running = RunningEpisodes() if whole_episodes_only else None
        self.watch: Callable[[RowsMessage], None] | None = None  # is told of each message that was booked
        self.full = False  # there is no room for another message, and there shall be none
        self.programs = programs
        self._run_key = run_key
        self._cut = False  # an episode had to be cut, and that was said
        self.env_steps = 0  # of all workers since the last `taken`; the host loop counts them
        self.held = 0  # decisions that the buffer holds, those of running episodes too
        self.leave_out_taken = leave_out_taken
        self._keeps = keeps
        self._states = env_steps
        self._max_length = max_length
        self._slots: Slots | None = None
        self._pages: Pages | None = None
        self._buffer: TrajectoryState | None = None
        self._connected: Any = ()  # what its connectors remember

    @property
    def keeps(self) -> int:
        """Agent decisions that the buffer is to hold, at most where environment steps are counted."""
        if self._states is None or self._slots is None:
            return self._keeps
        return self._states * self._slots.rows * self._slots.members

    @property
    def begin(self) -> tuple[np.ndarray, ...]:
        """What the programs of an update are given beside the buffer: nothing, or where running episodes begin."""
        return () if self.running is None else (self.running.begin,)

    @property
    def buffer(self) -> TrajectoryState | None:
        """What has been collected; None before the first message."""
        return self._buffer

    @property
    def statistics(self) -> Any:
        """What its connectors have learned of their input, as `PolicyState.connectors`."""
        return self._connected.state.shared if self._connected else self.policy.connectors

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords], int]:
        """Book one message per source; nobody learns from the decisions of agents in `untrained`, ids by source.

        Returns each source's actions in its agents' order, finished episodes, and how many decisions got their reward.
        Raises OutsideActionError for what agents cannot have done, or what cannot be learned from.
        """
        if self._slots is None:
            self._allocate(messages)
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        ingested = self._slots.ingest(messages, untrained)
        self._follow()
        self._turn(ingested.steps)
        if ingested.taken is not None or ingested.left_out is not None:
            self._amend(ingested)
        key_data = noise.noise_key(self._run_key, self.decisions)
        moved = () if ingested.origin is None or not self.algorithm.memories else (ingested.origin,)
        action, self._buffer, self._connected = self.programs.decide(
            self.policy, self._buffer, ingested.steps, key_data, self._connected, *moved
        )
        self._pages.append(ingested.steps)
        if self.watch is not None:
            self.watch(ingested.steps)
        self.decisions += 1
        if self.running is None:
            self.fresh += ingested.finished
        else:
            self.running.note(ingested.steps, self._pages)
            self.fresh = self.running.complete
        self.held += ingested.finished
        chosen = Action(continuous=np.asarray(action.continuous), discrete=np.asarray(action.discrete))
        return _by_source(ingested, chosen), ingested.episodes, ingested.finished

    def _amend(self, ingested: Ingested) -> None:
        """Open decisions that were taken otherwise, and those that nobody shall learn from."""
        replace = self.programs.replace_actions
        if ingested.taken is not None and replace is not None:
            members, action = ingested.taken
            self._buffer, raw = replace(self.policy, self._buffer, members, action)
            if self.algorithm.connectors is not None:
                self._connected = connecting.taken(self.algorithm.connectors, self._connected, members, raw, action)
        elif ingested.taken is not None and not self.leave_out_taken:
            raise connecting.not_adopted(self.name, self.algorithm)
        if ingested.left_out is not None:
            self._buffer = self.programs.leave_out(self._buffer, ingested.left_out)

    def taken(self, buffer: TrajectoryState) -> None:
        """Somebody has learned from the buffer: it goes on as `buffer`, of the same shapes."""
        assert self._slots is not None and self._pages is not None
        self._buffer = buffer
        self.held -= self.fresh
        if self.running is None:
            self._pages.taken(self._slots.living)
        else:
            self.running.taken(self._pages)
        self.fresh, self.env_steps, self.full = 0, 0, False

    def begin_anew(self) -> None:
        """Nothing has been seen yet; only the number of decisions goes on."""
        self._slots, self._pages, self._buffer, self._connected = None, None, None, ()
        self.fresh, self.held, self.env_steps, self.full = 0, 0, 0, False
        if self.running is not None:
            self.running = RunningEpisodes()

    def discard(self) -> None:
        """Forget what was collected, as if somebody had learned from it."""
        assert self._slots is not None and self._pages is not None and self._buffer is not None
        self._buffer = self.programs.discard(self._buffer)
        self._pages.taken(self._slots.living)
        if self.running is not None:
            self.running.forget()
        self.fresh, self.held, self.env_steps, self.full = 0, 0, 0, False

    def lose(self, worker: int, incarnation: int) -> int:
        """A process of a worker is no more: drop what its agents had begun. Returns their number, one decision each."""
        if self._slots is None:
            return 0
        return sum(map(self._slots.discard, self._slots.sources(worker, incarnation)))

    def recorded(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Newest real observations and action masks, [N, *shape] and [N, M], for checking an exported policy."""
        if self._slots is None:
            zeros = tuple(np.zeros((1, *sensor.shape), sensor.dtype) for sensor in self.spec.observations)
            return zeros, np.ones((1, self.spec.action.mask_size), bool)
        return self._slots.recorded()

    def _allocate(self, messages: Mapping[Source, BehaviorMessage]) -> None:
        algorithm = self.algorithm
        learned = self.spec
        rows, members = first_size(messages, team_rows=algorithm.team_rows)
        if algorithm.connectors is not None:
            learned = algorithm.connectors.spec
            self._connected = connecting.start(algorithm.connectors, self.policy.connectors, (rows, members))
        self._slots = Slots(
            self.spec,
            team_rows=algorithm.team_rows,
            rows=rows,
            members=members,
            max_length=self._max_length,
            leave_out_taken=self.leave_out_taken,
        )
        self._pages = Pages(capacity(self.keeps, rows, members), rows)
        self._buffer = self.programs.allocate(
            learned,
            algorithm.extras,
            nothing_remembered(algorithm),
            capacity=self._pages.capacity,
            rows=rows,
            members=members,
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
        if self.algorithm.connectors is not None:
            self._connected = connecting.resize(self._connected, (slots.rows, slots.members))
        fitting = capacity(self.keeps, slots.rows, slots.members)
        held = pages.capacity if pages.given > rows else int(pages.size.max()) + MESSAGE
        if held > fitting and slots.rows * pages.capacity > 2 * (slots.rows * fitting + pages.given * pages.capacity):
            self._buffer, self._pages = repage(self._buffer, pages, capacity=fitting)
            if self.running is not None:
                self._warn_of_cuts(self.running.shortened(pages.size - self._pages.size), fitting)
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
        if turning.any() and self.running is not None:
            turning = self._turn_whole(turning, steps)
        if not turning.any():
            return
        waiting = np.asarray((self._buffer.open_at >= 0).any(-1))
        more = self._still_to_come(int(turning.sum()))
        page = pages.turn(turning, waiting)
        if pages.given > self._buffer.shape[1]:
            self._resize((), more)
        self._buffer = self.programs.turn(self._buffer, turning, page.astype(np.int32))
        self.full = self._cells(2 * pages.given) > MOST * capacity(self.keeps, 1, 1)

    def _turn_whole(self, turning: np.ndarray, steps: RowsMessage) -> np.ndarray:
        """Fresh pages for rows [B] that take all of their running episode along, longer ones where that is needed.

        Returns the rows whose episode must be cut: there is no room for all of it.
        """
        assert self.running is not None and self._pages is not None and self._buffer is not None
        pages, running = self._pages, self.running
        length = running.length(pages)
        while (turning & (2 * (length + MESSAGE) > pages.capacity)).any() and self._cells_of(2 * pages.capacity) <= (
            MOST * capacity(self.keeps, 1, 1)
        ):
            pages.capacity *= 2
            turning = pages.full(steps)
        if pages.capacity != self._buffer.shape[0]:
            log.info(
                "%s: episodes are long, room for %d states of each row; the programs are compiled once more.",
                self.name, pages.capacity,
            )  # fmt: skip
            self._resize(())
        cut = turning & (length + MESSAGE > pages.capacity)
        moving = turning & ~cut
        if moving.any():
            begin, page = running.begin, pages.turn(moving, length)
            if pages.given > self._buffer.shape[1]:
                self._resize((), self._still_to_come(int(moving.sum())))
            self._buffer = self.programs.turn_whole(self._buffer, moving, page.astype(np.int32), begin)
            running.turned(moving)
        if cut.any():
            self._warn_of_cuts(int(cut.sum()), pages.capacity)
            running.cut(cut)
        crowded = self._cells(2 * pages.given) > MOST * capacity(self.keeps, 1, 1)
        self.full = crowded and running.complete > 0
        return cut

    def _warn_of_cuts(self, episodes: int, states: int) -> None:
        if self._cut or not episodes:
            return
        self._cut = True
        log.warning(
            "%s: an episode is longer than the %d states that there is room for, and is learned from in pieces in "
            "spite of batch_mode: complete_episodes. Episodes may be endless: set max_episode_length, let the "
            "environment end them, or raise hyperparameters.buffer_size.",
            self.name, states,
        )  # fmt: skip

    def _cells_of(self, states: int) -> int:
        """Cells of a buffer whose pages have so many states."""
        assert self._buffer is not None
        _, pages, members = self._buffer.shape
        return states * pages * members

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
        self._buffer = resize(
            self._buffer, capacity=pages.capacity, pages=room, members=self._slots.members, fresh=fresh
        )


def _by_source(ingested: Ingested, action: Action) -> dict[Source, Action]:
    return {
        source: Action(continuous=action.continuous[places], discrete=action.discrete[places])
        for source, places in ingested.decisions.items()
    }
