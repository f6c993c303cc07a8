"""A whole training run as its user waits for it: `jaxrl train` from process start to exit.

    python benchmarks/end_to_end.py --repeats 3

60,000 agent steps of MA-POCA on Dungeon Escape: 16 areas of 3 agents, one worker, batch 256, buffer 4096, 4 epochs,
64 x 2 units. `first` has an empty compilation cache, `warm` the cache of the run before. The original (ML-Agents 1.1.0)
takes 118 s as it installs on Python 3.11 and 81 s with protobuf's C core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORIGINAL = {"as it installs": 118.0, "fast protobuf": 81.0}
CONFIG = """
behaviors:
  DungeonEscape:
    trainer_type: poca
    hyperparameters: {batch_size: 256, buffer_size: 4096, num_epoch: 4, learning_rate: 0.001}
    network_settings: {hidden_units: 64, num_layers: 2}
    max_steps: 60000
    summary_freq: 20000
env_settings: {env_path: "player:dungeon_escape", num_areas: 16, seed: 1}
"""


def run(config: Path, results: Path, cache: Path, port: int) -> float:
    """Seconds of one run; raises SystemExit with its output when it fails."""
    command = [sys.executable, "-m", "jaxrl.cli", "train", str(config), "--run-id=bench", "--force"]
    command += [f"--results-dir={results}", f"--base-port={port}"]
    begun = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, "JAXRL_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(done.stdout[-3000:])
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of a first and a warm run")
    parser.add_argument("--base-port", type=int, default=5505)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"first": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(CONFIG)
        for repeat in range(options.repeats):
            cache = Path(folder) / f"cache{repeat}"
            for name in ("first", "warm"):
                seconds[name].append(run(config, Path(folder) / "results", cache, options.base_port))
                print(f"{name:5}  {seconds[name][-1]:6.1f} s", flush=True)
    for name, values in seconds.items():
        median = statistics.median(values)
        ratios = ", ".join(f"{original / median:.1f} x ({text})" for text, original in ORIGINAL.items())
        print(f"{name:5}  median {median:6.1f} s   original / ours: {ratios}")


if __name__ == "__main__":
    main()
