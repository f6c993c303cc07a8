"""A pool that starts and closes beside other work of its owner."""

from __future__ import annotations

import time
from functools import partial

import pytest
from faulty_env import SlowEnv, without_executable
from processes import comes_true, descendants
from toy_env import ToyEnv

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool


def test_without_wait_it_starts_beside_the_owner_and_ready_waits():
    begun = time.monotonic()
    with EnvPool(partial(SlowEnv, start=1.0), 2, wait=False) as pool:
        launched = time.monotonic() - begun
        pool.ready()
        assert launched < 1.0 < time.monotonic() - begun
        pool.reset()
        assert [result.worker for result in pool.recv(2)] == [0, 1]


def test_ready_raises_what_went_wrong_and_leaves_no_process(tmp_path):
    pool = EnvPool(partial(without_executable, folder=str(tmp_path)), 2, wait=False)
    with pytest.raises(EnvironmentFailure, match=r"environment worker 1 failed during its start-up: .*does not exist"):
        pool.ready()
    assert comes_true(lambda: not descendants(), 5.0)


def test_closing_while_they_start_does_not_wait_for_them():
    pool = EnvPool(partial(SlowEnv, start=30.0), 2, wait=False)
    begun = time.monotonic()
    pool.close()
    assert time.monotonic() - begun < 8.0 and not descendants()


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])
def test_after_hang_up_the_environments_close_by_themselves(inline):
    with EnvPool(ToyEnv, 2, inline=inline) as pool:
        pool.reset()
        pool.recv(2)
        pool.hang_up()
        assert comes_true(lambda: not descendants(), 5.0)
        pool.hang_up()
