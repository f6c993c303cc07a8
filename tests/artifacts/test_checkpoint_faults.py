"""Checkpoints against kill -9, a full disk, and damage."""

import logging
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl.artifacts.checkpoint import folder as checkpoint_folder
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits or signals")

SAVE_FOR_EVER = """
import sys
from pathlib import Path
import numpy as np
from jaxrl.artifacts.checkpoint import store as checkpoint
folder = Path(sys.argv[1])
for step in range(1, 10_000):
    state = {"params": {f"layer_{i}": np.full((32, 64), step, np.float32) for i in range(30)}, "step": np.int64(step)}
    checkpoint.save(folder, step if step < 6 else 6, state, keep=3)
    print(step, flush=True)
"""
KILL_AT_EACH_FILE_OPERATION = """
import itertools, os, shutil, signal, sys
from pathlib import Path
import numpy as np
from jaxrl.artifacts.checkpoint import store as checkpoint
source, target = Path(sys.argv[1]), Path(sys.argv[2])
KINDS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")

def save_and_die(folder, at):
    left = [at]
    def hook(event, arguments):
        inside = event in KINDS and str(folder) in str(arguments[0])
        left[0] -= inside
        if inside and left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    for step, value in ((1, 2.0), (3, 3.0)):  # replaces the one of step 1, then adds one and removes the oldest
        checkpoint.save(folder, step, {"a": np.full(1000, value)}, keep=1)
    os._exit(0)

for at in itertools.count(1):
    folder = target / str(at) / "Walker"
    shutil.copytree(source, folder)
    child = os.fork()
    if child == 0:
        save_and_die(folder, at)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(at)
"""
FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from jaxrl.artifacts.checkpoint import folder as checkpoint_folder, store as checkpoint
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
state = {f"layer_{i}": np.random.default_rng(i).normal(size=(64, 64)) for i in range(10)}
checkpoint.save(folder, 1, state)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    checkpoint.save(folder, 2, state)
except checkpoint_folder.CheckpointError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "Walker"


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def template():
    return {"params": {f"layer_{i}": np.zeros((32, 64), np.float32) for i in range(30)}, "step": np.int64(0)}


def kill_after(child, lines, delay):
    """Wait until the child has saved `lines` times, then kill it `delay` seconds later; the last save it reported."""
    reported = [int(child.stdout.readline()) for _ in range(lines)]
    time.sleep(delay)
    child.kill()
    rest, _ = child.communicate(timeout=30)
    return int(([str(reported[-1]), *rest.split()])[-1])


@pytest.mark.slow
@posix
def test_a_run_killed_at_any_moment_continues_from_the_last_save_or_the_one_before(tmp_path):
    # The later kills hit saves that replace a checkpoint of the same step.
    plans = [(1, 0.005), (3, 0.022), (7, 0.012), (8, 0.031)]
    for index, (lines, delay) in enumerate(plans):
        folder = tmp_path / str(index) / "Walker"
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with child:
            reported = kill_after(child, lines, delay)
        checkpoint_folder.clean(folder)
        state = checkpoint.restore(checkpoint_folder.require_latest(folder), template())
        assert reported <= state["step"] <= reported + 1
        assert all(np.all(layer == state["step"]) for layer in state["params"].values())
        names = {path.name.split("-")[0] for path in folder.iterdir()}
        assert names == {"Walker", "checkpoint"} and not list(folder.glob("*.partial"))
        checkpoint.save(folder, 10, state)
        assert checkpoint_folder.latest(folder) == folder / "Walker-10"


