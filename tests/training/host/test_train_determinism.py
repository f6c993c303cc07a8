"""One seed gives one result, to the last bit, whatever the machine does in between."""

from __future__ import annotations

import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.training.host.programs import key_of
from tests import trainer

pytestmark = [*trainer.MARKS, trainer.TRACED_ONCE]
SHORT = {"*.max_steps": 600}


def trained(results: Path, *flags: str, run_id: str) -> dict[str, np.ndarray]:
    assert trainer.train(trainer.config(results, SHORT), results, *flags, run_id=run_id) == 0
    return trainer.final_state(results, run_id)


@pytest.fixture(scope="module")
def first(runs: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The end of a run with one worker."""
    return trained(tmp_path_factory.mktemp("first"), run_id="first")


def test_one_seed_one_result(tmp_path, first):
    assert trainer.differing(first, trained(tmp_path, run_id="again")) == []
    assert first["step"] > 600
    assert sum("optimizer" in name for name in first) > 10 and sum("normalizer" in name for name in first) > 1
    changed = trainer.differing(first, trained(tmp_path, "--seed", "2", run_id="other"))
    assert any("policy/params" in name for name in changed) and any("critic" in name for name in changed)


def test_one_seed_one_result_with_two_workers(tmp_path):
    flags = ["--num-envs", "2", "--num-areas", "2"]  # as many rows: the same programs
    one, again = (trained(tmp_path, *flags, run_id=run_id) for run_id in ("one", "again"))
    assert one["step"] > 600 and trainer.differing(one, again) == []


def test_environments_in_the_trainer_give_the_same_result(tmp_path, first):
    assert trainer.differing(first, trained(tmp_path, "--inline", run_id="inline")) == []


def test_async_mode_trains_with_two_workers(tmp_path):
    configuration = trainer.config(tmp_path, SHORT)
    assert trainer.train(configuration, tmp_path, "--num-envs", "2", "--num-areas", "2", "--mode", "async") == 0
    assert trainer.final_state(tmp_path)["step"] > 600


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_the_key_of_a_behavior_follows_from_seed_and_name(seed):
    expected = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"Walker"))
    np.testing.assert_array_equal(jax.random.key_data(key_of(seed, "Walker")), jax.random.key_data(expected))
