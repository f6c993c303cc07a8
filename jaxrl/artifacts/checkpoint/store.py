"""Save and restore the whole training state of one behavior: parameters, optimiser, normaliser, keys, counters.

A save is atomic (see folder.py): a run killed at any moment continues from this checkpoint or the last one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxrl import platforms, unfinished
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import folder as folders
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import (
    FORMAT,
    METADATA,
    CheckpointError,
    CheckpointInfo,
    DamagedError,
    read_info,
)
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.artifacts.checkpoint.grown import Grown
from jaxrl.artifacts.checkpoint.mismatch import mismatches, moved_actions, moved_signals, other_signals
from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.versions import versions
from jaxrl.types import BehaviorSpec

__all__ = [
    "Captured", "CheckpointError", "CheckpointInfo", "capture", "read_arrays", "read_info", "require_latest",
    "restore", "restore_params_only", "save",
]  # fmt: skip

Grow = Callable[[CheckpointInfo, trees.Leaves, Mapping[str, Any], trees.Leaves], Grown]
"""(checkpoint, its leaves, their values, leaves of today) → the checkpoint for the sensors of today."""
_SLACK_BYTES = 2**20
_OS_ERROR = re.compile(r"os_error_code='\d+'\]")  # the array store's, behind the words for it
_LATE_SECONDS = 2.0  # of writes that were under way when one failed
_ARRAY_STORE = threading.RLock()  # `_quiet` changes what belongs to the whole process

_log = logging.getLogger(__name__)


class Captured(NamedTuple):
    """State at one moment, copied to memory of its own on the host: the caller may change the state."""

    leaves: trees.Leaves
    arrays: Mapping[str, np.ndarray]  # by path


def capture(state: Any) -> Captured:
    """Copy a pytree of JAX arrays, typed keys, numpy arrays and numbers; waits for those that are being computed."""
    # a copy also on a CPU, where JAX shows its own memory, which the next update overwrites
    return Captured(trees.leaves_of(state), {path: x.copy() for path, x in trees.to_arrays(state).items()})


def save(
    folder: Path,
    step: int,
    state: Any,
    *,
    spec: BehaviorSpec | None = None,
    settings: Mapping[str, Any] | None = None,
    keep: int = 0,
    best: bool = False,
) -> Path:
    """Write `<folder>/<Behavior>-<step>`, make it the latest, then remove all but the newest `keep` (<= 0: none).

    `best`: write `<folder>/<Behavior>-best` instead, and leave the others as they are.

    `state` is any pytree that `capture` takes, or what it gave. A checkpoint of the same step is replaced. `spec` and
    `settings` (plain JSON values) are kept to explain a mismatch on resume. Returns the folder written. Raises
    CheckpointError when it cannot be written; the checkpoint before stays the latest.
    """
    path = folders.checkpoint_path(folder, folders.BEST if best else step).absolute()
    partial = unfinished.beside(path, unfinished.PARTIAL)
    captured = state if isinstance(state, Captured) else capture(state)
    document = {
        "format": FORMAT,
        "behavior": folder.name,
        "step": int(step),
        "created": time.time(),
        "versions": versions(),
        "spec": {} if spec is None else spec_to_json(spec),
        "settings": dict(settings or {}),
        "leaves": captured.leaves,
        "manifest": manifest.MANIFEST,
    }
    try:
        _write(partial, captured.arrays, document)
        folders.install(partial, path)
        if not best:
            folders.point_at(path, step)
    except Exception as error:  # the array store reports a full disk as ValueError, RuntimeError or OSError
        _remove_late(partial)
        cause = error.__cause__ if isinstance(error, ArtifactError) else None  # which says it in its own words
        raise _save_error(folder, path, cause if isinstance(cause, OSError) else error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gone already after success; also when Ctrl-C came in between
    if not best:
        folders.prune(folder, keep)
    return path


def restore(
    path: Path,
    template: Any,
    *,
    spec: BehaviorSpec | None = None,
    settings: Mapping[str, Any] | None = None,
    part: bool = False,
) -> Any:
    """Read the state in checkpoint `path`, with the structure, kinds and devices of `template`.

    The template is a freshly initialised state; with `part` a part of it, and the rest is not asked for. Raises
    CheckpointError when structure, a shape, a dtype, the actions or the order of reward signals differs, explained by
    `spec` and `settings` of this run, or when the checkpoint is damaged.
    """
    info = read_info(path)
    changed = mismatches(info.spec, info.settings, spec, settings)
    wanted = trees.leaves_of(template)
    saved = {at: entry for at, entry in info.leaves.items() if at in wanted} if part else info.leaves
    leaves = trees.leaf_mismatches(saved, wanted)
    if leaves:
        raise CheckpointError(
            f"{path}: the checkpoint does not fit this run. {_reasons(changed, leaves)} To continue this run, undo "
            "these changes; to train with them, start a new run with another --run-id, with "
            f"--initialize-from={path.absolute().parents[1].name} from the weights that fit, or --force to overwrite "
            "this one."
        )
    _refuse_moved(path, info, spec, None if part else settings)
    if any(line.startswith(("observation", "action")) for line in changed):
        _log.warning("%s was trained with another environment, but fits: %s.", path, "; ".join(changed))
    return trees.rebuild(template, read_arrays(path, saved), saved)


def restore_params_only(
    path: Path,
    template: Any,
    *,
    fields: Sequence[str] = ("params",),
    spec: BehaviorSpec | None = None,
    settings: Mapping[str, Any] | None = None,
    grow: Grow | None = None,
) -> Any:
    """Return `template` with `fields` read from checkpoint `path`; the rest (optimiser, keys, step) stays new.

    For `--initialize-from` and `init_path`. As in ML-Agents a module (the second level, for instance `params/critic`;
    below `_EACH` the third) that does not fit keeps its new weights, with a warning, and so does one with values of
    other reward signals. Raises CheckpointError when no network fits, for another order of reward signals, or for
    other actions of as many columns.

    `grow`: rearranges them first, where the sensors of the behavior have changed.
    """
    info = read_info(path)
    _refuse_moved(path, info, spec, settings)
    wanted, saved = (
        {p: entry for p, entry in leaves.items() if f"{p}/".startswith(tuple(f"{field}/" for field in fields))}
        for leaves in (trees.leaves_of(template), info.leaves)
    )
    values = None
    changed = mismatches(info.spec, info.settings, spec, settings)
    if grow is not None and any(line.startswith("observation") for line in changed):
        rearranged = grow(info, saved, read_arrays(path, saved), wanted)
        saved, values = rearranged.leaves, rearranged.arrays
        wanted = {p: entry for p, entry in wanted.items() if p not in rearranged.anew}
        _log.warning("%s: %s", path, rearranged.told)
    leaves = trees.leaf_mismatches(saved, wanted)
    bad = {_module(line.split(":")[0]) for line in leaves}
    if other_signals(info.settings, settings or {}):
        bad |= {_module(p) for p in wanted if _VALUES in p.split("/")}
    fitting = {p: entry for p, entry in saved.items() if _module(p) not in bad}
    if all(p.split("/")[1] in _EACH for p in fitting):
        raise CheckpointError(
            f"{path}: no network in the checkpoint fits this run. {_reasons(changed, leaves)} To start from it, undo "
            "these changes; to train with them, start without it."
        )
    if bad:
        _log.warning(
            "%s: starting with new weights for %s. %s", path, ", ".join(sorted(bad)), _reasons(changed, leaves)
        )
    return trees.rebuild(template, read_arrays(path, fitting) if values is None else values, fitting)


def _refuse_moved(
    path: Path, info: CheckpointInfo, spec: BehaviorSpec | None, settings: Mapping[str, Any] | None
) -> None:
    """Raise CheckpointError for other orders of signals or branches: arrays fit, but outputs would be mistaken."""
    moved = moved_signals(info.settings, settings or {})
    if moved is not None:
        raise CheckpointError(f"{path}: {moved}. Write them in the order of the checkpoint: it is that of the critic.")
    moved = moved_actions(info.spec, spec)
    if moved is not None:
        raise CheckpointError(f"{path}: {moved}. Its networks are for those alone: undo this, or start without it.")


_EACH = ("own", "signals")
"""Second levels whose entries are modules: the algorithm's and the reward signals' own state beside the networks."""
_VALUES = "values"
"""Name in paths of arrays: the head of a network with an output for each reward signal."""


def _module(leaf: str) -> str:
    words = leaf.split("/")
    return "/".join(words[: 3 if words[1] in _EACH else 2])


def _write(partial: Path, arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]) -> None:
    """Write arrays and metadata to a fresh `partial` folder and flush all of it to disk."""
    needed = sum(array.nbytes for array in arrays.values()) + _SLACK_BYTES
    if files.free_bytes(partial) < needed:
        raise OSError(f"it needs about {needed / 2**20:.1f} MiB")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with _quiet(), _array_store() as checkpointer:
        checkpointer.save(partial / folders.ARRAYS, args=ocp.args.PyTreeSave(unflatten_dict(arrays, sep="/")))
    files.write_json(partial / METADATA, document)
    manifest.write(partial)
    files.sync_tree(partial)


def _array_store() -> ocp.Checkpointer:
    """Make an array store of this process alone: beside others (`training.hosts`) orbax would wait for all of them."""
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    mine = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=mine, active_processes={mine})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """Return arrays of the checkpoint at `path` by their paths, without those of size zero; keys as their data.

    `wanted`: paths of some of them; None: all. Nothing is allocated before the store says what checkpoint.json does.

    Raises DamagedError; CheckpointError where they are larger than the memory that is free.
    """
    info, folder = read_info(path), path.absolute() / folders.ARRAYS
    try:
        leaves = {name: entry for name, entry in info.leaves.items() if trees.bytes_of(entry)}
        chosen = leaves if wanted is None else {name: leaves[name] for name in leaves if name in wanted}
        manifest.require_files(folder)
        with _quiet(), _array_store() as checkpointer:
            _require_described(flatten_dict(checkpointer.metadata(folder).item_metadata.tree, sep="/"), leaves)
            require_memory(path, sum(map(trees.bytes_of, chosen.values())))
            if wanted is None:
                return flatten_dict(checkpointer.restore(folder), sep="/")
            if not chosen:
                return {}
            tree = unflatten_dict(dict.fromkeys(chosen, _PLAIN), sep="/")
            arguments = ocp.args.PyTreeRestore(item=tree, restore_args=tree, transforms={})
            return flatten_dict(checkpointer.restore(folder, args=arguments), sep="/")
    except CheckpointError:
        raise
    except Exception as error:  # every kind of damage has its own exception in the array store
        raise DamagedError(path, _brief(error)) from error


def require_memory(path: Path, needed: int) -> None:
    """Raise CheckpointError where `needed` bytes, as the checkpoint at `path` claims them, are not free."""
    free = platforms.free_memory()
    if free is not None and needed > free:
        raise CheckpointError(
            f"{path}: its arrays take {needed / 2**30:,.1f} GiB by what checkpoint.json says, more than the "
            f"{free / 2**30:,.1f} GiB of memory that are free."
        )


_PLAIN = ocp.RestoreArgs(restore_type=np.ndarray)


def _require_described(stored: Mapping[str, Any], leaves: trees.Leaves) -> None:
    """Raise ValueError unless the store holds these leaves, each in pieces that are not larger than itself."""
    for name in sorted({*stored, *leaves}):
        array, entry = stored.get(name), leaves.get(name)
        if array is None or entry is None:
            raise ValueError(f"{name} is {'not stored' if array is None else 'stored, and not described'}")
        shape, dtype = [*array.shape], jnp.dtype(array.dtype)
        is_as_described = shape == entry["shape"] and dtype == jnp.dtype(entry["dtype"])
        if not is_as_described or math.prod(array.storage.chunk_shape or ()) > max(math.prod(shape), 1):
            raise ValueError(f"{name} is stored as {dtype}{shape}, described as {entry}")


def _save_error(folder: Path, path: Path, error: Exception) -> CheckpointError:
    before = [item.path.name for item in folders.checkpoints(folder) if item.path.name != path.name]
    usable = f"The checkpoint before it, {before[-1]}, is intact. " if before else "There is no checkpoint before it. "
    return CheckpointError(
        f"{path}: the checkpoint cannot be written ({_brief(error)}; {files.free_text(folder)}). {usable}"
        f"{files.remedy(folder)} or check the folder's permissions."
    )


_FOLLOWING = ("optimizer/", "opt_state/", "play/", "store/")
"""Parts of paths of arrays whose shapes follow from the parameters."""
_SHOWN = 3
"""Arrays that a message names."""


def _reasons(changed: Sequence[str], leaves: Sequence[str]) -> str:
    """Return the changes in the user's terms, and the first parameters that do not fit; what follows them is counted.

    Another algorithm has other parameters altogether, and other sizes of a run have no other parameters.
    """
    parameters = [leaf for leaf in leaves if not any(name in leaf.partition(":")[0] for name in _FOLLOWING)]
    if changed and (not parameters or any(text.startswith("trainer_type:") for text in changed)):
        return f"Changed: {'; '.join(changed)}."
    shown = (parameters or leaves)[:_SHOWN]
    more = f" (and {len(leaves) - len(shown)} more)" if len(leaves) > len(shown) else ""
    arrays = f"Arrays: {'; '.join(shown)}{more}."
    return f"Changed: {'; '.join(changed)}. {arrays}" if changed else arrays


def _remove_late(folder: Path) -> None:
    """Remove what a failed write left. Other threads of the array store still write for a moment, or begin again."""
    until, gone = time.monotonic() + _LATE_SECONDS, 0
    while gone < 10 and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
        gone = 0 if folder.exists() else gone + 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the array store from printing a hundred lines of tracebacks of its threads: the error itself reaches us.

    After a failed write its other writes still report to an event loop that is closed by then, or to nobody, some of
    them only when we have left, so what drops those reports stays after an error.
    """
    logger = logging.getLogger("absl")
    logging.getLogger("asyncio").addFilter(_is_of_others)
    with _ARRAY_STORE:
        level, hook = logger.level, sys.unraisablehook
        logger.setLevel(logging.CRITICAL)
        sys.unraisablehook = partial(_drop_late_reports, hook)
        try:
            yield
            sys.unraisablehook = hook
        finally:
            logger.setLevel(level)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether a record is not of a write that failed beside the one whose error is raised."""
    return not ("exception was never retrieved" in str(record.msg) and "orbax" in str(record.msg))


def _drop_late_reports(hook: Callable[[sys.UnraisableHookArgs], Any], report: sys.UnraisableHookArgs) -> None:
    if not (report.exc_type is RuntimeError and str(report.exc_value) == "Event loop is closed"):
        hook(report)


def _brief(error: Exception) -> str:
    """Shorten an error to one line: a long text up to the operating system's number, or its end, the reason."""
    text = " ".join(str(error).split()) or type(error).__name__
    numbered = _OS_ERROR.search(text)
    text = text if numbered is None else text[: numbered.end()]
    return text if len(text) <= 300 else f"... {text[-200:]}"
