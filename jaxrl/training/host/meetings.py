"""When hosts that learn as one meet, what they tell each other then, and what each does after it.

A host comes to a meeting when one of its behaviors has collected its share, is seen for the first time or may be at its
end, and when the run ends; it waits there until all have come. From what all are told they conclude the same: which
behaviors are known to all, at which step each is, who is at its end, and from which all learn now, in which order.
Lessons are those that host 0 has come to.

All learn from a behavior as soon as their shares together are there: its agents may be in the games of one host alone.
Until all have seen it nobody does. Which decisions an update learns from depends on no clock: in lockstep a run with
the same number of hosts repeats bit for bit. An end is told at a meeting, the only moment at which all wait for each
other, and so all end at the same one; a host that is gone or fails ends the others (`training.hosts`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.together import JoinedLearner, Together
from jaxrl.training.lessons import Lessons

log = logging.getLogger(__name__)


class Standing(NamedTuple):
    """What one host says of a behavior; what was collected is that of all of its team."""

    finished: int  # decisions since the last meeting
    stopped: bool  # by a rule of the settings' `stop`
    had: int  # collected, and what is learned from when it is more
    wanted: int
    held: int  # decisions that the buffer holds
    fresh: int  # those of them that an update would be given
    full: bool  # it has no room for more
    shapes: Sequence[tuple[int, ...]]  # [T, B, A] of each rollout; nothing before the first message


class Meetings:
    """Those of a run, as one of its hosts sees them.

    Args:
      behaviors: of this host, which are added to.
      lessons: of this host.
    """

    def __init__(self, together: Together, behaviors: Mapping[str, Behavior], lessons: Lessons) -> None:
        self._together = together
        self._behaviors = behaviors
        self._lessons = lessons
        self.lessons: Mapping[str, int] = {}  # to follow: those of host 0 at the last meeting, by parameter
        self._known: list[str] = []  # behaviors that all hosts have seen
        self._told: set[str] = set()  # those that this one has spoken of
        self._missed: set[str] = set()  # those of which it was said that others do not see them
        self._over = False  # somebody has ended, and so has everybody

    @property
    def unfinished(self) -> bool:
        """Whether a behavior has something left to do, or to tell of its last step.

        One that other hosts have not seen is not waited for.
        """
        known = [self._behaviors[name] for name in self._known]
        return not self._over and (not known or any(of.unfinished() or _joined(of).owed > 0 for of in known))

    @property
    def due(self) -> bool:
        """Whether this host has something to say."""
        if self._over:
            return False
        found = self._behaviors.values()
        return self._behaviors.keys() != self._told or any(
            of.unfinished() and (of.due() or _joined(of).passing) for of in found
        )

    def hold(self) -> list[Behavior]:
        """Wait until all have come; the behaviors that all hosts learn from now, in this order."""
        every = self._say(ends=False)
        for behavior in self._behaviors.values():
            if behavior.name not in every and behavior.due():
                self._leave_out(behavior)
        found = [] if self._over else [self._behaviors[name] for name, of in every.items() if _enough(of)]
        found = [of for of in found if of.unfinished() and (not of.team or of.team[0].name == of.name)]
        for behavior in found:
            rooms = zip(*(of.shapes for of in every[behavior.name]), strict=True)
            _joined(behavior).shapes = [tuple(map(max, zip(*sizes, strict=True))) for sizes in rooms]
            _joined(behavior).brought = sum(of.fresh for of in every[behavior.name])
        return found

    def discard(self) -> None:
        """Forget what was collected of behaviors at their end, or where nobody learns from those who act."""
        for behavior in self._behaviors.values():
            if behavior.due() and not (behavior.unfinished() and behavior.collector.held):
                behavior.collector.discard()

    def leave(self) -> None:
        """This host is at its end; the others end at the next meeting. Nothing if they have."""
        if not self._over:
            self._say(ends=True)

    def _say(self, *, ends: bool) -> dict[str, list[Standing]]:
        """Tell all how it stands here; how it stands everywhere, by behavior that all have seen."""
        self._told = set(self._behaviors)
        standings = {name: _standing(of) for name, of in self._behaviors.items()}
        every = self._together.every([ends, standings, self._lessons.numbers])
        self._over = any(of[0] for of in every)
        self.lessons = every[0][2] if self._together.index else {}
        said = [{name: Standing(*of) for name, of in standings.items()} for _, standings, _ in every]
        known = [name for name in said[0] if all(name in of for of in said)]
        for name in known:
            joined = _joined(self._behaviors[name])
            finished = sum(of[name].finished for of in said)
            if name not in self._known and self._together.starts_elsewhere:
                self._behaviors[name].begin_as_first(self._together)
                finished = 0
            joined.count(finished, at_once=self._over)
            joined.ended = any(of[name].stopped for of in said)
        self._known = known
        return {name: [of[name] for of in said] for name in known}

    def _leave_out(self, behavior: Behavior) -> None:
        """Nobody learns from a behavior that others have not seen."""
        behavior.collector.discard()
        if behavior.name not in self._missed:
            self._missed.add(behavior.name)
            log.warning(
                "%s: this host has collected its share, and another one has not seen an agent of it so far: nobody "
                "learns from it until all have.",
                behavior.name,
            )


def _joined(behavior: Behavior) -> JoinedLearner:
    assert isinstance(behavior.learner, JoinedLearner)
    return behavior.learner


def _standing(behavior: Behavior) -> Standing:
    joined, collector = _joined(behavior), behavior.collector
    had, wanted = behavior.collected
    shapes = joined.shapes_of(collector)
    there = collector.held, collector.fresh, collector.full
    return Standing(joined.finished, joined.stopped, had, wanted, *there, shapes)


def _enough(standings: Sequence[Standing]) -> bool:
    """Whether all have a buffer, there is something in one, and the shares together are there or no room is left."""
    there = all(of.shapes for of in standings) and any(of.held for of in standings)
    return there and (
        any(of.full for of in standings) or sum(of.had for of in standings) > sum(of.wanted for of in standings)
    )
