"""Many seeds in one compiled program against as many single runs.

    python benchmarks/seeds.py                       # 16 seeds, one device per core
    python benchmarks/seeds.py --seeds 16 --rounds 9
    python benchmarks/seeds.py --whole               # whole commands: start, trace, compile, train, save

MAPPO on Simple Spread with the sizes of jitted.py. A single run has the whole machine: one device, as many threads as
XLA takes. `of single runs` is the wall time of an iteration of all seeds over that of one seed times their number. On
an accelerator there is one device, and the figure to look at is `of one run`. `split` is one seed again, its areas and
minibatches over the devices of a CPU.

--whole times `jaxrl train configs/mappo/simple_spread.yaml` (500,000 environment steps) as a user waits for it, once
for all seeds and --rounds times for one; every program is in the compilation cache by then, which is empty at first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(seeds: int, devices: int, rounds: int) -> float:
    """Seconds of one iteration, the median of `rounds`, in a process of its own."""
    command = [sys.executable, __file__, "--worker", "--seeds", str(seeds), "--devices", str(devices)]
    ended = subprocess.run(
        [*command, "--rounds", str(rounds)], capture_output=True, text=True, timeout=900, check=False
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return float(ended.stdout.split()[-1])


def worker(seeds: int, devices: int, rounds: int) -> None:
    """Train and print the median."""
    import jax

    if jax.config.jax_platforms in (None, "", "cpu") and devices > 1:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_num_cpu_devices", devices)
    from jitted import AREAS, settings_for

    from jaxrl import make_environment, make_jitted_trainer
    from jaxrl.algorithms import ALGORITHMS

    env = make_environment("jax:simple_spread")
    settings = settings_for("mappo", env.members)
    algorithm = ALGORITHMS["mappo"](env.spec, settings)
    trainer = make_jitted_trainer(env, algorithm, settings, areas=AREAS, seeds=seeds)
    state, _ = trainer.run(trainer.init(range(seeds)), 1)
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        state, _ = trainer.run(state, 4)
        jax.block_until_ready(state)
        taken.append((time.perf_counter() - begun) / 4)
    print(statistics.median(taken))


def whole(seeds: int, rounds: int) -> dict[str, float]:
    """Print the seconds of one command with all seeds and of commands with one; the row of the table."""
    from jaxrl.artifacts.files import carried

    config = carried("configs") / "mappo" / "simple_spread.yaml"
    taken: dict[int, list[float]] = {1: [], seeds: []}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jaxrl.cli", "train", str(config), "--run-id=timed", "--force"]
        place = {**os.environ, "JAXRL_CACHE_DIR": str(Path(folder, "cache"))}
        for count in [1, seeds, *[1] * rounds, seeds]:  # the first of each fills the cache
            begun = time.perf_counter()
            ended = subprocess.run(
                [*command, "--seeds", str(count)], cwd=folder, env=place, capture_output=True, timeout=1800, check=False
            )
            if ended.returncode:
                raise SystemExit(ended.stderr.decode())
            taken[count].append(time.perf_counter() - begun)
    one, every, first = statistics.median(taken[1][1:]), taken[seeds][1], taken[seeds][0]
    row = {"seeds": seeds, "one_s": one, "all_s": every, "of_single_runs": every / (seeds * one), "first_all_s": first}
    print("seeds   one s   all s   of single runs   all s, first time")
    print("{seeds:5d}{one_s:8.1f}{all_s:8.1f}{of_single_runs:17.2f}{first_all_s:20.1f}".format(**row))
    return row


def iterations(seeds: int, devices: int, rounds: int) -> dict[str, float]:
    """Print the seconds of an iteration of all seeds, of one, and of one over the devices; the row of the table."""
    one, every, split = measure(1, 1, rounds), measure(seeds, devices, rounds), measure(1, devices, rounds)
    row = {"seeds": seeds, "one_s": one, "split_s": split, "all_s": every}
    row |= {"of_single_runs": every / (seeds * one), "of_one_run": every / one}
    print("seeds   one s  split s   all s   of single runs   of one run")
    print("{seeds:5d}{one_s:8.3f}{split_s:9.3f}{all_s:8.3f}{of_single_runs:17.2f}{of_one_run:13.1f}".format(**row))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--whole", action="store_true", help="time whole commands")
    parser.add_argument("--quick", action="store_true", help="4 seeds, few rounds")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, default=os.cpu_count() or 1, help="devices of a CPU")
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.rounds = 4, 3
    if given.worker:
        worker(given.seeds, given.devices, given.rounds)
        return
    if given.whole and min(given.seeds - 1, given.rounds) < 1:
        parser.error(
            f"--whole compares --seeds (2 or more, not {given.seeds}) in --rounds (1 or more, not {given.rounds})"
        )
    row = whole(given.seeds, given.rounds) if given.whole else iterations(given.seeds, given.devices, given.rounds)
    if given.json:
        with given.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
