"""What a behavior leaves on disk: checkpoints, their ONNX files, and the entries of training_status.json."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts import checkpoint, onnx
from jaxrl.artifacts.checkpoint_folder import onnx_path, prune, require_latest
from jaxrl.artifacts.files import replace
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.behavior import Behavior

log = logging.getLogger(__name__)


class Saved(struct.PyTreeNode):
    """Contents of a checkpoint."""

    train: TrainState
    step: np.int64  # [], trainer step
    decisions: np.int64  # [], calls of `decide`: fixes the next action noise


def save_checkpoint(behavior: Behavior, folder: RunFolder, status: TrainingStatus, reward: float | None) -> Path:
    """Write `<Behavior>-<step>` and its ONNX file, drop old ones, note both in the status. Returns the ONNX file.

    Raises CheckpointError or ExportError; the checkpoint before stays the latest.
    """
    target, keep = folder.behavior(behavior.name), behavior.settings.keep_checkpoints
    saved = Saved(train=behavior.state, step=np.int64(behavior.step), decisions=np.int64(behavior.decisions))
    path = checkpoint.save(target, behavior.step, saved, spec=behavior.spec, settings=settings_of(behavior), keep=0)
    exported = onnx_path(target, behavior.step)
    _export(behavior, exported)
    prune(target, keep)
    status.add_checkpoint(behavior.name, behavior.step, exported, reward, [path], keep)
    status.write()
    return exported


def save_final(behavior: Behavior, folder: RunFolder, status: TrainingStatus, reward: float | None) -> None:
    """One more checkpoint, its ONNX file copied to the run's folder."""
    exported = save_checkpoint(behavior, folder, status, reward)
    final = folder.final_onnx(behavior.name)
    partial = final.with_suffix(".partial")
    shutil.copyfile(exported, partial)
    replace(partial, final)
    status.set_final(behavior.name, behavior.step, final, reward, [])
    status.write()
    log.info("Copied %s to %s.", exported, final)


def resume(behavior: Behavior, folder: RunFolder) -> None:
    """Continue from the latest checkpoint of this run. Raises CheckpointError when there is none or it does not fit."""
    path = require_latest(folder.behavior(behavior.name))
    template = Saved(train=behavior.state, step=np.int64(0), decisions=np.int64(0))
    saved = checkpoint.restore(path, template, spec=behavior.spec, settings=settings_of(behavior))
    step = int(saved.step)
    behavior.restore(saved.train.replace(step=jnp.int32(step)), decisions=int(saved.decisions))
    log.info("%s: resuming from %s at step %d.", behavior.name, path, step)


def initialize(behavior: Behavior, path: Path) -> None:
    """Start with the weights and the normaliser of another run; step 0, fresh optimiser."""
    template = Saved(train=behavior.state, step=np.int64(0), decisions=np.int64(0))
    loaded = checkpoint.restore_params_only(
        path,
        template,
        fields=("train",),
        spec=behavior.spec,
        settings=settings_of(behavior),
    )
    fresh = behavior.state
    behavior.state = fresh.replace(
        policy=loaded.train.policy, critic=loaded.train.critic, max_team=loaded.train.max_team
    )
    log.info("%s: initialized from %s.", behavior.name, path)


def settings_of(behavior: Behavior) -> dict[str, Any]:
    """The behavior's resolved settings as plain JSON values."""
    return behavior.settings.model_dump(mode="json")


def _export(behavior: Behavior, path: Path) -> None:
    obs, masks = behavior.recorded()
    difference = onnx.export(
        path,
        spec=behavior.spec,
        network_settings=behavior.settings.network_settings,
        actor_params=behavior.state.policy.params,
        normalizer=behavior.state.policy.normalizer,
        sample_obs=obs,
        sample_masks=masks,
    )
    log.info("Exported %s (largest difference to the policy: %.1e).", path, difference)
