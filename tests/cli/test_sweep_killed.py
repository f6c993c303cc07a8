"""`jaxrl sweep` under kill -9: nobody stays, and `--resume` ends with the table of a sweep that nobody disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.cli import sweep_processes
from jaxrl.cli.sweep_processes import Job, await_writers
from jaxrl.orphans import Guard
from jaxrl.training.interrupt import Interrupt
from tests.envs.processes import comes_true, is_gone
from tests.toy_runs import configured

ROOT = Path(__file__).parents[2]
HYPERPARAMETERS = {"batch_size": 32, "buffer_size": 64, "learning_rate_schedule": "constant"}
BEHAVIOR = {
    "trainer_type": "ppo",
    "hyperparameters": HYPERPARAMETERS,
    "network_settings": {"hidden_units": 8, "num_layers": 1},
    "max_steps": 3000,
    "summary_freq": 500,
    "checkpoint_interval": 500,
}
POINTS = ("learning_rate=1e-2", "learning_rate=1e-3")


class Sweep:
    """Sweeps of two learning rates over one environment, in a folder of their own."""

    def __init__(self, folder: Path, env: str, behavior: str, *flags: str) -> None:
        self.folder, self.env, self.behavior, self.flags = folder, env, behavior, flags
        (folder / "config.yaml").write_text(yaml.safe_dump({"behaviors": {behavior: BEHAVIOR}}))

    def begin(self, run_id: str, *flags: str) -> subprocess.Popen[bytes]:
        place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(self.folder / "cache"), "JAX_PLATFORMS": "cpu"}
        words = ["sweep", "config.yaml", "--env", self.env, "--num-areas", "2", "--seed", "3", "--run-id", run_id]
        words += ["--set", "hyperparameters.learning_rate=1e-2,1e-3", *self.flags, *flags]
        with (self.folder / f"{run_id}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "jaxrl.cli", *words], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, **place, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
            )  # fmt: skip

    def run(self, run_id: str, *flags: str) -> int:
        return self.begin(run_id, *flags).wait(240)

    def said(self, run_id: str) -> str:
        return (self.folder / f"{run_id}.out").read_text()

    def saved(self, run_id: str, point: str) -> list[Path]:
        place = self.folder / "results" / run_id / point / self.behavior
        return [found for found in place.glob(f"{self.behavior}-*") if found.is_dir() and found.suffix != ".partial"]

    def process(self, run_id: str, point: str) -> int:
        """The newest of a point; 0 before there is one."""
        return int(([0, *re.findall(rf"{point}: begun, process (\d+)", self.said(run_id))])[-1])

    def table(self, run_id: str) -> dict[str, Any]:
        points = json.loads((self.folder / "results" / run_id / "sweep.json").read_text())["points"]
        return {point["point"]: point for point in points}


def comes(true: Callable[[], bool], seconds: float = 120.0) -> None:
    assert comes_true(true, seconds), "it never came to that"


def below(process: int) -> list[int]:
    """Everybody below a process."""
    return [child.pid for child in psutil.Process(process).children(recursive=True)]


def all_gone(processes: list[int]) -> bool:
    return all(map(is_gone, processes))


@pytest.mark.slow
def test_one_program_goes_on_as_a_whole(tmp_path):
    sweep = Sweep(tmp_path, "jax:basic", "Basic", "--seeds", "2")
    assert sweep.run("whole") == 0, sweep.said("whole")
    killed = sweep.begin("killed")
    comes(lambda: all(sweep.saved("killed", point) for point in POINTS))
    killed.kill()
    assert killed.wait(10) == -signal.SIGKILL and not (tmp_path / "results" / "killed" / "sweep.json").exists()
    assert sweep.run("killed", "--resume") == 0, sweep.said("killed")
    assert sweep.table("killed") == sweep.table("whole") and sweep.table("whole").keys() == set(POINTS)


@pytest.mark.slow
def test_processes_leave_nobody_and_go_on_as_a_whole(tmp_path):
    """First a child dies, then the sweep: the other child is done, nobody stays, and the table comes out whole."""
    dies, other = POINTS
    sweep = Sweep(tmp_path, "gymnasium:CartPole-v1", "CartPole-v1", "--parallel", "2", "--exact", "--base-port", "7405")
    assert sweep.run("whole") == 0, sweep.said("whole")

    begun = sweep.begin("killed")
    comes(lambda: bool(sweep.saved("killed", dies)))
    child = sweep.process("killed", dies)
    left = below(child)
    os.kill(child, signal.SIGKILL)
    comes(lambda: all_gone(left), 10)
    assert left and begun.wait(240) == 1
    assert f"{dies}: ended with exit code -9" in sweep.said("killed")
    assert f"1 of 2 runs failed: {dies}. " in sweep.said("killed")
    table = sweep.table("killed")
    assert table[other] == sweep.table("whole")[other] and table[dies]["steps"] < 3000

    begun = sweep.begin("killed", "--resume")
    comes(lambda: sweep.process("killed", dies) != child and len(below(sweep.process("killed", dies))) > 1)
    left = below(begun.pid)
    begun.kill()
    begun.wait(10)
    assert sweep.run("killed", "--resume") == 0, sweep.said("killed")
    comes(lambda: all_gone(left), 40)
    assert sweep.table("killed") == sweep.table("whole")


def test_a_sweep_that_is_resumed_waits_for_runs_that_still_save(tmp_path, caplog):
    """Whose parent was killed: they hold their folders for up to half a minute."""
    script = "import sys, time; from pathlib import Path; from jaxrl.artifacts.lock import RunLock\n"
    script += "with RunLock(Path(sys.argv[1])):\n    print(flush=True)\n    time.sleep(1.5)\n"
    holds = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "busy")], stdout=subprocess.PIPE, env=os.environ
    )
    assert holds.stdout is not None
    with holds, caplog.at_level("INFO"):
        holds.stdout.readline()
        folders = [RunFolder(str(tmp_path), "busy"), RunFolder(str(tmp_path), "free")]
        await_writers(folders, Interrupt(), patience=0.1)
        assert (tmp_path / "busy" / "run.lock").exists()  # who is asked for less patience goes on
        await_writers(folders, Interrupt(), patience=30)
        assert not (tmp_path / "busy" / "run.lock").exists()
    assert caplog.text.count(f"busy: waits for process {holds.pid} on ") == 2 and "free" not in caplog.text


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
"""A run that takes no notice of SIGTERM, and has nothing to say."""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
def test_a_log_of_a_stranger_is_neither_followed_nor_waited_for(tmp_path):
    run, secret = configured(tmp_path, "run", Toy={}), tmp_path / "secret"
    log = tmp_path / "results" / "run.log"
    log.parent.mkdir()
    secret.write_text("mine")
    for make in (lambda: log.symlink_to(secret), lambda: os.mkfifo(log)):
        make()
        with pytest.raises(ArtifactError, match=r"run\.log: cannot be written \(it is no file: move it away"):
            sweep_processes._started(run)
        log.unlink()
    assert secret.read_text() == "mine"


def test_a_run_that_hangs_is_named_and_one_that_does_not_end_is_killed(tmp_path, caplog, monkeypatch):
    """Each once; a run that ends when it is told to has its time."""
    monkeypatch.setattr(sweep_processes, "END_SECONDS", 1.0)
    monkeypatch.setattr(sweep_processes, "SILENT_SECONDS", 60.0)
    scripts, children = {"deaf": DEAF, "good": DEAF.replace("SIG_IGN", "SIG_DFL")}, []
    for name, script in scripts.items():
        with (tmp_path / name).open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", script], stdout=log, start_new_session=True)
        children.append(sweep_processes._Child(name, tmp_path / name, process, Guard(process.pid, 30)))
    deaf, good = children
    comes(lambda: all(child.log.stat().st_size for child in children), 20)
    under_way = sweep_processes._UnderWay(Job(None, []), children)
    try:
        under_way.look_after()
        assert not caplog.records
        os.utime(deaf.log, (0, time.time() - 720))
        under_way.look_after()
        under_way.look_after()
        (told,) = caplog.messages
        assert told.startswith(f"deaf: process {deaf.process.pid} has written nothing for 12 minutes: it may hang.")
        under_way.end()
        assert good.process.wait(10) == -signal.SIGTERM
        under_way.look_after()
        assert deaf.process.poll() is None and not under_way.over
        time.sleep(1.0)
        under_way.look_after()
        assert deaf.process.wait(10) == -signal.SIGKILL and under_way.over
        assert caplog.messages[1:] == ["deaf: did not end within 1 s after SIGTERM: killed."]
    finally:
        for child in children:
            child.kill()
            child.guard.release()
