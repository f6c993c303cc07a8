"""Files of a behavior: checkpoints, their ONNX files, and the entries of training_status.json.

Each loop defines the contents of its checkpoints in its own file (`host/saver.py`, `compiled/saver.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import unfinished
from jaxrl.algorithms import BUILT_IN, policy_gradient
from jaxrl.algorithms.interface import Algorithm, PolicyState, TrainState
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import earlier, replay
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import BEST, REPLAY, exported_files, of_members, onnx_path, prune
from jaxrl.artifacts.checkpoint.grown import Grown, grown
from jaxrl.artifacts.checkpoint.loop import MOMENT
from jaxrl.artifacts.checkpoint.spec import spec_from_json
from jaxrl.artifacts.checkpoint.store import CheckpointInfo
from jaxrl.artifacts.checkpoint.tree import Leaves, bytes_of, leaf_paths, leaves_of
from jaxrl.artifacts.onnx import export as onnx
from jaxrl.artifacts.run_folder import RunFolder, seed_folders
from jaxrl.artifacts.status import BEST_CHECKPOINT, CHECKPOINTS, FINAL, TrainingStatus
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import Chain
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.memory import start
from jaxrl.networks.models import Actor
from jaxrl.networks.places import of_place
from jaxrl.networks.policy import PolicyNetwork, actor_network
from jaxrl.settings import BehaviorSettings, RunSettings
from jaxrl.settings.networks import ENCODERS
from jaxrl.training.errors import DivergedError
from jaxrl.training.trained_policy import STEP, best_seed
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)
_VALUE_HEADS = "params/values/"


class Snapshot(NamedTuple):
    """A behavior at a moment at which it can be saved."""

    name: str
    step: int
    contents: Any  # pytree that a resumed run continues from, or a copy of it
    policy: PolicyState  # exported to ONNX
    learned: Any  # pytree of arrays that must be finite; empty in a copy, whose arrays have been checked
    spec: BehaviorSpec
    settings: BehaviorSettings
    described: dict[str, Any]  # settings as plain JSON values, which explain a mismatch on resume
    samples: tuple[tuple[np.ndarray, ...], np.ndarray]  # real observations [N, *shape], masks [N, M]: check the export
    notes: Mapping[str, Any] = {}  # entries of the behavior in training_status.json
    lessons: Mapping[str, Mapping[str, Any]] = {}  # entries there of parameters and behaviors, see `lessons.entries_of`
    network: PolicyNetwork | None = None  # `Algorithm.policy`
    store: Any = ()  # pytree: the algorithm's replay, if its `Storage.saved`
    staged: replay.Staged | None = None  # in a copy, the replay on disk
    earlier: Mapping[str, bytes] = {}  # new files of the self-play pool, by name


class Best(NamedTuple):
    """Highest value of a run's `keep_best` statistic so far."""

    statistic: str  # tag
    value: float
    seed: int | None  # number of the seed with that value; None if the run has only one


def copied(snapshot: Snapshot, folder: RunFolder | None = None) -> Snapshot:
    """Copy a snapshot to the host's memory, so that training can go on. Raises DivergedError.

    folder: where the store is written, as it may be too large for a copy; None: leave it out.
    """
    _require_finite(snapshot)
    contents, policy = checkpoint.capture(snapshot.contents), _copy(snapshot.policy)
    stored = folder is not None and jax.tree.leaves(snapshot.store)
    staged = replay.stage(folder.behavior(snapshot.name), snapshot.store) if folder is not None and stored else None
    plain = snapshot._replace(contents=contents, policy=policy, learned=(), samples=_copy(snapshot.samples))
    return plain._replace(store=(), staged=staged)


