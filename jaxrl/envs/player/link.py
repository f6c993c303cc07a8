"""The player's end of the connection: it calls the trainer, which listens, and each call waits for its answer."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import grpc

from jaxrl.envs.protobuf import RUNNING, messages
from jaxrl.types import JaxrlError

EDITOR_PORT = 5004
_GOODBYE_SECONDS = 2.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the machine's must not see calls to a trainer on it
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_logger = logging.getLogger(__name__)


class PlayerError(JaxrlError):
    """The player cannot go on. The text gives the cause and what to do."""


class PlayerOptions(NamedTuple):
    """Options of the player's connection to the trainer."""

    port: int = EDITOR_PORT
    host: str = "localhost"
    decision_period: int = 1  # steps of the environment from one decision of an agent to the next
    connect_seconds: float = 60.0  # for the trainer to take the first call
    answer_seconds: float = 3600.0  # for any later answer; a trainer learns, saves and exports between two answers


class TrainerGoneError(Exception):
    """The trainer closed the connection or announced its end."""


class Link:
    """Connection to the trainer."""

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
        """Make the first exchange, which waits for the trainer's server; return its initialization input.

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
        """Send the player's message and wait for the trainer's answer.

        Raises:
            TrainerGoneError: the connection broke or the trainer stops.
            PlayerError: no answer came in `answer_seconds`.
        """
        try:
            return self._running(self._exchange(message, timeout=self._options.answer_seconds))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:  # pyright: ignore
                raise PlayerError(
                    f"the trainer at {self._address} did not answer for {self._options.answer_seconds:g} s; it hangs"
                ) from error
            raise TrainerGoneError(f"connection to {self._address} ended: {error.code()}") from error  # pyright: ignore

    def close(self) -> None:
        """Close the connection; an open call is dropped."""
        self._channel.close()

    def goodbye(self, message: Any) -> None:
        """Tell the trainer that the player stops, if it is there. Uses a connection of its own, since the answer to
        the last call may still be outstanding.
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
            raise TrainerGoneError(f"trainer says status {answer.header.status}")
        return answer.unity_input
