"""Only what fails is started again (M17, M25, U31, U32, S22, S23): by every fault, in every call, within its limits."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.parameters import drawing
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits, Restarts
from jaxrl.types import EnvMessage, SamplerSpec
from tests.envs.processes import comes_true, descendants
from tests.envs.scripted_faults import BUILDING, Script, ScriptedEnv
from tests.envs.toy_env import ToySettings, no_actions

TOY = ToySettings(areas=1)
FOREVER = RestartLimits(lifetime=-1, rate=-1)
FORMS = pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])


def pool_of(script: Script, workers: int = 2, **changes) -> EnvPool:
    return EnvPool(partial(ScriptedEnv, script, TOY), workers, **{"limits": FOREVER, "inline": True} | changes)


def rounds(pool: EnvPool, count: int) -> list[list[EnvMessage]]:
    """So many lockstep rounds, the reset first."""
    pool.reset({"mass": 2.0})
    history = [pool.recv(pool.num_envs)]
    for _ in range(count - 1):
        for result in history[-1]:
            pool.send(result.worker, no_actions(result, TOY))
        history.append(pool.recv(pool.num_envs))
    return history


def clock(result: EnvMessage) -> float:
    """Steps of the running episode: the first number of everybody's observation is a fifth of it."""
    return round(5 * float(result.steps["Toy?team=0"].deciding.obs[0][0, 0]))


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = descendants()
    yield
    assert comes_true(lambda: descendants() <= before, seconds=5.0)


@pytest.mark.parametrize("fault", ["raise", "kill", "segfault", "exit", "hang", "stop"])
def test_s22_u31_u32_any_fault_costs_its_own_worker_one_process_and_nobody_else_anything(fault):
    """Worker 1 fails in its third step: its fourth result is the first of another process; worker 0 has all of its."""
    with pool_of({(1, 0): (3, fault)}, inline=False, timeout=1.0) as pool:
        history = rounds(pool, 6)
        (loss,) = pool.losses()
    assert [[r.incarnation for r in results] for results in history] == [[0, 0]] * 3 + [[0, 1]] * 3
    assert [clock(results[0]) for results in history] == [0, 1, 2, 3, 4, 0]
    assert [clock(results[1]) for results in history] == [0, 1, 2, 0, 1, 2]
    assert loss[:2] == (1, 0) and ("step" in loss.why), loss
    assert history[3][1].new_specs and not history[3][0].new_specs


@FORMS
def test_r11_a_reset_that_fails_is_tried_again_and_parameters_are_sent_again(inline):
    """Processes 1 and 2 fail in their reset and while they are built; the third knows the newest parameters."""
    script = {(0, 0): (2, "raise"), (0, 1): (0, "raise"), (0, 2): (BUILDING, "raise")}
    with pool_of(script, 1, inline=inline) as pool:
        begin = time.monotonic()
        (result,) = rounds(pool, 3)[-1]
        assert time.monotonic() - begin > 3.0, "waits 1 s after a process that never answered, then 2 s"
        assert (result.incarnation, clock(result)) == (3, 0)
        assert [loss.incarnation for loss in pool.losses()] == [0, 1, 2]
        assert pool.losses() == []
        if inline:
            assert pool._workers[0].handle._environment.parameters == {"mass": 2.0}  # pyright: ignore


def test_parameters_that_were_set_meanwhile_are_those_of_the_next_process():
    with pool_of({(0, 0): (1, "raise")}, 1) as pool:
        (first,) = rounds(pool, 1)[-1]
        pool.set_parameters({"mass": 3.0, "wind": 1.0})
        pool.send(0, no_actions(first, TOY))
        pool.recv()
        assert pool._workers[0].handle._environment.parameters == {"mass": 3.0, "wind": 1.0}  # pyright: ignore


