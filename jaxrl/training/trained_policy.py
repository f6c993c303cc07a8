"""Load the policy in the results folder of a run, for playing without training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
from pydantic import ValidationError

from jaxrl import trust as trusted
from jaxrl.algorithms import HYPERPARAMETER_TYPES, make_algorithm
from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.artifacts import status
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import written_by
from jaxrl.artifacts.checkpoint.folder import CheckpointError, behaviors_of, checkpoint_path, checkpoints, resolve
from jaxrl.artifacts.checkpoint.loop import FIRST_SEED, LESSONS, NOTED, SEEDS
from jaxrl.artifacts.checkpoint.mismatch import mismatches
from jaxrl.artifacts.checkpoint.spec import spec_from_json
from jaxrl.artifacts.checkpoint.store import CheckpointInfo
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import BehaviorSettings, SettingsError, load_run_settings
from jaxrl.settings.behavior import TYPES
from jaxrl.settings.rewards import ExtrinsicSettings, GAILSettings
from jaxrl.settings.section import dotted, problems_of
from jaxrl.training.lessons import present_values, read_lessons
from jaxrl.types import BehaviorSpec, ParameterValue

EXPORTED_SEED = "seed"
"""Entry of a behavior in training_status.json: the number of the seed whose policy is the run's ONNX file."""
STEP = "train/step"
"""Path in a checkpoint; its array is [S] if the checkpoint holds several seeds."""
_POLICY = "train/policy/"
_log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A policy with its settings, algorithm and environment parameters."""

    behavior: str
    spec: BehaviorSpec  # observations and actions of the environment
    settings: BehaviorSettings
    algorithm: Algorithm
    policy: PolicyState
    step: int  # of the trainer, when it was saved
    parameters: Mapping[str, ParameterValue]  # of the environment, in their lessons at that step: numbers or samplers
    origin: str  # names the checkpoint and the seed, or the file
    of_file: bool = False  # of an ONNX file, which does not say which sensors are goals


def load_trained(
    run: Path,
    spec: BehaviorSpec | None = None,
    *,
    behavior: str | None = None,
    checkpoint_at: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> Trained:
    """Load a policy from results folder `run`, of either loop.

    For a run with S seeds, whose checkpoint has a leading axis S on every array, load the seed that
    training_status.json calls the best, or else the first, with a warning.

    `spec`: the specs of the environment to play; None: as in the checkpoint. For the others see `jaxrl.load`.

    Raises:
      UntrustedError: the folder names code that the user has not named, and `trust` is false.
      RunFolderError: the folder does not exist, has no checkpoint, or none of this behavior, step or seed.
      CheckpointError: the checkpoint is damaged, from a newer jaxrl, or for other observations or actions than `spec`.
      SettingsError: the configuration of the run cannot be read.
    """
    if trust:
        trusted.accept(run)
    folder = RunFolder(run.parent, run.name)
    path = _chosen(folder, behavior, checkpoint_at)
    info = checkpoint.read_info(path)
    settings = _settings(path, info, deterministic)
    spec = _noted(path, info) if spec is None else spec
    algorithm = make_algorithm(spec, without_demonstrations(settings))
    wanted = jax.eval_shape(algorithm.init, jax.random.key(0)).policy
    seeds = info.leaves[STEP]["shape"] if STEP in info.leaves else []  # [] or [S]
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*seeds, *leaf.shape), leaf.dtype), wanted)
    policy = _restore(path, info, template, spec)
    index, origin = 0, path.name
    if seed is not None:
        index = _index(path, info, seed, seeds)
    elif seeds:
        index = best_seed(folder, info)
    if seeds:
        policy = jax.tree.map(lambda leaf: leaf[index], policy)
        number = info.settings.get(FIRST_SEED, 0) + index  # as the training logs it
        origin += f", seed {number} of {seeds[0]} seeds" if seeds[0] > 1 else ""
    return Trained(
        behavior=info.behavior,
        spec=spec,
        settings=settings,
        algorithm=algorithm,
        policy=policy,
        step=info.step,
        parameters=_parameters(folder, info, index),
        origin=origin,
    )


def parameters_for(trained: Trained, env: JaxEnv | JaxScene) -> dict[str, ParameterValue]:
    """Return the environment's parameters: the run's values, or else the environment's defaults."""
    return {name: trained.parameters.get(name, usual) for name, usual in env.parameters.items()}


def _chosen(folder: RunFolder, behavior: str | None, wanted: int | str | Path | None) -> Path:
    """Return the checkpoint to load. Raises RunFolderError that lists the contents of the folder if there is none."""
    if not folder.path.is_dir():
        raise RunFolderError(f"{folder.path}: no such folder; name the results folder of a run, such as results/first")
    if wanted is not None and not isinstance(wanted, int):
        return resolve(Path(wanted))
    behaviors = behaviors_of(folder.path)
    if not behaviors:
        raise RunFolderError(
            f"{folder.path}: holds no complete checkpoint; name the results folder of a run that has saved one "
            "(checkpoint_interval)"
        )
    if behavior is None and len(behaviors) > 1:
        raise RunFolderError(f"{folder.path}: holds policies for {', '.join(behaviors)}; say which one with `behavior`")
    name = behaviors[0] if behavior is None else behavior
    if name not in behaviors:
        raise RunFolderError(
            f"{folder.path}: holds no policy for behavior {name}, only for {', '.join(behaviors)}; "
            "give the environment that this run was trained in"
        )
    if wanted is None:
        return checkpoint.require_latest(folder.behavior(name))
    steps = [item.step for item in checkpoints(folder.behavior(name))]
    if wanted not in steps:
        raise RunFolderError(
            f"{folder.behavior(name)}: no checkpoint of step {wanted}, only {', '.join(map(str, steps))}"
        )
    return resolve(checkpoint_path(folder.behavior(name), wanted))


