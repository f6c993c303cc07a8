"""Reads demonstrations for training: the decisions of a `.demo` file or of a folder of them.

Row t holds the observation and the action of decision t, its reward, and whether the episode ended with it. Of Unity's
recordings the action is that of the pair behind the observation's, see `records`, unless `demo_actions` says otherwise.
The last pair of an agent is no decision: what followed it is not known.

Parity. With `demo_actions: as_recorded` rows equal ML-Agents' 1.1.0, with two exceptions: files of a folder are not
joined at their borders, and a pair that ends an episode, in which nothing was decided, is marked (`terminal`). A header
that counts more pairs than there are is an error here; there the rest is missing in silence. Different on purpose:
Unity's actions are moved to their observations, and pairs of two agents are never joined.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.demonstrations.columns import Columns, passing_place, place_of, written
from jaxrl.demonstrations.records import (
    TEAM,
    ActionError,
    DemonstrationError,
    EmptyRecordingError,
    Kind,
    Recorder,
    kind_of,
    record_columns,
)
from jaxrl.settings.demonstrations import AS_RECORDED, DETECT, NEXT_RECORD
from jaxrl.types import Action, ActionSpec, BehaviorSpec

log = logging.getLogger(__name__)

SHIPPED = "demo:"
"""Prefix of the names of demonstrations that come with jaxrl."""
AGENTS = 256
"""Most agents of one file that are followed at once; beyond it, the agent silent for longest counts as gone."""
_EXPERTS = Path(__file__).parent / "experts"  # made by benchmarks/make_demonstrations.py


class Demonstration(NamedTuple):
    """Decisions in the order in which they were made, file after file: n rows. Large arrays lie in files, mapped."""

    spec: BehaviorSpec
    behavior: str
    obs: tuple[np.ndarray, ...]  # [n, *shape] of the sensors' dtypes
    action: Action  # float32 [n, C], int32 [n, D], as the environment has it
    reward: np.ndarray  # float32 [n], without the group's, as in the original
    done: np.ndarray  # bool [n], the episode ended with the decision, also by interruption
    interrupted: np.ndarray  # bool [n]
    terminal: np.ndarray  # bool [n], no decision: the last that was seen of an episode. The original trains on them
    last: np.ndarray  # bool [n], the next row does not follow it: another agent's, or of another recording


def decisions(
    path: str, spec: BehaviorSpec, key: str = "", demo_actions: str = DETECT, actions: bool = True
) -> Demonstration:
    """Return the decisions of `remembered` for agents with this spec; `key` of the settings names the path.

    Raises DemonstrationError: as `read`, and for recordings of another kind of agent.
    """
    demonstration = remembered(path, demo_actions, actions)
    try:
        check_same_spec(path, demonstration.spec, spec)
    except DemonstrationError as error:
        mend = "record this agent, or name demonstrations of it"
        raise DemonstrationError(f"{key}{': ' * bool(key)}{error}: {mend}") from None
    return demonstration


def read(path: str | Path, demo_actions: str = DETECT) -> Demonstration:
    """Read a `.demo` file, or all in a folder, by name, with `terminal` rows.

    Args:
      path: file or folder. Files of a folder in which nothing is decided are left out with a warning.
      demo_actions: `detect`, `as_recorded` or `next_record`, as in the settings.

    Raises DemonstrationError: no such file, one that is cut off, foreign or of an unknown version, numbers that are
    none, no decision in any of them, or recordings of different behaviors in one folder.
    """
    return _gathered(path, recordings(path), passing_place(), demo_actions, ends=True, checked=True)


def files(path: str | Path) -> list[Path]:
    """Return the file, or the `.demo` files of the folder by name; of `demo:NAME` the one that comes with jaxrl.

    Raises DemonstrationError where there are none.
    """
    if str(path).startswith(SHIPPED):
        return [_shipped(str(path).removeprefix(SHIPPED))]
    path = Path(path)
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.suffix == ".demo" and file.is_file())
        if not paths:
            raise DemonstrationError(f"{path}: there is no .demo file in this folder, expected at least one")
        return paths
    if not path.is_file():
        raise DemonstrationError(f"{path}: there is no such file or folder of demonstrations")
    return [path]


def recordings(path: str | Path) -> list[Path]:
    """Return those of `files` that hold a decision, and warn of the others of a folder.

    Raises DemonstrationError: as `files`, for a file that is no recording, and where no file holds a decision.
    """
    good, empty = [], []
    for file in files(path):
        try:
            kind_of(file)
            good.append(file)
        except EmptyRecordingError as error:
            empty.append(error)
    if not good and len(empty) == 1:
        raise empty[0]
    if not good:
        raise DemonstrationError(f"{path}: none of its {len(empty)} .demo files holds a decision: record at least one")
    for error in empty:
        log.warning("%s. This file is left out.", error)
    return good


def _shipped(name: str) -> Path:
    names = sorted(file.stem for file in _EXPERTS.glob("*.demo"))
    if name not in names:
        raise DemonstrationError(f"{SHIPPED}{name}: jaxrl has no such demonstrations, only {', '.join(names)}")
    return _EXPERTS / f"{name}.demo"


def remembered(path: str, demo_actions: str = DETECT, actions: bool = True) -> Demonstration:
    """Return `read` without `terminal` rows, once for the same files: a signal and cloning often share them.

    Large ones are read once for all processes, see `columns`. Without `actions`, those that are missing or wrong are
    zeros. Raises DemonstrationError.
    """
    version = tuple((str(x), x.stat().st_mtime_ns, x.stat().st_size) for x in files(path))
    try:
        return _read_once(path, version, demo_actions, True)
    except ActionError:
        if actions:
            raise
        return _read_once(path, version, demo_actions, False)


@lru_cache(maxsize=4)
def _read_once(path: str, version: Any, demo_actions: str, checked: bool) -> Demonstration:
    paths = recordings(path)
    kinds = [kind_of(file) for file in paths]
    late = sum(is_late(kind, demo_actions) for kind in kinds)
    if late and demo_actions == DETECT:
        log.info(
            "%s: %d of %d files are recorded by Unity, which writes each action one record late: actions are moved to "
            "their observations. demo_actions: as_recorded pairs them as ML-Agents does.", path, late, len(paths),
        )  # fmt: skip
    folder = place_of(path, (demo_actions, checked), version)
    columns = written(folder) if folder.is_dir() else None
    if columns is not None:
        return _of_columns(kinds[0], columns)
    return _gathered(path, paths, folder, demo_actions, ends=False, checked=checked)


def _gathered(
    path: str | Path, paths: list[Path], folder: Path, demo_actions: str, *, ends: bool, checked: bool
) -> Demonstration:
    """Return all rows of the files; with `ends` also `terminal` ones."""
    columns, first = Columns(folder), kind_of(paths[0])
    try:
        for file in paths:
            kind = kind_of(file)
            if _without_team(kind) != _without_team(first):
                raise DemonstrationError(
                    f"{path}: demonstrations of two behaviors, {first.behavior!r} and {kind.behavior!r} ({file.name}): "
                    "a folder has those of one"
                )
            check_same_spec(file, kind.spec, first.spec, paths[0].name)
            for piece in _pieces(file, kind, demo_actions, checked):
                *_, terminal, _ = piece
                columns.add(piece if ends or not terminal.any() else [x[~terminal] for x in piece])
        if not columns.rows:
            raise DemonstrationError(f"{path}: there is no decision in it")
        gathered = _of_columns(first, columns.close())
    except OSError as error:
        raise DemonstrationError(f"{path}: what is read of it cannot be kept in {folder}: {error}") from error
    finally:
        columns.discard()
    return gathered


def _without_team(kind: Kind) -> str:
    return kind.behavior.partition(TEAM)[0]


def _of_columns(kind: Kind, columns: list[np.ndarray]) -> Demonstration:
    n = len(kind.spec.observations)
    return Demonstration(kind.spec, kind.behavior, tuple(columns[:n]), Action(*columns[n : n + 2]), *columns[n + 2 :])


def is_late(kind: Kind, demo_actions: str) -> bool:
    """Return whether the action of an observation stands in the next pair of its agent."""
    return demo_actions == NEXT_RECORD or (demo_actions == DETECT and kind.recorder is Recorder.UNITY)


def agent_columns(
    file: Path, kind: Kind, demo_actions: str, checked: bool = True
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield the pairs of a file, some hundred of one agent at a time: its id and the columns of `record_columns`.

    Pairs of several agents may alternate. As the original pairs them all are one agent's. Raises DemonstrationError.
    """
    for *columns, agents in record_columns(file, late=is_late(kind, demo_actions), checked=checked):
        if demo_actions == AS_RECORDED or (agents == agents[0]).all():
            yield 0 if demo_actions == AS_RECORDED else int(agents[0]), columns
            continue
        for agent in dict.fromkeys(agents.tolist()):
            yield agent, [x[agents == agent] for x in columns]


