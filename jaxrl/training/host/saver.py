"""Checkpoints of the host loop: a learner, its step and its number of decisions."""

from __future__ import annotations

import logging
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.interface import PolicyState, TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.loop import require_loop
from jaxrl.settings import LARGEST_STEP, BehaviorSettings
from jaxrl.training import saver
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.saver import Snapshot
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)


class Saved(struct.PyTreeNode):
    """Contents of a checkpoint."""

    train: TrainState
    step: np.int64  # [], trainer step
    decisions: np.int64  # [], calls of `decide`: fixes the next action noise
    exploiters: tuple[Saved, ...] = ()  # of its league


def snapshot_of(behavior: Behavior) -> Snapshot:
    """Return the checkpoint snapshot of a behavior of the host loop."""
    state = behavior.state
    return Snapshot(
        name=behavior.name,
        step=behavior.step,
        contents=_saved(behavior),
        policy=state.policy,
        network=behavior.algorithm.policy,
        learned=(state.policy, state.critic),
        spec=behavior.spec,
        settings=behavior.settings,
        described=saver.settings_of(behavior.settings),
        samples=behavior.recorded(),
        store=behavior.learner.store if behavior.algorithm.storage.saved else (),
    )


def _saved(behavior: Behavior) -> Saved:
    return Saved(
        train=behavior.state,
        step=np.int64(behavior.step),
        decisions=np.int64(behavior.decisions),
        exploiters=tuple(map(_saved, behavior.exploiters)),
    )


def _check_league(behavior: Behavior, path: Path) -> None:
    """Raise CheckpointError if a checkpoint has another number of exploiters than this run."""
    leaves = (leaf.split("/") for leaf in checkpoint.read_info(path).leaves)
    there, here = len({leaf[1] for leaf in leaves if leaf[0] == "exploiters"}), len(behavior.exploiters)
    if there != here:
        raise CheckpointError(
            f"{path}: behaviors.{behavior.name}.self_play.league: {here} exploiter(s) here, and {there} in this "
            "checkpoint: set it back, or begin a new pool with this policy: "
            f"--initialize-from={path.absolute().parents[1].name} and another --run-id."
        )


def first_policy(fresh: TrainState, path: Path, spec: BehaviorSpec, settings: BehaviorSettings) -> PolicyState:
    """Read only the policy of a checkpoint; `fresh` is a train state of its shape. Raises CheckpointError."""
    template = {"train": _acting(fresh)}
    contents = checkpoint.restore(path, template, spec=spec, settings=saver.settings_of(settings), part=True)
    return contents["train"].policy


def _acting(state: TrainState) -> TrainState:
    """Return the state reduced to the parts that acting needs."""
    return state.replace(critic=(), optimizer=(), own={}, signals={})


def resume(behavior: Behavior, path: Path) -> None:
    """Continue from a checkpoint of this run. Raises CheckpointError when it does not fit.

    With inference, a behavior of a team or of a league reads only the policy, as the rest has another form.
    """
    require_loop(path, compiled=False)
    game = behavior.settings.self_play
    shares = behavior.settings.team is not None or (game is not None and game.league is not None)
    state, part = behavior.state, not behavior.training and shares
    if not part:
        _check_league(behavior, path)
    template = Saved(train=_acting(state), step=np.int64(0), decisions=np.int64(0)) if part else _saved(behavior)
    spec, settings, described = behavior.spec, behavior.settings, saver.settings_of(behavior.settings)
    saved = checkpoint.restore(path, template, spec=spec, settings=described, part=part)
    if part:
        saved = saved.replace(train=state.replace(policy=saved.train.policy))
    learner, keeps = behavior.learner, behavior.algorithm.storage.saved
    if behavior.training:
        learner.store = saver.resumed_store(learner.store, path, spec, settings, described, saved=keeps)
    for member, its in zip((behavior, *behavior.exploiters), (saved, *saved.exploiters), strict=True):
        step = int(its.step)
        train = its.train.replace(step=jnp.int32(min(step, LARGEST_STEP)))
        member.restore(train, step=step, decisions=int(its.decisions))
        log.info("%s: resuming from %s at step %d.", member.name, path, step)
    if not behavior.unfinished():
        log.warning("%s: %s", behavior.name, behavior.settings.passed_text)
