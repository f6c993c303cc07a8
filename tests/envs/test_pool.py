"""Lockstep and asynchronous stepping in both forms, and misuse."""

from __future__ import annotations

import gc
import logging
import time
from functools import partial

import numpy as np
import pytest
from faulty_env import BigEnv, FixedEnv, SlowEnv, TellTaleEnv
from processes import comes_true, descendants
from toy_env import ToyEnv, ToySettings, no_actions

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.handles import ProcessHandle
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import EnvMessage

FORMS = pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])


def rounds(pool: EnvPool, count: int, settings: ToySettings) -> list[EnvMessage]:
    """All results of a reset and `count` steps in lockstep."""
    pool.reset()
    results = pool.recv(pool.num_envs)
    history = list(results)
    for _ in range(count):
        for result in results:
            pool.send(result.worker, no_actions(result, settings))
        results = pool.recv(pool.num_envs)
        history += results
    return history


def leaves(result: EnvMessage) -> list[np.ndarray]:
    return [leaf for steps in result.steps.values() for record in steps[:2] for leaf in (*record[:5], *record.obs)]


def facts(result: EnvMessage) -> dict[str, float]:
    return {stat.name: stat.value for stat in result.stats}


def test_both_forms_give_the_same_results_in_the_order_of_the_workers():
    settings = ToySettings(deaths=0.1, skips=0.2, interrupted_every=2, group_reward=1.0, stats=True)
    histories = []
    for inline in (True, False):
        with EnvPool(partial(ToyEnv, settings=settings), 3, inline=inline) as pool:
            histories.append(rounds(pool, 20, settings))
    for one, other in zip(*histories, strict=True):
        assert (one.worker, one.new_specs, one.stats) == (other.worker, other.new_specs, other.stats)
        for left, right in zip(leaves(one), leaves(other), strict=True):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    assert [result.worker for result in histories[1]] == [0, 1, 2] * 21
    clocks = [result.steps["Toy?team=0"].deciding.obs[0][:, 0] for result in histories[1][:6]]
    assert [sorted(set(clock)) for clock in clocks] == [[0.0]] * 3 + [[np.float32(0.2)]] * 3, "S19: those of the reset"
    assert any(result.steps["Toy?team=0"].ended.truncated.any() for result in histories[1])


def test_without_min_ready_results_come_as_they_arrive_each_worker_once():
    with EnvPool(partial(SlowEnv, step=0.05), 3) as pool:
        pool.reset()
        first = pool.recv(3)
        for result in reversed(first):
            pool.send(result.worker, no_actions(result))
        order = []
        while len(order) < 3:
            order += [result.worker for result in pool.recv()]
        assert order == [0, 1, 2]  # worker w takes (w + 1) x 0.05 s


def test_slow_workers_do_not_hold_up_fast_ones():
    with EnvPool(partial(SlowEnv, step=0.02), 2) as pool:
        pool.reset()
        results, counts = pool.recv(2), [0, 0]
        while counts[1] < 5:
            for result in results:
                pool.send(result.worker, no_actions(result))
            results = pool.recv()
            for result in results:
                counts[result.worker] += 1
        assert counts[0] > counts[1]  # worker 0 takes half the time of worker 1


def test_workers_step_and_start_in_parallel():
    start = time.monotonic()
    with EnvPool(partial(SlowEnv, start=1.5, step=0.2), 4) as pool:
        assert time.monotonic() - start < 4 * 1.5
        pool.reset()
        first = pool.recv(4)
        start = time.monotonic()
        for result in first:
            pool.send(result.worker, no_actions(result))
        results = pool.recv(4)
        assert time.monotonic() - start < 0.2 + 0.4 + 0.6 + 0.8
        assert [round(result.seconds, 1) for result in results] == [0.2, 0.4, 0.6, 0.8]


def test_results_larger_than_the_socket_buffer():
    with EnvPool(BigEnv, 2) as pool:
        pool.reset()
        for result in pool.recv(2):
            (observation,) = result.steps["Toy?team=0"].deciding.obs
            assert observation.shape == (4, 200_000)
            np.testing.assert_array_equal(
                observation, BigEnv(result.worker).reset().steps["Toy?team=0"].deciding.obs[0]
            )


@FORMS
def test_parameters_reach_all_workers(inline):
    with EnvPool(TellTaleEnv, 2, inline=inline) as pool:
        pool.reset({"mass": 1.0})
        results = pool.recv(2)
        assert [facts(result)["mass"] for result in results] == [1.0, 1.0]
        for result in results:
            pool.send(result.worker, no_actions(result))
        pool.set_parameters({"mass": 2.0})  # while results are owed: takes effect after them
        results = pool.recv(2)
        assert [facts(result)["mass"] for result in results] == [1.0, 1.0]
        for result in results:
            pool.send(result.worker, no_actions(result))
        assert [facts(result)["mass"] for result in pool.recv(2)] == [2.0, 2.0]


@FORMS
def test_an_environment_that_refuses_parameters_says_so_in_place_of_its_next_result(inline):
    with EnvPool(FixedEnv, 1, inline=inline) as pool:
        pool.reset()
        pool.recv()
        with pytest.raises(EnvironmentFailure, match=r"worker 0 failed during its parameters: FixedEnv takes"):
            pool.set_parameters({"wind": 1.0})
            pool.reset()
            pool.recv()


