"""Checkpoints of the host loop: a learner, its step and how many decisions it has made."""

from __future__ import annotations

import logging
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.loop import require_loop
from jaxrl.settings import LARGEST_STEP
from jaxrl.training import saver
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.saver import Snapshot

log = logging.getLogger(__name__)


class Saved(struct.PyTreeNode):
    """Contents of a checkpoint."""

    train: TrainState
    step: np.int64  # [], trainer step
    decisions: np.int64  # [], calls of `decide`: fixes the next action noise


def snapshot_of(behavior: Behavior) -> Snapshot:
    """A behavior of the host loop."""
    state = behavior.state
    return Snapshot(
        name=behavior.name,
        step=behavior.step,
        contents=Saved(train=state, step=np.int64(behavior.step), decisions=np.int64(behavior.decisions)),
        policy=state.policy,
        network=behavior.algorithm.policy,
        learned=(state.policy, state.critic),
        spec=behavior.spec,
        settings=behavior.settings,
        described=saver.settings_of(behavior.settings),
        samples=behavior.recorded(),
        store=behavior.learner.store if behavior.algorithm.storage.saved else (),
    )


def resume(behavior: Behavior, path: Path) -> None:
    """Continue from a checkpoint of this run. Raises CheckpointError when it does not fit."""
    require_loop(path, compiled=False)
    template = Saved(train=behavior.state, step=np.int64(0), decisions=np.int64(0))
    spec, settings, described = behavior.spec, behavior.settings, saver.settings_of(behavior.settings)
    saved = checkpoint.restore(path, template, spec=spec, settings=described)
    step, learner, keeps = int(saved.step), behavior.learner, behavior.algorithm.storage.saved
    if behavior.training:
        learner.store = saver.resumed_store(learner.store, path, spec, settings, described, saved=keeps)
    behavior.restore(
        saved.train.replace(step=jnp.int32(min(step, LARGEST_STEP))), step=step, decisions=int(saved.decisions)
    )
    log.info("%s: resuming from %s at step %d.", behavior.name, path, step)
    if not behavior.unfinished():
        log.warning("%s: %s", behavior.name, behavior.settings.passed_text)
