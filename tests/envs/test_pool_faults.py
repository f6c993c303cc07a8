"""Real faults of workers and parents: exceptions, killed, stopped and hung processes, Ctrl-C, and no stray players."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from faulty_env import FailingEnv, ObjectEnv, PlayerEnv, SlowEnv, without_executable
from processes import comes_true, descendants, is_gone, noted_pids
from toy_env import ToyEnv, no_actions

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool

FORMS = pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])


def step_until_failure(pool: EnvPool) -> None:
    pool.reset()
    for _ in range(5):
        for result in pool.recv(pool.num_envs):
            pool.send(result.worker, no_actions(result))


def failure(pattern: str):
    return pytest.raises(EnvironmentFailure, match=pattern)


def worker_pids() -> dict[str, int]:
    return {process.name: process.pid or 0 for process in multiprocessing.active_children()}


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = descendants()
    yield
    assert comes_true(lambda: descendants() <= before, seconds=3.0)


@FORMS
def test_an_exception_is_raised_in_the_parent_with_the_workers_traceback(inline):
    with EnvPool(partial(FailingEnv, how="raise"), 2, inline=inline) as pool:
        with failure(r"^environment worker 1 failed during its step: ValueError: boom$") as error:
            step_until_failure(pool)
        assert 'raise ValueError("boom")' in str(error.value.__cause__)
        # The other environment's result is not lost, and the failed worker says what it is.
        assert [result.worker for result in pool.recv()] == [0]
        with failure(r"worker 1 .*boom .earlier; the worker was not replaced"):
            pool.send(1, {})


@FORMS
def test_an_environment_that_sends_nonsense_fails_by_name(inline):
    with EnvPool(ObjectEnv, 1, inline=inline) as pool:
        pool.reset()
        with failure(r"worker 0 failed during its reset: TypeError: .* dtype object"):
            pool.recv()


@pytest.mark.parametrize(("how", "ending"), [("exit", r"exit code 7\."), ("kill", r"exit code -9 \(SIGKILL\)\.")])
def test_a_worker_that_dies_is_noticed_at_once(how, ending):
    with EnvPool(partial(FailingEnv, how=how), 2) as pool:
        start = time.monotonic()
        with failure(rf"worker 1 died during its step: process \d+ ended with {ending}"):
            step_until_failure(pool)
        assert time.monotonic() - start < 1.5


def test_a_worker_that_is_killed_while_it_owes_nothing_is_noticed_when_it_is_needed():
    with EnvPool(ToyEnv, 2) as pool:
        pool.reset()
        results = pool.recv(2)
        os.kill(worker_pids()["jaxrl-env-0"], signal.SIGKILL)
        with failure(r"worker 0 died during its step: process \d+ ended with .*SIGKILL"):
            for _ in range(2):  # the first send may come before the process is gone
                pool.send(0, no_actions(results[0]))
                pool.recv()
        pool.send(1, no_actions(results[1]))
        assert [result.worker for result in pool.recv()] == [1]


def test_a_send_to_a_process_that_has_ended_fails_itself():
    """Not the wait for an answer, which may be long in coming."""
    with EnvPool(ToyEnv, 1) as pool:
        pool.reset()
        (result,) = pool.recv()
        (process,) = [each for each in multiprocessing.active_children() if each.name == "jaxrl-env-0"]
        process.kill()
        process.join(10)
        with failure(r"worker 0 died during its step: process \d+ ended with .*SIGKILL"):
            pool.send(0, no_actions(result))
        with failure(r"worker 0 .*SIGKILL.* .earlier; the worker was not replaced"):
            pool.send(0, no_actions(result))


def test_a_death_is_noticed_although_a_player_still_holds_the_workers_files(tmp_path):
    with EnvPool(partial(PlayerEnv, folder=str(tmp_path), inherit=True), 1) as pool:
        pool.reset()
        pool.recv()
        pid = worker_pids()["jaxrl-env-0"]
        os.kill(pid, signal.SIGSTOP)
        pool.reset()
        start = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with failure(r"worker 0 died during its reset: .*SIGKILL"):
            pool.recv()
        assert time.monotonic() - start < 1.5
    for player in noted_pids(tmp_path):  # its environment was killed with the worker and could not close it
        os.kill(player, signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "state"),
    [
        pytest.param("hang", "is alive and waiting", marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc")),
        pytest.param("stop", "is alive and stopped", marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc")),
    ],
)
def test_a_silent_worker_runs_into_the_time_out_with_a_diagnosis(how, state):
    pool = EnvPool(partial(FailingEnv, how=how), 2, timeout=1.0)
    try:
        start = time.monotonic()
        with failure(rf"worker 1 has not answered its step for [12]\.\d s: .*{state}"):
            step_until_failure(pool)
        assert time.monotonic() - start < 3
    finally:
        os.kill(worker_pids()["jaxrl-env-1"], signal.SIGKILL)  # or closing waits its 10 s for it
        pool.close()


def test_a_hung_worker_is_noticed_although_others_keep_answering():
    pool = EnvPool(partial(FailingEnv, how="hang"), 2, timeout=1.0)
    try:
        with failure(r"worker 1 has not answered its step"):
            pool.reset()
            while True:
                for result in pool.recv():
                    pool.send(result.worker, no_actions(result))
    finally:
        os.kill(worker_pids()["jaxrl-env-1"], signal.SIGKILL)
        pool.close()


def test_closing_a_hung_worker_is_bounded(monkeypatch):
    monkeypatch.setattr("jaxrl.envs.workers.pool._CLOSE_SECONDS", 0.5)
    monkeypatch.setattr("jaxrl.envs.workers.pool._FORCE_SECONDS", 0.5)
    for how in ("hang", "stop"):
        pool = EnvPool(partial(FailingEnv, how=how), 2, timeout=0.3)
        with failure(r"has not answered"):
            step_until_failure(pool)
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 3


def test_a_failed_start_up_closes_the_others_and_raises_the_first_error(tmp_path):
    with failure(r"worker 1 failed during its start-up: env_path: 'Game.x86_64' does not"):
        EnvPool(partial(without_executable, folder=str(tmp_path)), 3)
    assert len(noted_pids(tmp_path)) == len(list(tmp_path.glob("closed*")))
    assert all(is_gone(pid) for pid in noted_pids(tmp_path))


def test_a_start_up_that_takes_too_long_is_reported(monkeypatch):
    monkeypatch.setattr("jaxrl.envs.workers.pool._CLOSE_SECONDS", 0.2)
    with failure(r"worker 0 has not answered its start-up for"):
        EnvPool(partial(SlowEnv, start=30.0), 1, startup_timeout=0.5)


def test_closing_in_a_finally_keeps_the_error_under_way():
    with pytest.raises(KeyError, match="mine"):
        pool = EnvPool(partial(FailingEnv, how="kill"), 2)
        try:
            with pytest.raises(EnvironmentFailure):
                step_until_failure(pool)
            raise KeyError("mine")
        finally:
            pool.close()


def test_a_script_without_the_main_guard_learns_what_to_do(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from toy_env import ToyEnv\nfrom jaxrl.envs.workers.pool import EnvPool\nEnvPool(ToyEnv, 1).close()\n"
    )
    ended = subprocess.run(
        [sys.executable, script], env=child_environment(), capture_output=True, text=True, timeout=30
    )
    assert "worker 0 died during its start-up" in ended.stderr
    assert "needs the guard `if __name__ == '__main__':`" in ended.stderr


def child_environment() -> dict[str, str]:
    here = Path(__file__).parent
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}


@contextmanager
def parent(folder: Path, how: str, closing_seconds: float = 0.0):
    """A process with a pool of two environments with players, in a session of its own."""
    script = Path(__file__).with_name("pool_parent.py")
    command = [sys.executable, str(script), str(folder), how, str(closing_seconds)]
    with subprocess.Popen(
        command, env=child_environment(), start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            for pid in noted_pids(folder):
                if not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)


def test_workers_of_a_killed_parent_close_their_environments(tmp_path):
    with parent(tmp_path, "wait") as process:
        assert comes_true((tmp_path / "waiting").exists)
        process.kill()
        assert comes_true(lambda: len(list(tmp_path.glob("closed*"))) == 2)
        assert comes_true(lambda: all(is_gone(pid) for pid in noted_pids(tmp_path)))
        assert not (tmp_path / "closing").exists()


def test_a_parent_that_leaves_without_closing_leaves_nothing_behind(tmp_path):
    with parent(tmp_path, "leave") as process:
        assert process.wait(20) == 0
        assert process.communicate()[1] == ""
        assert len(list(tmp_path.glob("closed*"))) == 2
        assert all(is_gone(pid) for pid in noted_pids(tmp_path))


def test_ctrl_c_in_the_terminal_lets_the_parent_close_in_order(tmp_path):
    with parent(tmp_path, "wait") as process:
        assert comes_true((tmp_path / "waiting").exists)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
        error = process.communicate(timeout=10)[1]
        assert error.count("KeyboardInterrupt") == 1  # the parent's own, no worker's
        assert len(list(tmp_path.glob("closed*"))) == 2


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with parent(tmp_path, "wait", closing_seconds=60.0) as process:
        assert comes_true((tmp_path / "waiting").exists)
        os.killpg(process.pid, signal.SIGINT)
        assert comes_true((tmp_path / "closing").exists)
        time.sleep(0.3)
        assert process.poll() is None  # still waiting for its workers
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(10)
        assert time.monotonic() - start < 3
