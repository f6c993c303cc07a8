"""Seconds of CPU and memory to parse demonstrations: python benchmarks/demonstrations.py [--pairs N] [--images N]

The files are made first, by `jaxrl.demonstrations.write`, in a folder that is removed; the parsing process is another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxrl.demonstrations import Pair, write
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

ACTION = ActionSpec(2, ())
NUMBERS = BehaviorSpec((ObservationSpec("numbers", (32,)),), ACTION)
PICTURES = BehaviorSpec((ObservationSpec("picture", (3, 84, 84), dtype="uint8"),), ACTION)
LENGTH = 100  # pairs of an episode
PARSE = """
import resource, sys, time
import numpy as np
from jaxrl.demonstrations import columns, remembered
columns.keep_in(sys.argv[2])
begin = time.process_time()
found = remembered(sys.argv[1])
spent, most = time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
mapped = isinstance(found.obs[0], np.memmap)
print(f"{len(found.done):,} decisions, mapped {mapped}: {spent:.2f} s of CPU, {most} MiB at most")
"""


def pairs(number: int, spec: BehaviorSpec) -> Iterator[Pair]:
    """Random numbers, or pictures of which a fifth is noise."""
    draws = np.random.default_rng(0)
    for i in range(number):
        (sensor,) = spec.observations
        if sensor.dtype == "uint8":
            seen = np.zeros(sensor.shape, np.uint8)
            seen[:, : sensor.shape[1] // 5] = draws.integers(0, 256, (3, sensor.shape[1] // 5, sensor.shape[2]))
        else:
            seen = draws.random(sensor.shape, np.float32)
        over = i % LENGTH == LENGTH - 1
        yield Pair([seen], () if over else (0.1, 0.2), reward=1.0, done=over)


def main() -> None:
    """Print two lines for each file: parsed, and found as it was parsed before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=10_000)
    given = parser.parse_args()
    for name, number, spec in (("numbers", given.pairs, NUMBERS), ("images", given.images, PICTURES)):
        with tempfile.TemporaryDirectory() as folder:
            demo = Path(folder) / f"{name}.demo"
            write(demo, "Any", spec, pairs(number, spec))
            for _ in range(2):
                line = [sys.executable, "-c", PARSE, str(demo), str(Path(folder) / "results")]
                print(name, subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
