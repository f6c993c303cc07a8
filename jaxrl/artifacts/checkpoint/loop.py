"""Which of the two training loops wrote a checkpoint: a run is resumed by its own loop alone. No JAX.

A checkpoint of the compiled loop holds its environments, and all seeds, beside the learner; one of the host loop holds
how many decisions were made. Neither can continue from the other's, but either can start from the other's weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint.folder import METADATA, CheckpointError, checkpoints, require_latest

OF_RUN = SEEDS, AREAS, FIRST_SEED = "seeds", "num_areas", "first_seed"
"""What the compiled loop alone notes beside a behavior's settings: numbers of seeds and areas, and the first seed."""


def require_loop_of_run(run: Path, *, compiled: bool) -> None:
    """`require_loop` for the latest checkpoint of every behavior in the results folder `run`, if it has any."""
    for folder in sorted(run.glob("*/")):
        if checkpoints(folder):
            require_loop(require_latest(folder), compiled=compiled)


def require_loop(path: Path, *, compiled: bool) -> None:
    """Raise CheckpointError if checkpoint `path` was written by the other loop than the one that wants to resume it.

    `compiled`: whether that is the compiled loop. A checkpoint that was written without settings is let pass.
    """
    settings = _settings(path)
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
    """The number of the first seed of the compiled run in results folder `run`; None where no checkpoint tells it."""
    found = (checkpoint for folder in sorted(run.glob("*/")) for checkpoint in checkpoints(folder))
    return next((number for item in found if (number := _settings(item.path).get(FIRST_SEED)) is not None), None)


def _settings(path: Path) -> dict[str, Any]:
    """What checkpoint `path` notes of its behavior's settings and its run; empty when it was written without."""
    return files.read_json(path / METADATA).get("settings", {})