def save_checkpoint(snapshot: Snapshot, folder: RunFolder, status: TrainingStatus, reward: float | None) -> None:
    """Write `<Behavior>-<step>`, its ONNX file and its replay, delete old ones, and note them in the status.

    The checkpoint comes first, so that the replay is never newer than it if a run is killed in between. A policy that
    cannot be exported has no ONNX file; the status then names only the checkpoint.

    Raises CheckpointError, and the checkpoint before stays the latest; or ExportError, ArtifactError or the
    CheckpointError of a replay, and the checkpoint is complete.
    """
    name, step, keep = snapshot.name, snapshot.step, snapshot.settings.keep_checkpoints
    if keep == 1 and len(snapshot.described.get(MOMENT, ())) > 1:
        keep = 2  # the moment before, until all behaviors have saved this one
    target = folder.behavior(name)
    try:
        earlier.write(target, snapshot.earlier)
        path = checkpoint.save(target, step, snapshot.contents, spec=snapshot.spec, settings=snapshot.described, keep=0)
        lost = snapshot.staged.install(path) if snapshot.staged is not None else None
    finally:
        if snapshot.staged is not None:
            unfinished.discard(snapshot.staged.partial)
    beside = target / path.name  # relative like the other paths of the run: `path` is absolute
    for key, value in snapshot.notes.items():
        status.set(name, key, value)
    for category, entries in snapshot.lessons.items():
        for key, value in entries.items():
            status.set(category, key, value)
    if snapshot.lessons:
        status.write()  # an export takes time, and a run that is killed meanwhile resumes from this checkpoint
    exported, auxiliary = _exported(snapshot, beside, onnx_path(target, step))
    prune(target, keep)
    earlier.prune(target)
    status.add_checkpoint(name, step, exported, reward, auxiliary, keep)
    status.write()
    if lost is not None:
        raise lost


def save_best(snapshot: Snapshot, folder: RunFolder, status: TrainingStatus, reward: float | None, best: Best) -> None:
    """Replace `<Behavior>-best` and its ONNX file, and note them in the status.

    Raises as `save_checkpoint`.
    """
    target = folder.behavior(snapshot.name)
    earlier.write(target, snapshot.earlier)
    arguments = {"spec": snapshot.spec, "settings": snapshot.described}
    path = checkpoint.save(target, snapshot.step, snapshot.contents, **arguments, best=True)
    exported, auxiliary = _exported(snapshot, target / path.name, onnx_path(target, BEST))
    status.note(snapshot.name, BEST_CHECKPOINT, snapshot.step, exported, reward, auxiliary, **best._asdict())
    status.write()
    log.info("%s: %s was never higher than now, %.3f: saved as %s.", snapshot.name, best.statistic, best.value, path)


def _exported(snapshot: Snapshot, beside: Path, exported: Path) -> tuple[Path, list[Path]]:
    """Write the ONNX files of a checkpoint, if possible; return its main file for the status, and its others."""
    chain = make_chain(snapshot.spec, snapshot.settings.connectors)
    if obstacles(snapshot.spec, snapshot.settings, chain, snapshot.policy.params, snapshot.network):
        return beside, []
    places, params = snapshot.settings.places, snapshot.policy.params
    first, *others = of_members(exported, places)
    for place, path in enumerate((first, *others)):
        _export(snapshot, chain, path, params if places is None else of_place(params, place))
    return first, [*others, beside]


def publish(name: str, step: int, folder: RunFolder, status: TrainingStatus, reward: float | None) -> None:
    """Copy the ONNX file of the checkpoint of this step to the run's folder. Raises ArtifactError."""
    exported, final = onnx_path(folder.behavior(name), step), folder.final_onnx(name)
    noted = (item for item in status.get(name, CHECKPOINTS, []) if item["steps"] == step)
    last: dict[str, Any] = next(noted, {"file_path": exported.as_posix()})
    reward = last.get("reward") if reward is None else reward  # no episode has ended since the run was resumed
    if not last["file_path"].endswith(exported.suffix):  # a checkpoint without ONNX file, see `save_checkpoint`
        status.note(name, FINAL, step, Path(last["file_path"]), reward)
        status.write()
        return
    copies = []
    for path in exported_files(exported):
        copies.append(final.with_name(final.stem + path.name.removeprefix(exported.stem)))
        files.copy(path, copies[-1])
    status.note(name, FINAL, step, copies[0], reward, copies[1:])
    status.write()
    log.info("Copied %s to %s.", ", ".join(map(str, exported_files(exported))), ", ".join(map(str, copies)))


