"""Reading `.demo` files, what Unity's Demonstration Recorder writes.

A message before which its length stands, three kinds of them: at byte 0 the header, at byte 33 what the agent's brain
is, then one pair of what the agent saw and did for each decision. The reward of a decision, and whether its episode
ended, stand in the next pair; so the last pair of a file is no decision.

Parity. Rows equal ML-Agents' 1.1.0, with two exceptions: files of a folder are not joined at their borders, and a pair
that ends an episode, in which nothing was decided, is marked (`terminal`). A header that counts more pairs than there
are is an error here; there the rest is missing in silence.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from jaxrl.demonstrations.columns import Columns, passing_place, place_of, written
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.protobuf import messages
from jaxrl.envs.sensors import WireSpec
from jaxrl.envs.unity.decode import decode_spec
from jaxrl.envs.unity.observations import AgentError, decode_sensors
from jaxrl.types import Action, ActionSpec, BehaviorSpec, JaxrlError

BRAIN = 33
"""Byte at which the brain's parameters begin: the zone before is the header's, rewritten as a recording ends."""
VERSIONS = (0, 1)
SHIPPED = "demo:"
"""Before the name of demonstrations that come with jaxrl."""
_EXPERTS = Path(__file__).parent / "experts"  # made by benchmarks/make_demonstrations.py
_TOGETHER = 512  # pairs turned into arrays at once: more of them leave the caches
_NOT_A_DEMO = "is it a .demo file of Unity's Demonstration Recorder?"


class DemonstrationError(JaxrlError):
    """Demonstrations that cannot be used. The text names the file, and the pair from 0 on."""


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
    last: np.ndarray  # bool [n], nothing of the same recording comes after it


def decisions(path: str, spec: BehaviorSpec, key: str = "") -> Demonstration:
    """The decisions of `remembered` for agents with this spec; `key` of the settings names the path.

    Raises DemonstrationError: as `read`, and for recordings of another kind of agent.
    """
    found = remembered(path)
    try:
        check_same_spec(path, found.spec, spec)
    except DemonstrationError as error:
        mend = "record this agent, or name demonstrations of it"
        raise DemonstrationError(f"{key}{': ' * bool(key)}{error}: {mend}") from None
    return found


def read(path: str | Path) -> Demonstration:
    """A `.demo` file, or all in a folder, by name, also what is `terminal`.

    Raises DemonstrationError: no such file, one that is cut off, foreign or of an unknown version, numbers that are
    none, no end of an episode in any of them, or recordings of different behaviors in one folder.
    """
    return _gathered(path, files(path), passing_place(), ends=True)


def files(path: str | Path) -> list[Path]:
    """The file, or the `.demo` files of the folder by name; of `demo:NAME` the one that comes with jaxrl.

    Raises DemonstrationError where there are none.
    """
    if str(path).startswith(SHIPPED):
        return [_shipped(str(path).removeprefix(SHIPPED))]
    path = Path(path)
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix == ".demo" and file.is_file())
        if not found:
            raise DemonstrationError(f"{path}: there is no .demo file in this folder, expected at least one")
        return found
    if not path.is_file():
        raise DemonstrationError(f"{path}: there is no such file or folder of demonstrations")
    return [path]


def _shipped(name: str) -> Path:
    names = sorted(file.stem for file in _EXPERTS.glob("*.demo"))
    if name not in names:
        raise DemonstrationError(f"{SHIPPED}{name}: jaxrl has no such demonstrations, only {', '.join(names)}")
    return _EXPERTS / f"{name}.demo"


def remembered(path: str) -> Demonstration:
    """`read` without what is `terminal`, once for the same files: a signal and cloning often share them.

    Large ones are read once for all processes, see `columns`. Raises DemonstrationError.
    """
    return _read_once(path, tuple((str(x), x.stat().st_mtime_ns, x.stat().st_size) for x in files(path)))


@lru_cache(maxsize=4)
def _read_once(path: str, version: Any) -> Demonstration:
    found = files(path)
    folder = place_of(path, version)
    known = written(folder) if folder.is_dir() else None
    if known is not None:
        return _of_columns(kind_of(found[0]), known)
    return _gathered(path, found, folder, ends=False)


def _gathered(path: str | Path, found: list[Path], folder: Path, *, ends: bool) -> Demonstration:
    """All rows of the files; with `ends` also what is `terminal`."""
    columns, first, over = Columns(folder), kind_of(found[0]), False
    try:
        for file in found:
            kind = kind_of(file)
            if kind.behavior != first.behavior:
                raise DemonstrationError(
                    f"{path}: demonstrations of two behaviors, {first.behavior!r} and {kind.behavior!r} ({file.name}): "
                    "a folder has those of one"
                )
            check_same_spec(file, kind.spec, first.spec, found[0].name)
            for piece in _pieces(file):
                *_, done, _, terminal, _ = piece
                over |= bool(done.any())
                columns.add(piece if ends or not terminal.any() else [x[~terminal] for x in piece])
        if not over:
            raise DemonstrationError(f"{path}: no episode ends in it: record at least one whole episode")
        gathered = _of_columns(first, columns.close())
    except OSError as error:
        raise DemonstrationError(f"{path}: what is read of it cannot be kept in {folder}: {error}") from error
    finally:
        columns.discard()
    if not len(gathered.done):
        raise DemonstrationError(f"{path}: there is no decision in it")
    return gathered


class Kind(NamedTuple):
    """Of whom a file is."""

    behavior: str
    spec: BehaviorSpec


def _of_columns(kind: Kind, columns: list[np.ndarray]) -> Demonstration:
    n = len(kind.spec.observations)
    return Demonstration(kind.spec, kind.behavior, tuple(columns[:n]), Action(*columns[n : n + 2]), *columns[n + 2 :])


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Its bytes, mapped. Raises DemonstrationError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and size:
            raise
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"it is empty; {_NOT_A_DEMO}"
        raise DemonstrationError(f"{file}: {why}") from error


def _begun(file: Path, data: Any) -> tuple[int, WireSpec, str, int]:
    """How many pairs the header counts, what its first pair shows, the behavior, and where the pairs begin."""
    kinds = messages()
    header = _message(file, kinds.DemonstrationMetaProto, data, 0, "the header")[0]
    if header.api_version not in VERSIONS:
        raise DemonstrationError(f"{file}: version {header.api_version}, expected 0 or 1; {_NOT_A_DEMO}")
    brain, at = _message(file, kinds.BrainParametersProto, data, BRAIN, "the brain's parameters")
    if at == len(data):
        raise DemonstrationError(f"{file}: 0 pairs are not one decision; {_NOT_A_DEMO}")
    pair = _message(file, kinds.AgentInfoActionPairProto, data, at, "pair 0")[0]
    try:
        wire = decode_spec(brain.brain_name, brain, pair.agent_info)
    except EnvironmentFailure as error:
        raise DemonstrationError(f"{file}: pair 0: {error}") from error
    return header.number_steps, wire, brain.brain_name, at


def kind_of(file: Path) -> Kind:
    """What stands before its second pair. Raises DemonstrationError."""
    with _opened(file) as data:
        _, wire, behavior, _ = _begun(file, data)
    return Kind(behavior, wire.behavior)


def _pieces(file: Path) -> Iterator[list[np.ndarray]]:
    """The rows of a file, some hundred at a time, in the order of `Demonstration`'s arrays.

    A decision's reward and ending stand in the pair after it, so that the last of some waits for the next ones.
    """
    before, piece = None, None
    for *shown, reward, _, done, interrupted in pair_columns(file):
        shown.append(done)  # of what is seen here: nothing is decided there
        if before is not None:
            shown = [np.concatenate(columns) for columns in zip(before, shown, strict=True)]
        else:
            reward, done, interrupted = reward[1:], done[1:], interrupted[1:]
        if piece is not None:
            yield piece
        *seen, terminal = [x[:-1] for x in shown]
        piece = [*seen, reward, done, interrupted, terminal, np.zeros(len(reward), bool)]
        before = [x[-1:] for x in shown]
    assert piece is not None  # `pair_columns` has looked
    piece[-1][-1:] = True
    yield piece


def pair_columns(file: Path) -> Iterator[list[np.ndarray]]:
    """The pairs of a file as they stand there, some hundred at a time.

    Observations, continuous and discrete actions, rewards and group rewards of the decision before, whether the
    episode ended, and whether by interruption. Raises DemonstrationError.
    """
    with _opened(file) as data:
        number, wire, _, at = _begun(file, data)
        count = 0
        for pairs in _chunks(file, data, at, number):
            yield _arrays(file, wire, pairs, count)
            count += len(pairs)
        if count < 2:
            raise DemonstrationError(f"{file}: {count} pairs are not one decision; {_NOT_A_DEMO}")
        if count < number:
            raise DemonstrationError(f"{file}: it ends after {count} of {number} pairs: it was cut off")


def _chunks(file: Path, data: Any, at: int, number: int) -> Iterator[list[Any]]:
    """The pairs, as many as the header says; 0, as a recording that was not closed leaves it, says all there are."""
    kind, pairs, count, end = messages().AgentInfoActionPairProto, [], 0, len(data)
    while at < end and (not number or count < number):
        start, stop = at + 2, end + 1
        if start <= end and data[at] > 0x7F >= data[at + 1]:  # two bytes of length, as of most: a call saved for each
            stop = start + (data[at] & 0x7F | data[at + 1] << 7)
        pair = None
        if stop <= end:
            with suppress(DecodeError):  # which `_message` explains
                pair, at = kind.FromString(data[start:stop]), stop
        if pair is None:
            pair, at = _message(file, kind, data, at, f"pair {count}")
        pairs.append(pair)
        count += 1
        if len(pairs) == _TOGETHER:
            yield pairs
            pairs = []
    if pairs:
        yield pairs


def _arrays(file: Path, wire: WireSpec, pairs: list[Any], first: int) -> list[np.ndarray]:
    """See `pair_columns`."""
    infos = [pair.agent_info for pair in pairs]
    try:
        obs = decode_sensors(infos, wire.sensors)
    except AgentError as error:
        raise DemonstrationError(f"{file}: pair {first + error.row}: {error}") from error
    reward = np.array([info.reward for info in infos], np.float32)
    done = np.array([info.done for info in infos])
    if not np.isfinite(reward).all():
        raise DemonstrationError(f"{file}: pair {first + int(np.argmin(np.isfinite(reward)))}: its reward is no number")
    return [
        *obs,
        *_actions(file, wire.action, pairs, done, first),
        reward,
        np.array([info.group_reward for info in infos], np.float32),
        done,
        np.array([x.max_step_reached for x in infos]),
    ]


def _actions(file: Path, spec: ActionSpec, pairs: list[Any], done: np.ndarray, first: int) -> Action:
    """Of the fields that players of today fill, else of the one that those before hybrid actions did."""
    sizes = spec.continuous_size, len(spec.discrete_branches)
    infos = [pair.action_info for pair in pairs]
    numbers, choices = [x.continuous_actions for x in infos], [x.discrete_actions for x in infos]
    if all(len(x) == sizes[0] for x in numbers) and all(len(x) == sizes[1] for x in choices):
        found = (
            np.fromiter(chain.from_iterable(numbers), np.float32).reshape(len(pairs), sizes[0]),
            np.fromiter(chain.from_iterable(choices), np.int32).reshape(len(pairs), sizes[1]),
        )
    else:
        found = _mixed_actions(file, sizes, infos, done, first)
    bad = ~np.isfinite(found[0]).all(-1) | ((found[1] < 0) | (found[1] >= np.array(spec.discrete_branches))).any(-1)
    if bad.any():
        raise DemonstrationError(f"{file}: pair {first + int(bad.argmax())}: an action that the agent does not have")
    return Action(*found)


def _mixed_actions(file: Path, sizes: tuple[int, int], infos: list[Any], done: np.ndarray, first: int) -> Any:
    """The same where pairs differ: old ones, and ends of episodes without any."""
    found = np.zeros((len(infos), sizes[0]), np.float32), np.zeros((len(infos), sizes[1]), np.int32)
    for row, info in enumerate(infos):
        parts = list(info.continuous_actions), list(info.discrete_actions)
        if not parts[0] and not parts[1]:
            old = list(info.vector_actions_deprecated)
            parts = (old, []) if sizes[0] else ([], old)
        for column, part, size in zip(found, parts, sizes, strict=True):
            if len(part) == size:
                column[row] = part
            elif not done[row]:  # where an episode ends nothing was decided
                raise DemonstrationError(f"{file}: pair {first + row}: an action of {len(part)} numbers, not {size}")
    return found


def _message(file: Path, kind: Any, data: Any, at: int, what: str) -> tuple[Any, int]:
    """The message at this byte, before which its length stands in groups of seven bits; and where the next begins."""
    length, start = 0, at
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DemonstrationError(f"{file}: it is cut off in the length of {what}, at byte {start}; {_NOT_A_DEMO}")
        length |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
    if at + length > len(data):
        text = f"{what} would have {length} bytes, of which {len(data) - at} are there"
        raise DemonstrationError(f"{file}: it is cut off at byte {start}: {text}; {_NOT_A_DEMO}")
    try:
        return kind.FromString(data[at : at + length]), at + length
    except DecodeError as error:
        raise DemonstrationError(f"{file}: {what} at byte {start} is no message; {_NOT_A_DEMO}") from error


def check_same_spec(file: Path | str, found: BehaviorSpec, wanted: BehaviorSpec, whose: str = "the agent") -> None:
    """What has to be equal; names and the like may differ, as in the original."""
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
