"""Steps copies of a foreign environment, side by side in one process, as a `HostEnv`."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from jaxrl.envs.action_checks import check_actions
from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.behaviors import AgentKind, Behaviors, expected
from jaxrl.envs.foreign.lives import COMMON, Lives, plain
from jaxrl.envs.foreign.message import BadReportError, Draft
from jaxrl.envs.foreign.rendering import NOTHING_DRAWN, DrawingOptions, Rendering
from jaxrl.envs.interface import BadDataError, EnvironmentFailure
from jaxrl.envs.parameters import Draws
from jaxrl.own_code import calling
from jaxrl.types import Action, Aggregation, BehaviorMessage, CopyFault, EnvironmentStat, EnvMessage, ParameterValue

logger = logging.getLogger(__name__)

_MONITOR = {"r": "Game/Return", "l": "Game/Length"}
"""Statistics from `infos["episode"]`, which monitors such as RecordEpisodeStatistics write at the end of a game."""


class ForeignEnvironment:
    """Steps `areas` copies one after the other; a copy whose episode is over begins the next one in the same message.

    A copy that fails in a step is made anew, and begins in the same message, which names its old agents; nothing else
    is reported of them. The other copies go on. If it cannot be made or begin, the whole environment fails.

    Environment parameters are the `options` with which the episodes that begin from then on are reset.

    Args:
        worker: number of this environment.
        name: as in `--env`, for texts.
        make_area: makes copy number i.
        areas: number of copies.
        seed: of this worker. With the number of a copy it determines all that is random in it.
        team_reward: the mean of a team's rewards is paid to all its members as group reward, in place of their own.
        timeout: seconds without any agent that asks for a decision.
        drawing: options for pictures of copy 0 of worker 0.
        about: one line for the log.

    Raises:
        EnvironmentFailure: a copy cannot be made; the copies made before are closed.
    """

    def __init__(
        self,
        *,
        worker: int,
        name: str,
        make_area: Callable[[int], Area],
        areas: int,
        seed: int,
        team_reward: bool = False,
        timeout: float = 60.0,
        drawing: DrawingOptions = NOTHING_DRAWN,
        about: str = "",
    ) -> None:
        self.about = about
        self._worker = worker
        self._name = name
        self._seed = seed
        self._timeout = timeout
        self._idle = 0.0
        self._rendering: Rendering | None = None
        self._behaviors = Behaviors()
        self._specs: dict[str, Any] = {}
        self._draws = Draws()
        self._salt: int | None = None  # of samplers: seed of the last seeded reset
        self._seeds: list[int] | None = area_seeds(seed, areas)  # None: used up
        self._asked: dict[str, list[tuple[int, Any]]] = {}
        self._asked_ids: dict[str, np.ndarray] = {}
        self._areas: list[Area] = []
        self._lives: list[Lives] = []
        self._make_area = make_area
        self._shares = team_reward
        self._ids = itertools.count()  # an id names one episode of one agent and is never used again
        self._faults: list[CopyFault] = []  # since the last message
        self._renewed = 0
        try:
            for area in range(areas):
                self._areas.append(self._made(area))
                self._lives.append(self._followed(area))
            if drawing.wanted and worker == 0:
                rate = self._areas[0].frames_per_second
                self._rendering = Rendering(drawing, self._place(0), frames_per_second=rate)
        except BaseException:
            self.close()
            raise

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Begin an episode in every copy.

        The first reset, and one with a seed, make everything random repeat itself; another one goes on from there.

        Raises:
            EnvironmentFailure: a copy raised an error or returned invalid data; the text names worker, area and agent.
        """
        start = time.perf_counter()
        if seed is not None:
            self._salt, self._seed, self._renewed = seed, seed, 0
            self._seeds = area_seeds(seed, len(self._areas))
        self.set_parameters(parameters or {})
        seeds, self._seeds = self._seeds or [None] * len(self._areas), None
        self._idle = 0.0
        draft, infos = Draft(), {}
        self._asked = {}
        outcomes = [self._reset(area, area_seed) for area, area_seed in enumerate(seeds)]
        self._announce(outcomes)
        for area, outcome in enumerate(outcomes):
            self._begin(area, outcome, draft, infos)
        return self._message(draft, infos, [], start)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """Step every copy; several times if no agent asks or has ended.

        Raises:
            ActionError: actions that do not fit the agents that asked; nothing was done.
            EnvironmentFailure: as `reset`, or no agent asks for longer than the time-out.
        """
        start = time.perf_counter()
        check_actions(actions, self._asked_ids, self._specs)
        copy_actions = self._by_area(actions)
        while True:
            draft, infos, stats = Draft(), {}, []
            self._asked = {}
            for area, of_area in enumerate(copy_actions):
                self._advance(area, of_area, draft, infos, stats)
            if not draft.empty:
                return self._message(draft, infos, stats, start)
            self._check_idle(start)
            copy_actions = [{} for _ in self._areas]

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Set options of later resets: numbers; each episode of each copy draws from a sampler."""
        self._draws.set(parameters, self._salt)

    def close(self) -> None:
        """Close all copies, also if one of them fails to close."""
        areas, self._areas = self._areas, []
        with ExitStack() as stack:
            for number, area in enumerate(areas):
                stack.enter_context(self._reporting(number, "closing it"))
                stack.callback(area.close)
            if self._rendering is not None:
                stack.callback(self._rendering.close)

    def _reset(self, area: int, seed: int | None) -> AreaOutcome:
        with self._reporting(area, "reset"):
            return self._areas[area].reset(seed, self._draws.next() or None)

    def _announce(self, outcomes: Sequence[AreaOutcome]) -> None:
        """Name the behaviors of all copies together, before any agent is registered."""
        agents = []
        for area, outcome in enumerate(outcomes):
            with self._reporting(area, "what reset gave"):
                agents += expected(self._areas[area], outcome)
        self._behaviors.announce(agents)

    def _begin(self, area: int, outcome: AreaOutcome, draft: Draft, infos: dict[str, Any]) -> None:
        if self._rendering is not None and area == 0:
            with self._reporting(area, "render"):
                self._rendering.begin(self._areas[area].render)
        with self._reporting(area, "what reset gave"):
            self._note(area, self._lives[area].begin(outcome, draft), outcome, infos)

    def _advance(
        self, area: int, actions: Mapping[Any, Any], draft: Draft, infos: dict[str, Any], stats: list[EnvironmentStat]
    ) -> None:
        try:
            with self._reporting(area, "step"):
                outcome = self._areas[area].step(actions)
            if self._rendering is not None and area == 0:
                with self._reporting(area, "render"):
                    self._rendering.draw(self._areas[area].render)
            with self._reporting(area, "what step gave"):
                self._note(area, self._lives[area].follow(outcome, draft), outcome, infos)
        except EnvironmentFailure as error:
            self._renew(area, error, draft, infos)
            return
        if not outcome.over:
            return
        stats += _games(outcome)
        try:
            self._begin(area, self._reset(area, None), draft, infos)
        except EnvironmentFailure as error:
            self._renew(area, error, draft, infos, endings=False)

    def _renew(
        self, area: int, error: EnvironmentFailure, draft: Draft, infos: dict[str, Any], *, endings: bool = True
    ) -> None:
        """Replace a copy that failed, and take back its agents' part of this message.

        `endings`: also their endings; False: the beginning of their next episode failed.
        """
        agents = draft.drop(area, endings=endings)
        for name, ids in self._lives[area].known().items():
            agents[name] = sorted({*agents.get(name, ()), *ids})
        self._faults.append(CopyFault(str(error), agents, isinstance(error, BadDataError)))
        infos.pop(str(area), None)
        for name, asked in self._asked.items():
            self._asked[name] = [entry for entry in asked if entry[0] != area]
        self._asked = {name: asked for name, asked in self._asked.items() if asked}
        try:
            self._areas[area].close()
        except Exception as closing:
            logger.warning("%s: closing it after a fault: %s: %s", self._place(area), type(closing).__name__, closing)
        self._areas[area] = self._made(area)
        self._lives[area] = self._followed(area)
        self._renewed += 1
        seed = area_seeds(self._seed, self._renewed, area + 1)[-1]
        self._begin(area, self._reset(area, seed), draft, infos)

    def _made(self, area: int) -> Area:
        with self._reporting(area, "making it"):
            return self._make_area(area)

    def _followed(self, area: int) -> Lives:
        place = self._place(area)
        return Lives(self._areas[area], self._behaviors, place, number=area, shares=self._shares, ids=self._ids)

    def _note(
        self, area: int, asking: list[tuple[AgentKind, Any]], outcome: AreaOutcome, infos: dict[str, Any]
    ) -> None:
        for kind, agent in asking:
            self._asked.setdefault(kind.name, []).append((area, agent))
        if outcome.infos.get(COMMON):
            infos[str(area)] = plain(outcome.infos[COMMON])

    def _by_area(self, actions: Mapping[str, Action]) -> list[dict[Any, Any]]:
        """Return elements of the action spaces, by copy and agent."""
        elements: list[dict[Any, Any]] = [{} for _ in self._areas]
        for behavior, asked in self._asked.items():
            continuous, discrete = actions[behavior]
            value = self._behaviors[behavior].action.value
            for row, (area, agent) in enumerate(asked):
                elements[area][agent] = value(continuous[row], discrete[row])
        return elements

    def _message(self, draft: Draft, infos: dict[str, Any], stats: list[EnvironmentStat], start: float) -> EnvMessage:
        steps = self._said(draft, infos)
        self._asked_ids = {name: message.deciding.agent_id for name, message in steps.items()}
        new, self._behaviors.new = self._behaviors.new, {}
        identities, self._behaviors.identities = self._behaviors.identities, {}
        self._specs |= new
        seconds = time.perf_counter() - start
        self._idle = 0.0 if self._asked else self._idle + seconds
        faults, self._faults = tuple(self._faults), []
        return EnvMessage(
            worker=self._worker,
            steps=steps,
            new_specs=new,
            stats=tuple(stats),
            seconds=seconds,
            infos=infos,
            faults=faults,
            identities=identities,
        )

    def _said(self, draft: Draft, infos: dict[str, Any]) -> dict[str, BehaviorMessage]:
        """Return the messages of the draft; a copy that fails here is renewed once, a second failure is raised."""
        renewed = set[int]()
        while True:
            try:
                return draft.messages()
            except BadReportError as error:
                if error.area in renewed or not self._asked_ids:
                    raise
                renewed.add(error.area)
                self._renew(error.area, error, draft, infos)

    def _check_idle(self, start: float) -> None:
        if self._idle + time.perf_counter() - start > self._timeout:
            raise EnvironmentFailure(
                f"worker {self._worker} ({self._name}): it runs, but for {self._timeout:g} seconds no agent was given "
                "an observation; check that its step returns observations of living agents, "
                "and that it says when the episode of all is over (__all__ in RLlib)"
            )

    def _place(self, area: int) -> str:
        return f"worker {self._worker} ({self._name}), area {area}"

    def _reporting(self, area: int, doing: str) -> AbstractContextManager[None]:
        """Add the place to exceptions of a user's code."""
        return calling(f"{self._place(area)}: {doing}", raises=EnvironmentFailure)


def area_seeds(seed: int, areas: int, *of: int) -> list[int]:
    """Return one seed per copy, int32 and not negative; those of neighbouring workers are independent.

    `of` ends in no 0, which SeedSequence treats as nothing.
    """
    return [int(np.random.SeedSequence([seed, area, *of]).generate_state(1)[0] >> 1) for area in range(areas)]


def _games(outcome: AreaOutcome) -> list[EnvironmentStat]:
    """Return statistics of monitors about whole games that ended, where an episode is one life of a game."""
    stats = []
    for infos in outcome.infos.values():
        episode = infos.get("episode")
        if isinstance(episode, Mapping) and _MONITOR.keys() <= episode.keys():
            for key, name in _MONITOR.items():
                value = float(np.asarray(episode[key]).reshape(-1)[0])
                stats.append(EnvironmentStat(name=name, value=value, aggregation=Aggregation.AVERAGE))
    return stats