def obstacles(
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    chain: Chain | None,
    params: Any,
    network: PolicyNetwork | None = None,
) -> list[str]:
    """Return phrases that name the parts of this policy that an ONNX file cannot hold; empty if it can be exported.

    `params`: the policy's, as arrays or shapes. A custom algorithm without `Algorithm.policy` can be exported if its
    parameters are those of `networks.models.Actor`.
    """
    shape, shown = settings.network_settings, spec if chain is None else chain.spec
    parts = [] if chain is None else [f"its connectors ({', '.join(chain.unexportable)})"] if chain.unexportable else []
    if shape.vis_encode_type not in ENCODERS and any(kind_of(o) == "visual" for o in shown.observations):
        parts.append(f"the image encoder {shape.vis_encode_type}")
    if shape.body_type is not None:
        parts.append(f"the hidden layers {shape.body_type}")
    if network is None and settings.trainer_type not in BUILT_IN and not _is_actor(spec, settings, chain, params):
        parts.append(f"the network of {settings.trainer_type}, which is not jaxrl's Actor")
    return parts


def _is_actor(spec: BehaviorSpec, settings: BehaviorSettings, chain: Chain | None, params: Any) -> bool:
    shown, shape = spec if chain is None else chain.spec, settings.network_settings
    actor = Actor(shown, shape)
    wanted = jax.eval_shape(actor.init, jax.random.key(0), policy_gradient.no_obs(shown), start(shape.memory, (1, 1)))
    leaves = {path: entry for path, entry in leaves_of(params).items() if not path.startswith(_VALUE_HEADS)}
    return leaves == leaves_of(wanted)


def tell_unexportable(name: str, spec: BehaviorSpec, settings: BehaviorSettings, algorithm: Algorithm) -> None:
    """Warn at the start of a run if it will have no ONNX file, and say why."""
    custom = settings.trainer_type not in BUILT_IN
    params = jax.eval_shape(algorithm.init, jax.random.key(0)).policy.params if custom else ()
    parts = obstacles(spec, settings, algorithm.connectors, params, algorithm.policy)
    if parts:
        text = "%s: no ONNX files are written: a file cannot hold %s. Checkpoints are."
        log.warning(text, name, " and ".join(parts))


def initialized(
    run: RunSettings, folder: RunFolder, name: str, fresh: TrainState, spec: BehaviorSpec, settings: BehaviorSettings
) -> TrainState | None:
    """Return a new behavior's train state with the weights of another run, if the settings name one, else None.

    Raises CheckpointError or RunFolderError.
    """
    source = folder.initial_checkpoint(name, run.checkpoint_settings.initialize_from, settings.init_path)
    if source is None:
        return None
    state, origin = with_weights_of(source, fresh, spec, settings)
    log.info("%s: initialized from %s.", name, origin)
    return state


def with_weights_of(
    path: Path, fresh: TrainState, spec: BehaviorSpec, settings: BehaviorSettings
) -> tuple[TrainState, str]:
    """Return `fresh` with the weights, normalizer and so on of checkpoint `path`, and a description of the origin.

    Optimizer, step and key stay those of `fresh`, and so does the state of cloning, whose rate falls with the step.
    Arrays that are not loaded are those of `fresh`, not copies.

    If every array of the checkpoint has a leading axis S, one of its S seeds is loaded: the one whose policy is the
    run's ONNX file, by its training_status.json.

    Raises:
      CheckpointError: nothing in it fits, or it is damaged.
      RunFolderError: its run names a best seed that the checkpoint does not have.
    """
    info = checkpoint.read_info(path)
    seeds = tuple(info.leaves.get(STEP, {}).get("shape", ()))
    checkpoint.require_memory(path, math.prod(seeds) * sum(map(bytes_of, leaves_of(fresh).values())))
    template = {"train": jax.tree.map(lambda x: jnp.broadcast_to(x, (*seeds, *x.shape)), fresh)}
    described = settings_of(settings)
    grow = partial(_grown, spec, settings)
    own = (
        [f"own/{key}" for key in fresh.own if key != policy_gradient.CLONING]
        if isinstance(fresh.own, dict)
        else ["own"]
    )
    fields = [f"train/{part}" for part in ("policy", "critic", "signals", *own)]
    loaded = checkpoint.restore_params_only(path, template, fields=fields, spec=spec, settings=described, grow=grow)
    origin, index = str(path), ()
    if seeds:
        folder = path.absolute().parent
        index = best_seed(RunFolder(folder.parents[1], folder.parent.name), info)
        origin += f", {_seed_name(folder, index, seeds[0])}"
    state = jax.tree.map(lambda x, new, old: old if x is new else x[index], loaded["train"], template["train"], fresh)
    return state, origin


