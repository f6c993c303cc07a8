"""A rollout whose every second state is a last observation at most: less work, the same numbers."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, assert_close, fresh, quick_jit, random_rollout, steps_of

from jaxrl.algorithms import ALGORITHMS
from jaxrl.rollout.chunks import PARTS, of_states
from jaxrl.rollout.rollout import EverySecond, Rollout
from tests.helpers import settings_of

LENGTH = 2 * 2 * PARTS + 1
"""Two states between decisions in each part."""
CUT_OFF = (1, 5, 6)
"""Decisions after which there is a last observation: of one part alone, and of two in one part beside none."""


def interleaved() -> Rollout:
    """Decisions in states 0, 2, ...; in those between somebody is present where a team was cut off."""
    rollout = random_rollout(3, t=LENGTH, b=2)
    between = np.arange(LENGTH) % 2 == 1
    after = np.isin(np.arange(LENGTH) // 2, CUT_OFF)
    nobody, absent = between[:, None, None], (between & ~after)[:, None, None]

    def empty(x: np.ndarray, where: np.ndarray) -> np.ndarray:
        return np.where(where.reshape(where.shape + (1,) * (x.ndim - 3)), np.zeros((), x.dtype), x)

    unacted = {
        name: empty(getattr(rollout, name), nobody)
        for name in ("acted", "reward", "mates_reward", "group_reward", "terminated", "truncated", "left", "cut")
    }
    present = empty(rollout.present, absent)
    obs = tuple(empty(x, absent) for x in rollout.obs)
    return rollout._replace(**unacted, present=present, obs=obs, waiting=nobody & ~present)


@pytest.mark.parametrize("trainer", ["ppo", "mappo", "poca", "coma"])
def test_values_returns_and_advantages_are_those_of_all_states(trainer: str) -> None:
    capacity = {"hyperparameters__team_capacity": 3} if trainer in ("mappo", "coma") else {}
    settings = settings_of(trainer, SMALL | capacity)
    algorithm = ALGORITHMS[trainer](SPEC, settings)
    state = fresh(algorithm)
    rollout = interleaved()
    if not algorithm.team_rows:  # alone in its row
        rollout = jax.tree.map(lambda x: x[:, :, :1], rollout)._replace(mates_reward=rollout.mates_reward[:, :, :1] * 0)
    prepare = steps_of(trainer, settings).prepare
    _, whole, told = quick_jit(prepare)(state, rollout)
    _, half, told_half = quick_jit(partial(prepare, state))(rollout._replace(between=EverySecond()))
    rows = rollout.acted.shape[1]
    deciding = jax.tree.map(lambda x: np.asarray(x).reshape(LENGTH, rows, *x.shape[1:])[::2], whole)
    halved = jax.tree.map(lambda x: np.asarray(x).reshape(LENGTH // 2 + 1, rows, *x.shape[1:]), half)
    assert halved.acted.shape[0] == LENGTH // 2 + 1 and np.asarray(whole.acted).sum() == halved.acted.sum() > 20
    assert_close(halved, deciding)
    assert_close(told_half, told)


def test_parts_in_which_nobody_is_present_are_left_out() -> None:
    """What is told of a state is 10 times its number: nothing of a part without anybody."""
    rollout = interleaved()._replace(between=EverySecond())
    number = np.broadcast_to(np.arange(LENGTH, dtype=np.float32)[:, None, None], rollout.present.shape)
    told = np.asarray(of_states(lambda x: 10 * x, (number,), rollout, members=12))[:, 0, 0]
    looked_at = [3, 1, 11, 9, 13, 15]  # both states of the parts that hold 2 · 1 + 1, 2 · 5 + 1 and 2 · 6 + 1
    expected = [10.0 * t if t % 2 == 0 or t in looked_at else 0.0 for t in range(LENGTH)]
    assert told.tolist() == expected