@FORMS
def test_a_reset_drops_results_that_are_owed_or_not_taken(inline):
    with EnvPool(partial(ToyEnv, settings=ToySettings(areas=1)), 2, inline=inline) as pool:
        pool.reset()
        first = pool.recv(2)
        for result in first:
            pool.send(result.worker, no_actions(result))
        pool.reset()
        for before, after in zip(first, pool.recv(2), strict=True):
            observation = after.steps["Toy?team=0"].deciding.obs[0]
            np.testing.assert_array_equal(observation[:, 0], 0.0)  # the clock of a new episode
            assert observation[:, 2].min() > before.steps["Toy?team=0"].deciding.agent_id.max()
        with pytest.raises(RuntimeError, match="0 of 2 workers owe a result"):
            pool.recv()


@FORMS
def test_misuse_is_told_apart_from_failure(inline):
    with EnvPool(ToyEnv, 2, inline=inline) as pool:
        with pytest.raises(
            RuntimeError, match=r"recv\(min_ready=1\): 0 of 2 workers owe a result.*send actions or reset"
        ):
            pool.recv()
        pool.reset()
        with pytest.raises(RuntimeError, match="worker 1 was sent actions while its last reset is not received"):
            pool.send(1, {})
        with pytest.raises(RuntimeError, match=r"recv\(min_ready=3\): 2 of 2"):
            pool.recv(3)
        with pytest.raises(RuntimeError, match=r"recv\(min_ready=0\)"):
            pool.recv(0)
        first, second = pool.recv(2)
        pool.send(0, no_actions(first))
        with pytest.raises(RuntimeError, match=r"recv\(min_ready=2\): 1 of 2"):
            pool.recv(2)
        pool.send(1, no_actions(second))
        assert len(pool.recv(2)) == 2
    for call in (pool.reset, pool.recv, partial(pool.send, 0, {}), partial(pool.set_parameters, {})):
        with pytest.raises(RuntimeError, match="the pool is closed"):
            call()


def test_worker_numbers_and_sizes_are_checked():
    with pytest.raises(ValueError, match="num_envs: got 0, expected at least 1"):
        EnvPool(ToyEnv, 0)
    with EnvPool(ToyEnv, 1, inline=True) as pool, pytest.raises(IndexError, match="no worker 1; expected 0 to 0"):
        pool.send(1, {})


def test_a_factory_that_cannot_be_pickled_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"cannot be pickled for the worker processes.*inline=True"):
        EnvPool(lambda worker: ToyEnv(worker), 1)
    with EnvPool(lambda worker: ToyEnv(worker), 1, inline=True) as pool:
        pool.reset()
        assert len(pool.recv()) == 1


def test_closing_twice_leaves_no_process():
    before = descendants()
    pool = EnvPool(ToyEnv, 3)
    pool.reset()
    assert len(descendants() - before) == 3
    pool.close()
    pool.close()
    assert descendants() <= before


def test_a_forgotten_pool_is_closed():
    before = descendants()
    pool = EnvPool(ToyEnv, 2)
    assert len(descendants() - before) == 2
    del pool
    gc.collect()
    assert comes_true(lambda: descendants() <= before)


def test_inline_environments_are_closed_even_if_one_of_them_fails_to(caplog):
    made = []

    class Unclosable(ToyEnv):
        def close(self) -> None:
            super().close()
            if self.worker == 0:
                raise OSError("busy")

    def factory(worker: int) -> ToyEnv:
        made.append(Unclosable(worker))
        return made[-1]

    with caplog.at_level(logging.ERROR), EnvPool(factory, 2, inline=True):
        pass
    assert [environment.closed for environment in made] == [1, 1]
    assert "busy" in caplog.text


@FORMS
def test_the_environments_time_is_measured_beside_it(inline):
    with EnvPool(partial(SlowEnv, step=0.1), 1, inline=inline) as pool:
        pool.reset()
        (result,) = pool.recv()
        pool.send(0, no_actions(result))
        time.sleep(0.3)  # the parent's time does not count
        (result,) = pool.recv()
        assert 0.1 <= result.seconds < 0.25


@pytest.mark.parametrize("at_least", [5, 1], ids=["lockstep", "async"])
def test_a_result_costs_as_many_looks_however_many_workers_there_are(at_least, monkeypatch):
    """Five whose answers come one by one. Asking everybody about each would be 3 looks a result on average."""
    looks = {"poll": 0, "waitables": 0}

    def counted(name, original, handle):
        looks[name] += 1
        return original(handle)

    for name in looks:
        original = getattr(ProcessHandle, name)
        monkeypatch.setattr(ProcessHandle, name, lambda handle, of=(name, original): counted(*of, handle))
    with EnvPool(partial(SlowEnv, step=0.02), 5) as pool:
        pool.reset()
        results, count, begun = pool.recv(5), 0, time.monotonic()
        looks.update(poll=0, waitables=0)
        while count < 40:
            for result in results:
                pool.send(result.worker, no_actions(result))
            results = pool.recv(at_least)
            count += len(results)
        everybody = 5 * ((time.monotonic() - begun) // 0.5 + 1)  # now and then, so that who hangs is noticed
    assert looks["poll"] <= count + everybody and not looks["waitables"]