def test_workers_draw_apart_unless_a_seed_is_given_also_after_a_restart():
    """Two drew the same numbers. The first draws as before."""
    own, given = (SamplerSpec("uniform", (0.0, 1.0), 7, each_worker=each) for each in (True, False))

    def told(pool: EnvPool, worker: int) -> Any:
        return pool._workers[worker].handle._environment.parameters  # pyright: ignore

    with pool_of({(1, 0): (1, "raise")}, 2) as pool:
        pool.reset({"mass": own, "wind": given})
        first, second = told(pool, 0), dict(told(pool, 1))
        assert first == {"mass": own, "wind": given} and second["wind"] == given
        assert not np.isclose(drawing(first["mass"])(5), drawing(second["mass"])(5)).any()
        for result in pool.recv(2):
            pool.send(result.worker, no_actions(result, TOY))
        assert [result.incarnation for result in pool.recv(2)] == [0, 1]
        assert told(pool, 1) == second, "the new process begins the same sequence"
        pool.set_parameters({"wind": own})
        assert told(pool, 1)["wind"] == second["mass"]


def test_without_lockstep_the_others_go_on_while_a_worker_starts():
    with pool_of({(1, 0): (1, "kill")}, inline=False) as pool:
        results, alone, incarnations = rounds(pool, 1)[-1], 0, set()
        while (1, 1) not in incarnations:
            for result in results:
                pool.send(result.worker, no_actions(result, TOY))
            results = pool.recv()
            alone += {r.worker for r in results} == {0}
            incarnations |= {(r.worker, r.incarnation) for r in results}
    assert alone > 20, "a process takes a tenth of a second at least, a step well below a millisecond"


@FORMS
def test_m25_s23_beyond_the_rate_the_worker_the_limit_and_the_last_cause_are_named(inline):
    limits = RestartLimits(lifetime=10, rate=1, period=60.0)
    with pool_of({(1, 0): (2, "raise"), (1, 1): (2, "raise")}, inline=inline, limits=limits) as pool:
        with pytest.raises(EnvironmentFailure) as caught:
            rounds(pool, 8)
        assert str(caught.value) == (
            "environment worker 1 is not started again: it has had 1 within the last 60 s, as many as "
            "env_settings.restarts_rate_limit_n allows (-1: no limit). At last it failed during its step: "
            "ValueError: boom"
        )
        assert [r.worker for r in pool.recv()] == [0]


@pytest.mark.parametrize(
    ("limits", "words"),
    [(RestartLimits(0), "max_lifetime_restarts is 0"), (RestartLimits(2), "has had 2, as many as .*lifetime_restarts")],
)
def test_m25_beyond_the_lifetime_limit(limits, words):
    script = {(1, n): (1, "raise") for n in range(5)}
    with pool_of(script, limits=limits) as pool, pytest.raises(EnvironmentFailure, match=words):
        rounds(pool, 8)


@pytest.mark.parametrize("call", [BUILDING, 0], ids=["start-up", "reset"])
def test_before_its_first_result_a_worker_is_not_started_again(call):
    """A wrong build never starts, and says so at once."""
    words = r"^environment worker 1 failed during its .*ValueError: boom$"
    with pytest.raises(EnvironmentFailure, match=words), pool_of({(1, 0): (call, "raise")}) as pool:
        rounds(pool, 1)


@FORMS
def test_a_port_that_is_taken_is_tried_again_also_at_first(inline):
    with pool_of({(1, 0): (BUILDING, "port")}, inline=inline) as pool:
        assert [r.incarnation for r in rounds(pool, 1)[-1]] == [0, 1]


def test_bad_numbers_are_an_error_that_says_what_else_could_be_done():
    words = r"agent 3, reward: nan is not a finite number; or set .*restart"
    with pool_of({(1, 0): (2, "bad number")}) as pool, pytest.raises(EnvironmentFailure, match=words):
        rounds(pool, 4)


def test_bad_numbers_restart_where_the_settings_say_so():
    with pool_of({(1, 0): (2, "bad number")}, restart_bad_data=True) as pool:
        assert [r.incarnation for r in rounds(pool, 4)[-1]] == [0, 1]


