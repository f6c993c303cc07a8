"""Memory that the compiler plans for a run against the formula in the docstring of `make_jitted_trainer`.

    python benchmarks/memory.py

Dungeon Escape, 64 units. Nothing is allocated but what compiling takes. On a CPU seeds learn one after the other, so
the activations of one seed count once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax

from jaxrl import make_environment, make_jitted_trainer, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.counterfactual import CHUNK

UNITS, BATCH = 64, 512
CASES = (("ppo", 1, 16, 4096), ("ppo", 8, 16, 4096), ("poca", 1, 16, 4096), ("poca", 4, 64, 8192))


def of_run(trainer: str, seeds: int, areas: int, buffer: int) -> dict[str, Any]:
    """Planned and estimated bytes of one run."""
    env = make_environment("jax:dungeon_escape")
    settings = make_settings(
        trainer,
        hyperparameters={"buffer_size": buffer, "batch_size": BATCH},
        network_settings={"hidden_units": UNITS, "num_layers": 2},
    )
    algorithm = ALGORITHMS[trainer](env.spec, settings)
    made = make_jitted_trainer(env, algorithm, settings, areas=areas, seeds=seeds, devices=jax.devices()[:1])
    state = jax.tree.leaves(made.init(range(seeds)))
    held = sum(x.size * (8 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize) for x in state)
    action, numbers = env.spec.action, sum(sensor.shape[0] for sensor in env.spec.observations)
    agents = made.steps * areas * env.members
    decisions = agents * (4 * (numbers + 2 * action.columns + 6) + action.mask_size)
    per_row = env.members * areas
    at_once = max(CHUNK // per_row, 1) * per_row
    entities = 1 + env.members  # the value's set and one for each baseline
    rows, minibatch = (agents, BATCH) if trainer == "ppo" else (at_once * entities, BATCH // env.members * env.members)
    minibatch *= 1 if trainer == "ppo" else entities
    estimate = held + 1.6 * seeds * decisions + 4 * UNITS * (1.3 * rows + 8 * minibatch)
    return {"trainer": trainer, "seeds": seeds, "areas": areas, "planned": made.bytes, "formula": estimate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    given = parser.parse_args()
    print("trainer  seeds  areas  planned MB  formula MB  ratio")
    for case in CASES[: 1 if given.quick else None]:
        row = of_run(*case)
        ratio = row["formula"] / row["planned"]
        print(
            f"{row['trainer']:<7}{row['seeds']:7d}{row['areas']:7d}{row['planned'] / 1e6:12.1f}"
            f"{row['formula'] / 1e6:12.1f}{ratio:7.2f}",
            flush=True,
        )
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
