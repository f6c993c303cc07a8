"""Pending decisions that are not learned from, and agents that took another action than sent. Numpy only.

A decision is left out because its agent leaves no samples (`training_enabled: false` in its infos, or a mapping that
says so), or because its action was not the policy's and `env_settings.outside_actions` is `leave_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from jaxrl.rollout.booking.occupants import Occupant, Occupants, Places, Source, fit
from jaxrl.rollout.booking.records import Ending
from jaxrl.types import Action, ActionSpec, BehaviorMessage, JaxrlError, Taken

TRAINING_ENABLED = "training_enabled"
"""Key of an agent's infos; false: the decision that it asks for now is not learned from."""

Found = list[tuple[Occupant, Action, int]]
"""Slot of an agent that took another action, the actions of its source, and its index in these."""


class ExternalActionError(JaxrlError):
    """Actions that agents are said to have taken are impossible, or cannot be learned from."""


class UntrainedDecisions:
    """Decisions that are not learned from. `open`, bool [B, A]: members whose pending decision is left out."""

    def __init__(self, action_of: Callable[[Source], ActionSpec], *, leave_out_taken: bool) -> None:
        self.open = np.zeros((0, 0), bool)
        self._any = False  # whether `open` has any: nearly never
        self._action_of = action_of
        self._leave_out_taken = leave_out_taken

    def resize(self, rows: int, members: int) -> None:
        """Make room; contents keep their place."""
        self.open = fit(self.open, rows, members)

    def taken(self, messages: Mapping[Source, BehaviorMessage], occupants: Occupants) -> Found:
        """Return the other actions of agents with a pending decision. Call it before the messages are booked.

        Raises ExternalActionError for actions that the behavior does not have.
        """
        found: Found = []
        for source, steps in messages.items():
            if steps.taken is None:
                continue
            _check(steps.taken, self._action_of(source), source)
            homes = occupants.of(source)
            places = [(i, homes.get(agent)) for i, agent in enumerate(steps.taken.agent_id.tolist())]
            found += [(home, steps.taken.action, i) for i, home in places if home is not None]
        if found and self._leave_out_taken:
            for home, _, _ in found:
                self.open[home.row, home.member] = True
            self._any = True
        return found

    def concerns(self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]]) -> bool:
        """Return whether `tell` has anything to do."""
        return self._any or bool(untrained) or any(steps.infos for steps in messages.values())

    def tell(
        self,
        decisions: Mapping[Source, Places],
        messages: Mapping[Source, BehaviorMessage],
        untrained: Mapping[Source, Collection[int]],
        *,
        ending: np.ndarray,
        ended: np.ndarray,
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the untrained decisions whose outcome came, and note the new ones, after the messages were booked.

        Args:
          decisions: slots of the deciding agents.
          ending: uint8 [B, A], of the pending decisions.
          ended: bool [B, A], members that left with these messages, but for discarded ones; some outcomes come later.

        Returns bool [B, A], None if all are False, and which of the finished decisions were untrained, bool [B, A].
        """
        arrived = self.open & (ending != Ending.OPEN)
        finished = self.open & (ended | (ending == Ending.CONTINUES))
        self.open &= ~arrived
        for source, places in decisions.items():
            steps = messages[source]
            mute = {agent for agent, about in steps.infos.items() if not about.get(TRAINING_ENABLED, True)}
            mute.update(untrained.get(source, ()))
            if mute:
                at = [i for i, agent in enumerate(steps.deciding.agent_id.tolist()) if agent in mute]
                self.open.put(places[at], True)
        self._any = bool(self.open.any())
        return (arrived if arrived.any() else None), finished


def dense(found: Found, spec: ActionSpec, rows: int, columns: np.ndarray) -> tuple[np.ndarray, Action] | None:
    """Return other actions as arrays over rows and members: bool [B, A], [B, A, C] and [B, A, D]; None without any.

    columns: int64 [A], the members that have these actions, among all of a row.
    """
    member_of_column = {column: place for place, column in enumerate(columns.tolist())}
    found = [entry for entry in found if entry[0].member in member_of_column]
    if not found:
        return None
    shape = rows, len(columns)
    members = np.zeros(shape, bool)
    continuous = np.zeros((*shape, spec.continuous_size), np.float32)
    discrete = np.zeros((*shape, len(spec.discrete_branches)), np.int32)
    for home, action, i in found:
        at = home.row, member_of_column[home.member]
        members[at], continuous[at], discrete[at] = True, action.continuous[i], action.discrete[i]
    return members, Action(continuous=continuous, discrete=discrete)


def _check(taken: Taken, spec: ActionSpec, source: Source) -> None:
    count = len(taken.agent_id)
    got = np.shape(taken.action.continuous), np.shape(taken.action.discrete)
    wanted = (count, spec.continuous_size), (count, len(spec.discrete_branches))
    name = f"worker {source.worker}, {source.behavior_id}: actions that agents took themselves"
    if got != wanted:
        raise ExternalActionError(f"{name}: got shapes {got[0]} and {got[1]}, expected {wanted[0]} and {wanted[1]}")
    finite = np.isfinite(taken.action.continuous).all(-1)
    if not finite.all():
        agent = int(taken.agent_id[int(np.argmin(finite))])
        raise ExternalActionError(f"{name}: agent {agent} took an action that is not finite")
    discrete = np.asarray(taken.action.discrete)
    beyond = (discrete < 0) | (discrete >= np.array(spec.discrete_branches, np.int64)[None])
    if beyond.any():
        i, branch = np.argwhere(beyond)[0].tolist()
        raise ExternalActionError(
            f"{name}: agent {int(taken.agent_id[i])} took {int(discrete[i, branch])} in branch {branch}, "
            f"expected 0 to {spec.discrete_branches[branch] - 1}"
        )
