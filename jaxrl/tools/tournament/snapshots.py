"""Earlier policies in the folder of a run: those of its self-play pool, and of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxrl.algorithms.interface import PolicyState
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.artifacts.checkpoint.store import CheckpointInfo
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.training.trained_policy import Trained, best_seed, load_trained

_POOL, _SAVES = "rivals/pool/", "rivals/saves"


class Earlier(NamedTuple):
    """A policy as it was."""

    name: str  # within its run
    policy: PolicyState


def of_checkpoints(run: Path, newest: Trained) -> list[Earlier]:
    """The policies of all checkpoints, oldest first. Raises as `load_trained`."""
    folder = RunFolder(run.parent, run.name).behavior(newest.behavior)
    steps = sorted(found.step for found in checkpoints(folder))

    def loaded(step: int) -> PolicyState:
        return load_trained(run, newest.spec, behavior=newest.behavior, checkpoint_at=step).policy

    return [Earlier(str(step), loaded(step)) for step in steps]


def of_pool(run: Path, newest: Trained) -> list[Earlier]:
    """The snapshots of the self-play pool in the newest checkpoint, oldest first; none where there is no pool.

    Raises CheckpointError for one that is missing or damaged.
    """
    folder = RunFolder(run.parent, run.name)
    path = checkpoint.require_latest(folder.behavior(newest.behavior))
    info = checkpoint.read_info(path)
    state = info.settings.get(SELF_PLAY)
    if state is not None:
        kept = sorted(state["snapshots"], key=lambda each: each["step"])
        place = folder.behavior(newest.behavior)
        return [Earlier(str(of["step"]), earlier.read(place, of["weights"], newest.policy)) for of in kept]
    return list(_compiled(path, info, folder, newest)) if _SAVES in info.leaves else []


def _compiled(path: Path, info: CheckpointInfo, folder: RunFolder, newest: Trained) -> Iterator[Earlier]:
    """Of the compiled loop, whose pool is an array with the axes seed and row; row W is none of the snapshots."""
    named = [p.removeprefix(_POOL) for p in info.leaves if p.startswith(_POOL)]
    values = checkpoint.read_arrays(path)
    seed = best_seed(folder, info)
    window = values["rivals/rating"].shape[1] - 1
    saves = int(values[_SAVES][seed])
    for number in range(max(saves - window, 0), saves):
        rows = {p: values[_POOL + p][seed, number % window] for p in named if _POOL + p in values}
        yield Earlier(f"snapshot{number}", trees.rebuild(newest.policy, rows, trees.leaves_of(newest.policy)))
