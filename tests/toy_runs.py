"""Short runs of the host loop with the toy environment, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.interrupt import Interrupt
from tests.envs.toy_env import ToyEnv, ToySettings

SMALL = {
    "trainer_type": "poca",
    "hyperparameters": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1},
    "network_settings": {"hidden_units": 4, "num_layers": 1},
    "summary_freq": 100,
    "checkpoint_interval": 1000,
    "keep_checkpoints": 2,
}


@contextlib.contextmanager
def environment(*behaviors: str, workers: int = 1, make: Any = None, **toy: Any) -> Iterator[tuple[Interrupt, EnvPool]]:
    """Two areas with a team of two of each behavior, in this process; `make` gives another environment for a worker."""
    settings = ToySettings(behaviors=behaviors, living_reward=1.0, stats=True, **toy)
    factory = make or partial(make_toy, settings)
    with Interrupt() as interrupt, EnvPool(factory, workers, inline=True, wait=False) as pool:
        yield interrupt, pool


def make_toy(settings: ToySettings, worker: int) -> ToyEnv:
    return ToyEnv(worker, settings)


def configured(folder: Path, run_id: str = "two", changes: Any = None, **behaviors: dict[str, Any]) -> RunSettings:
    """Settings of a run with these behaviors; `changes` are further sections of the file."""
    written = {
        "behaviors": {name: SMALL | changed for name, changed in behaviors.items()},
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder / "results")},
        **(changes or {}),
    }
    written["env_settings"] = {"seed": 3} | written.get("env_settings", {})
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)
