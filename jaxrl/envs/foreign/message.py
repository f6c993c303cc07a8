"""Collects reports of single agents into the arrays of one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.foreign.behaviors import AgentKind
from jaxrl.envs.interface import BadDataError
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, Taken, ended_and_deciding


class Report(NamedTuple):
    """Part of a message that concerns one agent."""

    where: str  # worker, area and name, for errors
    area: int
    agent_id: int
    group_id: int
    reward: float  # own, since its last report
    group_reward: float
    obs: Sequence[np.ndarray]  # [*shape], one per sensor
    infos: Mapping[str, Any]
    taken: tuple[np.ndarray, np.ndarray] | None  # [C] and [D], if it took another action than it was sent
    mask: np.ndarray | None = None  # bool [M]; None: all choices are allowed, or it ended
    truncated: bool = False  # of an end


class BadReportError(BadDataError):
    """A report of an agent of the copy `area` cannot be used."""

    def __init__(self, text: str, area: int) -> None:
        super().__init__(text)
        self.area = area

    def __reduce__(self) -> Any:
        return BadDataError, self.args


class Draft:
    """A growing message: agents that ended and agents that ask, by behavior, each in the order of their reports."""

    def __init__(self) -> None:
        self._kinds: dict[str, AgentKind] = {}
        self._ended: dict[str, list[Report]] = {}
        self._asking: dict[str, list[Report]] = {}

    def end(self, kind: AgentKind, report: Report) -> None:
        """Add the last report of an agent whose episode is over."""
        self._kinds[kind.name] = kind
        self._ended.setdefault(kind.name, []).append(report)

    def ask(self, kind: AgentKind, report: Report) -> None:
        """Add the report of an agent that asks for an action."""
        self._kinds[kind.name] = kind
        self._asking.setdefault(kind.name, []).append(report)

    def drop(self, area: int, *, endings: bool) -> dict[str, list[int]]:
        """Remove reports of a copy's agents, with or without their endings; return their ids by behavior."""
        ids: dict[str, list[int]] = {}
        for reports in (self._asking, self._ended) if endings else (self._asking,):
            for name, said in reports.items():
                ids.setdefault(name, []).extend(report.agent_id for report in said if report.area == area)
                reports[name] = [report for report in said if report.area != area]
        self._kinds = {name: k for name, k in self._kinds.items() if self._ended.get(name) or self._asking.get(name)}
        return ids

    @property
    def empty(self) -> bool:
        """There are no reports."""
        return not self._kinds

    def messages(self) -> dict[str, BehaviorMessage]:
        """Return all reports, by behavior.

        Raises:
            BadReportError: an observation or reward is not finite; the text says which agent's.
        """
        return {
            name: _message(kind.spec, self._ended.get(name, []), self._asking.get(name, []))
            for name, kind in self._kinds.items()
        }


def _message(spec: BehaviorSpec, ended: list[Report], asking: list[Report]) -> BehaviorMessage:
    everybody = ended + asking
    obs = tuple(map(np.stack, zip(*(report.obs for report in everybody), strict=True)))
    for sensor, array in zip(spec.observations, obs, strict=True):
        _check_finite(f"sensor {sensor.name!r}", array, everybody)
    rewards = np.array([(report.reward, report.group_reward) for report in everybody], np.float32)
    _check_finite("reward", rewards, everybody)
    ids = np.array([(report.agent_id, report.group_id) for report in everybody], np.int64)
    (agent_id, group_id), (own, group) = np.ascontiguousarray(ids.T), np.ascontiguousarray(rewards.T)
    truncated = np.array([report.truncated for report in ended], np.bool_)
    return BehaviorMessage(
        *ended_and_deciding(
            len(ended), (agent_id, group_id, own, group), obs, truncated=truncated, action_mask=_masks(spec, asking)
        ),
        infos={report.agent_id: report.infos for report in everybody if report.infos},
        taken=_taken(everybody),
    )


def _check_finite(what: str, values: np.ndarray, reports: list[Report]) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    position = np.unravel_index(int(np.argmin(finite)), values.shape)
    report = reports[int(position[0])]
    text = f"{report.where}, {what}: {values[position]} is not a finite number; mend the environment's code"
    raise BadReportError(text, report.area)


def _masks(spec: BehaviorSpec, asking: list[Report]) -> np.ndarray:
    masks = np.ones((len(asking), spec.action.mask_size), np.bool_)
    for row, report in enumerate(asking):
        if report.mask is not None:
            masks[row] = report.mask
    return masks


def _taken(reports: list[Report]) -> Taken | None:
    taken = [(report.agent_id, report.taken) for report in reports if report.taken is not None]
    if not taken:
        return None
    return Taken(
        agent_id=np.array([agent for agent, _ in taken], np.int64),
        action=Action(
            continuous=np.stack([columns[0] for _, columns in taken]),
            discrete=np.stack([columns[1] for _, columns in taken]),
        ),
    )
