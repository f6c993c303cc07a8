"""A worker that is killed closes nothing: the pool ends the player that it leaves, stopped or not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.workers.players import PLAYERS, Player, end, note
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from tests.envs.processes import comes_true, descendants, is_gone
from tests.envs.unity_build import SCRIPT, actions, free_port, write_build

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
    """At once where another process takes the worker's place, and at the end of the pool as well (U33, S25)."""
    limits = RestartLimits(lifetime=-1, rate=-1)
    with EnvPool(partial(make, build, free_port()), 1, limits=limits) as pool:
        pool.reset()
        (result,) = pool.recv()
        first = stopped_and_orphaned()
        assert first
        pool.send(0, actions(len(next(iter(result.steps.values())).deciding.agent_id)))
        (result,) = pool.recv()
        assert result.incarnation == 1 and all(map(is_gone, first))
        last = stopped_and_orphaned()
        time.sleep(0.2)
        assert last and not any(map(is_gone, last)), "it would stay"
    assert comes_true(lambda: all(map(is_gone, last)), 2.0), "killed, and gone in a moment"


def test_a_process_that_has_the_number_of_an_earlier_one_is_let_alone() -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setpgroup=0)
    try:
        note(child)
        assert not end(Player(child, "an earlier day")) and psutil.Process(child).is_running()
        os.kill(child, signal.SIGSTOP)
        assert end(PLAYERS.get()[-1])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
