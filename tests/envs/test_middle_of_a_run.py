"""Parameters and resets in the middle of a run, and the line after the handshake: pool, client and player over gRPC."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from countdown_player import MEMBERS, SPEC
from unity_build import BEHAVIOR as WALKER
from unity_build import actions as walker_actions
from unity_build import free_port, write_build

from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.types import Action, EnvMessage, SamplerSpec

SCRIPT = Path(__file__).parent / "countdown_player.py"
BEHAVIOR = "Countdown?team=0"
FORMS = pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])


def countdown_build(folder: Path) -> str:
    executable = folder / "Countdown.x86_64"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "$@"\n')
    executable.chmod(0o755)
    return str(executable)


def pool_of(build: str, folder: Path, *, inline: bool = False, **changes: Any) -> EnvPool:
    arguments = {"file_name": build, "base_port": free_port(), "log_folder": str(folder), "timeout_wait": 20.0}
    return EnvPool(partial(make_unity, arguments | changes, 0, True, False), 1, inline=inline)


def zeros(result: EnvMessage) -> dict[str, Action]:
    count = len(result.steps[BEHAVIOR].deciding.agent_id)
    return {BEHAVIOR: Action(continuous=np.zeros((count, 1), np.float32), discrete=np.zeros((count, 1), np.int32))}


def step(pool: EnvPool, result: EnvMessage) -> EnvMessage:
    pool.send(0, zeros(result))
    return pool.recv()[0]


@FORMS
def test_parameters_set_without_a_reset_hold_from_the_next_episode_on(tmp_path, inline):
    """Each step pays 1 + bonus; an episode has four steps."""
    with pool_of(countdown_build(tmp_path), tmp_path, inline=inline) as pool:
        pool.reset({"bonus": 0.5})
        (result,) = pool.recv()
        paid = []
        for count in range(1, 9):
            if count == 2:
                pool.set_parameters({"bonus": 2.0})
            result = step(pool, result)
            ended, deciding, *_ = result.steps[BEHAVIOR]
            paid.append(float((ended if len(ended.reward) else deciding).reward[-1]))
        assert paid == [1.5] * 4 + [3.0] * 4


def test_samplers_are_drawn_by_the_player_at_each_episode(tmp_path):
    """Each step pays 1 + bonus, drawn anew by each of 500 areas after four steps; another process repeats it."""
    samplers = {
        "uniform": (SamplerSpec("uniform", (2.0, 4.0), 5), lambda draws: draws.uniform(2.0, 4.0, 1000)),
        "gaussian": (SamplerSpec("gaussian", (3.0, 0.5), 6), lambda draws: draws.normal(3.0, 0.5, 1000)),
        "multirangeuniform": (SamplerSpec("multirangeuniform", (0.0, 1.0, 5.0, 8.0), 7), None),
    }
    paid: list[dict[str, np.ndarray]] = []
    for _ in range(2):
        with pool_of(countdown_build(tmp_path), tmp_path, num_areas=500) as pool:
            found = {}
            for name, (sampler, _) in samplers.items():
                pool.reset({"bonus": sampler})
                (result,) = pool.recv()
                rewards = []
                for count in range(1, 6):
                    result = step(pool, result)
                    if count in (1, 5):
                        rewards.append(result.steps[BEHAVIOR].deciding.reward.reshape(500, MEMBERS)[:, 0] - 1.0)
                found[name] = np.concatenate(rewards)
            paid.append(found)
    for name, (sampler, draw) in samplers.items():
        np.testing.assert_array_equal(paid[0][name], paid[1][name])
        if draw is not None:
            np.testing.assert_allclose(paid[0][name], draw(np.random.default_rng(sampler.seed)), atol=1e-6)
    uniform, gaussian, ranges = paid[0].values()
    assert uniform.min() >= 2.0 and uniform.max() <= 4.0 and abs(uniform.mean() - 3.0) < 0.06
    assert abs(gaussian.mean() - 3.0) < 0.05 and abs(gaussian.std() - 0.5) < 0.05
    low = ranges <= 1.0
    assert ((ranges >= 5.0) & (ranges <= 8.0) | low & (ranges >= 0.0)).all() and abs(low.mean() - 0.25) < 0.05


@FORMS
def test_a_reset_drops_the_open_step_and_discarding_ends_the_open_rows(tmp_path, inline):
    slots, source = Slots(SPEC, team_rows=True, rows=1, members=MEMBERS), Source(0, BEHAVIOR)
    with pool_of(countdown_build(tmp_path), tmp_path, inline=inline) as pool:
        pool.reset()
        (first,) = pool.recv()
        slots.ingest({source: first.steps[BEHAVIOR]})
        second = step(pool, first)
        slots.ingest({source: second.steps[BEHAVIOR]})
        pool.send(0, zeros(second))  # the step in which member 0 ends
        pool.reset({"bonus": 4.0})
        (fresh,) = pool.recv()
        ended, deciding, *_ = fresh.steps[BEHAVIOR]
        assert len(ended.agent_id) == 0 and deciding.obs[0][:, 2].tolist() == [0.0] * MEMBERS
        assert slots.discard(source) == MEMBERS
        ingested = slots.ingest({source: fresh.steps[BEHAVIOR]})
        assert ingested.steps.ending.tolist() == [[Ending.DROPPED] * MEMBERS]
        assert [obs[0, :, 2].tolist() for obs in ingested.steps.obs[0]] == [[1.0] * MEMBERS, [0.0] * MEMBERS]
        assert (ingested.finished, ingested.episodes) == (0, [])
        after = slots.ingest({source: step(pool, fresh).steps[BEHAVIOR]})
        assert after.steps.reward[0].tolist() == [[5.0, 10.0]] * MEMBERS
        assert after.steps.ending.tolist() == [[Ending.CONTINUES] * MEMBERS]


def test_a_behavior_first_seen_in_a_dropped_result_is_told_with_the_next_one(tmp_path):
    """It shows itself with the second step, which the reset drops; nobody would ever hear of its spec again."""
    with pool_of(write_build(tmp_path), tmp_path, env_args=("--scenario", "late")) as pool:
        pool.reset()
        assert set(pool.recv()[0].new_specs) == {WALKER}
        pool.send(0, walker_actions())
        assert set(pool.recv()[0].new_specs) == set()
        pool.send(0, walker_actions())
        pool.reset()
        assert set(pool.recv()[0].new_specs) == {"Late?team=1"}


def test_statistics_of_a_dropped_result_are_kept(tmp_path):
    with pool_of(write_build(tmp_path), tmp_path, env_args=("--scenario", "channels")) as pool:
        pool.reset()
        pool.recv()
        pool.send(0, walker_actions())
        pool.reset()
        assert [stat.value for stat in pool.recv()[0].stats] == [1.5, 2.5, 3.5, 4.5, 0.5, 1.5, 2.5, 3.5]


@FORMS
def test_after_the_handshake_the_log_says_once_that_the_connection_stands(tmp_path, caplog, inline):
    with caplog.at_level(logging.INFO, "jaxrl"), pool_of(write_build(tmp_path), tmp_path, inline=inline) as pool:
        pool.reset()
        pool.recv()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.INFO] == [
        "Connected to Unity environment with package version 2.2.1 and communication version 1.5.0 (worker 0)"
    ]