@pytest.mark.parametrize(
    ("script", "kind"),
    [({(0, 0): (2, "closed"), (1, 0): (2, "closed")}, EnvironmentClosed), ({(1, 0): (2, "ours")}, EnvironmentFailure)],
    ids=["all are closed", "ours"],
)
def test_what_is_no_fault_of_the_environment_restarts_nothing(script, kind):
    with pool_of(script) as pool:
        with pytest.raises(EnvironmentFailure, match="worker 1") as caught:
            rounds(pool, 4)
        assert type(caught.value) is kind and all(loss.worker == 0 for loss in pool.losses())


@FORMS
def test_one_of_several_that_closes_is_started_again_within_its_limits(inline):
    """As the original does; it used to end the whole run, with exit code 0."""
    script = {(1, 0): (2, "closed"), (1, 1): (2, "closed")}
    with pool_of(script, inline=inline, limits=RestartLimits(lifetime=1, rate=-1)) as pool:
        pool.reset()
        history = [pool.recv(2)]
        with pytest.raises(
            EnvironmentFailure, match=r"has had 1, as many as .*lifetime.* At last it has closed"
        ) as caught:
            while True:
                for result in history[-1]:
                    pool.send(result.worker, no_actions(result, TOY))
                history.append(pool.recv(2))
        assert not isinstance(caught.value, EnvironmentClosed), "too early an end is none with exit code 0"
        (loss,) = pool.losses()
    assert [[r.incarnation for r in results] for results in history] == [[0, 0]] * 2 + [[0, 1]] * 2
    assert (loss.worker, loss.incarnation, loss.in_order) == (1, 0, False) and "has closed" in loss.why


def test_an_environment_that_was_closed_can_be_opened_again_without_counting():
    limits = RestartLimits(lifetime=0)
    with pool_of({(0, 0): (2, "closed")}, 1, limits=limits) as pool:
        with pytest.raises(EnvironmentClosed):
            rounds(pool, 4)
        pool.reopen(0)
        (result,) = pool.recv()
        assert (result.incarnation, clock(result), [loss.incarnation for loss in pool.losses()]) == (1, 0, [0])


def test_a_reset_in_the_middle_of_a_run_waits_for_a_worker_that_starts():
    with pool_of({(1, 0): (1, "kill")}, inline=False) as pool:
        for result in rounds(pool, 1)[-1]:
            pool.send(result.worker, no_actions(result, TOY))
        pool.reset({"mass": 4.0})
        results = pool.recv(2)
        assert [(r.worker, r.incarnation, clock(r)) for r in results] == [(0, 0, 0), (1, 1, 0)]
        assert results[1].new_specs, "what the dropped first result of the new process told is kept"


def test_the_log_says_what_happened_and_what_is_done(caplog):
    with caplog.at_level(logging.WARNING, "jaxrl"), pool_of({(1, 0): (2, "raise")}, limits=RestartLimits(5)) as pool:
        rounds(pool, 4)
    assert [record.getMessage() for record in caplog.records] == [
        "Environment worker 1 is started again (restart 1 of at most 5): it failed during its step: ValueError: boom"
    ]


def test_ids_of_a_new_process_are_those_of_a_new_process():
    """It counts from 1 again: only the incarnation tells its agents from the old ones."""
    with pool_of({(0, 0): (3, "raise")}, 1) as pool:
        ids = [results[0].steps["Toy?team=0"].deciding.agent_id for results in rounds(pool, 4)]
        np.testing.assert_array_equal(ids[0], ids[3])


def test_s23_the_rate_counts_within_its_period():
    """2 restarts in 60 s: a third one is allowed at t = 60, when the first is 60 s old."""
    restarts = Restarts(RestartLimits(lifetime=-1, rate=2, period=60.0))
    waits = [restarts.begin(now, in_vain=False) for now in (0.0, 30.0)]
    assert waits == [0.0, 0.0] and "had 2 within the last 60 s" in (restarts.refusal(59.9) or "")
    assert restarts.refusal(60.0) is None


def test_waits_double_while_nothing_answers_and_begin_anew_after_a_result():
    restarts = Restarts(RestartLimits(lifetime=-1, rate=-1))
    assert [restarts.begin(0.0, in_vain=True) for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [restarts.begin(0.0, in_vain=vain) for vain in (False, True)] == [0.0, 1.0]
