"""Keeps ids, held actions and summed rewards of all members in all areas of a player. Numpy only.

The environment has rows, E areas of A members, team after team; the trainer has agents with ids, each team apart. An id
names an agent, from its first episode until it is gone. An agent that ends together with its area's episode is there
again in the next one, as after Unity's `EndEpisode`. One that ends before is gone, as a disabled object is, and the
next agent in its row gets a new id. A group id names one team of one area and stays: a Unity scene keeps one group
object per team.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.types import NO_GROUP, Action, BehaviorSpec, DecisionSteps, TerminalSteps

Rows = tuple[np.ndarray, ...]
"""Areas and rows of some agents, as returned by `np.nonzero`."""


class BehaviorPart(NamedTuple):
    """The members of one behavior in an area, and their spec."""

    name: str  # as in a Unity scene, without team suffix
    spec: BehaviorSpec
    members: int  # capacity of a team; A = teams * members
    teams: int = 1  # in one area; they share the behavior
    truncates: bool = False  # a step may mark its members `truncated`
    first_team: int = 0  # number of its first team in a player: behaviors that play each other have different ones
    group: str | None = None  # likewise: behaviors with an equal name here are mates, in one group of an area


class AreasOutcome(NamedTuple):
    """Outcome of a step, or a reset, in E areas. After a reset no agent has ended."""

    ended: np.ndarray  # bool [E, A], the agent's episode ended with this step
    truncated: np.ndarray  # bool [E, A], of these: cut off, not terminated
    reward: np.ndarray  # float32 [E, A]
    group_reward: np.ndarray  # float32 [E, A]
    last_obs: tuple[np.ndarray, ...]  # float32 [E, A, *shape], of the episode that the step belongs to
    alive: np.ndarray  # bool [E, A], agents that play on or have just begun
    action_mask: np.ndarray  # bool [E, A, M], True: allowed
    obs: tuple[np.ndarray, ...]  # float32 [E, A, *shape], of the agents that play on
    over: np.ndarray  # bool [E], the area's episode ended and a new one began
    stats: Mapping[str, np.ndarray]  # float32 [E] by tag, valid where over


class Teams:
    """Bookkeeping between two messages. Messages and actions are one record for each team, with agents by area, then by
    row.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        areas: int,
        members: int,
        teams: int = 1,
        *,
        first: int = 0,
        stride: int = 1,
        group: int | None = None,
    ) -> None:
        """Make teams of `members` each; A = `teams` * `members`. Ids are `first`, `first + stride` ..., so that no two
        agents of a player's behaviors have the same. `group`: `first` of the behavior with whose teams these share
        their group ids; None: they are apart, and a team of one member has none.
        """
        shape = (areas, teams * members)
        self._team = np.repeat(np.arange(teams), members) == np.arange(teams)[:, None]  # bool [teams, A]
        self._next_id, self._stride = first, stride
        self._agent_id = np.full(shape, -1, np.int64)
        groups = 1 + (first if group is None else group) + stride * np.arange(areas * teams)
        alone = members == 1 and group is None
        self._group_id = (np.full(areas * teams, NO_GROUP) if alone else groups).repeat(members).reshape(shape)
        self._exists = np.zeros(shape, bool)  # an agent with an id, also between two episodes
        self._silent = np.zeros(shape, bool)  # its ending was reported, and it has not asked since
        self._lives = np.zeros(shape, bool)  # also while it pauses: not alive for now, and not ended
        self._reward = np.zeros(shape, np.float32)
        self._group_reward = np.zeros(shape, np.float32)
        self._asked = np.zeros(shape, bool)
        self.actions = Action(
            continuous=np.zeros((*shape, spec.action.continuous_size), np.float32),
            discrete=np.zeros((*shape, len(spec.action.discrete_branches)), np.int32),
        )

    def restart(self, step: AreasOutcome) -> None:
        """Begin new episodes of the present agents after a reset, which ends none of the earlier ones."""
        self._clear(step.alive & ~self._lives)
        self._hold_nothing(step.alive)
        self._name(step.alive)
        self._lives = step.alive

    def absorb(self, step: AreasOutcome) -> tuple[TerminalSteps, ...]:
        """Sum rewards, give ids to new agents, and return the agents that ended, with their last view.

        An agent that has not asked since its last ending ends without a report.
        """
        self._reward += step.reward
        self._group_reward += step.group_reward
        reported = step.ended & ~self._silent
        ended = tuple(self._ended(step, np.nonzero(reported & team)) for team in self._team)
        self._clear(step.ended)
        self._silent |= step.ended
        self._exists &= ~step.ended | step.over[:, None]
        begun = step.alive & (step.ended | ~self._lives)
        self._clear(begun)
        self._name(begun)
        self._lives = step.alive | (self._lives & ~step.ended & ~step.over[:, None])
        return ended

    def ask(self, step: AreasOutcome, due: bool) -> tuple[DecisionSteps, ...]:
        """Return all living agents as asking if a decision is due, else none. Their rewards start again at 0."""
        self._asked = step.alive & due
        deciding = tuple(self._deciding(step, np.nonzero(self._asked & team)) for team in self._team)
        self._reward[self._asked] = 0.0
        self._group_reward[self._asked] = 0.0
        self._silent[self._asked] = False
        return deciding

    def decide(self, actions: Sequence[Action]) -> None:
        """Hold the actions of the agents that asked last, by team; they are repeated until the next ones come."""
        for team, chosen in zip(self._team, actions, strict=True):
            self.actions.continuous[self._asked & team] = chosen.continuous
            self.actions.discrete[self._asked & team] = chosen.discrete

    def _ended(self, step: AreasOutcome, rows: Rows) -> TerminalSteps:
        obs = tuple(obs[rows] for obs in step.last_obs)
        return TerminalSteps(*self._numbers(rows), truncated=step.truncated[rows], obs=obs)

    def _deciding(self, step: AreasOutcome, rows: Rows) -> DecisionSteps:
        obs = tuple(obs[rows] for obs in step.obs)
        return DecisionSteps(*self._numbers(rows), action_mask=step.action_mask[rows], obs=obs)

    def _numbers(self, rows: Rows) -> tuple[np.ndarray, ...]:
        """Return ids, groups, rewards and group rewards."""
        return self._agent_id[rows], self._group_id[rows], self._reward[rows], self._group_reward[rows]

    def _name(self, rows: np.ndarray) -> None:
        """Give ids to agents that begin in `rows` and do not exist yet."""
        new = rows & ~self._exists
        count = int(new.sum())
        self._agent_id[new] = self._next_id + self._stride * np.arange(count)
        self._next_id += self._stride * count
        self._exists |= new
        self._silent &= ~new

    def _clear(self, rows: np.ndarray) -> None:
        """Reset the rows, so that nothing of an episode leaks into the next one."""
        self._reward[rows] = 0.0
        self._group_reward[rows] = 0.0
        self._hold_nothing(rows)

    def _hold_nothing(self, rows: np.ndarray) -> None:
        self.actions.continuous[rows] = 0.0
        self.actions.discrete[rows] = 0
