"""A bare trainer: a gRPC server that shows what a player sends and answers what the test wants. Also a script: serves
the handshake and the first reset to a player that it starts, prints its process id, and then waits to be killed.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from jaxrl.envs.protobuf import messages

WAIT = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


class RawTrainer:
    """`receive()` gives the player's next message, `answer(...)` replies to it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.sent: list[bytes] = []
        self._in: queue.Queue[bytes] = queue.Queue()
        self._out: queue.Queue[bytes] = queue.Queue()
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)
        service = grpc.method_handlers_generic_handler(
            "communicator_objects.UnityToExternalProto", {"Exchange": handler}
        )
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"localhost:{self.port}")
        self._server.start()

    def _exchange(self, request: bytes, context: Any) -> bytes:
        self._in.put(request)
        return self._out.get(timeout=WAIT)

    def receive(self, seconds: float = WAIT) -> Any:
        data = self._in.get(timeout=seconds)
        self.sent.append(data)
        return messages().UnityMessageProto.FromString(data)

    def answer(self, status: int = 200, **rl_input: Any) -> None:
        message = messages().UnityMessageProto()
        message.header.status = status
        if rl_input:
            message.unity_input.rl_input.SetInParent()
        for name, value in rl_input.items():
            setattr(message.unity_input.rl_input, name, value)
        self._out.put(message.SerializeToString())

    def greet(self, seed: int = 0, areas: int = 1) -> Any:
        """The whole handshake. Returns the player's introduction; the player now waits for its first command."""
        introduction = self.receive()
        message = messages().UnityMessageProto()
        message.header.status = 200
        start = message.unity_input.rl_initialization_input
        start.seed, start.num_areas, start.communication_version = seed, areas, "1.5.0"
        self._out.put(message.SerializeToString())
        self.receive()
        return introduction

    def reset(self, side_channel: bytes = b"") -> Any:
        self.answer(command=messages().RESET, side_channel=side_channel)
        return self.receive()

    def act(self, behavior: str, rows: list[dict[str, list]]) -> Any:
        """Answer with one action for each row and return the player's next message."""
        message = messages().UnityMessageProto()
        message.header.status = 200
        message.unity_input.rl_input.command = messages().STEP
        for row in rows:
            message.unity_input.rl_input.agent_actions[behavior].value.add(**row)
        self._out.put(message.SerializeToString())
        return self.receive()

    def close(self) -> None:
        for _ in range(4):  # handlers that still wait
            self._out.put(b"")
        self._server.stop(0).wait(5)

    def __enter__(self) -> RawTrainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


if __name__ == "__main__":
    trainer = RawTrainer()
    player = subprocess.Popen([sys.executable, *sys.argv[1:], "--mlagents-port", str(trainer.port)])
    trainer.greet()
    trainer.reset()
    print(player.pid, flush=True)
    time.sleep(WAIT)
