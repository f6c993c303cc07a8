"""The registries of algorithms and reward signals: what is accepted, made, refused and offered follows from them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import jaxrl
from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES, TRAINER_TYPES, make_settings
from jaxrl.algorithms.interface import Algorithm
from jaxrl.rewards import REWARD_SIGNALS
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.rewards import SIGNALS
from tests.helpers import make_spec

ROOT = Path(__file__).parents[2]
NEEDED = {"mappo": {"team_capacity": 3}, "coma": {"team_capacity": 3}}
"""Hyperparameters without a default."""


def settings_for(trainer: str) -> BehaviorSettings:
    return make_settings(trainer, hyperparameters=NEEDED.get(trainer, {}))


@pytest.mark.parametrize("trainer", TRAINER_TYPES)
def test_what_is_registered_is_made(trainer):
    settings, entry = settings_for(trainer), TRAINER_TYPES[trainer]
    assert type(settings.hyperparameters) is entry.hyperparameters is HYPERPARAMETER_TYPES[trainer]
    made = ALGORITHMS[trainer](make_spec((4,), branches=(2,)), settings)
    assert isinstance(made, Algorithm)
    assert f"make_{trainer}" in jaxrl.__all__ and callable(getattr(jaxrl, f"make_{trainer}"))


def test_other_lists_of_algorithms_hold_the_same():
    assert set(ALGORITHMS) == set(TRAINER_TYPES) == set(HYPERPARAMETER_TYPES) == set(TRAINER_TYPES)
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (independent,) = (set(contract["modules"]) for contract in contracts if contract["type"] == "independence")
    assert independent == {f"jaxrl.algorithms.{name}" for name in TRAINER_TYPES}
    with pytest.raises(SettingsError, match=f"expected one of {', '.join(sorted(TRAINER_TYPES))}"):
        make_settings("pop")


def test_every_signal_that_a_file_may_name_is_implemented():
    assert set(REWARD_SIGNALS) == set(SIGNALS)


def test_the_registries_import_no_jax():
    code = (
        "import sys, jaxrl, jaxrl.algorithms, jaxrl.rewards; jaxrl.make_settings('poca'); "
        "sys.exit(any(name.split('.')[0] in ('jax', 'flax', 'optax') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=ROOT).returncode == 0


@pytest.mark.parametrize("trainer", ALGORITHMS)
def test_x4_every_algorithm_takes_connectors(trainer: str) -> None:
    """By the registry and by name: it decides on what they make of four numbers, three of them twice, and a reward."""
    chain: list[dict] = [
        {"type": "mask", "sensors": ["sensor_0"], "columns": [0]},
        {"type": "frame_stack", "frames": 2},
        {"type": "previous_reward"},
        {"type": "normalize"},
    ]
    settings = make_settings(trainer, hyperparameters=NEEDED.get(trainer, {}), connectors=chain)
    for make in (ALGORITHMS[trainer], getattr(jaxrl, f"make_{trainer}")):
        made = make(make_spec((4,), branches=(2,)), settings)
        assert made.connectors is not None
        assert [s.shape for s in made.connectors.spec.observations] == [(6,), (1,)]
        policy = jax.eval_shape(made.init, jax.random.key(0)).policy
        assert [x.shape for x in jax.tree.leaves(policy.connectors)] == [(6,), (6,), (), (1,), (1,), ()]
