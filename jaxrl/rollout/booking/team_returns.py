"""What a team has earned together in its episode, read from what its members received. No JAX here.

All members that are there receive the same group reward, but in messages of their own and for several steps at once,
and nothing on the wire tells which payments are the same one. So a team's return is read from one member: what the team
had earned when that member came, and what it has received since. Adding up payments would count them twice.
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
    """How well it is known what a team had earned when a member came."""

    GUESSED = 0  # nobody was paid with the same message: what was known before
    NEARLY = 1  # an older member told, which ended with that message: it misses what came after its end in that step
    SURE = 2  # it founded the team, or an older member told that lives on


class _Receipt(NamedTuple):
    """Group rewards of one member of a team."""

    before: float  # earned by the team before the member came, less what it brought along
    trust: _Trust  # in `before`
    total: float  # received in its life
    newest: float  # received with this message
    decisions: int

    def rank(self) -> tuple[int, float, int]:
        """Return by what the member that knows best is found."""
        return self.trust, abs(self.newest), self.decisions


class TeamReturns(Generic[Member, Team]):
    """Members of the living teams, and what each team has earned.

    Args:
      received: gives what a living member has received, with this message.
    """

    def __init__(self, received: Callable[[Member], Received]) -> None:
        self._received = received
        self._team_of: dict[Member, Team] = {}
        self._members: dict[Team, dict[Member, None]] = {}  # living ones, in the order of their coming
        self._ended: dict[Team, list[_Receipt]] = {}  # with this message
        self._founders: dict[Team, None] = {}  # teams that this message has founded
        self._late: dict[Member, None] = {}  # came with this message to a team that was there
        self._before: dict[Member, tuple[float, _Trust]] = {}  # first two fields of a receipt, where not 0 and SURE
        self._unsure: dict[Member, None] = {}  # members whose receipt is not SURE

    def join(self, member: Member, team: Team, brought: float = 0.0) -> bool:
        """Add a member to a team, after those that end with this message. Return whether it founds the team.

        brought: what it has received in other teams, part of its total.
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
        if self._before or self._late:  # mostly nobody
            self._before.pop(member, None)
            self._unsure.pop(member, None)
            self._late.pop(member, None)
        team = self._team_of.pop(member, None)
        if team is not None:
            del self._members[team][member]
        return team

    def is_over(self, team: Team) -> bool:
        """Return whether nobody is left of a team that is not forgotten."""
        return not self._members[team]

    def earned(self, team: Team) -> float:
        """Return what a team has earned, as those know best whom this message has paid or ended."""
        return self._known(team)[0]

    def forget(self, team: Team) -> None:
        """Forget a team that is over."""
        del self._members[team]
        self._ended.pop(team, None)

    def message_over(self) -> None:
        """Note what teams had earned when their newcomers came: of those of this message, and where it is not sure.

        An older member tells, as soon as one message pays both of them.
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
        """Return what a team has earned, as its members of this message know, and how well they do.

        Those count whom the message has paid or ended; the best paid one, for who ends in the middle of a step does not
        get what the others get after that; of equals the longest-lived.
        """
        older = [(mate, self._received(mate)) for mate in self._members[team] if mate not in self._late]
        paid = [self._receipt(mate, received) for mate, received in older if received.newest is not None]
        told = paid + self._ended.get(team, [])
        best = max(told or [self._receipt(*one) for one in older], key=_Receipt.rank)
        lives_on = any(one.trust is best.trust for one in paid)
        trust = best.trust if lives_on else min(best.trust, _Trust.NEARLY)
        return best.before + best.total, trust if told else _Trust.GUESSED

    def _receipt(self, member: Member, received: Received) -> _Receipt:
        total, newest, decisions = received
        return _Receipt(*self._before.get(member, _FOUNDER), total, newest or 0.0, decisions)


_FOUNDER = 0.0, _Trust.SURE
