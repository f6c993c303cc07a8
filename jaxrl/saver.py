"""What a behavior leaves on disk: checkpoints, their ONNX files, and the entries of training_status.json."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts import checkpoint, files, onnx
from jaxrl.artifacts.checkpoint_folder import onnx_path, prune, require_latest
from jaxrl.artifacts.checkpoint_tree import leaf_paths
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.behavior import Behavior, DivergedError

log = logging.getLogger(__name__)


class Saved(struct.PyTreeNode):
    """Contents of a checkpoint."""

    train: TrainState
    step: np.int64  # [], trainer step
    decisions: np.int64  # [], calls of `decide`: fixes the next action noise


def save_checkpoint(behavior: Behavior, folder: RunFolder, status: TrainingStatus, reward: float | None) -> None:
    """Write `<Behavior>-<step>` and its ONNX file, drop old ones, note both in the status.

    Raises DivergedError or CheckpointError, and the checkpoint before stays the latest; or ExportError, and the
    checkpoint is complete.
    """
    _require_finite(behavior)
    target, keep = folder.behavior(behavior.name), behavior.settings.keep_checkpoints
    saved = Saved(train=behavior.state, step=np.int64(behavior.step), decisions=np.int64(behavior.decisions))
    path = checkpoint.save(target, behavior.step, saved, spec=behavior.spec, settings=settings_of(behavior), keep=0)
    exported = onnx_path(target, behavior.step)
    _export(behavior, exported)
    prune(target, keep)
    status.add_checkpoint(behavior.name, behavior.step, exported, reward, [path], keep)
    status.write()


def publish(behavior: Behavior, folder: RunFolder, status: TrainingStatus, reward: float | None) -> None:
    """Copy the ONNX file of the checkpoint of this step to the run's folder. Raises ArtifactError."""
    exported, final = onnx_path(folder.behavior(behavior.name), behavior.step), folder.final_onnx(behavior.name)
    files.copy(exported, final)
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
    if not behavior.unfinished():
        limit = behavior.settings.max_steps
        log.warning("%s: has passed max_steps (%d) already: raise it to train on.", behavior.name, limit)


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


def _require_finite(behavior: Behavior) -> None:
    for path, leaf in leaf_paths(jax.device_get((behavior.state.policy, behavior.state.critic))):
        if not np.isfinite(leaf).all():
            rate = behavior.settings.hyperparameters.learning_rate
            raise DivergedError(behavior.name, f"parameters {path} are not finite at step {behavior.step}", rate)


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