@posix
def test_a_run_killed_at_each_single_file_operation_continues(tmp_path, log):
    source = tmp_path / "source" / "Walker"
    checkpoint.save(source, 1, {"a": np.full(1000, 1.0)})
    command = [sys.executable, "-c", KILL_AT_EACH_FILE_OPERATION, str(source), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    ends = []
    for at in range(1, int(result.stdout) + 1):
        folder = tmp_path / str(at) / "Walker"
        checkpoint_folder.clean(folder)
        array = checkpoint.restore(checkpoint_folder.require_latest(folder), {"a": np.zeros(1000)})["a"]
        assert np.all(array == array[0])
        ends.append(array[0])
        assert {path.name for path in folder.iterdir()} <= {"Walker-1", "Walker-3", "checkpoint"}
    assert ends == sorted(ends) and set(ends) == {1.0, 2.0, 3.0} and len(ends) > 15


@posix
@pytest.mark.parametrize("limit", [100, 20_000, 100_000])
def test_a_full_disk_is_a_clear_error_and_keeps_the_checkpoint_before(folder, limit):
    command = [sys.executable, "-c", FULL_DISK, str(folder), str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Walker-2: the checkpoint cannot be written" in result.stdout, result
    assert "File too large" in result.stdout and "Walker-1, is intact" in result.stdout
    assert result.stderr == ""  # no hundred lines of tracebacks from the array store's threads
    assert sorted(path.name for path in folder.iterdir()) == ["Walker-1", "checkpoint"]
    state = {f"layer_{i}": np.random.default_rng(i).normal(size=(64, 64)) for i in range(10)}
    again = checkpoint.restore(checkpoint_folder.require_latest(folder), {key: np.zeros((64, 64)) for key in state})
    assert all(np.array_equal(again[key], state[key]) for key in state)


@posix
def test_a_really_full_file_system(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        folder, state = tmp_path / "Walker", {"a": np.random.default_rng(0).normal(size=(100, 1000))}
        with pytest.raises(CheckpointError, match=r"cannot be written.*MiB free.*is intact"):
            for step in range(1, 10):
                checkpoint.save(folder, step, state)
        (tmp_path / "filler").write_bytes(bytes(shutil.disk_usage(tmp_path).free))
        again = checkpoint.restore(checkpoint_folder.require_latest(folder), {"a": np.zeros((100, 1000))})
        assert np.array_equal(again["a"], state["a"])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_writes_that_failed_beside_the_one_that_is_told_are_not_told_by_asyncio(folder, caplog):
    """One save in some hundred left a traceback for each array, by whatever collects garbage later."""
    checkpoint.save(folder, 1, {"x": np.zeros(1)})
    untold = "Task exception was never retrieved\nfuture: <Task finished coro=<f() done, defined at %s:1> exception=E>"
    for place in ("site-packages/orbax/checkpoint/handlers.py", "mine.py"):
        logging.getLogger("asyncio").error(untold % place)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == [untold % "mine.py"]


def test_unfinished_files_are_removed_and_reported(folder, log):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})
    (folder / "Walker-2.partial" / "arrays").mkdir(parents=True)
    (folder / "checkpoint.123.tmp").write_text("{")
    assert checkpoint_folder.clean(folder) == ["Walker-2.partial", "checkpoint.123.tmp"]
    assert "Walker-2.partial" in log.text
    assert checkpoint_folder.clean(folder) == []


def test_a_pointer_to_nothing_falls_back_to_the_newest_with_a_warning(folder, log):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})
    path = checkpoint.save(folder, 2, {"a": np.zeros(2)})
    shutil.rmtree(path)
    assert checkpoint_folder.latest(folder) == folder / "Walker-1"
    (folder / "checkpoint").unlink()
    assert checkpoint_folder.latest(folder) == folder / "Walker-1"
    assert [record.levelname for record in log.records] == ["WARNING", "WARNING"]


@posix
def test_whatever_stands_in_the_place_of_a_checkpoint_gives_way(folder):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})
    (folder / "Walker-2").symlink_to("nowhere")
    (folder / "Walker-3").write_text("")
    for step in (2, 3):
        path = checkpoint.save(folder, step, {"a": np.full(2, step)})
        assert checkpoint.restore(path, {"a": np.zeros(2, int)})["a"].tolist() == [step, step]
    assert sorted(path.name for path in folder.iterdir()) == ["Walker-1", "Walker-2", "Walker-3", "checkpoint"]


def test_the_one_before_is_named_and_the_cause_told_once(folder):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})
    (folder / "checkpoint").unlink()
    (folder / "checkpoint").mkdir()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(folder, 2, {"a": np.zeros(2)})
    text = str(caught.value)
    assert "The checkpoint before it, Walker-1, is intact" in text and "Is a directory" in text
    assert text.count("MiB free") == 1


def test_damaged_arrays_are_named_with_advice(folder):
    path = checkpoint.save(folder, 1, {"a": np.arange(1000.0)})
    for file in (path / "arrays").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"Walker-1: the checkpoint is damaged.*[Dd]elete this folder"):
        checkpoint.restore(path, {"a": np.zeros(1000)})


def test_an_exception_from_outside_leaves_no_partial_folder(folder, monkeypatch):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_folder, "install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(folder, 2, {"a": np.ones(2)})
    assert sorted(path.name for path in folder.iterdir()) == ["Walker-1", "checkpoint"]