def _pieces(file: Path, kind: Kind, demo_actions: str, checked: bool) -> Iterator[list[np.ndarray]]:
    """Yield the rows of a file, some hundred at a time, in the order of `Demonstration`'s arrays.

    A decision's reward and ending stand in its agent's next pair, so that the last of some waits for the next ones.
    """
    waiting: dict[int, list[np.ndarray]] = {}
    late, piece, previous = is_late(kind, demo_actions), None, None
    for agent, columns in agent_columns(file, kind, demo_actions, checked):
        before = waiting.pop(agent, None)
        if before is not None:
            columns = [np.concatenate(both) for both in zip(before, columns, strict=True)]
        waiting[agent] = [x[-1:] for x in columns]
        if len(waiting) > AGENTS:
            del waiting[next(iter(waiting))]
        if len(columns[0]) < 2:
            continue
        if piece is not None:
            piece[-1][-1] = agent != previous
            yield piece
        piece, previous = _rows(columns, late), agent
    if piece is not None:
        piece[-1][-1] = True
        yield piece


def _rows(columns: list[np.ndarray], late: bool) -> list[np.ndarray]:
    """Return the decisions of n + 1 pairs of one agent: n rows."""
    *obs, numbers, choices, reward, _, done, interrupted = columns
    actions = [x[1:] if late else x[:-1] for x in (numbers, choices)]
    seen = [x[:-1] for x in obs]
    return [*seen, *actions, reward[1:], done[1:], interrupted[1:], done[:-1], np.zeros(len(done) - 1, bool)]


def check_same_spec(file: Path | str, found: BehaviorSpec, wanted: BehaviorSpec, whose: str = "the agent") -> None:
    """Raise DemonstrationError where specs differ in more than names and the like, as in the original."""
    if found.action != wanted.action:
        got, here = (_in_words(spec.action) for spec in (found, wanted))
        raise DemonstrationError(f"{file}: recorded with {got}, expected {here}, as {whose} has")
    if len(found.observations) != len(wanted.observations):
        counts = len(found.observations), len(wanted.observations)
        raise DemonstrationError(
            f"{file}: recorded with {counts[0]} observations, expected {counts[1]}, as {whose} has"
        )
    for i, (there, here) in enumerate(zip(found.observations, wanted.observations, strict=True)):
        if there.shape != here.shape:
            raise DemonstrationError(
                f"{file}: observation {i} ({there.name!r}) recorded with shape {there.shape}, expected {here.shape}, "
                f"as {whose}'s ({here.name!r}) has"
            )


def _in_words(action: ActionSpec) -> str:
    return f"actions of {action.continuous_size} numbers and branches {list(action.discrete_branches)}"
