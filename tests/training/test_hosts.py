"""Hosts of one run find each other, end together and name who is gone: real processes, without JAX.

That they learn what one process learns is in `compiled/test_several_hosts.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.cli import main
from jaxrl.training.hosts import HostsError, place_of, settings_text
from jaxrl.training.interrupt import _FIRST
from tests.trainer import free_ports

ROOT = Path(__file__).parents[2]
HOST = """
import hashlib, logging, sys, time
from jaxrl.training import hosts
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import JaxrlError
logging.basicConfig(stream=sys.stdout)
hosts.SILENT_SECONDS, hosts.BEAT_SECONDS = 1.5, 0.2
address, index, count, settings, does = sys.argv[1:]
try:
    with hosts.Hosts(hosts.place_of(address, int(index), int(count)), settings) as every:
        every.gather()
        with Interrupt() as interrupt:
            every.watch(interrupt)
            print("begun", flush=True)
            while not interrupt.requested:
                time.sleep(0.02)
                if does == "fails":
                    raise JaxrlError("the disk is full")
                if does == "computes":  # no handler of a signal runs meanwhile, other threads do
                    hashlib.pbkdf2_hmac("sha256", b"", b"", 8_000_000)
                if does == "ends":
                    break
            if does == "saves":
                time.sleep(1.5)
except JaxrlError as error:
    print(error, flush=True)
    sys.exit(1)
