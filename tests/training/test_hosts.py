"""Hosts of one run find each other, end together and name who is gone: real processes, without JAX.

That they learn what one process learns is in `compiled/test_several_hosts.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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

    def __init__(self, count: int, does: dict[int, str] | None = None, settings: dict[int, str] | None = None) -> None:
        address = f"127.0.0.1:{free_ports()}"
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", HOST, address, str(index), str(count),
                 (settings or {}).get(index, "the same"), (does or {}).get(index, "runs")],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            )
            for index in range(count)
        ]  # fmt: skip

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
        process.wait(10)


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


def test_hosts_that_were_started_unlike_each_other_do_not_begin(hosts: Any) -> None:
    codes, said = hosts(2, settings={1: "others"}).ends()
    assert codes == [1, 1]
    assert all("host 1 was started with another version, configuration or other flags" in text for text in said)


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


def test_only_where_results_lie_may_differ() -> None:
    def of(**options: Any) -> str:
        return settings_text("1", {"checkpoint_settings": {"results_dir": "a", "run_id": "b", **options}})

    assert of(results_dir="elsewhere") == of() != of(run_id="another")
