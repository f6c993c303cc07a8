"""A player without Unity: serves an environment to a trainer over communicator protocol 1.5.0, as a Unity build does.

The trainer listens, the player calls. Each call carries what the agents saw and is answered by their actions, or by
a command. The environment comes in as functions from numpy to numpy (`ServedEnvironment`): nothing here knows JAX.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc
import numpy as np

from jaxrl.envs.player.channels import PlayerChannels, pack_stats
from jaxrl.envs.player.messages import RUNNING, STOPPED, PlayerMessages
from jaxrl.envs.player.teams import AreasOutcome, Simulation, Teams
from jaxrl.envs.protobuf import messages
from jaxrl.types import Action, Aggregation, BehaviorMessage, BehaviorSpec, EnvironmentStat, JaxrlError

EDITOR_PORT = 5004
_GOODBYE_SECONDS = 2.0
_IDLE_STEPS = 100_000
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the machine's must not see calls to the trainer beside us
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_logger = logging.getLogger(__name__)


class PlayerError(JaxrlError):
    """The player cannot go on. The text says what happened and what to do."""


class ServedEnvironment(NamedTuple):
    """What a player serves: one behavior, E areas with one team, or several, of up to `members` each."""

    name: str  # behavior name; on the wire `<name>?team=0`, `?team=1` ...
    spec: BehaviorSpec
    members: int  # of one team; A = teams * members
    parameters: Mapping[str, float]  # environment parameters with their usual values
    open: Callable[[int, int], Simulation]  # areas E and seed (0 .. 2**32 - 1)
    teams: int = 1  # in one area


class ServedBehavior(NamedTuple):
    """One behavior of a scene."""

    name: str
    spec: BehaviorSpec
    members: int
    teams: int = 1


class SceneSimulation(Protocol):
    """As `Simulation`, with an outcome and actions for each behavior; the statistics are those of the first outcome."""

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Begin a new episode in every area."""
        ...

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """One step of every area."""
        ...


class ServedScene(NamedTuple):
    """What a player serves that has several behaviors in each of its E areas."""

    name: str
    parts: tuple[ServedBehavior, ...]
    parameters: Mapping[str, float]
    open: Callable[[int, int], SceneSimulation]


class PlayerOptions(NamedTuple):
    """How the player meets the trainer."""

    port: int = EDITOR_PORT
    host: str = "localhost"
    decision_period: int = 1  # steps of the environment from one decision of an agent to the next
    connect_seconds: float = 60.0  # for the trainer to take the first call
    answer_seconds: float = 3600.0  # for any later answer; a trainer learns, saves and exports between two answers


class _TrainerGoneError(Exception):
    """The trainer closed the connection or said that it stops."""


class _Terminated(BaseException):
    """The operating system asked the player to stop. No library's `except Exception` may swallow it."""


