"""A Unity build, or the Unity Editor, as a `HostEnv`."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.action_checks import check_actions
from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure, PortTakenError
from jaxrl.envs.unity.client import UnityClient
from jaxrl.envs.unity.communicator import MESSAGE_MEGABYTES, CutOffMessage, NotConnectedError
from jaxrl.envs.unity.decode import InvalidMessage
from jaxrl.envs.unity.launch import check_executable, keep_log, log_path, log_tail
from jaxrl.envs.unity.peers import CHECKED
from jaxrl.envs.unity.ports import EDITOR_PORT, free_port, port_problem
from jaxrl.envs.unity.side_channels import StatsChannel, send_parameter
from jaxrl.envs.workers.worker import INCARNATION
from jaxrl.types import Action, EnvMessage, ParameterValue, StepTiming

logger = logging.getLogger(__name__)
_IDLE_NOTICE = 0.25  # share of timeout_wait without a decision after which one warning is logged
_engine = importlib.import_module("mlagents_envs.side_channel.engine_configuration_channel")
_parameters = importlib.import_module("mlagents_envs.side_channel.environment_parameters_channel")
_exceptions = importlib.import_module("mlagents_envs.exception")


class UnityHostEnv:
    """A player (or the Editor): launch, handshake and steps. All arguments are plain values.

    A restarted worker takes its own port again if it is free and callers at it can be identified. Else it takes a new
    port, because a player of a killed process may still be loading and would call at the old port, beside the new
    player. The log of the player before is kept beside the new one (`Player-<worker>.previous.log`), and the Editor is
    waited for as long as `editor_wait`.

    Args:
        worker: number of this environment; its first process has the port `base_port + worker`.
        file_name: the build, its platform suffix may be left out; None: the Editor, on port 5004, worker 0 only.
        base_port: first port of the run.
        seed: of this environment (the caller has added the worker number).
        timeout_wait: seconds; limits the start, each answer, and the time without an agent that asks for a decision.
        editor_wait: seconds to wait for Play once it was stopped.
        env_args: appended to the player's command line.
        no_graphics: start with -nographics -batchmode.
        num_areas: copies of the training area that the environment may make, sent in the handshake.
        width, height: of the window, pixels.
        quality_level: index of a Unity quality level.
        time_scale: speed of the simulation's clock.
        target_frame_rate: frames per second, -1: as fast as it can.
        capture_frame_rate: simulated frames per simulated second.
        side_channels: of the user; one with the id of an existing channel (engine, parameters, statistics) replaces it.
        log_folder: folder of the player's `Player-<worker>.log`; None: it chooses.
        listen: address of this machine at which players of containers and other machines call; None: loopback.
        message_megabytes: limit of one message of the player.

    Raises:
        EnvironmentFailure: missing or unstartable file, start-up time-out, other protocol version; nothing is left
            running. Subclasses: `PortTakenError`, `InvalidMessage` for invalid data.
        EnvironmentClosed: (a subclass) Play was not pressed again within `editor_wait`.
    """

    def __init__(
        self,
        *,
        worker: int,
        file_name: str | None,
        seed: int,
        base_port: int = 5005,
        timeout_wait: float = 60.0,
        editor_wait: float = 60.0,
        env_args: tuple[str, ...] = (),
        no_graphics: bool = False,
        num_areas: int = 1,
        width: int = 84,
        height: int = 84,
        quality_level: int = 5,
        time_scale: float = 20.0,
        target_frame_rate: int = -1,
        capture_frame_rate: int = 60,
        side_channels: tuple[Any, ...] = (),
        log_folder: str | None = None,
        listen: str | None = None,
        message_megabytes: int = MESSAGE_MEGABYTES,
    ) -> None:
        self._worker = worker
        self._timeout = timeout_wait
        self._idle = 0.0
        self._said_idle = False
        self._asked: dict[str, np.ndarray] = {}
        self._client: UnityClient | None = None
        self._again = INCARNATION.get() > 0
        self._is_editor = file_name is None
        usual = (EDITOR_PORT if self._is_editor else base_port) + worker
        anew = self._again and not self._is_editor
        known = CHECKED and listen is None and not (anew and port_problem(usual))
        port = free_port() if anew and not known else usual
        self._elsewhere = "" if port == usual else f", on port {port}"
        self._place = f"{file_name or 'the Unity Editor'}, port {port}"
        log_folder = str(Path(log_folder).absolute()) if log_folder else None
        self._log = log_path(worker, log_folder, env_args) if file_name is not None else None
        self._stats = StatsChannel()
        self._parameters = _parameters.EnvironmentParametersChannel()
        engine = _engine.EngineConfigurationChannel()
        engine.set_configuration_parameters(
            width, height, quality_level, time_scale, target_frame_rate, capture_frame_rate
        )
        with self._reporting():
            self._prepare(file_name, port, log_folder)
            self._client = UnityClient(
                side_channels=self._channels(engine, side_channels),
                file_name=file_name,
                worker_id=worker,
                base_port=port - worker,
                seed=seed,
                no_graphics=no_graphics,
                timeout_wait=editor_wait if self._is_editor and self._again else timeout_wait,
                additional_args=list(env_args),
                log_folder=log_folder,
                num_areas=num_areas,
                listen=listen,
                megabytes=message_megabytes,
            )
            self._client.answer_within(timeout_wait)

    @property
    def about(self) -> str:
        """Versions of the package and the protocol, as mlagents-learn reports them."""
        return self._open_client().connection + self._elsewhere

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """Set the environment parameters, start all episodes anew and return the first agents that ask.

        In the middle of a run it discards the open episodes; a Unity scene goes on under their agent ids.

        Raises:
            EnvironmentFailure: it died, hung, or no agent asks for a decision; or there is a seed, which a player takes
                only at its start.
            EnvironmentClosed: (a subclass) it quit, or play mode was stopped in the Editor.
            InvalidMessage: it sent invalid data.
        """
        if seed is not None:
            raise EnvironmentFailure("a Unity player takes a seed at its start alone, never with a reset")
        start = time.perf_counter()
        client = self._open_client()
        self.set_parameters(parameters or {})
        self._idle = 0.0
        with self._reporting():
            client.reset()
            return self._collect(client, start)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Send environment parameters with the next message; a scene reads them when it begins an episode.

        The scene itself draws from a sampler, of which the description is sent.
        """
        for name, value in parameters.items():
            send_parameter(self._parameters, name, value)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """Send the actions; pass over messages without any agent; return the next one with agents.

        Args:
            actions: by behavior, one row per agent that asked in the last result, in its order. Continuous [N, C] is
                sent as it is (float32), discrete [N, D] must be within the branch sizes.

        Raises:
            ActionError: missing behavior, wrong shape, value not finite or out of range; nothing was sent.
            EnvironmentFailure, EnvironmentClosed, InvalidMessage: as `reset`.
        """
        start = time.perf_counter()
        client = self._open_client()
        check_actions(actions, self._asked, client.specs)
        with self._reporting():
            client.advance(actions)
            return self._collect(client, start)

    def close(self) -> None:
        """Tell the player to quit, then terminate, then kill it. Takes less than 8 seconds; may be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client._close()

    def _channels(self, engine: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return all side channels. A user's parameters channel replaces ours."""
        ids = {channel.channel_id: channel for channel in given}
        self._parameters = ids.get(self._parameters.channel_id, self._parameters)
        defaults = (engine, self._parameters, self._stats)
        return (*(channel for channel in defaults if channel.channel_id not in ids), *given)

    def _prepare(self, file_name: str | None, port: int, log_folder: str | None) -> None:
        if file_name is not None:
            check_executable(file_name)
            if log_folder:
                Path(log_folder).mkdir(parents=True, exist_ok=True)
                if self._again and self._log is not None:
                    keep_log(self._log)
            return
        if self._worker != 0:
            raise EnvironmentFailure("the Editor can be worker 0 only: set num_envs to 1, or give a build with --env")
        # Printed, not logged: without this line the user waits for ever, also in a program that shows no log.
        print(f"Listening on port {port}: press Play in the Unity Editor to start.", file=sys.stderr, flush=True)

    def _open_client(self) -> UnityClient:
        if self._client is None:
            raise EnvironmentFailure(f"worker {self._worker} ({self._place}): is closed")
        return self._client

    def _collect(self, client: UnityClient, start: float) -> EnvMessage:
        """Step on while no agent ends or asks: with a decision period above 1 such messages are normal."""
        while not client.steps:
            self._check_idle(start)
            client.advance({})
        self._asked = {name: steps.deciding.agent_id for name, steps in client.steps.items()}
        seconds = time.perf_counter() - start
        asking = any(map(len, self._asked.values()))
        self._idle = 0.0 if asking else self._idle + seconds
        new_specs, client.new_specs = client.new_specs, {}
        timing = StepTiming(exchange=client.exchange_seconds, decode=client.decode_seconds)
        client.exchange_seconds = client.decode_seconds = 0.0
        return EnvMessage(
            worker=self._worker,
            steps=client.steps,
            new_specs=new_specs,
            stats=self._stats.take(),
            seconds=seconds,
            timing=timing,
        )

    def _check_idle(self, start: float) -> None:
        """Raise after the time-out without a decision. Only time inside calls counts: the learner may take any time."""
        idle = self._idle + time.perf_counter() - start
        if idle > _IDLE_NOTICE * self._timeout and not self._said_idle:
            self._said_idle = True
            logger.warning(
                "%s: it runs, but no agent has asked for a decision for %.0f seconds; after %g the run ends.",
                self._place, idle, self._timeout,
            )  # fmt: skip
        if idle > self._timeout:
            raise EnvironmentFailure(
                f"it runs, but no agent has asked for a decision for {self._timeout:g} seconds. Check that an active "
                'agent has a Decision Requester (or calls RequestDecision), that its Behavior Type is "Default" (not '
                '"Inference Only" or "Heuristic Only"), and that its episodes can end and begin'
            )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Add the environment's place and log to each failure."""
        try:
            yield
        except CutOffMessage as error:
            closing_error = error if self._client is None else self._client.why_closed(error)
            if closing_error is not error:
                raise EnvironmentFailure(f"{self._describe(closing_error)}\n{log_tail(self._log)}") from error
            raise CutOffMessage(self._describe(error)) from error
        except (InvalidMessage, PortTakenError) as error:
            kind = EnvironmentFailure if self._is_editor and isinstance(error, PortTakenError) else type(error)
            raise kind(self._describe(error)) from error
        except (EnvironmentFailure, _exceptions.UnityException, OSError) as error:
            raise self._ending(error) from error

    def _ending(self, error: Exception) -> EnvironmentFailure:
        """Return the failure, orderly for a player that had started, or an Editor that had and was not restarted."""
        if self._is_editor and self._again and isinstance(error, NotConnectedError):
            return EnvironmentClosed("nobody pressed Play in the Unity Editor again in time")
        if self._client is not None and isinstance(error, EnvironmentFailure):
            error = self._client.why_closed(error)
            if isinstance(error, EnvironmentClosed):
                return EnvironmentClosed(self._describe(error))
        return EnvironmentFailure(f"{self._describe(error)}\n{log_tail(self._log)}")

    def _describe(self, error: Exception) -> str:
        return f"worker {self._worker} ({self._place}): {error}"