def _noted(path: Path, info: CheckpointInfo) -> BehaviorSpec:
    """Return the observations and actions that the checkpoint holds. Raises CheckpointError if it holds none."""
    if not info.spec:
        raise CheckpointError(f"{path}: notes no observations and actions: give the environment with `env`")
    return spec_from_json(info.spec)


def _index(path: Path, info: CheckpointInfo, seed: int, shape: list[int]) -> int:
    """Return the index of the seed with that number in a checkpoint whose steps have this shape, [] or [S].

    Numbers are those of the run, or begin at 0 if the checkpoint holds none.
    """
    if not shape and SEEDS not in info.settings:
        raise RunFolderError(f"{path}: holds one learner, whose seed is not noted in it: leave out seed = {seed}")
    first, count = info.settings.get(FIRST_SEED, 0), shape[0] if shape else 1
    if not 0 <= seed - first < count:
        known = f"seeds {first} to {first + count - 1}" if count > 1 else f"seed {first} alone"
        raise RunFolderError(f"{path}: has no seed {seed}, it holds {known}")
    return seed - first


def _settings(path: Path, info: CheckpointInfo, deterministic: bool) -> BehaviorSettings:
    """Return the behavior's settings from the checkpoint, with which its arrays were made."""
    try:
        written = {name: value for name, value in info.settings.items() if name not in NOTED}
        settings = BehaviorSettings.model_validate(written, context={TYPES: HYPERPARAMETER_TYPES})
    except ValidationError as error:
        problems = "; ".join(f"{dotted(location)}: {text}" for location, text in problems_of(error))
        raise CheckpointError(
            f"{path}: this version of jaxrl cannot read the settings in it: {problems}.{written_by(info.versions)}"
        ) from None
    network = settings.network_settings.model_copy(
        update={"deterministic": deterministic or settings.network_settings.deterministic}
    )
    return settings.model_copy(update={"network_settings": network})


def without_demonstrations(settings: BehaviorSettings) -> BehaviorSettings:
    """Return the settings without demonstrations: playing needs none, and their files may be gone."""
    signals = settings.reward_signals.items()  # keep their number: a shared critic has an output for each
    plain = {name: ExtrinsicSettings() if isinstance(signal, GAILSettings) else signal for name, signal in signals}
    return settings.model_copy(update={"behavioral_cloning": None, "reward_signals": plain})


def _restore(path: Path, info: CheckpointInfo, template: PolicyState, spec: BehaviorSpec) -> PolicyState:
    """Fill `template` from the checkpoint; the rest of the checkpoint is read and dropped."""
    saved = {p.removeprefix(_POLICY): entry for p, entry in info.leaves.items() if p.startswith(_POLICY)}
    unfit = trees.leaf_mismatches(saved, trees.leaves_of(template))
    if unfit:
        changes = "; ".join(mismatches(info.spec, {}, spec, None) or unfit[:3])
        raise CheckpointError(
            f"{path}: this policy does not fit {info.behavior} as it is now ({changes}); "
            "give the environment that it was trained in"
        )
    return checkpoint.restore(path, {"train": {"policy": template}}, spec=spec, part=True)["train"]["policy"]


def best_seed(folder: RunFolder, info: CheckpointInfo) -> int:
    """Return the index of the seed in a checkpoint that training_status.json calls the best, else 0 with a warning.

    Raises RunFolderError.
    """
    behavior, first = info.behavior, info.settings.get(FIRST_SEED, 0)
    (seeds,) = info.leaves[STEP]["shape"] or (1,)
    try:
        entries = status.read(folder.status).get(behavior, {}) if folder.status.is_file() else {}
    except ArtifactError as error:
        _log.warning("%s Taking seed 0 of %d.", error, seeds)
        return 0
    best = entries.get(EXPORTED_SEED)
    if best is None:
        if seeds > 1:
            _log.warning("%s names no best seed of %s: taking seed 0 of %d.", folder.status, behavior, seeds)
        return 0
    if not 0 <= best - first < seeds:
        numbers = f"{first} to {first + seeds - 1}"
        raise RunFolderError(
            f"{folder.status}: {behavior}.{EXPORTED_SEED} = {best}, but the checkpoint has {seeds} seeds, {numbers}"
        )
    return best - first


def _parameters(folder: RunFolder, info: CheckpointInfo, index: int) -> dict[str, ParameterValue]:
    """Return the run's environment parameters, in the lessons of the seed at `index` of a checkpoint.

    A checkpoint of the host loop holds no lessons: they come from training_status.json. A run that was killed may have
    no configuration; then there are no parameters.
    """
    if not folder.configuration.is_file():
        return {}
    try:
        run = load_run_settings(folder.configuration, {}, HYPERPARAMETER_TYPES, of_folder=True)
    except SettingsError as error:
        version = written_by(info.versions)
        if not version:
            raise
        problems = "; ".join(error.problems)
        text = f"{folder.configuration}: this version of jaxrl cannot read it: {problems}.{version}"
        raise SettingsError(text) from None
    seed = info.settings.get(FIRST_SEED, run.env_settings.seed) + index
    noted = info.settings.get(LESSONS)
    state = noted[index] if noted else read_lessons(folder.status)
    return present_values(run.environment_parameters, seed, state)
