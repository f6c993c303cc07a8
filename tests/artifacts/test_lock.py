"""One run per folder, with real processes: who holds the lock, who takes a stale one over, and what is left of it."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl.artifacts import lock
from jaxrl.artifacts.lock import NAME, RunLock, RunLockedError, keep

ROOT = Path(__file__).parents[2]
CONTENDER = """
import sys, time
from pathlib import Path
from jaxrl.artifacts.lock import RunLock, RunLockedError
folder, moment = Path(sys.argv[1]), float(sys.argv[2])
print("ready", flush=True)
while time.time() < moment:
    pass
try:
    with RunLock(folder):
        print("won", flush=True)
        sys.stdin.read()
except RunLockedError as error:
    print("lost", error, flush=True)
"""


def contender(folder: Path, moment: float = 0.0) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", CONTENDER, str(folder), str(moment)]
    process = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: subprocess.Popen[str], *, kill: bool = False) -> None:
    if kill:
        process.send_signal(signal.SIGKILL)
    process.communicate("", timeout=20)


def test_the_second_is_told_who_the_first_is(tmp_path):
    first = contender(tmp_path / "results" / "run")
    assert answer(first) == "won\n"
    with pytest.raises(RunLockedError) as caught, RunLock(tmp_path / "results" / "run"):
        pytest.fail("two at once")
    told = str(caught.value)
    assert f"process {first.pid} on {os.uname().nodename}, since 20" in told and "-c" in told and "--run-id" in told
    assert "\n" not in told
    end(first)
    assert list(tmp_path.iterdir()) == []  # the folders were made for the lock
    with RunLock(tmp_path / "run"):
        pass


@pytest.mark.parametrize("stale", [False, True])
def test_of_several_at_the_same_moment_exactly_one_wins(tmp_path, stale):
    """Also when all of them find the file of a run that was killed."""
    folder = tmp_path / "run"
    for _ in range(2):
        if stale:
            dead = contender(folder)
            assert answer(dead) == "won\n"
            end(dead, kill=True)
            assert (folder / NAME).exists()
        moment = time.time() + 2.0
        processes = [contender(folder, moment) for _ in range(5)]
        answers = [answer(process)[:4] for process in processes]
        for process in processes:
            end(process)
        assert sorted(answers) == ["lost"] * 4 + ["won\n"]


def test_a_stale_one_is_taken_over_and_said_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    dead = contender(tmp_path)
    assert answer(dead) == "won\n"
    end(dead, kill=True)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()
    assert f"process {dead.pid} on" in caplog.text and "taken over" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_one_of_another_host_is_not_ours_to_judge(tmp_path):
    file = tmp_path / NAME
    owner = {"process": 7, "host": "elsewhere", "started": "2026-01-01 00:00:00", "command": "jaxrl train"}
    file.write_text(json.dumps(owner))
    with (
        pytest.raises(RunLockedError, match=r"process 7 on elsewhere.*: jaxrl train.*delete .*run\.lock"),
        RunLock(tmp_path),
    ):
        pytest.fail("it may still run there")
    assert json.loads(file.read_text()) == owner
    file.unlink()
    with RunLock(tmp_path):
        pass


def test_a_file_without_sense_is_nobodys(tmp_path):
    (tmp_path / NAME).write_text("{half")
    with RunLock(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()


def test_a_child_process_does_not_keep_it(tmp_path):
    with RunLock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with RunLock(tmp_path):
        pass
    child.communicate(timeout=10)


def test_of_a_deleted_folder_it_is_taken_anew_and_said_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    with RunLock(tmp_path / "run"):
        for _ in range(2):
            (tmp_path / "run").rename(tmp_path / "deleted")  # at once: the thread may make it anew at any moment
            shutil.rmtree(tmp_path / "deleted")
            deadline = time.monotonic() + 20.0
            while not (tmp_path / "run" / NAME).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            keep(tmp_path / "run")  # waits for the thread, if it is writing its name
            other = contender(tmp_path / "run")
            assert answer(other).startswith(f"lost {tmp_path / 'run'} is written by another run (process {os.getpid()}")
            end(other)
    assert caplog.text.count("run.lock was deleted while the run goes on") == 2
    assert list(tmp_path.iterdir()) == []


def test_who_was_faster_after_a_deletion_has_it_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LOOK_SECONDS", 60.0)
    with RunLock(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
        other = contender(tmp_path / "run")
        assert answer(other) == "won\n"
        for _ in range(2):
            with pytest.raises(RunLockedError, match=f"process {other.pid} on"):
                keep(tmp_path / "run")
    assert json.loads((tmp_path / "run" / NAME).read_text())["process"] == other.pid, "left alone"
    end(other)
