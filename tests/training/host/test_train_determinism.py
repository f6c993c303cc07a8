"""One seed gives one result, to the last bit, whatever the machine does in between."""

from __future__ import annotations

import zlib

import jax
import numpy as np
import pytest

from jaxrl.training.host.programs import key_of
from tests import trainer

pytestmark = trainer.MARKS
SHORT = {"*.max_steps": 600}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_seed_one_result(tmp_path, workers):
    configuration = trainer.config(tmp_path, SHORT)
    flags = ["--num-envs", workers, "--num-areas", str(4 // int(workers))]  # as many rows: the same programs
    for run_id in ("first", "again"):
        assert trainer.train(configuration, tmp_path, *flags, run_id=run_id) == 0
    first, again = trainer.final_state(tmp_path, "first"), trainer.final_state(tmp_path, "again")
    assert first["step"] > 600 and trainer.differing(first, again) == []
    assert sum("optimizer" in name for name in first) > 10 and sum("normalizer" in name for name in first) > 1
    if workers == "1":
        assert trainer.train(configuration, tmp_path, "--seed", "2", run_id="other") == 0
        changed = trainer.differing(first, trainer.final_state(tmp_path, "other"))
        assert any("policy/params" in name for name in changed) and any("critic" in name for name in changed)


def test_environments_in_the_trainer_give_the_same_result(tmp_path):
    configuration = trainer.config(tmp_path, SHORT)
    assert trainer.train(configuration, tmp_path) == 0
    assert trainer.train(configuration, tmp_path, "--inline", run_id="inline") == 0
    assert trainer.differing(trainer.final_state(tmp_path), trainer.final_state(tmp_path, "inline")) == []


def test_async_mode_trains_with_two_workers(tmp_path):
    configuration = trainer.config(tmp_path, SHORT)
    assert trainer.train(configuration, tmp_path, "--num-envs", "2", "--num-areas", "2", "--mode", "async") == 0
    assert trainer.final_state(tmp_path)["step"] > 600


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_the_key_of_a_behavior_follows_from_seed_and_name(seed):
    expected = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"Walker"))
    np.testing.assert_array_equal(jax.random.key_data(key_of(seed, "Walker")), jax.random.key_data(expected))
