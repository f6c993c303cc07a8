"""The common return of a team in its episode, read from the group rewards of its members. No JAX here.

All living members receive the same group reward, but in their own messages and for several steps at once, and nothing
on the wire shows which payments are the same. A team's return is therefore read from one member: the return of the team
when that member came, plus its group rewards since. Adding up the payments of all would count them several times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

Member = TypeVar("Member", bound=Hashable)
Team = TypeVar("Team", bound=Hashable)


class Received(NamedTuple):
    """Group rewards of one living member."""

    total: float  # in its life so far
    newest: float | None  # for the decision that this message has rewarded; None: it has rewarded none
    decisions: int


class _Trust(IntEnum):
    """How well the team's return at a member's arrival is known."""

    GUESSED = 0  # no older member was paid with the same message: the value known before
    NEARLY = 1  # read from an older member that ended with that message: rewards after its end in that step are missing
    SURE = 2  # it founded the team, or the value is read from an older member that lives on


class _Receipt(NamedTuple):
    """Group rewards of one member of a team."""

    before: float  # return of the team before the member came, less the member's rewards from other teams
    trust: _Trust  # in `before`
    total: float  # received in its life
    newest: float  # received with this message
    decisions: int

    def rank(self) -> tuple[int, float, int]:
        """Return the key by which the most reliable member is chosen."""
        return self.trust, abs(self.newest), self.decisions


class TeamReturns(Generic[Member, Team]):
    """Members of the living teams, and the return of each team.

    Args:
      received: returns the group rewards of a living member, including this message.
    """

    def __init__(self, received: Callable[[Member], Received]) -> None:
        self._received = received
        self._team_of: dict[Member, Team] = {}
        self._members: dict[Team, dict[Member, None]] = {}  # living ones, in the order in which they came
        self._ended: dict[Team, list[_Receipt]] = {}  # members that ended with this message
        self._founders: dict[Team, None] = {}  # teams that this message has founded
        self._late: dict[Member, None] = {}  # members that came with this message to an existing team
        self._before: dict[Member, tuple[float, _Trust]] = {}  # first two fields of a receipt, where not 0 and SURE
        self._unsure: dict[Member, None] = {}  # members whose receipt is not SURE

    def join(self, member: Member, team: Team, brought: float = 0.0) -> bool:
        """Add a member to a team, after those that end with this message. Return whether it founds the team.

        brought: its group rewards from other teams, part of its total.
        """
        mates = self._members.get(team)
        if mates is None:
            mates = self._members[team] = {}
            self._founders[team] = None
        mates[member], self._team_of[member] = None, team
        founds = team in self._founders
        if not founds:
            self._late[member] = None
        elif brought:
            self._before[member] = -brought, _Trust.SURE
        return founds

    def end(self, member: Member, received: Received) -> Team | None:
        """Remove a member that ends with this message. Return its team; None: it had none."""
        receipt = self._receipt(member, received)
        team = self.leave(member)
        if team is not None:
            self._ended.setdefault(team, []).append(receipt)
        return team

    def leave(self, member: Member) -> Team | None:
        """Remove a member that lives on elsewhere, or is lost. Return its team; None: it had none."""
        if self._before or self._late:  # mostly empty
            self._before.pop(member, None)
            self._unsure.pop(member, None)
            self._late.pop(member, None)
        team = self._team_of.pop(member, None)
        if team is not None:
            del self._members[team][member]
        return team

    def is_over(self, team: Team) -> bool:
        """Return whether a team that is not forgotten has no members left."""
        return not self._members[team]

    def earned(self, team: Team) -> float:
        """Return the return of a team, read from the most reliable member of this message."""
        return self._known(team)[0]

    def forget(self, team: Team) -> None:
        """Forget a team that is over."""
        del self._members[team]
        self._ended.pop(team, None)

    def message_over(self) -> None:
        """Note the teams' returns at the arrival of this message's newcomers, and of earlier ones where it is not sure.

        It is read from an older member once a message pays both.
        """
        known: dict[Team, tuple[float, _Trust]] = {}
        for member in [*self._late, *self._unsure]:
            team, so_far = self._team_of[member], self._received(member)
            if team not in known:
                known[team] = self._known(team)
            earned, trust = known[team]
            if member not in self._late and (so_far.newest is None or trust <= self._before[member][1]):
                continue
            self._before[member] = earned - so_far.total, trust
            self._unsure[member] = None
            if trust is _Trust.SURE:
                del self._unsure[member]
        self._late.clear()
        self._founders.clear()
        self._ended.clear()

    def _known(self, team: Team) -> tuple[float, _Trust]:
        """Return the return of a team, read from one of its members in this message, and how well it is known.

        It is read from the best paid member among those that the message has paid or ended, of equals the longest-lived
        one: a member that ends in the middle of a step does not get the later rewards of that step.
        """
        older = [(mate, self._received(mate)) for mate in self._members[team] if mate not in self._late]
        paid = [self._receipt(mate, received) for mate, received in older if received.newest is not None]
        receipts = paid + self._ended.get(team, [])
        best = max(receipts or [self._receipt(*pair) for pair in older], key=_Receipt.rank)
        lives_on = any(receipt.trust is best.trust for receipt in paid)
        trust = best.trust if lives_on else min(best.trust, _Trust.NEARLY)
        return best.before + best.total, trust if receipts else _Trust.GUESSED

    def _receipt(self, member: Member, received: Received) -> _Receipt:
        total, newest, decisions = received
        return _Receipt(*self._before.get(member, _FOUNDER), total, newest or 0.0, decisions)


_FOUNDER = 0.0, _Trust.SURE
