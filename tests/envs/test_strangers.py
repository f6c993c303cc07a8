"""Who may speak at a player's port, over real sockets: strangers are processes of their own."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from unity_build import BEHAVIOR, ROOT, SCRIPT, actions, free_port, opener

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.unity import environment as unity
from jaxrl.envs.unity import peers
from jaxrl.envs.unity.decode import InvalidMessage
from jaxrl.envs.unity.environment import UnityHostEnv

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
STRANGER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from jaxrl.envs.protobuf import messages

port, size, calls = map(int, sys.argv[1:])
message = messages().UnityMessageProto()
message.header.status, message.header.message = 400, "x" * size
data = message.SerializeToString()

def call(number):
    channel = grpc.insecure_channel(f"localhost:{port}", options=[("grpc.max_send_message_length", -1)])
    try:
        channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")(data, timeout=20)
    except grpc.RpcError as error:
        return error.code().name
    return "taken"

with ThreadPoolExecutor(calls) as pool:
    print(json.dumps(list(pool.map(call, range(calls)))))
"""
linux = pytest.mark.skipif(not peers.CHECKED, reason="only Linux tells whose a connection is")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., UnityHostEnv]]:
    with opener(tmp_path) as open_env:
        yield open_env


def stranger(port: int, size: int = 1, calls: int = 1) -> list[str]:
    """What became of the calls of another process, each of which says that the player stops."""
    command = [sys.executable, "-c", STRANGER, str(port), str(size), str(calls)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def largest(during: Callable[[], object]) -> int:
    """Most bytes that this process gained meanwhile."""
    process, over, found = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def look() -> None:
        while not over.wait(0.005):
            found.append(process.memory_info().rss - before)

    thread = threading.Thread(target=look)
    thread.start()
    during()
    over.set()
    thread.join(5)
    return max(found)


@linux
def test_a_stranger_is_refused_without_harm_and_named_once(start, caplog):
    """One message that says `stop` ended a run; six of 100 MB took 1.6 GB."""
    port = free_port()
    env = start(base_port=port)
    env.reset()
    with caplog.at_level(logging.WARNING, "jaxrl"):
        told: list[str] = []
        gained = largest(lambda: told.extend(stranger(port, 100_000_000, 6)))
    assert told == ["PERMISSION_DENIED"] * 6 and gained < 90_000_000, (told, gained)  # not one of the six
    assert set(env.step(actions()).steps) == {BEHAVIOR}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"port {port}: refused ipv") and f"{sys.executable} -c" in warning
    assert "--listen" in warning


def test_only_loopback_is_served_unless_told_otherwise(start):
    """Of both kinds, because players dial `localhost`. Nobody dials 127.0.0.2, which is this machine, too."""
    port = free_port()
    start(base_port=port)
    for address in ("127.0.0.1", *(["::1"] if socket.has_ipv6 else ())):
        socket.create_connection((address, port), timeout=5).close()
    for address in {"127.0.0.2", *addresses_of_this_machine()}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, port), timeout=5)


def addresses_of_this_machine() -> set[str]:
    found = [one.address for ones in psutil.net_if_addrs().values() for one in ones if one.family == socket.AF_INET]
    return {address for address in found if address != "127.0.0.1"}


def test_elsewhere_the_first_who_calls_is_the_player(start):
    """`listen` is for players that nobody can tell: the script that starts them is not the one that calls."""
    port = free_port()
    env = start(base_port=port, listen="0.0.0.0")
    env.reset()
    socket.create_connection(("127.0.0.2", port), timeout=5).close()
    assert stranger(port) == ["PERMISSION_DENIED"] and set(env.step(actions()).steps) == {BEHAVIOR}
    with pytest.raises(EnvironmentFailure, match=r"listen: got 192\.0\.2\.1, which is no address of this machine"):
        start(base_port=free_port(), listen="192.0.2.1")


def test_the_editor_has_one_connection_too(monkeypatch):
    """Nobody knows its process; whoever comes first is the Editor, and goes on being it."""
    monkeypatch.setattr(unity, "EDITOR_PORT", free_port())
    command = [sys.executable, str(SCRIPT), "--mlagents-port", str(unity.EDITOR_PORT), "--scenario", "goodbye"]
    editor = subprocess.Popen(command, env=ENVIRONMENT)
    try:
        env = UnityHostEnv(worker=0, file_name=None, seed=0, timeout_wait=20)
        env.reset()
        assert stranger(unity.EDITOR_PORT) == ["PERMISSION_DENIED"]
        time.sleep(0.3)
        words = "told to stop by the system" if peers.CHECKED else "connection broke"
        with pytest.raises(EnvironmentFailure, match=words):  # said on a second connection of the same process
            env.step(actions())
        env.close()
    finally:
        editor.kill()
        editor.wait(5)


def test_a_message_beyond_the_limit_names_it(start):
    env = start("large", message_megabytes=1)
    env.reset()
    with pytest.raises(InvalidMessage, match=r"larger than 1 MB\s\(env_settings.message_megabytes\)") as caught:
        env.step(actions())
    assert not isinstance(caught.value, EnvironmentClosed)
    env = start("large", message_megabytes=3)
    env.reset()
    assert set(env.step(actions()).steps) == {BEHAVIOR}