class _Link:
    """One connection to the trainer."""

    def __init__(self, options: PlayerOptions) -> None:
        self._options = options
        self._address = f"{options.host}:{options.port}"
        self._channel, self._exchange = self._connect()

    def _connect(self) -> tuple[grpc.Channel, Any]:
        proto = messages().UnityMessageProto
        channel = grpc.insecure_channel(self._address, options=_OPTIONS)
        exchange = channel.unary_unary(
            "/communicator_objects.UnityToExternalProto/Exchange",
            request_serializer=proto.SerializeToString,
            response_deserializer=proto.FromString,
        )
        return channel, exchange

    def greet(self, message: Any) -> Any:
        """The first exchange, which waits for the trainer's server and returns its initialization input.

        Raises:
            PlayerError: nobody answered in time.
        """
        seconds = self._options.connect_seconds
        try:
            answer = self._exchange(message, timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            raise PlayerError(
                f"no trainer answered at {self._address} within {seconds:g} s ({error.code()}); "  # pyright: ignore
                "start the trainer first and check that --mlagents-port is the port it listens on"
            ) from error
        return self._running(answer)

    def exchange(self, message: Any) -> Any:
        """Send what happened and wait for the trainer's answer.

        Raises:
            _TrainerGoneError: the connection broke or the trainer stops.
            PlayerError: no answer came in `answer_seconds`.
        """
        try:
            return self._running(self._exchange(message, timeout=self._options.answer_seconds))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:  # pyright: ignore
                raise PlayerError(
                    f"the trainer at {self._address} did not answer for {self._options.answer_seconds:g} s; it hangs"
                ) from error
            raise _TrainerGoneError(f"connection to {self._address} ended: {error.code()}") from error  # pyright: ignore

    def close(self) -> None:
        """Give the connection back; a call that is still open is dropped."""
        self._channel.close()

    def goodbye(self, message: Any) -> None:
        """Tell the trainer that the player stops; nobody need be there. On a connection of its own, since the answer
        to the last call may still be outstanding.
        """
        channel, exchange = self._connect()
        try:
            exchange(message, timeout=_GOODBYE_SECONDS)
        except grpc.RpcError as error:
            _logger.info("nobody took the last message: %s", error.code())  # pyright: ignore
        finally:
            channel.close()

    def _running(self, answer: Any) -> Any:
        if answer.header.status != RUNNING:
            raise _TrainerGoneError(f"trainer says status {answer.header.status}")
        return answer.unity_input


class _Alone:
    """The simulation of one behavior as one of several."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        return (self._simulation.reset(parameters),)

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        return (self._simulation.step(actions[0], parameters),)


def _as_scene(environment: ServedEnvironment | ServedScene) -> ServedScene:
    if isinstance(environment, ServedScene):
        return environment
    part = ServedBehavior(environment.name, environment.spec, environment.members, environment.teams)
    return ServedScene(
        environment.name, (part,), environment.parameters, lambda areas, seed: _Alone(environment.open(areas, seed))
    )


class _Player:
    """The conversation after the first exchange."""

    def __init__(
        self, environment: ServedScene, options: PlayerOptions, link: _Link, talks: list[PlayerMessages], greeting: Any
    ) -> None:
        initialization = greeting.rl_initialization_input
        self._areas = max(1, initialization.num_areas)  # trainers before protocol field 5 send 0
        self._simulation = environment.open(self._areas, initialization.seed & 0xFFFFFFFF)
        self._link = link
        self._period = options.decision_period
        self._channels = PlayerChannels(environment.parameters)
        self._messages = talks  # by behavior, as the next two
        parts, stride = environment.parts, len(environment.parts)
        self._teams = [
            Teams(part.spec, self._areas, part.members, part.teams, first=first, stride=stride)
            for first, part in enumerate(parts)
        ]
        self._asked = [[0] * part.teams for part in parts]  # agents of each team that wait for an action
        self._stats: list[EnvironmentStat] = []
        self._clock = 0

    def run(self) -> None:
        """Answer commands until the trainer is gone, which it tells by QUIT or by raising `_TrainerGoneError`."""
        command = messages()
        rl_input = self._link.exchange(self._messages[0].status(RUNNING)).rl_input
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
        """Steps until there is something to say: an agent ended or asks. Actions are repeated in between."""
        for _ in range(_IDLE_STEPS):
            actions = tuple(teams.actions for teams in self._teams)
            step = self._simulation.step(actions, self._channels.draw(self._areas))
            self._channels.begun(step[0].over)
            self._clock += 1
            self._note_stats(step[0])
            steps = self._by_team(step, due=self._clock % self._period == 0)
            if any(len(one.ended.agent_id) or len(one.deciding.agent_id) for several in steps for one in several):
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


def serve(environment: ServedEnvironment | ServedScene, options: PlayerOptions) -> None:
    """Play until the trainer has no more use for the player: QUIT, a status other than 200, or a broken connection.

    On SIGTERM or SIGINT, and when it fails, the player sends status 400 and stops.

    Raises:
        PlayerError: no trainer there, or it is silent for too long.
        JaxrlError: the trainer sent something that does not fit the protocol.
        ValueError: `decision_period` < 1.
    """
    if options.decision_period < 1:
        raise ValueError(f"decision_period = {options.decision_period}: must be at least 1")
    _stop_on_signals()
    scene = _as_scene(environment)
    talks = [PlayerMessages(part.name, part.spec, part.teams) for part in scene.parts]
    talk = talks[0]
    link = _Link(options)
    try:
        greeting = link.greet(talk.handshake())
        _Player(scene, options, link, talks, greeting).run()
    except _TrainerGoneError as reason:
        _logger.info("player stops: %s", reason)
    except _Terminated:
        _logger.info("player stops: told to by a signal")
        link.goodbye(talk.status(STOPPED, "player was told to stop"))
    except PlayerError:
        raise
    except Exception as error:
        link.goodbye(talk.status(STOPPED, str(error)))
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
