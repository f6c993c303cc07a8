"""Copies of somebody's environment, side by side in one process, as a `HostEnv`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from jaxrl.envs.action_checks import check_actions
from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.behaviors import AgentKind, Behaviors
from jaxrl.envs.foreign.infos import plain
from jaxrl.envs.foreign.lives import Lives, agent_ids
from jaxrl.envs.foreign.message import Draft
from jaxrl.envs.foreign.rendering import NOTHING_DRAWN, DrawingOptions, Rendering
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.parameters import Draws
from jaxrl.types import Action, Aggregation, EnvironmentStat, EnvMessage, JaxrlError, ParameterValue

COMMON = "__common__"
"""The key of an area's infos for what concerns all of its agents (RLlib's word)."""
_MONITOR = {"r": "Game/Return", "l": "Game/Length"}
"""Statistics from `infos["episode"]`, which monitors such as RecordEpisodeStatistics write at the end of a game."""


class ForeignEnvironment:
    """Steps `areas` copies one after the other; a copy whose episode is over begins the next one in the same message.

    Environment parameters are the `options` with which the episodes that begin from then on are reset.

    Args:
        worker: number of this environment.
        name: as in `--env`, for texts.
        make_area: makes copy number i.
        areas: number of copies.
        seed: of this worker. With the number of a copy it decides all that is random in it.
        team_reward: the mean of the rewards in a team is paid to all of it as group reward, in place of each its own.
        timeout: seconds without any agent that asks for a decision.
        drawing: what is drawn of copy 0 of worker 0.
        about: one line for the log.

    Raises:
        EnvironmentFailure: a copy cannot be made; those made before are closed.
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
        self._salt: int | None = None  # of samplers: the seed of the last reset that had one
        self._seeds: list[int] | None = area_seeds(seed, areas)  # None: given out
        self._asked: dict[str, list[tuple[int, Any]]] = {}
        self._asked_ids: dict[str, np.ndarray] = {}
        self._areas: list[Area] = []
        self._lives: list[Lives] = []
        ids = agent_ids()
        try:
            for area in range(areas):
                with self._reporting(area, "making it"):
                    self._areas.append(make_area(area))
                lives = Lives(
                    self._areas[area], self._behaviors, self._place(area), team=area + 1, shares=team_reward, ids=ids
                )
                self._lives.append(lives)
            if drawing.wanted and worker == 0:
                rate = self._areas[0].frames_per_second
                self._rendering = Rendering(drawing, self._place(0), frames_per_second=rate)
        except BaseException:
            self.close()
            raise

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Begin an episode in every copy.

        The first reset, and one with a seed, make all that is random repeat itself; another one goes on from there.

        Raises:
            EnvironmentFailure: a copy raised an error or gave something wrong; the text names worker, area and agent.
        """
        start = time.perf_counter()
        if seed is not None:
            self._salt, self._seeds = seed, area_seeds(seed, len(self._areas))
        self.set_parameters(parameters or {})
        seeds, self._seeds = self._seeds or [None] * len(self._areas), None
        self._idle = 0.0
        draft, infos = Draft(), {}
        self._asked = {}
        for area, of_area in enumerate(seeds):
            self._begin(area, of_area, draft, infos)
        return self._message(draft, infos, [], start)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """One step of every copy; more, if after it nobody asks or has ended.

        Raises:
            ActionError: actions that do not fit those who asked; nothing was done.
            EnvironmentFailure: as `reset`, or nobody asks for longer than the time-out.
        """
        start = time.perf_counter()
        check_actions(actions, self._asked_ids, self._specs)
        given = self._by_area(actions)
        while True:
            draft, infos, stats = Draft(), {}, []
            self._asked = {}
            for area, of_area in enumerate(given):
                self._advance(area, of_area, draft, infos, stats)
            if not draft.empty:
                return self._message(draft, infos, stats, start)
            self._check_idle(start)
            given = [{} for _ in self._areas]

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Options of the resets to come: numbers; of a sampler each episode of each copy draws one."""
        self._draws.set(parameters, self._salt)

    def close(self) -> None:
        """Close all copies, also when one of them fails to."""
        areas, self._areas = self._areas, []
        with ExitStack() as stack:
            for number, area in enumerate(areas):
                stack.enter_context(self._reporting(number, "closing it"))
                stack.callback(area.close)
            if self._rendering is not None:
                stack.callback(self._rendering.close)

    def _begin(self, area: int, seed: int | None, draft: Draft, infos: dict[str, Any]) -> None:
        with self._reporting(area, "reset"):
            outcome = self._areas[area].reset(seed, self._draws.next() or None)
        if self._rendering is not None and area == 0:
            with self._reporting(area, "render"):
                self._rendering.begin(self._areas[area].render)
        with self._reporting(area, "what reset gave"):
            self._note(area, self._lives[area].begin(outcome, draft), outcome, infos)

    def _advance(
        self, area: int, actions: Mapping[Any, Any], draft: Draft, infos: dict[str, Any], stats: list[EnvironmentStat]
    ) -> None:
        with self._reporting(area, "step"):
            outcome = self._areas[area].step(actions)
        if self._rendering is not None and area == 0:
            with self._reporting(area, "render"):
                self._rendering.draw(self._areas[area].render)
        with self._reporting(area, "what step gave"):
            self._note(area, self._lives[area].follow(outcome, draft), outcome, infos)
        if not outcome.living:
            stats += _games(outcome)
            self._begin(area, None, draft, infos)

    def _note(
        self, area: int, asking: list[tuple[AgentKind, Any]], outcome: AreaOutcome, infos: dict[str, Any]
    ) -> None:
        for kind, agent in asking:
            self._asked.setdefault(kind.name, []).append((area, agent))
        if outcome.infos.get(COMMON):
            infos[str(area)] = plain(outcome.infos[COMMON])

    def _by_area(self, actions: Mapping[str, Action]) -> list[dict[Any, Any]]:
        """Elements of the action spaces, by copy and agent."""
        given: list[dict[Any, Any]] = [{} for _ in self._areas]
        for behavior, asked in self._asked.items():
            continuous, discrete = actions[behavior]
            for row, (area, agent) in enumerate(asked):
                kind = self._behaviors.of(agent)
                assert kind is not None
                given[area][agent] = kind.action.value(continuous[row], discrete[row])
        return given

    def _message(self, draft: Draft, infos: dict[str, Any], stats: list[EnvironmentStat], start: float) -> EnvMessage:
        steps = draft.messages()
        self._asked_ids = {name: message.deciding.agent_id for name, message in steps.items()}
        new, self._behaviors.new = self._behaviors.new, {}
        self._specs |= new
        seconds = time.perf_counter() - start
        self._idle = 0.0 if self._asked else self._idle + seconds
        return EnvMessage(
            worker=self._worker, steps=steps, new_specs=new, stats=tuple(stats), seconds=seconds, infos=infos
        )

    def _check_idle(self, start: float) -> None:
        if self._idle + time.perf_counter() - start > self._timeout:
            raise EnvironmentFailure(
                f"worker {self._worker} ({self._name}): it runs, but for {self._timeout:g} seconds no agent was given "
                "an observation; check that its step returns observations of living agents"
            )

    def _place(self, area: int) -> str:
        return f"worker {self._worker} ({self._name}), area {area}"

    @contextmanager
    def _reporting(self, area: int, doing: str) -> Iterator[None]:
        """Say of somebody else's exception where it happened."""
        try:
            yield
        except JaxrlError:
            raise
        except Exception as error:
            raise EnvironmentFailure(f"{self._place(area)}: {doing} raised {type(error).__name__}: {error}") from error


def area_seeds(seed: int, areas: int) -> list[int]:
    """One seed per copy, int32 and not negative; those of neighbouring workers have nothing to do with each other."""
    return [int(np.random.SeedSequence([seed, area]).generate_state(1)[0] >> 1) for area in range(areas)]


def _games(outcome: AreaOutcome) -> list[EnvironmentStat]:
    """What monitors tell of whole games that ended, where an episode is one life of them (X12)."""
    stats = []
    for infos in outcome.infos.values():
        episode = infos.get("episode")
        if isinstance(episode, Mapping) and _MONITOR.keys() <= episode.keys():
            for key, name in _MONITOR.items():
                value = float(np.asarray(episode[key]).reshape(-1)[0])
                stats.append(EnvironmentStat(name=name, value=value, aggregation=Aggregation.AVERAGE))
    return stats