def resumed_store(
    empty: Any, path: Path, spec: BehaviorSpec, settings: BehaviorSettings, described: Mapping[str, Any], *, saved: bool
) -> Any:
    """Return the store of a run that resumes from checkpoint `path`; log if it is `empty`.

    saved: `Storage.saved`.

    Raises CheckpointError if the replay is damaged, or of other sizes.
    """
    if not jax.tree.leaves(empty):
        return empty
    store = replay.restore(path.parent, empty, path, spec=spec, settings=described) if saved else None
    if store is None:
        tell_empty(path.parent.name, settings, "" if not saved else f": {path.parent / REPLAY} does not exist")
    return empty if store is None else store


def tell_empty(name: str, settings: BehaviorSettings, why: str = "") -> None:
    """Log that a behavior's replay begins empty."""
    key = "save_replay_buffer"
    advice = f" (hyperparameters.{key} keeps it)" if hasattr(settings.hyperparameters, key) and not why else why
    log.info("%s: the replay begins empty%s.", name, advice)


def _grown(
    spec: BehaviorSpec, settings: BehaviorSettings, info: CheckpointInfo, saved: Leaves, values: Any, wanted: Leaves
) -> Grown:
    """Adapt a behavior's saved weights to changed sensors, both as its connectors transform them."""
    old = spec_from_json(info.spec)
    chains = make_chain(old, settings.connectors), make_chain(spec, settings.connectors)
    then, now = (item if chain is None else chain.spec for item, chain in zip((old, spec), chains, strict=True))
    return grown(saved, values, wanted, then, now, settings.network_settings)


def _seed_name(folder: Path, index: int, count: int) -> str:
    """Return a phrase that names the seed, with its number if the event folders of all seeds still exist."""
    names = (path.name.rpartition("_")[2] for path in seed_folders(folder))
    numbers = sorted(int(name) for name in names if name.isdigit())
    place = f"index {index} of its {count} seeds"
    return f"seed {numbers[index]} ({place})" if len(numbers) == count else f"the seed at {place}"


def _require_finite(snapshot: Snapshot) -> None:
    for path, leaf in leaf_paths(jax.device_get(snapshot.learned)):
        if not np.isfinite(leaf).all():
            what = f"parameters {path} are not finite at step {snapshot.step}"
            raise DivergedError(snapshot.name, what, snapshot.settings)


def _copy(tree: Any) -> Any:
    # Copies also on a CPU, where arrays show JAX's own memory, which the next update overwrites.
    return jax.tree.map(np.array, jax.device_get(tree))


def settings_of(settings: BehaviorSettings) -> dict[str, Any]:
    """Return resolved settings as plain JSON values."""
    return settings.model_dump(mode="json")


def _export(snapshot: Snapshot, chain: Chain | None, path: Path, params: Any) -> None:
    obs, masks = snapshot.samples
    shown = snapshot.spec if chain is None else chain.spec
    difference = onnx.export(
        path,
        spec=snapshot.spec,
        network=snapshot.network or actor_network(shown, snapshot.settings.network_settings),
        actor_params=params,
        normalizer=snapshot.policy.normalizer,
        sample_obs=obs,
        sample_masks=masks,
        connectors=None if chain is None else (chain, snapshot.policy.connectors),
    )
    log.info("Exported %s (largest difference to the policy: %.1e).", path, difference)
