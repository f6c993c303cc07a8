"""Checkpoints as jaxrl 0.1.0 wrote them fill the states of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.artifacts.checkpoint import folder as folders
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError
from jaxrl.artifacts.checkpoint.tree import to_arrays

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def old_state(team: float = 3.0) -> dict[str, Any]:
    """The leaves of format 1, by name, with a value of their own each."""
    train = {
        "policy": {"params": WEIGHTS}, "critic": WEIGHTS + 10.0, "optimizer": {"mu": WEIGHTS + 20.0},
        "max_team": np.float32(team), "step": np.int32(700), "key": jax.random.key(5),
    }  # fmt: skip
    return {"train": train, "play": {"sums": {"reward": np.full(4, 2.5, np.float32)}}}


def today(own: dict[str, Any], like: float = 0.0) -> dict[str, Any]:
    """A fresh state: `max_team` is the algorithm's own, the sums over the episode under way are more."""
    train = {
        "policy": {"params": WEIGHTS * like}, "critic": WEIGHTS * like, "optimizer": {"mu": WEIGHTS * like},
        "own": own, "signals": {}, "step": np.int32(0), "key": jax.random.key(0),
    }  # fmt: skip
    sums = {name: np.zeros(4, np.float32) for name in ("reward", "received", "mates_reward")}
    return {"train": train, "play": {"sums": sums}}


def write_old(folder: Path, state: dict[str, Any]) -> Path:
    """A checkpoint of format 1."""
    path = checkpoint.save(folder / "Walker", 700, state)
    document = json.loads((path / folders.METADATA).read_text())
    (path / folders.METADATA).write_text(json.dumps(document | {"format": 1}))
    return path


def test_resume_finds_the_moved_leaf_and_keeps_the_added_ones(tmp_path: Path) -> None:
    restored = checkpoint.restore(write_old(tmp_path, old_state()), today({"max_team": np.float32(1.0)}))
    found = to_arrays(restored)
    assert found.pop("train/own/max_team") == 3.0
    assert not found.pop("play/sums/received").any() and not found.pop("play/sums/mates_reward").any()
    expected = to_arrays(old_state())
    del expected["train/max_team"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_weights_alone(tmp_path: Path) -> None:
    path = write_old(tmp_path, old_state())
    template = {"train": today({"max_team": np.float32(1.0)})["train"]}
    found = to_arrays(checkpoint.restore_params_only(path, template, fields=("train",)))
    assert found["train/own/max_team"] == 3.0
    np.testing.assert_array_equal(found["train/critic"], WEIGHTS + 10.0)


def test_a_learner_without_teams_drops_the_leaf(tmp_path: Path) -> None:
    restored = checkpoint.restore(write_old(tmp_path, old_state(1.0)), today({}))
    np.testing.assert_array_equal(restored["train"]["critic"], WEIGHTS + 10.0)


def test_a_learner_that_has_the_leaf_where_it_was(tmp_path: Path) -> None:
    path = write_old(tmp_path, old_state())
    np.testing.assert_array_equal(checkpoint.restore(path, old_state(0.0))["train"]["max_team"], 3.0)


def test_the_format_of_today_is_read_as_it_stands(tmp_path: Path) -> None:
    """Nothing is moved or forgiven."""
    path = checkpoint.save(tmp_path / "Walker", 700, old_state())
    with pytest.raises(CheckpointError) as error:
        checkpoint.restore(path, today({"max_team": np.float32(1.0)}))
    assert "train/own/max_team: not in the checkpoint" in str(error.value)
