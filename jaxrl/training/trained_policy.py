"""The policy in the results folder of a run, for playing without training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import ValidationError

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.artifacts import status
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import CheckpointError, checkpoints
from jaxrl.artifacts.checkpoint.loop import OF_RUN
from jaxrl.artifacts.checkpoint.mismatch import mismatches
from jaxrl.artifacts.checkpoint.store import CheckpointInfo
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import BehaviorSettings, constants, load_run_settings
from jaxrl.settings.behavior import TYPES
from jaxrl.settings.section import dotted, problems_of

BEST_SEED = "best_seed"
"""Entry of a behavior in training_status.json: which seed of a run with several is the best, from 0."""
STEP = "train/step"
"""Path in a checkpoint; its array is [S] where the checkpoint holds several seeds."""
_POLICY = "train/policy/"
_log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A policy and what it was trained with."""

    algorithm: Algorithm
    policy: PolicyState
    parameters: dict[str, float]  # of the environment: its usual values under the constants of the run
    origin: str  # in words: checkpoint and seed


def policy_of(run: Path, env: JaxEnv, *, deterministic: bool = False) -> Trained:
    """The policy of the latest checkpoint in results folder `run` for the behavior of `env`.

    Of a run with S seeds, whose checkpoint has a leading axis S on every array, the one that training_status.json calls
    the best, or else the first, with a warning.

    Raises:
      RunFolderError: the folder does not exist, has no checkpoint, or none of this behavior.
      CheckpointError: the checkpoint is damaged, or was trained with other observations or actions.
      SettingsError: the configuration of the run cannot be read.
    """
    folder = RunFolder(run.parent, run.name)
    path = _latest(folder, env.name)
    info = checkpoint.read_info(path)
    settings = _settings(path, info, deterministic)
    algorithm = ALGORITHMS[settings.trainer_type](env.spec, settings)
    wanted = jax.eval_shape(algorithm.init, jax.random.key(0)).policy
    seeds = info.leaves[STEP]["shape"]  # [] or [S]
    template = jax.tree.map(lambda leaf: jnp.zeros((*seeds, *leaf.shape), leaf.dtype), wanted)
    policy, origin = _restore(path, info, template, env), path.name
    if seeds:
        seed = best_seed(folder, env.name, seeds[0])
        policy = jax.tree.map(lambda leaf: leaf[seed], policy)
        origin += f", seed {seed} of {seeds[0]}" if seeds[0] > 1 else ""
    return Trained(algorithm=algorithm, policy=policy, parameters=_parameters(folder, env), origin=origin)


def _latest(folder: RunFolder, behavior: str) -> Path:
    """The checkpoint to load, or a RunFolderError that says what the folder has instead."""
    if not folder.path.is_dir():
        raise RunFolderError(f"{folder.path}: no such folder; name the results folder of a run, such as results/first")
    if checkpoints(folder.behavior(behavior)):
        return checkpoint.require_latest(folder.behavior(behavior))
    others = sorted(path.name for path in folder.path.iterdir() if checkpoints(path))
    if others:
        raise RunFolderError(
            f"{folder.path}: holds no policy for behavior {behavior}, only for {', '.join(others)}; "
            "give the environment that this run was trained in"
        )
    raise RunFolderError(
        f"{folder.path}: holds no complete checkpoint; name the results folder of a run that has saved one "
        "(checkpoint_interval), or give no run to see random actions"
    )


def _settings(path: Path, info: CheckpointInfo, deterministic: bool) -> BehaviorSettings:
    """The behavior's settings as the checkpoint keeps them: those that its arrays were made with."""
    try:
        written = {name: value for name, value in info.settings.items() if name not in OF_RUN}
        settings = BehaviorSettings.model_validate(written, context={TYPES: HYPERPARAMETER_TYPES})
    except ValidationError as error:
        problems = "; ".join(f"{dotted(location)}: {text}" for location, text in problems_of(error))
        raise CheckpointError(f"{path}: this version of jaxrl cannot read the settings in it: {problems}") from None
    network = settings.network_settings.model_copy(
        update={"deterministic": deterministic or settings.network_settings.deterministic}
    )
    return settings.model_copy(update={"network_settings": network})


def _restore(path: Path, info: CheckpointInfo, template: PolicyState, env: JaxEnv) -> PolicyState:
    """`template` filled from the checkpoint; the rest of the checkpoint is read and dropped."""
    saved = {p.removeprefix(_POLICY): entry for p, entry in info.leaves.items() if p.startswith(_POLICY)}
    unfit = trees.leaf_mismatches(saved, trees.leaves_of(template))
    if unfit:
        changes = "; ".join(mismatches(info.spec, {}, env.spec, None) or unfit[:3])
        raise CheckpointError(
            f"{path}: this policy does not fit {env.name} as it is now ({changes}); "
            "watch it in the environment that it was trained in"
        )
    blank = trees.nest({p: _blank(entry) for p, entry in info.leaves.items()})
    values = trees.unnest(checkpoint.restore(path, blank))
    return trees.rebuild(template, {p: values[_POLICY + p] for p in saved}, saved)


def _blank(entry: Any) -> Any:
    """Zeros as a checkpoint describes them."""
    zeros = np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))
    return jax.random.wrap_key_data(jnp.asarray(zeros)) if "key" in entry else zeros


def best_seed(folder: RunFolder, behavior: str, seeds: int) -> int:
    """Index of the seed that training_status.json calls the best, else 0 with a warning. Raises RunFolderError."""
    try:
        best = status.read(folder.status).get(behavior, {}).get(BEST_SEED) if folder.status.is_file() else None
    except ArtifactError as error:
        _log.warning("%s Taking seed 0 of %d.", error, seeds)
        return 0
    if best is None and seeds == 1:
        return 0
    if best is None:
        _log.warning("%s names no best seed of %s: taking seed 0 of %d.", folder.status, behavior, seeds)
        return 0
    if not 0 <= int(best) < seeds:
        raise RunFolderError(f"{folder.status}: {behavior}.{BEST_SEED} = {best}, but the checkpoint has {seeds} seeds")
    return int(best)


def _parameters(folder: RunFolder, env: JaxEnv) -> dict[str, float]:
    """The environment's parameters; a run that was killed has no configuration.yaml, then the usual ones."""
    written = {}
    if folder.configuration.is_file():
        settings = load_run_settings(folder.configuration, {}, HYPERPARAMETER_TYPES)
        written = constants(settings.environment_parameters)
    return {name: written.get(name, usual) for name, usual in env.parameters.items()}
