"""From where the behaviors of a scene start: a checkpoint of each, all of one moment; other weights; or nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.errors import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import RunSettings
from jaxrl.training.compiled.iteration import JittedState
from jaxrl.training.compiled.saver import Subject, restored, resumed
from jaxrl.training.compiled.scene.iteration import SceneState

log = logging.getLogger(__name__)


def restored_scene(
    settings: RunSettings, folder: RunFolder, subjects: Sequence[Subject], fresh: SceneState
) -> SceneState:
    """The state of the run's latest checkpoints with --resume, else `fresh`, with other weights if asked.

    Raises as `saver.restored`, and CheckpointError where the behaviors have no checkpoint of one moment. Writes
    nothing.
    """
    if settings.checkpoint_settings.resume:
        found = _of_one_moment(folder, subjects, fresh)
    else:
        found = {of.name: restored(settings, folder, of, fresh.of(of.name)) for of in subjects}
    areas = found[subjects[0].name].play.areas
    parts = {name: part.replace(play=part.play._replace(areas=()), parameters={}) for name, part in found.items()}
    return fresh.replace(areas=areas, parts=parts)


def _of_one_moment(folder: RunFolder, subjects: Sequence[Subject], fresh: SceneState) -> dict[str, JittedState]:
    """By behavior, the newest checkpoints of an iteration of which all have one.

    All are saved at the same iterations, one after the other: a run that is killed meanwhile leaves some behaviors with
    a newer one.
    """
    older = {}
    for of in subjects:
        newest = checkpoint.require_latest(folder.behavior(of.name))
        known = sorted(checkpoints(folder.behavior(of.name)), key=lambda item: item.step)
        step = checkpoint.read_info(newest).step
        older[of.name] = [item.path for item in known if item.step < step] + [newest]
    states = {of.name: resumed(older[of.name].pop(), of, fresh.of(of.name)) for of in subjects}
    while len({_iteration(state) for state in states.values()}) > 1:
        last = max(subjects, key=lambda of: _iteration(states[of.name]))
        if not older[last.name]:
            names = ", ".join(of.name for of in subjects)
            raise CheckpointError(
                f"{folder.path}: the checkpoints of {names} are of different moments, and no older ones are left of "
                f"{last.name}: start a new run with their weights: --initialize-from={folder.run_id} and another "
                "--run-id."
            )
        log.warning("%s: its newest checkpoint is of a later moment than the others': taking an older one.", last.name)
        states[last.name] = resumed(older[last.name].pop(), last, fresh.of(last.name))
    return states


def _iteration(state: JittedState) -> int:
    return int(np.asarray(state.iteration)[0])
