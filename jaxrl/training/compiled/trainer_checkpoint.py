"""Save and restore a notebook's state (`JittedTrainer.save`, `restore`), in the layout of a run's checkpoints.

    <path>/<Behavior>/<Behavior>-<step>/          as in a results folder, so that `jaxrl.load(path)` finds the policy

Here a checkpoint holds the whole state, the environment's parameters included: in a notebook they need not follow from
any settings. A checkpoint of `jaxrl train` lacks them, and is restored with those that the trainer was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import METADATA
from jaxrl.artifacts.checkpoint.folder import CheckpointError, checkpoints, resolve
from jaxrl.artifacts.checkpoint.loop import FIRST_SEED
from jaxrl.artifacts.checkpoint.mismatch import mismatches
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.training.compiled.saver import Subject, contents, for_all_seeds
from jaxrl.training.compiled.state import JittedState, step_of
from jaxrl.training.saver import resumed_store


def save(subject: Subject, state: JittedState, path: str | Path, *, keep: int = 0) -> Path:
    """Write a checkpoint of the state below the folder `path`, and return its folder.

    `keep`: number of newest checkpoints to keep; 0 or less: all. The write is atomic; the state stays usable. Raises
    CheckpointError if it cannot be written.
    """
    seeds = state.key.shape[0]
    if seeds != len(subject.seeds):
        raise CheckpointError(f"{path}: the state has {seeds} seed(s), this trainer {len(subject.seeds)}")
    whole = state.replace(train=contents(state).train)
    folder = _folder(path).behavior(subject.name)
    return checkpoint.save(folder, step_of(state), whole, spec=subject.spec, settings=_described(subject), keep=keep)


def restore(
    subject: Subject,
    shapes: JittedState,
    init: Callable[[Any], JittedState],
    place: Callable[[JittedState], JittedState],
    path: str | Path,
) -> JittedState:
    """Read the state that `save` has written, on the devices that `run` expects; it continues bit for bit.

    Args:
      shapes: of a state of this trainer, by `jax.eval_shape`.
      init, place: the trainer's; fields that a run's checkpoint lacks come from `init`.
      path: the folder that was given to `save`, whose latest checkpoint is read; a checkpoint folder; or a run's.

    Raises:
      CheckpointError: damaged, from a newer jaxrl, or of other sizes, settings or another environment; the text names
        them.
      RunFolderError: there is no checkpoint of this behavior.
    """
    folder, described = _chosen(subject, Path(path)), _described(subject)
    info = checkpoint.read_info(folder)
    held = {leaf.partition("/")[0] for leaf in info.leaves}
    blank = _blank(shapes)
    absent = [name for name in vars(blank) if name not in held and jax.tree.leaves(getattr(blank, name))]
    wanted = blank.replace(train=contents(blank).train, **dict.fromkeys(absent, ()))
    unfit = trees.leaf_mismatches(info.leaves, trees.leaves_of(wanted))
    if unfit:
        changes = "; ".join(mismatches(info.spec, info.settings, subject.spec, described) or unfit[:3])
        advice = "make the trainer with the same environment, settings, areas and seeds"
        raise CheckpointError(f"{folder}: does not fit this trainer ({changes}): {advice}")
    saved = checkpoint.restore(folder, wanted, spec=subject.spec, settings=described)
    if absent:
        fresh = init(range(len(subject.seeds)))
        if "store" in absent:  # a run has it in a separate file
            arguments = folder, subject.spec, subject.settings, described
            fresh = fresh.replace(store=resumed_store(fresh.store, *arguments, saved=True))
        saved = saved.replace(**{name: getattr(fresh, name) for name in absent})
    if len(subject.seeds) == 1:
        saved = saved.replace(train=for_all_seeds(saved.train, blank.train))
    return place(saved)


def _chosen(subject: Subject, path: Path) -> Path:
    if (path / METADATA).is_file():
        return resolve(path)
    folder = _folder(path).behavior(subject.name)
    if not checkpoints(folder):
        below = sorted(place.name for place in path.glob("*/") if checkpoints(place))
        instead = f"only of {', '.join(below)}" if below else "nor of any other behavior"
        raise RunFolderError(f"{path}: holds no checkpoint of {subject.name}, {instead}")
    return checkpoint.require_latest(folder)


def _folder(path: str | Path) -> RunFolder:
    place = Path(path).absolute()
    return RunFolder(place.parent, place.name)


def _described(subject: Subject) -> dict[str, Any]:
    """Return the settings as in a run's checkpoint, without the number of the first seed, unknown to a trainer."""
    return {key: value for key, value in subject.described().items() if key != FIRST_SEED}


def _blank(shapes: JittedState) -> JittedState:
    """Return zeros of these shapes."""

    def zeros(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        data = jax.eval_shape(jax.random.key_data, leaf)
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype))  # as `jax.random.key` makes them

    return jax.tree.map(zeros, shapes)
