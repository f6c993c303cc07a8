"""The environment of the guide keeps its contract, is as hard as the guide says, and is learned."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.contract import check_environment
from jaxrl.jax_envs.interface import TeamActions

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_environment.py"
ADDRESS = f"{EXAMPLE}:make_env"
BEGINNINGS = list(product(range(1, 6), repeat=2))


@pytest.fixture(scope="module")
def env():
    return make_environment(ADDRESS)


def test_it_keeps_its_contract_and_stays_short(env):
    found = check_environment(env)
    assert found.problems == found.remarks == [] and found.episodes > 10
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 70


def test_a_plan_by_hand_earns_what_the_guide_calls_possible(env):
    """One goes to the plate, the other to the exit: max(p + 1, 6 - q) decisions; then the first walks 5 cells more."""
    step = jax.jit(env.step)
    returns = []
    for p, q in BEGINNINGS:
        waits, goes = (0, 1) if max(p + 1, 6 - q) <= max(q + 1, 6 - p) else (1, 0)
        state = (jnp.array([p, q]), jnp.zeros(2, bool), jnp.int32(0))
        total, over = 0.0, False
        while not over:
            place, out, _ = (np.asarray(x) for x in state)
            free = out.any() or (place[waits] == 0 and place[goes] == 5)
            move = np.ones((2, 1), np.int32)
            move[goes] = 2
            move[waits] = 2 if free else (0 if place[waits] else 1)
            alive = ~out
            actions = TeamActions(jnp.zeros((2, 0)), jnp.asarray(move))
            state, told = step(jax.random.key(0), state, actions)
            assert not np.asarray(told.group_reward)[~alive].any()
            total += float(np.asarray(told.group_reward)[alive][0])
            over = bool(told.over)
        returns.append(total)
        assert bool(np.asarray(told.terminated).any()) and not bool(np.asarray(told.truncated).any())
    assert np.mean(returns) == pytest.approx(0.914, abs=1e-4)


def test_who_waits_for_ever_is_cut_off_not_ended(env):
    state = (jnp.array([3, 3]), jnp.zeros(2, bool), jnp.int32(39))
    stay = TeamActions(jnp.zeros((2, 0)), jnp.ones((2, 1), jnp.int32))
    _, told = jax.jit(env.step)(jax.random.key(0), state, stay)
    assert bool(told.over) and np.asarray(told.truncated).all() and not np.asarray(told.terminated).any()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_of_the_guide_learns_it(tmp_path):
    page = (ROOT / "docs" / "own-environment.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"^jaxrl (train .*--run-id=gate)$", page, flags=re.MULTILINE)
    words = [*command.split(), "--seed", "1", "--results-dir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=380
    )
    assert ended.returncode == 0, ended.stderr
    (reward,) = re.findall(r"mean group reward (\S+) at the end", ended.stdout + ended.stderr)
    assert float(reward) > 0.88
