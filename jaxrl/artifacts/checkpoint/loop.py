"""Checks which of the two training loops wrote a checkpoint: a run is resumed by its own loop alone. No JAX.

A checkpoint of the compiled loop holds its environments, and all seeds, beside the learner; one of the host loop holds
how many decisions were made. Neither can continue from the other's, but either can start from the other's weights.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from jaxrl.artifacts.checkpoint.document import CheckpointError, DamagedError, read_info
from jaxrl.artifacts.checkpoint.folder import checkpoints

OF_RUN = SEEDS, AREAS, FIRST_SEED = "seeds", "num_areas", "first_seed"
"""Keys that only the compiled loop notes beside a behavior's settings: numbers of seeds and areas, the first seed."""
LESSONS = "lessons"
"""Key of the `Lessons.state` of each seed, if there is a curriculum. Noted by the compiled loop and by exact runs."""
MOMENT = "moment"
"""Key of exact runs of the host loop: step and decisions of every behavior at the moment, by name."""
SELF_PLAY = "self_play_state"
"""Key of a behavior's state of self-play: ratings, schedule, random state, and its pool's file names (`earlier`)."""
NOTED = *OF_RUN, LESSONS, MOMENT, SELF_PLAY
"""Keys that stand beside a behavior's settings and are no settings."""


def require_loop_of_run(run: Path, *, compiled: bool) -> None:
    """Call `require_loop` for the newest readable checkpoint of every behavior in the results folder `run`."""
    for folder in sorted(run.glob("*/")):
        for item in reversed(checkpoints(folder)):
            with contextlib.suppress(DamagedError):  # reported when it is loaded
                require_loop(item.path, compiled=compiled)
                break


def require_loop(path: Path, *, compiled: bool) -> None:
    """Raise CheckpointError if checkpoint `path` was written by the other loop than the one that wants to resume it.

    `compiled`: whether that is the compiled loop. A checkpoint that was written without settings is let pass.
    """
    settings = read_info(path).settings
    if not settings or compiled == (SEEDS in settings):
        return
    host, seeds = "with a player, a build or the Editor", settings.get(SEEDS)
    saved, wanted = (host, "compiled with its environment") if compiled else (f"compiled with {seeds} seed(s)", host)
    raise CheckpointError(
        f"{path}: was saved by a run {saved}; a run {wanted} cannot resume it. Resume it with the env_path (--env) it "
        "was started with, or start a new run with its weights: "
        f"--initialize-from={path.absolute().parents[1].name} and another --run-id."
    )


def first_seed_of_run(run: Path) -> int | None:
    """Return the number of the first seed of the compiled run in folder `run`; None where no checkpoint tells it."""
    for item in (item for folder in sorted(run.glob("*/")) for item in checkpoints(folder)):
        with contextlib.suppress(DamagedError):
            number = read_info(item.path).settings.get(FIRST_SEED)
            if isinstance(number, int):
                return number
    return None