print("ended", flush=True)
"""
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


class Several:
    """Processes that are hosts of one run; `does` says what one of them does, `settings` what it was given."""

    def __init__(
        self,
        count: int,
        does: dict[int, str] | None = None,
        settings: dict[int, str] | None = None,
        late: frozenset[int] = frozenset(),
    ) -> None:
        self.port = free_ports()
        self.count, self.does, self.settings = count, does or {}, settings or {}
        self.processes = [self.start(index) for index in range(count) if index not in late]

    def start(self, index: int) -> subprocess.Popen[str]:
        """One of them."""
        return subprocess.Popen(
            [sys.executable, "-c", HOST, f"127.0.0.1:{self.port}", str(index), str(self.count),
             self.settings.get(index, "the same"), self.does.get(index, "runs")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip

    def begin(self) -> Several:
        """All are there."""
        for process in self.processes:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "begun\n":
                assert line, process.wait(10)
        return self

    def ends(self) -> tuple[list[int], list[str]]:
        """Exit codes, and what each has said since."""
        said = [process.communicate(timeout=60)[0] for process in self.processes]
        return [process.returncode for process in self.processes], said


@pytest.fixture
def hosts() -> Iterator[Any]:
    started: list[Several] = []

    def start(*words: Any, **more: Any) -> Several:
        started.append(Several(*words, **more))
        return started[-1]

    yield start
    for process in (process for of in started for process in of.processes):
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize("victim", [0, 2])
def test_the_others_end_and_name_who_was_killed(hosts: Any, victim: int) -> None:
    run = hosts(3).begin()
    run.processes[victim].kill()
    codes, said = run.ends()
    assert codes == [-9 if index == victim else 1 for index in range(3)]
    for index in {0, 1, 2} - {victim}:
        assert f"host {victim} (" in said[index] and f"process {run.processes[victim].pid})" in said[index]
        assert "it is gone" in said[index] and "--resume" in said[index]


def test_who_says_nothing_is_gone(hosts: Any) -> None:
    run = hosts(2).begin()
    run.processes[1].send_signal(signal.SIGSTOP)
    assert run.processes[0].wait(30) == 1
    assert "host 1 (" in run.processes[0].stdout.read()
    run.processes[1].send_signal(signal.SIGCONT)
    codes, said = run.ends()
    assert codes[1] == 1 and "it is gone" in said[1]


def ended(text: str) -> bool:
    """Whether it ended in order, with nothing behind; a thread says that it was interrupted, perhaps after that."""
    return text.replace(_FIRST, "").endswith("ended\n")


@pytest.mark.parametrize("told", [0, 1])
def test_ctrl_c_of_one_ends_all(hosts: Any, told: int) -> None:
    run = hosts(3).begin()
    run.processes[told].send_signal(signal.SIGINT)
    codes, said = run.ends()
    assert codes == [0, 0, 0] and all(map(ended, said))


def test_a_host_that_computes_is_interrupted_once(hosts: Any) -> None:
    """It is told when another is interrupted and when that ends; the second time would be taken for another Ctrl-C."""
    run = hosts(2, does={0: "computes", 1: "saves"}).begin()
    run.processes[1].send_signal(signal.SIGINT)
    codes, said = run.ends()
    assert codes == [0, 0] and all(map(ended, said))


def test_what_one_fails_of_is_told_by_all(hosts: Any) -> None:
    run = hosts(2, does={1: "fails"})
    codes, said = run.ends()
    assert codes == [1, 1] and "host 1 (" in said[0]
    assert all("the disk is full" in text for text in said)


def test_an_end_is_no_failure(hosts: Any) -> None:
    assert hosts(2, does={0: "ends", 1: "ends"}).ends()[0] == [0, 0]


def test_a_host_that_was_started_unlike_the_others_is_refused_and_another_may_come(hosts: Any) -> None:
    run = hosts(2, settings={1: "others"})
    text = "host 1 was started with another version, configuration or other flags than host 0"
    assert text in run.processes[1].communicate(timeout=60)[0] and run.processes[1].returncode == 1
    assert f"WARNING:jaxrl.training.hosts:{text}: it is refused" in run.processes[0].stdout.readline()
    run.settings.clear()
    run.processes[1] = run.start(1)
    run.begin()


@pytest.mark.parametrize(
    ("index", "count", "words"),
    [(1, 3, "--host-count: got 3 at host 1, 2 at host 0"), (0, 2, "--host-id: 0 is given twice, or is none of 1 to 1")],
)
def test_other_flags_with_the_same_settings_are_an_error_of_all(hosts: Any, index: int, count: int, words: str) -> None:
    run = hosts(2, late=frozenset({1}))
    with connected(run.port) as line:
        said = {"kind": "hello", "index": index, "count": count, "settings": "the same", "name": "x"}
        line.sendall(json.dumps(said).encode() + b"\n")
        assert words.encode() in line.recv(1000)
    codes, said = run.ends()
    assert codes == [1] and words in said[0]


def connected(port: int) -> socket.socket:
    """A stranger at host 0, once that listens."""
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_strangers_neither_stop_nor_block_the_gathering(hosts: Any) -> None:
    run, over = hosts(2, late=frozenset({1})), threading.Event()

    def trickle() -> None:
        """A byte at a time, again and again, without ever saying a line."""
        with contextlib.suppress(OSError):  # the port is closed
            while not over.is_set():
                with socket.create_connection(("127.0.0.1", run.port)) as line, contextlib.suppress(OSError):
                    while not over.wait(0.05):
                        line.sendall(b"x")

    connected(run.port).close()
    with contextlib.ExitStack() as stack:
        for slow in (threading.Thread(target=trickle) for _ in range(3)):
            stack.callback(slow.join)
            slow.start()
        stack.callback(over.set)
        others = [b"[" * 9000 + b"\n", b'{"kind": "hello"}\n', b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"1" * 20_000,
                  b'{"kind": "hello", "index": 1, "count": 2, "settings": "?", "name": []}\n']  # fmt: skip
        for words in others:
            line = stack.enter_context(connected(run.port))
            line.sendall(words)
            while line.recv(1000):  # until it is hung up on
                pass
        for _ in range(100):
            stack.enter_context(connected(run.port))
        run.processes.append(run.start(1))
        run.begin()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((None, 0, None), "expected --hosts HOST:PORT"),
        (("auto", 0, 2), "finds --host-id and --host-count by itself"),
        (("6000", 0, 2), "got 6000, expected HOST:PORT"),
        (("a:6000", None, 2), "expected --host-id"),
        (("a:6000", 2, 2), "got 2, expected 0 to 1"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(given: Any, text: str) -> None:
    with pytest.raises(HostsError, match=text):
        place_of(*given)
    assert place_of(None, None, None) is None


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (["--env", "player:basic"], "--env player:basic"),
        (["--env", "gymnasium:CartPole-v1", "--num-envs", "2"], "--env gymnasium:CartPole-v1"),
        ([], "the Unity Editor"),
    ],
)
@pytest.mark.parametrize(
    "place", [["127.0.0.1:1", "--host-id", "0", "--host-count", "2"], ["auto"]], ids=["two", "auto"]
)
def test_the_host_loop_takes_no_hosts(
    tmp_path: Path, capsys: Any, monkeypatch: Any, flags: list[str], environment: str, place: list[str]
) -> None:
    """Said before anything is written, listened at or looked for; also before demonstrations are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxrl.training.hosts.GATHER_SECONDS", 0.1)
    cloned = "behavioral_cloning: {demo_path: nowhere.demo}"
    Path("c.yaml").write_text(f"default_settings: {{trainer_type: ppo, {cloned}}}\n")
    assert main(["train", "c.yaml", "--hosts", *place, *flags]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"--hosts: got {environment}, expected an environment that is compiled with the learner" in said
    assert "(--env jax:NAME)" in said and "(--num-envs)" in said and "(--workers ray://HOST:PORT)" in said
    assert "nowhere.demo" not in said and [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_only_where_results_lie_may_differ() -> None:
    def of(**options: Any) -> str:
        return settings_text("1", {"checkpoint_settings": {"results_dir": "a", "run_id": "b", **options}})

    assert of(results_dir="elsewhere") == of() != of(run_id="another")
