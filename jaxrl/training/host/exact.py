"""Exact resume: a run that is stopped at a checkpoint and resumed equals, bit for bit, the one that was never stopped.

What environments and unfinished buffers hold cannot be saved. So the run that goes on gives it up as well: at a
checkpoint, right after an update, open episodes are discarded, the environments are seeded anew from what both runs
know, and actors and statistics begin as in a fresh process.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from jaxrl.artifacts.checkpoint.folder import checkpoints, choose
from jaxrl.artifacts.run_folder import RunFolder


def environment_seeds(run_seed: int, steps: Mapping[str, int], workers: int) -> list[int]:
    """A seed below 2^31 for each worker, of the run's seed and the trainer step of every behavior with a checkpoint."""
    moment = [number for name in sorted(steps) for number in (zlib.crc32(name.encode()), steps[name])]
    draws = (np.random.SeedSequence([run_seed, worker, *moment]).generate_state(1) for worker in range(workers))
    return [int(draw[0]) >> 1 for draw in draws]


def steps_of_run(folder: RunFolder) -> dict[str, int]:
    """By behavior, the step of the checkpoint that a resumed run continues from; empty without any."""
    behaviors = [path for path in folder.path.glob("*/") if checkpoints(path)]
    continued = {path.name: choose(path).path for path in behaviors}
    return {
        item.path.parent.name: item.step
        for path in behaviors
        for item in checkpoints(path)
        if item.path == continued[path.name]
    }
