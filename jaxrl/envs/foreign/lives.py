"""Follows the living agents of one copy of an environment: beginnings, rewards and endings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.behaviors import AgentKind, Behaviors, described
from jaxrl.envs.foreign.masks import MaskError, closed_branches
from jaxrl.envs.foreign.message import Draft, Report
from jaxrl.envs.foreign.observations import MASK, ObservationError, SpaceError
from jaxrl.envs.interface import BadDataError, EnvironmentFailure
from jaxrl.types import NO_GROUP

log = logging.getLogger(__name__)

COMMON = "__common__"
"""Key of an area's infos for entries that concern all of its agents (RLlib's word)."""
RESERVED = (COMMON, "__all__")
"""Names that no agent may have."""
ACTION_TAKEN = "action_taken"
"""Key of `infos` for the action that an agent really took, as an element of its action space."""
LARGEST = 1024
"""Largest number of values in an array, entries in a list, or letters in a text."""
DEEPEST = 3
"""Largest depth of nested dictionaries."""


@dataclass
class Life:
    """Episode of one agent."""

    kind: AgentKind
    agent_id: int
    obs: list[np.ndarray] | None = None  # the newest
    reward: float = 0.0  # since the last report
    group_reward: float = 0.0
    infos: dict[str, Any] = field(default_factory=dict)  # since the last report
    taken: tuple[np.ndarray, np.ndarray] | None = None


class Lives:
    """Follows one copy.

    Args:
        place: worker and area, for errors.
        number: of the copy.
        shares: pay the mean of a team's rewards to all its members, instead of their own.
        ids: gives the agent ids of a worker.
    """

    def __init__(
        self, area: Area, behaviors: Behaviors, place: str, *, number: int, shares: bool, ids: Iterator[int]
    ) -> None:
        self._area = area
        self._behaviors = behaviors
        self._place = place
        self._copy = number
        self._shares = shares
        self._ids = ids
        self._lives: dict[Any, Life] = {}

    def begin(self, outcome: AreaOutcome, draft: Draft) -> list[tuple[AgentKind, Any]]:
        """Begin a new episode of the copy, and forget the old agents. Return agents that ask, in the draft's order.

        Raises:
            EnvironmentFailure: no agent lives after a reset, or as `follow`.
        """
        self._lives = {}
        if outcome.over:
            raise EnvironmentFailure(f"{self._place}: reset gave no agent; expected at least one")
        return self.follow(outcome, draft)

    def known(self) -> dict[str, list[int]]:
        """Return ids of the living agents, by behavior."""
        ids: dict[str, list[int]] = {}
        for life in self._lives.values():
            ids.setdefault(life.kind.name, []).append(life.agent_id)
        return ids

    def follow(self, outcome: AreaOutcome, draft: Draft) -> list[tuple[AgentKind, Any]]:
        """Register the outcome of one step. Return agents that ask, in the order of the draft.

        An agent that is no longer among the living has ended: as its flags say; without flags it is terminated if the
        whole episode is over, else truncated. Its last observation is repeated if it has no new one.

        Raises:
            EnvironmentFailure: an observation, reward or mask does not fit; the text names worker, area and agent.
        """
        before = set(self._lives)
        self._see(outcome)
        self._pay(outcome.reward, before)
        over = outcome.over
        for agent in [agent for agent in self._lives if agent not in outcome.living]:
            life = self._lives.pop(agent)
            terminated = bool(outcome.terminated.get(agent, False))
            truncated = bool(outcome.truncated.get(agent, False))
            if life.obs is None:  # it was never seen: no decision was ever made for it
                continue
            if not terminated and not truncated:
                truncated = not over
            draft.end(life.kind, self._report(agent, life, truncated=truncated and not terminated))
        asked = [agent for agent in outcome.asked if agent in outcome.obs and agent in self._lives]
        if len(set(asked)) < len(asked):
            agent = next(agent for i, agent in enumerate(asked) if agent in asked[:i])
            raise EnvironmentFailure(f"{self._where(agent)}: is asked twice in one step; expected each agent once")
        for agent in asked:
            life = self._lives[agent]
            draft.ask(life.kind, self._report(agent, life, mask=self._mask(agent, life.kind, outcome)))
        return [(self._lives[agent].kind, agent) for agent in asked]

    def _see(self, outcome: AreaOutcome) -> None:
        """Register newest observations and infos; new living agents begin."""
        for agent in outcome.living:
            if agent not in self._lives:
                if agent in RESERVED:
                    raise EnvironmentFailure(f"{self._place}: {agent!r} is no name for an agent, it means all of them")
                self._lives[agent] = Life(kind=self._kind(agent), agent_id=next(self._ids))
        for agent, life in self._lives.items():
            if agent in outcome.obs:
                try:
                    life.obs = life.kind.observation.read(outcome.obs[agent])
                except ObservationError as error:
                    raise BadDataError(f"{self._where(agent)}, {error}") from error
            info = outcome.infos.get(agent)
            if info:
                self._hear(agent, life, info)

    def _hear(self, agent: Any, life: Life, given: Mapping[Any, Any]) -> None:
        life.infos = plain({key: value for key, value in given.items() if key not in (MASK, ACTION_TAKEN)})
        if given.get(ACTION_TAKEN) is not None:
            try:
                life.taken = life.kind.action.columns(given[ACTION_TAKEN])
            except (ValueError, TypeError, LookupError) as error:
                raise EnvironmentFailure(f"{self._where(agent)}, infos['{ACTION_TAKEN}']: {error}") from error

    def _pay(self, rewards: Mapping[Any, Any], before: Collection[Any]) -> None:
        """Pay rewards; with `shares`, members that lived `before` the step share those of their team."""
        teams: dict[str, list[tuple[Life, float]]] = {}
        for agent, life in self._lives.items():
            reward = self._number(agent, rewards.get(agent, 0.0))
            if self._shares and agent in before:
                teams.setdefault(life.kind.name, []).append((life, reward))
            else:
                life.reward += reward
        for members in teams.values():
            mean = sum(reward for _, reward in members) / len(members)
            for life, _ in members:
                life.group_reward += mean

    def _report(self, agent: Any, life: Life, *, truncated: bool = False, mask: np.ndarray | None = None) -> Report:
        assert life.obs is not None
        report = Report(
            where=self._where(agent),
            area=self._copy,
            agent_id=life.agent_id,
            group_id=self._group(agent),
            reward=life.reward,
            group_reward=life.group_reward,
            obs=life.obs,
            infos=life.infos,
            taken=life.taken,
            mask=mask,
            truncated=truncated,
        )
        life.reward, life.group_reward, life.infos, life.taken = 0.0, 0.0, {}, None
        return report

    def _group(self, agent: Any) -> int:
        """Return the number of an agent's team."""
        return self._copy * self._area.sides + (self._area.side(agent) or 0) + 1 if self._area.teams else NO_GROUP

    def _kind(self, agent: Any) -> AgentKind:
        try:
            return self._behaviors.kind(described(self._area, agent))
        except SpaceError as error:
            raise SpaceError(f"{self._where(agent)}: {error}") from error

    def _mask(self, agent: Any, kind: AgentKind, outcome: AreaOutcome) -> np.ndarray | None:
        """Return bool [M], from the observation or from `infos["action_mask"]`; None: all choices are allowed."""
        try:
            mask = kind.mask(outcome.obs[agent], outcome.infos.get(agent, {}).get(MASK))
        except (MaskError, ObservationError) as error:
            raise EnvironmentFailure(f"{self._where(agent)}, {error}") from error
        if mask is not None and not kind.warned_of_mask and not mask.all():
            closed = closed_branches(kind.action.spec.discrete_branches, mask)
            if closed:
                kind.warned_of_mask = True
                log.warning(
                    "%s, %s: every choice of branch %d is forbidden. One is drawn from all of them then, with equal "
                    "probabilities; leave one allowed.", self._where(agent), MASK, closed[0],
                )  # fmt: skip
        return mask

    def _number(self, agent: Any, reward: Any) -> float:
        if isinstance(reward, float | int):
            return float(reward)
        numbers = np.asarray(reward)
        if numbers.size != 1 or numbers.dtype.kind not in "biuf":
            raise EnvironmentFailure(f"{self._where(agent)}, reward: got {reward!r}, expected one number")
        return float(numbers.reshape(-1)[0])

    def _where(self, agent: Any) -> str:
        return f"{self._place}, agent {agent!r}"


def plain(infos: Mapping[Any, Any], deepest: int = DEEPEST) -> dict[str, Any]:
    """Return small and plain entries of `infos`: numbers, truth values, texts, None, and arrays, lists and dictionaries
    of them. Keys become texts. Arrays are copied.
    """
    entries = {}
    for key, value in infos.items():
        known, small = _kept(value, deepest)
        if known:
            entries[str(key)] = small
    return entries


def _kept(value: Any, deepest: int) -> tuple[bool, Any]:
    """Return whether a value is small and plain, and its copy."""
    if value is None or isinstance(value, bool | int | float):
        return True, value
    if isinstance(value, str):
        return len(value) <= LARGEST, value
    if isinstance(value, np.generic):
        return value.dtype.kind in "biufU", value.item()
    if isinstance(value, np.ndarray):
        small = value.dtype.kind in "biuf" and value.size <= LARGEST
        return small, value.copy() if small else None
    if isinstance(value, list | tuple) and len(value) <= LARGEST:
        parts = [_kept(part, 0) for part in value]
        return all(known for known, _ in parts), [part for _, part in parts]
    if isinstance(value, Mapping) and deepest:
        return True, plain(value, deepest - 1)
    return False, None
