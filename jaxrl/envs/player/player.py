"""Serves an environment, without Unity, to a trainer over communicator protocol 1.5.0, as a Unity build does.

The trainer listens, the player calls. Each call carries the agents' observations, and is answered by their actions or
by a command. The environment comes in as functions from numpy to numpy (`ServedScene`): nothing here knows JAX.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from jaxrl.envs.player.channels import PlayerChannels, pack_stats
from jaxrl.envs.player.link import Link, PlayerError, PlayerOptions, TrainerGoneError
from jaxrl.envs.player.messages import PlayerMessages
from jaxrl.envs.player.teams import AreasOutcome, BehaviorPart, Teams
from jaxrl.envs.protobuf import STOPPED, messages, new_message
from jaxrl.types import Action, Aggregation, BehaviorMessage, EnvironmentStat

_IDLE_STEPS = 100_000
_logger = logging.getLogger(__name__)


class Simulation(Protocol):
    """E areas, with an outcome and actions for each behavior; the statistics are those of the first outcome.

    Parameters are float32 [E] by name and hold for episodes that begin with this call.
    """

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Begin a new episode in every area."""
        ...

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Take `actions`, float32 [E, A, C] and int32 [E, A, D]; rows of members that are not alive are zero."""
        ...


class ServedScene(NamedTuple):
    """The scene of a player: one behavior or several in each of E areas."""

    name: str
    parts: tuple[BehaviorPart, ...]  # on the wire `<name>?team=<first_team>` and so on
    parameters: Mapping[str, float]  # environment parameters with their usual values
    open: Callable[[int, int], Simulation]  # areas E and seed (0 .. 2**32 - 1)


class _Terminated(BaseException):
    """The operating system asked the player to stop. No library's `except Exception` may swallow it."""


class _Player:
    """The connection after the first exchange."""

    def __init__(
        self, environment: ServedScene, options: PlayerOptions, link: Link, talks: list[PlayerMessages], greeting: Any
    ) -> None:
        initialization = greeting.rl_initialization_input
        self._areas = max(1, initialization.num_areas)  # trainers before protocol field 5 send 0
        self._simulation = environment.open(self._areas, initialization.seed & 0xFFFFFFFF)
        self._link = link
        self._period = options.decision_period
        self._channels = PlayerChannels(environment.parameters)
        self._messages = talks  # by behavior, as the next two fields
        parts, stride = environment.parts, len(environment.parts)
        named = [part.group for part in parts]
        self._teams = [
            Teams(
                part.spec,
                self._areas,
                part.members,
                part.teams,
                first=first,
                stride=stride,
                group=None if part.group is None else named.index(part.group),
            )
            for first, part in enumerate(parts)
        ]
        self._asked = [[0] * part.teams for part in parts]  # agents of each team that wait for an action
        self._stats: list[EnvironmentStat] = []
        self._clock = 0

    def run(self) -> None:
        """Answer commands until the trainer is gone: it sends QUIT, or `TrainerGoneError` is raised."""
        command = messages()
        rl_input = self._link.exchange(new_message()).rl_input
        while rl_input.command != command.QUIT:
            self._channels.receive(rl_input.side_channel)
            if rl_input.command == command.RESET:
                steps = self._reset()
            else:
                for teams, talk, asked in zip(self._teams, self._messages, self._asked, strict=True):
                    teams.decide(talk.read_actions(rl_input, asked))
                steps = self._step()
            self._asked = [[len(of_team.deciding.agent_id) for of_team in of_behavior] for of_behavior in steps]
            rl_input = self._link.exchange(self._output(steps)).rl_input
        _logger.info("the trainer said QUIT")

    def _output(self, steps: list[list[BehaviorMessage]]) -> Any:
        message = self._messages[0].output(steps[0], pack_stats(self._stats))
        for talk, of_behavior in zip(self._messages[1:], steps[1:], strict=True):
            talk.add(message, of_behavior)
        self._stats.clear()
        return message

    def _reset(self) -> list[list[BehaviorMessage]]:
        step = self._simulation.reset(self._channels.draw(self._areas))
        self._channels.begun(np.ones(self._areas, bool))
        self._clock = 0
        for teams, outcome in zip(self._teams, step, strict=True):
            teams.restart(outcome)
        return self._by_team(step, due=True)

    def _step(self) -> list[list[BehaviorMessage]]:
        """Step until there is something to report: an agent ended or asks. Actions are repeated in between."""
        for _ in range(_IDLE_STEPS):
            actions = tuple(teams.actions for teams in self._teams)
            step = self._simulation.step(actions, self._channels.draw(self._areas))
            self._channels.begun(step[0].over)
            self._clock += 1
            self._note_stats(step[0])
            steps = self._by_team(step, due=self._clock % self._period == 0)
            if any(len(team.ended.agent_id) or len(team.deciding.agent_id) for teams in steps for team in teams):
                return steps
        raise PlayerError(f"no agent ended or asked for a decision in {_IDLE_STEPS} steps; the environment is empty")

    def _by_team(self, step: tuple[AreasOutcome, ...], due: bool) -> list[list[BehaviorMessage]]:
        steps = []
        for teams, outcome in zip(self._teams, step, strict=True):
            ended = teams.absorb(outcome)
            deciding = teams.ask(outcome, due)
            steps.append([BehaviorMessage(ended=e, deciding=d) for e, d in zip(ended, deciding, strict=True)])
        return steps

    def _note_stats(self, step: AreasOutcome) -> None:
        for area in step.over.nonzero()[0]:
            self._stats += [
                EnvironmentStat(name=name, value=float(values[area]), aggregation=Aggregation.AVERAGE)
                for name, values in step.stats.items()
            ]


def serve(scene: ServedScene, options: PlayerOptions) -> None:
    """Play until the trainer does not need the player any more: QUIT, another status than 200, or a lost connection.

    On SIGTERM or SIGINT, and when it fails, the player sends status 400 and stops.

    Raises:
        PlayerError: no trainer is there, or it is silent for too long.
        JaxrlError: the trainer sent data that do not fit the protocol.
        ValueError: `decision_period` < 1.
    """
    if options.decision_period < 1:
        raise ValueError(f"decision_period = {options.decision_period}: must be at least 1")
    _stop_on_signals()
    talks = [PlayerMessages(part.name, part.spec, part.teams, part.first_team) for part in scene.parts]
    link = Link(options)
    try:
        greeting = link.greet(talks[0].handshake())
        _Player(scene, options, link, talks, greeting).run()
    except TrainerGoneError as reason:
        _logger.info("player stops: %s", reason)
    except _Terminated:
        _logger.info("player stops: told to by a signal")
        link.goodbye(new_message(STOPPED, "player was told to stop"))
    except PlayerError:
        raise
    except Exception as error:
        link.goodbye(new_message(STOPPED, str(error)))
        raise
    finally:
        link.close()


def _stop_on_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut off the goodbye
        raise _Terminated

    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
