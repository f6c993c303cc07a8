"""Exact resume: a run that is stopped at a checkpoint and resumed equals, bit for bit, a run that was never stopped.

The state of environments and unfinished buffers cannot be saved. So an uninterrupted run gives it up as well: at a
checkpoint, right after an update, open episodes are discarded, the environments are seeded from numbers that both runs
know, and actors and statistics begin as in a fresh process.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts.checkpoint.document import CheckpointError, CheckpointInfo, DamagedError, read_info, verify
from jaxrl.artifacts.checkpoint.folder import behaviors_of, checkpoints
from jaxrl.artifacts.checkpoint.loop import LESSONS, MOMENT
from jaxrl.artifacts.checkpoint.replay import belongs_to
from jaxrl.artifacts.checkpoint.store import require_latest
from jaxrl.artifacts.run_folder import RunFolder

log = logging.getLogger(__name__)


class Moment(NamedTuple):
    """Point at which an exact run resumes: one checkpoint of each behavior of that time, and the lessons."""

    paths: Mapping[str, Path]  # by behavior
    steps: Mapping[str, int]
    lessons: Mapping[str, Any] | None = None  # a `Lessons.state`; None: the checkpoints hold none


def environment_seeds(run_seed: int, steps: Mapping[str, int], workers: int) -> list[int]:
    """Compute a seed below 2^31 for each worker, from the run's seed and the trainer step of each saved behavior."""
    moment = [number for name in sorted(steps) for number in (zlib.crc32(name.encode()), steps[name])]
    draws = (np.random.SeedSequence([run_seed, worker, *moment]).generate_state(1) for worker in range(workers))
    return [int(draw[0]) >> 1 for draw in draws]


def moment_of_run(folder: RunFolder) -> Moment:
    """Return the newest moment of which every behavior of that time has a checkpoint.

    All behaviors are saved at the same moments, one after the other: a run killed meanwhile leaves some with a newer
    checkpoint. If no checkpoint holds a moment (the run was not exact), return the newest of each behavior.

    Raises CheckpointError if there is no such moment, or if all checkpoints of a behavior are damaged.
    """
    known = {name: _not_later(folder.behavior(name)) for name in behaviors_of(folder.path)}
    newest = {name: candidates[0] for name, candidates in known.items()}
    infos = [info for candidates in known.values() for _, info in candidates]
    noted = [info.settings[MOMENT] for info in infos if MOMENT in info.settings]
    if not any(MOMENT in info.settings for _, info in newest.values()):
        return _moment(newest)
    whole = []
    for moment in sorted(noted, key=lambda moment: -sum(map(sum, moment.values()))):  # the latest first
        matches = {name: _of_moment(known.get(name, ()), name, moment) for name in moment}
        saved = {name: item for name, item in matches.items() if item is not None}
        if len(saved) == len(moment):
            whole.append((saved, moment))
    for saved, moment in [item for item in whole if _has_replays(folder, item[0])] or whole:
        later = [name for name, item in newest.items() if saved.get(name) != item]
        if later:
            log.warning(
                "%s: the run ended while checkpoints were being saved, and those of %s are of a later moment than the "
                "others' or than a replay: all go on from the moment before.",
                folder.path, ", ".join(later),
            )  # fmt: skip
        return _moment(saved, moment)
    raise CheckpointError(
        f"{folder.path}: the checkpoints of {', '.join(known)} are of different moments, and none is left of which all "
        "have one, so --exact cannot go on. Resume without it, from the newest checkpoint of each, or start a new "
        f"run with their weights: --initialize-from={folder.run_id} and another --run-id."
    )


_Saved = tuple[Path, CheckpointInfo]


def _has_replays(folder: RunFolder, saved: Mapping[str, _Saved]) -> bool:
    """Return whether the replay stores of all behaviors belong to these checkpoints."""
    return all(belongs_to(folder.behavior(name), info) for name, (_, info) in saved.items())


def _not_later(folder: Path) -> list[_Saved]:
    """Return the checkpoint that a behavior resumes from and the undamaged ones before it, newest first."""
    latest = require_latest(folder)
    found = [(latest, read_info(latest))]
    for item in reversed(checkpoints(folder)):
        if item.step < found[0][1].step:
            try:
                verify(item.path)
                found.append((item.path, read_info(item.path)))
            except DamagedError as error:
                log.warning("%s: the checkpoint is damaged (%s).", item.path, error.why)
    return found


def _of_moment(found: Sequence[_Saved], name: str, moment: Mapping[str, Sequence[int]]) -> _Saved | None:
    """Return the checkpoint of behavior `name`, among `found`, that was saved at the moment, or None."""
    same = (item for item in found if item[1].settings.get(MOMENT, {}).get(name) == moment[name])
    return next(same, None)


def _moment(saved: Mapping[str, _Saved], moment: Mapping[str, Sequence[int]] | None = None) -> Moment:
    of_moment = [info.settings for _, info in saved.values() if info.settings.get(MOMENT) == moment]
    lessons = [settings[LESSONS][0] for settings in of_moment if LESSONS in settings]
    return Moment(
        paths={name: path for name, (path, _) in saved.items()},
        steps={name: info.step for name, (_, info) in saved.items()},
        lessons=lessons[0] if lessons else None,
    )
