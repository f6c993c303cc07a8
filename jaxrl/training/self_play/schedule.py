"""When a snapshot, another opponent and another learning team are due, and whose turn to learn comes next. No JAX."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from jaxrl.settings.behavior import SelfPlaySettings

QUEUE = 10
"""Teams that wait for their turn at most, as in ML-Agents; with more the one that waits longest is forgotten."""


@dataclass
class Schedule:
    """The clocks of one behavior. Something is due when MORE than its number of steps have passed, as in ML-Agents."""

    settings: SelfPlaySettings
    last_save: int = 0  # trainer step
    last_change: int = 0  # trainer step
    last_swap: int = 0  # ghost step

    def save_due(self, step: int) -> bool:
        """A snapshot, at this trainer step; if so, the next is counted from here."""
        due = step - self.last_save > self.settings.save_steps
        self.last_save = step if due else self.last_save
        return due

    def change_due(self, step: int) -> bool:
        """The end of the learning team's turn, at this trainer step; if so, the next is counted from here."""
        due = step - self.last_change > self.settings.team_change
        self.last_change = step if due else self.last_change
        return due

    def swap_due(self, ghost_step: int, *, changed: bool) -> bool:
        """New opponents: at this ghost step, or because the learning team has `changed`; counted from here then."""
        due = changed or ghost_step - self.last_swap > self.settings.swap_steps
        self.last_swap = ghost_step if due else self.last_swap
        return due


class Rotation:
    """Which team of all behaviors learns: they take turns in the order in which they were seen first."""

    def __init__(self, learning: int | None = None, queue: Iterable[int] = ()) -> None:
        self.learning = learning  # None: no team yet
        self.queue = deque(queue, maxlen=QUEUE)

    def join(self, team: int) -> None:
        """A team that is seen for the first time: it learns if nobody does, and waits for its turn otherwise."""
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self.queue:
            self.queue.append(team)

    def change(self) -> bool:
        """The learning team goes to the end of the queue and the first of it learns; whether it is another one."""
        assert self.learning is not None
        before = self.learning
        self.queue.append(before)
        self.learning = self.queue.popleft()
        return self.learning != before
