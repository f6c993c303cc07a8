"""`mlagents_envs.UnityEnvironment` with our communicator and decoder, and an end that never hangs."""

from __future__ import annotations

import atexit
import importlib
import logging
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from jaxrl import platforms
from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.protobuf import messages, new_message, register
from jaxrl.envs.sensors import WireSpec, unmarked_last
from jaxrl.envs.unity.communicator import MESSAGE_MEGABYTES, BrokenConnectionError, Communicator, CutOffMessage
from jaxrl.envs.unity.decode import InvalidMessage, decode_spec, decode_steps
from jaxrl.envs.unity.launch import stop_process
from jaxrl.envs.unity.side_channels import ChannelManager, SilentChannel
from jaxrl.orphans import Guard
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec

_PATIENCE_TOLD = 3.0  # seconds for a player that was told to quit
_PATIENCE = 1.0  # seconds for a busy or hanging player
_END_SECONDS = 3.0  # from the last word of a player to its exit code
_QUIT = "the player has quit (exit code 0)"
_CUT = "the environment closed in the middle of a message"

_package = register()
# Below this level the package lets players write to our terminal; mlagents-learn sets one, too.
importlib.import_module("mlagents_envs.logging_util").set_log_level(logging.WARNING)


class UnityClient(_package.UnityEnvironment):
    """The package's launch, handshake and side channels, with messages that go straight to arrays.

    Args:
        listen, megabytes: as `Communicator`.
        settings: the package's.

    Attributes:
        steps: agents of the last message by behavior; behaviors without agents are left out.
        specs: all behaviors seen so far.
        new_specs: specs of behaviors first seen since the owner last emptied it.
        exchange_seconds, decode_seconds: time of waiting for the player, and of turning its messages into arrays.
        connection: versions in the environment's handshake, in the words of mlagents-learn.

    Raises:
        EnvironmentFailure, EnvironmentClosed, InvalidMessage: as the communicator and the decoder; nothing is left
            running.
        mlagents_envs.exception.UnityException: errors of the package itself.
    """

    def __init__(
        self,
        *,
        side_channels: Sequence[Any],
        listen: str | None = None,
        megabytes: int = MESSAGE_MEGABYTES,
        **settings: Any,
    ) -> None:
        self._listen, self._megabytes = listen, megabytes
        self.steps: dict[str, BehaviorMessage] = {}
        self.specs: dict[str, BehaviorSpec] = {}
        self.new_specs: dict[str, BehaviorSpec] = {}
        self.connection = ""
        self.exchange_seconds = 0.0  # since the owner last set it to 0, as is the next field
        self.decode_seconds = 0.0
        self._brains: dict[str, Any] = {}
        self._wires: dict[str, WireSpec] = {}
        self._unmarked_last = True  # until the package's version is known
        self._launching = ExitStack()
        channels = list(side_channels)
        if SilentChannel.ID not in (channel.channel_id for channel in channels):
            channels.append(SilentChannel())  # else the package appends one that sends versions
        try:
            super().__init__(side_channels=channels, **settings)
        except BaseException:
            try:
                self._launching.close()
            finally:
                self._close()
            raise
        self._side_channel_manager = ChannelManager(channels)

    def advance(self, actions: Mapping[str, Action]) -> None:
        """Send one action per agent that asked in the last message, and read the next message into `steps`."""
        message = new_message()
        inputs = message.unity_input.rl_input
        inputs.command = messages().STEP
        deprecated = not self.academy_capabilities.hybridActions
        for behavior, action in actions.items():
            if len(action.continuous) or len(action.discrete):
                _add_actions(inputs.agent_actions[behavior].value, action, deprecated)
        inputs.side_channel = bytes(self._side_channel_manager.generate_side_channel_messages())
        asked = time.perf_counter()
        output = self._communicator.exchange_message(message, self._poll_process)
        answered = time.perf_counter()
        self._update_behavior_specs(output)
        self._update_state(output.rl_output)
        self.exchange_seconds += answered - asked
        self.decode_seconds += time.perf_counter() - answered

    def answer_within(self, seconds: float) -> None:
        """Limit the player's time for each later answer."""
        self._communicator.patience = seconds

    def why_closed(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """Return the error, or another one by the exit code of the player's process, for which it waits up to 3 s.

        A player announces its end also before it fails, so its exit code decides: EnvironmentClosed if it has quit with
        0, or announced its end and has not ended yet.
        """
        process = self._process
        if process is None or not isinstance(error, EnvironmentClosed | BrokenConnectionError | CutOffMessage):
            return error
        if isinstance(error, EnvironmentClosed):
            self._communicator.close()  # the player waits for an answer to its last word
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return error
        if isinstance(error, CutOffMessage):  # a signal has cut it off; any other end came after it
            return EnvironmentFailure(f"{_CUT}. {self._how_it_ended(process)}") if code < 0 else error
        if code:
            return EnvironmentFailure(f"{error}. {self._how_it_ended(process)}")
        return error if isinstance(error, EnvironmentClosed) else EnvironmentClosed(_QUIT)

    def _get_communicator(self, worker_id: int, base_port: int, timeout_wait: float) -> Communicator:
        return Communicator(base_port + worker_id, timeout_wait, self._listen, self._megabytes)

    def _executable_args(self) -> list[str]:
        """Hold signals back while the package starts the player, until its process is known."""
        self._launching.enter_context(platforms.signals_held())
        return super()._executable_args()

    def _send_academy_parameters(self, init_parameters: Any) -> Any:
        if self._process is not None:
            self._communicator.peers.process = self._process.pid
            self._guard = Guard(self._process.pid)
        self._launching.close()
        output = super()._send_academy_parameters(init_parameters)
        self.connection = introduced(output.rl_initialization_output)
        self._unmarked_last = unmarked_last(output.rl_initialization_output.package_version)
        return output

    def _update_behavior_specs(self, output: Any) -> None:
        """Register complete specs: actions of a behavior may come before its first agent, which shows observations."""
        for brain in output.rl_initialization_output.brain_parameters:
            self._brains[brain.brain_name] = brain
        agent_infos = output.rl_output.agentInfos
        for name in [name for name in self._brains if name in agent_infos and agent_infos[name].value]:
            wire = decode_spec(name, self._brains.pop(name), agent_infos[name].value[0], self._unmarked_last)
            if name not in self.specs:
                self._wires[name] = wire
                self.specs[name] = self.new_specs[name] = wire.behavior

    def _update_state(self, output: Any) -> None:
        steps = {}
        for name, infos in output.agentInfos.items():
            if not infos.value:
                continue
            if name not in self._wires:
                raise InvalidMessage(f"behavior {name!r} sent agents before its specification")
            steps[name] = decode_steps(name, infos.value, self._wires[name])
        self.steps = steps
        self._side_channel_manager.process_side_channel_message(output.side_channel)

    def _poll_process(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode == 0:
            raise EnvironmentClosed(_QUIT)
        raise EnvironmentFailure(self._how_it_ended(self._process))

    def _how_it_ended(self, process: Any) -> str:
        text = self._returncode_to_env_message(process.returncode)
        return f"{text} To see its output, run: {shlex.join(process.args)}"

    def _close(self, timeout: float | None = None) -> None:
        """Close everything in less than 8 seconds; at exit and after a failed constructor any part may be missing."""
        atexit.unregister(self._close)
        self._loaded = False
        communicator = getattr(self, "_communicator", None)
        process = getattr(self, "_process", None)
        self._process = None
        asked_to_stop = False
        try:
            asked_to_stop = communicator.close() if communicator is not None else False
        finally:
            if process is not None:
                stop_process(process, _PATIENCE_TOLD if asked_to_stop else _PATIENCE)
            guard = getattr(self, "_guard", None)
            if guard is not None:
                guard.release()


def introduced(introduction: Any) -> str:
    """Return the line for the log. Raises InvalidMessage if its protocol version is no version."""
    version = introduction.communication_version
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", version):
        raise InvalidMessage(f"the environment introduced itself with communication version {version!r}, not 1.x.y")
    return (
        f"Connected to Unity environment with package version {introduction.package_version} "
        f"and communication version {version}"
    )


def _add_actions(rows: Any, action: Action, deprecated: bool) -> None:
    """Add actions; players before communication version 1.3 know no hybrid actions and read the deprecated field."""
    for continuous, discrete in zip(action.continuous.tolist(), action.discrete.tolist(), strict=True):
        row = rows.add(continuous_actions=continuous, discrete_actions=discrete)
        if deprecated:
            row.vector_actions_deprecated.extend([*continuous, *discrete])
