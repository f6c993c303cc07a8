"""Memory of a run: the formula in the docstring of `make_jitted_trainer`, what the compiler plans, what is measured.

    python benchmarks/memory.py

Dungeon Escape. On a CPU seeds learn one after the other, so the activations of one seed count once. Each case
runs in a process of its own. `measured` is what two iterations add to it at most, its state included: the peak of the
resident set less its size when everything was compiled (Linux; elsewhere nan), or what the allocator of an accelerator
tells. `ratio` is the formula over it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxrl import make_environment, make_jitted_trainer, make_settings
from jaxrl.algorithms import ALGORITHMS

CASES = (
    ("ppo", 1, 256, 65_536, 16_384, 256),
    ("ppo", 8, 64, 65_536, 512, 64),
    ("poca", 1, 16, 65_536, 4_096, 256),
    ("poca", 4, 256, 262_144, 512, 64),
)  # trainer, seeds, areas, buffer_size, batch_size, units


def of_run(trainer: str, seeds: int, areas: int, buffer: int, batch: int, units: int) -> dict[str, Any]:
    """Planned and estimated bytes of one run."""
    env = make_environment("jax:dungeon_escape")
    settings = make_settings(
        trainer,
        hyperparameters={"buffer_size": buffer, "batch_size": batch},
        network_settings={"hidden_units": units, "num_layers": 2},
    )
    algorithm = ALGORITHMS[trainer](env.spec, settings)
    made = make_jitted_trainer(env, algorithm, settings, areas=areas, seeds=seeds, devices=jax.devices()[:1])
    state = made.init(range(seeds))
    held = sum(
        x.size * (8 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize)
        for x in jax.tree.leaves(state)
    )
    made.run(state, 1)  # whatever is kept from now on is in the size before
    measured = measure(lambda: made.run(made.init(range(seeds)), 2))
    action, numbers = env.spec.action, sum(sensor.shape[0] for sensor in env.spec.observations)
    decisions = made.steps * areas * env.members * (4 * (numbers + 2 * action.columns + 6) + action.mask_size)
    held_by_all = seeds if seeds > 1 else 0
    rows, kept = (batch, 12) if trainer == "ppo" else (batch // env.members * env.members * (1 + env.members), 9)
    estimate = held + 1e6
    estimate += max(
        1.8 * seeds * decisions,
        (held_by_all + 2.9) * decisions,
        (held_by_all + 1.4) * decisions + 4 * kept * units * rows,
    )
    return {
        "trainer": trainer,
        "seeds": seeds,
        "areas": areas,
        "units": units,
        "planned": made.bytes,
        "formula": estimate,
        "measured": measured,
    }


def measure(run: Callable[[], Any]) -> float:
    """Bytes that a call adds at most, its result included."""
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        jax.block_until_ready(run())
        return float(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    peak = Path("/proc/self/clear_refs")
    if not peak.exists():
        return float("nan")
    peak.write_text("5", encoding="ascii")  # the peak starts again from the present size
    before = status("VmRSS")
    jax.block_until_ready(run())
    return status("VmHWM") - before


def status(name: str) -> float:
    """A size that Linux tells of this process, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found, f"/proc/self/status has no {name}"
    return 1024.0 * float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(of_run(*CASES[given.case])))
        return
    print("trainer  seeds  areas  units  formula MB  planned MB  measured MB  ratio")
    for case in range(1 if given.quick else len(CASES)):
        command = [sys.executable, __file__, "--case", str(case)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        row = json.loads(ended.stdout.splitlines()[-1])
        print(
            f"{row['trainer']:<7}{row['seeds']:7d}{row['areas']:7d}{row['units']:7d}{row['formula'] / 1e6:12.1f}"
            f"{row['planned'] / 1e6:12.1f}{row['measured'] / 1e6:13.1f}{row['formula'] / row['measured']:7.2f}",
            flush=True,
        )
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
