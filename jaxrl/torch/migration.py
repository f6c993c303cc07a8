"""Converts runs of ML-Agents to runs of jaxrl, and back: one `Behavior/checkpoint.pt` each way.

An imported run looks like one that the host loop has written, so that `--resume` goes on with weights, Adam,
statistics of observations and trainer step, and `--initialize-from` takes the weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

from jaxrl import trust as trusted
from jaxrl.algorithms import make_algorithm
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts import files
from jaxrl.artifacts import status as statuses
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import onnx_path
from jaxrl.artifacts.onnx.session import DTYPES, RuntimeErrors, open_session, run
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.networks import normalizer
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.memory_onnx import AFTER, BEFORE
from jaxrl.own_code import split_address
from jaxrl.settings import BehaviorSettings, RunSettings, SettingsError, behavior_settings_for, to_yaml
from jaxrl.torch.checkpoint import NETWORKS, TorchCheckpoint, composed
from jaxrl.torch.learner import checkpoint_of, learner_of, learning_rate_of
from jaxrl.torch.settings import contradictions
from jaxrl.torch.stand_ins import missing_demonstrations
from jaxrl.torch.weights import TorchImportError
from jaxrl.torch.writing import write_torch_file
from jaxrl.training import saver
from jaxrl.training.host.saver import Saved
from jaxrl.training.trained_policy import STEP, best_seed, load_trained, without_demonstrations
from jaxrl.types import BehaviorSpec

ROWS = 64
"""Number of random observations that compare policy and ONNX files."""
_CLOSE, _CHOSEN = 1e-3, 0.95
"""Largest difference between two files of one policy, and least share of equal choices: rounding breaks ties."""
_CONTINUOUS, _DISCRETE = "deterministic_continuous_actions", "deterministic_discrete_actions"
_COMPARED = (_CONTINUOUS, _DISCRETE, AFTER)


class Source(NamedTuple):
    """Behavior of a run of ML-Agents."""

    name: str
    path: Path  # of its .pt
    read: TorchCheckpoint
    spec: BehaviorSpec
    model: Path | None  # the ONNX file of that step, to compare with


class Imported(NamedTuple):
    """Imported behavior."""

    name: str
    settings: BehaviorSettings
    spec: BehaviorSpec
    state: TrainState
    remarks: Sequence[str]  # contents that were left behind
    compared: Agreement | None = None  # with the ONNX file of ML-Agents


def learner(source: Source, settings: RunSettings) -> Imported:
    """Return the learner in a checkpoint of ML-Agents, as these settings train it.

    Raises:
      SettingsError: the settings contradict the checkpoint.
      TorchImportError: its arrays fit other observations, actions or settings.
    """
    behavior = behavior_settings_for(settings, source.name)
    path = f"behaviors.{source.name}"
    problems = [f"{path}.{text}" for text in contradictions(source.read, behavior)]
    if problems:
        raise SettingsError(problems, str(source.path))
    with missing_demonstrations(behavior, source.spec) as (whole, missing):
        fresh = make_algorithm(source.spec, whole).init(jax.random.key(max(settings.env_settings.seed, 0)))
    try:
        state, remarks = learner_of(source.read, source.spec, behavior, fresh)
    except TorchImportError as error:
        raise TorchImportError(f"{source.path}: {error}") from error
    others = [f"module {name}" for name in source.read.others]
    return Imported(source.name, behavior, source.spec, state, [*others, *remarks, *missing])


def import_run(sources: Sequence[Source], settings: RunSettings, old_status: Path | None = None) -> list[Imported]:
    """Write the run that `settings.checkpoint_settings` names, with a checkpoint of each source.

    `old_status`: training_status.json of the old run, whose lessons are kept. After an error the folder of the run is
    as it was before.

    Raises RunFolderError if the folder is in use, and as `learner`.
    """
    options = settings.checkpoint_settings
    folder = RunFolder(options.results_dir, options.run_id)
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise RunFolderError(f"--out {folder.path}: is there already. Name a folder that is not, or remove this one.")
    learners = [learner(source, settings) for source in sources]
    try:
        with folder.claimed(options):
            folder.prepare()
            status = _status(folder, old_status)
            imported = [_written(row, source, folder, status) for row, source in zip(learners, sources, strict=True)]
            files.write_text(folder.configuration, to_yaml(settings))
            trusted.remember(folder.path, settings.model_dump(mode="json"))
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return imported


def export_run(
    run: Path, behavior: str | None, out: Path | None, seed: int | None = None, *, trust: bool = False
) -> tuple[Path, int]:
    """Write the latest checkpoint of a behavior of `run` as ML-Agents' .pt; return the file, and its trainer step.

    `out`: None: `<run>/<Behavior>/checkpoint.pt`, where `mlagents-learn --resume` and `--initialize-from` look.
    `trust` as in `load_trained`.

    Raises TorchImportError for parts without a counterpart in ML-Agents, RunFolderError if the file exists already or
    the run has no such checkpoint.
    """
    trained = load_trained(run, behavior=behavior, seed=seed, trust=trust)
    settings, spec, name = trained.settings, trained.spec, trained.behavior
    _require_counterpart(run, settings)
    folder = RunFolder(run.parent, run.name)
    path = folder.behavior(name) / "checkpoint.pt" if out is None else out
    if path.exists():
        raise RunFolderError(f"--out {path}: is there already. Name another file, or remove this one.")
    state = _learner_in(folder, name, spec, settings, seed)
    contents = composed(checkpoint_of(state, trained.step, spec, settings), learning_rate_of(state, settings))
    write_torch_file(path, contents)
    return path, trained.step


def _written(one: Imported, source: Source, folder: RunFolder, status: TrainingStatus) -> Imported:
    """Write checkpoint, ONNX files and entries of the status; compare with the ONNX file that ML-Agents wrote."""
    step, obs = source.read.step, _observations(one)
    contents = Saved(train=one.state, step=np.int64(step), decisions=np.int64(0))
    masks = np.ones((ROWS, one.spec.action.mask_size), bool)
    snapshot = saver.Snapshot(
        name=one.name,
        step=step,
        contents=contents,
        policy=one.state.policy,
        learned=(one.state.policy, one.state.critic),
        spec=one.spec,
        settings=one.settings,
        described=saver.settings_of(one.settings),
        samples=(obs, masks),
        network=make_algorithm(one.spec, without_demonstrations(one.settings)).policy,
    )
    saver.save_checkpoint(saver.copied(snapshot), folder, status, None)
    saver.publish(one.name, step, folder, status, None)
    if source.model is None:
        return one
    size = one.settings.network_settings.memory
    memory = None if size is None else np.random.default_rng(1).uniform(-1, 1, (ROWS, size.memory_size))
    exported = onnx_path(folder.behavior(one.name), step)
    remembered = None if memory is None else memory.astype(np.float32)
    bare = one.settings.trainer_type == "sac"
    result = agreement(exported, source.model, one.spec, obs, remembered, squash_theirs=bare)
    if result is not None and (result.difference > _CLOSE or result.same_choices < _CHOSEN):
        raise TorchImportError(
            f"{source.path}: its policy does not act as {source.model} does (actions differ by up to "
            f"{result.difference:.3g}, {result.same_choices:.0%} of the choices are the same): these files are not of "
            "one training. Give the file that belongs to it (--onnx), or the environment (--env)"
        )
    return one._replace(compared=result)


def _observations(one: Imported) -> tuple[np.ndarray, ...]:
    """Draw observations of about the size that the policy has seen, float32 [ROWS, *shape]; images from 0 to 1."""
    rng, drawn = np.random.default_rng(0), []
    for sensor, state in zip(one.spec.observations, one.state.policy.normalizer, strict=True):
        if kind_of(sensor) == "visual":
            drawn.append(rng.uniform(0.0, 1.0, (ROWS, *sensor.shape)).astype(np.float32))
            continue
        numbers = rng.normal(size=(ROWS, *sensor.shape))
        if isinstance(state, normalizer.NormalizerState):
            numbers = np.asarray(state.mean) + numbers * np.sqrt(np.asarray(state.m2) / np.asarray(state.count))
        drawn.append(numbers.astype(np.float32))
    return tuple(drawn)


def _status(folder: RunFolder, old: Path | None) -> TrainingStatus:
    """Return an empty status but for the lessons of the old run."""
    status = TrainingStatus(folder.status)
    for name, entries in (statuses.read(old) if old is not None and old.is_file() else {}).items():
        if statuses.LESSON in entries:
            status.set(name, statuses.LESSON, entries[statuses.LESSON])
    return status


def _require_counterpart(run: Path, settings: BehaviorSettings) -> None:
    """Raise TorchImportError for parts of a learner that ML-Agents does not have."""
    network = settings.network_settings
    unmatched = {
        f"trainer_type: {settings.trainer_type}": settings.trainer_type not in NETWORKS,
        "connectors": bool(settings.connectors),
        f"network_settings.body_type: {network.body_type}": network.body_type is not None,
        f"network_settings.vis_encode_type: {network.vis_encode_type}": split_address(network.vis_encode_type),
        "network_settings.memory.memory_type: gru": network.memory is not None and network.memory.memory_type != "lstm",
    }
    parts = [what for what, there in unmatched.items() if there]
    if parts:
        raise TorchImportError(f"{run}: ML-Agents has nothing like {', '.join(parts)}, so there is no .pt of this run")


def _learner_in(
    folder: RunFolder, name: str, spec: BehaviorSpec, settings: BehaviorSettings, seed: int | None
) -> TrainState:
    """Return the whole learner of the latest checkpoint; of several seeds that of `seed`, or the best."""
    path = checkpoint.require_latest(folder.behavior(name))
    info = checkpoint.read_info(path)
    with missing_demonstrations(settings, spec) as (whole, _):
        fresh = make_algorithm(spec, whole).init(jax.random.key(0))
    seeds = tuple(info.leaves[STEP]["shape"])
    template = {"train": jax.tree.map(lambda x: jnp.broadcast_to(x, (*seeds, *x.shape)), fresh)}
    saved = {p: entry for p, entry in info.leaves.items() if p.startswith("train/")}
    unfit = trees.leaf_mismatches(saved, trees.leaves_of(template))
    if unfit:
        raise checkpoint.CheckpointError(f"{path}: does not hold the learner that its settings describe: {unfit[0]}")
    state = checkpoint.restore_params_only(path, template, fields=("train",))["train"]
    if not seeds:
        return state
    index = best_seed(folder, info) if seed is None else seed - info.settings.get("first_seed", 0)
    return jax.tree.map(lambda x: x[index], state)


class Agreement(NamedTuple):
    """Similarity of the answers of two files to equal observations."""

    difference: float  # largest, of continuous actions and of the memory
    same_choices: float  # share of the rows in which all branches choose alike


def agreement(
    ours: Path,
    theirs: Path,
    spec: BehaviorSpec,
    obs: tuple[np.ndarray, ...],
    memory: np.ndarray | None,
    *,
    squash_theirs: bool = False,
) -> Agreement | None:
    """Compare both files on N observations, all actions allowed; None where the other has no outputs to compare.

    Args:
      obs: float32 [N, *shape] each.
      memory: float32 [N, m]; None without memory.
      squash_theirs: for SAC, whose mean ML-Agents writes without its tanh.
    """
    feed = {f"obs_{i}": x for i, x in enumerate(obs)}
    feed["action_masks"] = np.ones((len(obs[0]), spec.action.mask_size), np.float32)
    if memory is not None:
        feed[BEFORE] = memory[:, None]
    try:
        answers = [_answers(open_session(str(path)), feed) for path in (ours, theirs)]
    except RuntimeErrors:
        return None  # a file of an old version of ML-Agents, which ONNX Runtime cannot run
    if squash_theirs and _CONTINUOUS in answers[1]:
        answers[1][_CONTINUOUS] = np.tanh(answers[1][_CONTINUOUS])
    names = set(answers[0]) & set(answers[1])
    if not names:
        return None
    gaps = [np.abs(answers[0][name] - answers[1][name]).max() for name in names if name != _DISCRETE]
    same = np.ones(1)
    if _DISCRETE in names:
        same = (answers[0][_DISCRETE] == answers[1][_DISCRETE]).all(axis=-1)
    return Agreement(float(max(gaps, default=0.0)), float(np.mean(same)))


def _answers(session: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [node.name for node in session.get_outputs() if node.name in _COMPARED]
    inputs = {node.name: feed[node.name].astype(DTYPES[node.type]) for node in session.get_inputs()}
    return {name: np.asarray(x, np.float64) for name, x in run(session, names, inputs).items()} if names else {}
