"""What agents see and remember in the rows of `update_phase.py`, `act_latency.py`, `jitted.py` and `host_loop.py`.

python benchmarks/sensors.py nature_cnn --mlagents-port 5005     # a player that shows it (`host_loop.py` starts it)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.types import DimensionProperty, ObservationSpec, ObservationType


class Sensors(NamedTuple):
    """One kind of agent."""

    observations: tuple[ObservationSpec, ...]
    network: Mapping[str, Any]  # network_settings
    steps: int  # agent steps of one update: as many as take some seconds
    batch: int


def _camera(name: str) -> ObservationSpec:
    return ObservationSpec(name, (3, 84, 84), dtype="uint8")


ENTITIES = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
SELF = ObservationSpec("vector", (8,))
SENSORS = {
    "vector": Sensors((ObservationSpec("vector", (32,)),), {}, 2048, 256),
    "memory": Sensors(
        (ObservationSpec("vector", (32,)),), {"memory": {"memory_size": 128, "sequence_length": 64}}, 2048, 256
    ),
    "simple": Sensors((ObservationSpec("camera", (3, 20, 20), dtype="uint8"),), {}, 2048, 256),
    "nature_cnn": Sensors((_camera("camera"),), {"vis_encode_type": "nature_cnn"}, 512, 128),
    "resnet": Sensors((_camera("camera"),), {"vis_encode_type": "resnet"}, 128, 64),
    "cameras": Sensors(tuple(map(_camera, "abc")), {"vis_encode_type": "nature_cnn"}, 256, 128),
    "entities": Sensors((SELF, ObservationSpec("others", (20, 10), ENTITIES)), {}, 2048, 256),
    "goal": Sensors((SELF, ObservationSpec("goal", (4,), (), ObservationType.GOAL_SIGNAL)), {}, 2048, 256),
    "goals": Sensors((SELF, ObservationSpec("places", (4,), (), ObservationType.GOAL_SIGNAL)), {}, 2048, 256),
}
"""By name, all with 128 x 2 units; `cameras` are three, `memory` is an LSTM of 128 numbers in sequences of 64;
`goal` is one of four, `goals` are all different."""


def random_obs(observations: tuple[ObservationSpec, ...], lead: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Arrays [*lead, *shape] of each sensor's dtype."""
    rng = np.random.default_rng(seed)

    def draw(o: ObservationSpec) -> np.ndarray:
        if o.dtype == "uint8":
            return rng.integers(0, 256, (*lead, *o.shape), np.uint8)
        if o.name == "goal":
            return np.eye(*o.shape, dtype=np.float32)[rng.integers(0, *o.shape, lead)]
        return rng.normal(size=(*lead, *o.shape)).astype(np.float32)

    return [draw(o) for o in observations]


def bytes_of(observations: tuple[ObservationSpec, ...]) -> int:
    """Of one agent step's observations in the buffer."""
    return sum(int(np.prod(o.shape)) * np.dtype(o.dtype).itemsize for o in observations)


def sensors_settings(workers: int, base_port: int, results: str, name: str) -> RunSettings:
    """PPO over one kind of sensors, and the player that shows them."""
    case, build, config = SENSORS[name], Path(results, "bench.x86_64"), Path(results, "bench.yaml")
    player = f'"{sys.executable}" "{Path(__file__).resolve().parent}/sensors_player.py" {name}'
    build.write_text(f'#!/bin/sh\nexec {player} "$@"\n')
    build.chmod(0o755)
    sizes = {"buffer_size": case.steps, "batch_size": case.batch, "num_epoch": 3, "learning_rate": 1e-9}
    behavior = {"trainer_type": "ppo", "hyperparameters": sizes, "network_settings": dict(case.network)}
    behavior |= {"max_steps": 10**9, "checkpoint_interval": 10**9}
    config.write_text(json.dumps({"behaviors": {"Bench": behavior}}))
    overrides = {
        "env_settings": {
            "env_path": str(build),
            "num_envs": workers,
            "base_port": base_port,
            "num_areas": 16,
            "seed": 1,
        },
        "checkpoint_settings": {"run_id": f"port-{base_port}", "results_dir": results},
    }
    return load_run_settings(str(config), overrides, HYPERPARAMETER_TYPES)
