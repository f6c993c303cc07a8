"""Whoever is killed closes nothing: what it has started ends all the same, stopped or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from tests.envs.processes import comes_true, descendants, is_gone
from tests.envs.unity_build import ROOT, SCRIPT, actions, free_port, write_build

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.skipif(os.name == "nt", reason="players here are shell scripts, and signals those of POSIX")


def make(build: str, port: int, worker: int) -> UnityHostEnv:
    arguments = ("--scenario", "normal")
    return UnityHostEnv(worker=worker, file_name=build, seed=5, base_port=port, timeout_wait=20.0, env_args=arguments)


def running(word: str) -> list[psutil.Process]:
    """Below this process, with the word in its command line; the outermost first."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if word in " ".join(process.cmdline())]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[str]:
    """A player behind a shell; afterwards no process is left, and none of this module's players."""
    before = descendants()
    yield write_build(tmp_path)
    assert comes_true(lambda: descendants() <= before)
    assert comes_true(lambda: not any(str(tmp_path) in " ".join(p.info["cmdline"] or ()) for p in everybody()))


def everybody() -> Iterator[psutil.Process]:
    return psutil.process_iter(["cmdline"])


def stopped_and_orphaned() -> list[int]:
    """Stop the player, and kill its worker; the ids of the player's processes."""
    (worker,), players = running("spawn_main"), running(str(SCRIPT))
    for player in players:
        player.suspend()
    worker.kill()
    return [player.pid for player in players]


def test_a_stopped_player_goes_with_its_killed_worker(build: str) -> None:
    """At once, and another process takes the worker's place (U33, S25)."""
    limits = RestartLimits(lifetime=-1, rate=-1)
    with EnvPool(partial(make, build, free_port()), 1, limits=limits) as pool:
        pool.reset()
        (result,) = pool.recv()
        first = stopped_and_orphaned()
        assert first and comes_true(lambda: all(map(is_gone, first)), 2.0)
        pool.send(0, actions(len(next(iter(result.steps.values())).deciding.agent_id)))
        (result,) = pool.recv()
        assert result.incarnation == 1


def test_a_signal_while_the_player_starts_leaves_no_player(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own `Popen` forgets a process if a signal's handler raises in it; the fixture looks for the player."""
    popen, started = subprocess.Popen, []

    def interrupted(*words: Any, **more: Any) -> Any:
        started.append(popen(*words, **more))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit, match="143"):
            make(build, free_port(), 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started and comes_true(lambda: started[0].poll() is not None)


PARENT = """
import sys
from functools import partial
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.workers.pool import EnvPool

def make(build, port, worker):
    arguments = ("--scenario", ("normal", "never_connects")[worker])
    return UnityHostEnv(worker=worker, file_name=build, seed=5, base_port=port, timeout_wait=60.0, env_args=arguments)

if __name__ == "__main__":
    EnvPool(partial(make, sys.argv[1], int(sys.argv[2])), 2)
"""


@pytest.mark.parametrize("how", ["trainer", "trainer and workers"])
def test_nobody_survives_kill_9_of_the_trainer(build: str, how: str) -> None:
    """Neither a player that hangs in its handshake nor one that is stopped, whether their workers live or not."""
    file = Path(build).with_name("parent.py")
    file.write_text(PARENT)
    parent = psutil.Popen([sys.executable, str(file), build, str(free_port())], env=ENVIRONMENT)
    try:
        assert comes_true(lambda: len(running("--scenario normal")) * len(running("never_connects")) >= 4, 30.0)
        time.sleep(0.5)  # the one has said who it is
        players = running(str(SCRIPT))
        for player in players:
            if "normal" in player.cmdline():
                player.suspend()
        below = parent.children(recursive=True)
        for process in [parent, *running("spawn_main")] if how != "trainer" else [parent]:
            process.kill()
        assert len(players) == 2 and comes_true(lambda: all(is_gone(process.pid) for process in below), 15.0), below
    finally:
        for process in [parent, *parent.children(recursive=True)]:
            process.kill()
        parent.wait(5)
