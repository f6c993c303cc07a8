"""How a player ends: in order, because somebody closed it, or by a fault. Its exit code has the last word.

A player that stops says so with status 400, also before it fails. A connection that breaks without a word is an orderly
end only if the process ends with exit code 0.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from jaxrl.envs.client import UnityClient
from jaxrl.envs.closed import EnvironmentClosed
from jaxrl.envs.communicator import Communicator, new_message
from jaxrl.envs.interface import EnvironmentFailure

_SHUTDOWN = 400
_QUIT = "the player has quit (exit code 0)"
_END_SECONDS = 3.0  # from the last word of a player to its exit code


class BrokenConnectionError(EnvironmentFailure):
    """The player hung up without a word."""


class ClosingCommunicator(Communicator):
    """A `Communicator` that tells apart how the other side went away.

    Raises:
        EnvironmentClosed: the player sent status 400.
        BrokenConnectionError: the connection broke.
    """

    def close(self) -> bool:
        """As `Communicator.close`, with one answer for each call that waits: a goodbye may come beside another."""
        for _ in range(len(self._waiting) - 1):
            self._outbox.put(new_message(_SHUTDOWN).SerializeToString())
        return super().close()

    def _receive(self, poll_callback: Callable[[], None] | None, timeout_text: str) -> Any:
        message = super()._receive(poll_callback, timeout_text)
        if message.header.status == _SHUTDOWN:
            reason = message.header.message or "it quit, or play mode was stopped in the Editor"
            raise EnvironmentClosed(f"the environment closed (status {_SHUTDOWN}): {reason}")
        return message

    def _wait(self, poll_callback: Callable[[], None] | None, timeout_text: str) -> bytes | None:
        data = super()._wait(poll_callback, timeout_text)
        if data is None:
            raise BrokenConnectionError("the environment closed: the connection broke")
        return data


class ClosingClient(UnityClient):
    """A `UnityClient` that knows why its player went away."""

    @staticmethod
    def _get_communicator(worker_id: int, base_port: int, timeout_wait: float) -> Communicator:
        return ClosingCommunicator(base_port + worker_id, timeout_wait)

    def why_closed(self, error: EnvironmentFailure) -> EnvironmentFailure:
        """The error, or what the exit code of the player's process, for which it waits up to 3 s, makes of it.

        EnvironmentClosed if the player has quit with exit code 0, or said that it stops and has not ended yet.
        """
        process = self._process
        if process is None or not isinstance(error, EnvironmentClosed | BrokenConnectionError):
            return error
        if isinstance(error, EnvironmentClosed):
            self._communicator.close()  # the player waits for an answer to its last word
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return error
        if code:
            return EnvironmentFailure(f"{error}. {self._returncode_to_env_message(code)}")
        return error if isinstance(error, EnvironmentClosed) else EnvironmentClosed(_QUIT)

    def _poll_process(self) -> None:
        if self._process is not None and self._process.poll() == 0:
            raise EnvironmentClosed(_QUIT)
        super()._poll_process()
