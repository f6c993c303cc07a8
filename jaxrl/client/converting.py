"""Converts demonstrations to and from NumPy's `.npz` and Minari's data sets (minari.farama.org).

A `.npz` file holds `observation_0`, `observation_1`, ... of all N + E states, episode after episode (one more than its
decisions); `continuous`, `discrete`, `reward` and `group_reward` of the N decisions; `length`, `terminated` and
`truncated` of the E episodes; and `document`, JSON with the behavior's name and specs.

A data set of Minari has the spaces that `jaxrl.client` shows of the behavior. One that others have made gets the specs
that `gymnasium:` makes of its spaces, so that demonstrations fit `--env gymnasium:ID`. Group rewards are in its infos.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl import platforms
from jaxrl.artifacts.checkpoint.spec import spec_from_json, spec_to_json
from jaxrl.artifacts.files import writing
from jaxrl.artifacts.npz import read_npz
from jaxrl.demonstrations import write
from jaxrl.demonstrations.columns import Columns, passing_place
from jaxrl.demonstrations.episodes import Episode, episodes, pairs_of
from jaxrl.demonstrations.reading import read as read_demo
from jaxrl.demonstrations.reading import recordings
from jaxrl.demonstrations.records import Kind, kind_of
from jaxrl.regular_files import open_regular
from jaxrl.settings.demonstrations import DETECT
from jaxrl.types import Action, BehaviorSpec, JaxrlError

if TYPE_CHECKING:
    from jaxrl.client.spaces import BehaviorSpaces

MINARI = "minari:"
_ID = re.compile(r"(\w[\w-]*/)*\w[\w.-]*-v\d{1,9}", re.ASCII)
"""Names of data sets: folders below Minari's own, as it lists them."""
_TOGETHER = 64 * 2**20  # bytes of observations handed to Minari at once
_LARGEST = 2**36  # bytes of all arrays of a .npz file, where the memory that is free is not known
_DECISIONS = ("continuous", "discrete", "reward", "group_reward")
_EPISODES = ("length", "terminated", "truncated")
_GROUP = "group_reward"


class Converted(NamedTuple):
    """Summary of the written demonstrations."""

    behavior: str
    episodes: int
    decisions: int


def convert(
    source: str, out: str, *, behavior: str | None = None, force: bool = False, demo_actions: str = DETECT
) -> Converted:
    """Write demonstrations in another format.

    Args:
      source: `FILE.demo`, a folder of them, `FILE.npz` or `minari:ID`.
      out: `FILE.demo`, `FILE.npz` or `minari:ID`.
      behavior: its name in the new file; None: unchanged, or `agent` for a data set of others.
      force: replace an existing file.
      demo_actions: place of an observation's action in a .demo file, as in the settings; in `out` it is beside it.

    Raises:
      JaxrlError: another ending, a file that exists already or is none of jaxrl's, no package `minari`, ...
      JaxrlError: the demonstrations cannot be used. After any error, the old file stays.
    """
    save = _writer(out, force)
    kind, found = _read(source, demo_actions)
    kind = kind._replace(behavior=behavior or kind.behavior)
    counts = [0, 0]

    def counted() -> Iterator[Episode]:
        for episode in found:
            counts[:] = counts[0] + 1, counts[1] + len(episode.reward)
            yield episode

    save(kind, counted())
    return Converted(kind.behavior, *counts)


def _writer(out: str, force: bool) -> Callable[[Kind, Iterator[Episode]], object]:
    if out.startswith(MINARI):
        minari, name = _minari(), out.removeprefix(MINARI)
        if not _ID.fullmatch(name):
            raise JaxrlError(f"{out}: is no name of a data set, expected minari:NAME-v0 or minari:GROUP/NAME-v0")
        if name in minari.list_local_datasets():
            raise JaxrlError(f"{out}: there is such a data set: take another name, or `minari delete {name}`")
        return lambda kind, found: _to_minari(name, kind, found)
    path = Path(out)
    if path.suffix not in (".demo", ".npz"):
        raise JaxrlError(f"{out}: expected FILE.demo, FILE.npz or minari:ID")
    if path.exists() and not force:
        raise JaxrlError(f"{out} is there already: --force writes another in its place")
    if path.suffix == ".npz":
        return lambda kind, found: _to_npz(path, kind, found)
    return lambda kind, found: write(path, kind.behavior, kind.spec, pairs_of(found))


def _read(source: str, demo_actions: str) -> tuple[Kind, Iterator[Episode]]:
    if source.startswith(MINARI):
        return _of_minari(source.removeprefix(MINARI))
    if Path(source).suffix == ".npz":
        return _of_npz(Path(source))
    files = recordings(source)
    read_demo(source, demo_actions)  # raises for unusable files, beforehand
    return kind_of(files[0]), episodes(files, demo_actions)


def _to_npz(path: Path, kind: Kind, found: Iterator[Episode]) -> None:
    states, decisions, ends = Columns(passing_place()), Columns(passing_place()), Columns(passing_place())
    for episode in found:
        states.add(episode.obs)
        decisions.add([*episode.action, episode.reward, episode.group_reward])
        ends.add([np.array([len(episode.reward)]), np.array([episode.terminated]), np.array([episode.truncated])])
    columns: dict[str, Any] = {f"observation_{i}": x for i, x in enumerate(states.close())}
    columns |= dict(zip(_DECISIONS, decisions.close(), strict=True)) | dict(zip(_EPISODES, ends.close(), strict=True))
    document = json.dumps({"behavior": kind.behavior, "spec": spec_to_json(kind.spec)})
    with writing(path) as file:
        np.savez_compressed(file, **columns, document=np.array(document))


def _of_npz(path: Path) -> tuple[Kind, Iterator[Episode]]:
    try:
        with open_regular(path) as file:
            columns = read_npz(file, platforms.free_memory() or _LARGEST)
        kind = _noted(str(columns["document"]), "document")
        names = [f"observation_{i}" for i in range(len(kind.spec.observations))]
        _check_columns(columns, names, kind.spec)
    except FileNotFoundError as error:
        raise JaxrlError(f"{path}: there is no such file") from error
    except Exception as error:
        raise JaxrlError(
            f"{path}: is no .npz file of demonstrations as jaxrl writes them ({error}); docs/demonstrations.md says "
            "which arrays it holds"
        ) from error
    states, (numbers, choices, reward, group) = [columns[x] for x in names], [columns[x] for x in _DECISIONS]
    length, terminated, truncated = (columns[x] for x in _EPISODES)

    def found() -> Iterator[Episode]:
        at = 0
        for i, size in enumerate(length.tolist()):
            seen, done = slice(at + i, at + i + size + 1), slice(at, at + size)
            action = Action(numbers[done], choices[done])
            ends = bool(terminated[i]), bool(truncated[i])
            yield Episode(tuple(x[seen] for x in states), action, reward[done], group[done], *ends)
            at += size

    return kind, found()


def _check_columns(columns: Mapping[str, np.ndarray], names: Sequence[str], spec: BehaviorSpec) -> None:
    """Raise ValueError or KeyError unless the arrays of a .npz file have the shapes given by `length` and the specs."""
    length = columns["length"]
    if length.dtype.kind not in "iu" or length.ndim != 1 or not len(length) or length.min() < 1:
        raise ValueError("length: expected a positive whole number for each episode")
    count, decisions = len(length), int(length.sum())
    sizes = {"continuous": [spec.action.continuous_size], "discrete": [len(spec.action.discrete_branches)]}
    shapes = {name: (count + decisions, *x.shape) for name, x in zip(names, spec.observations, strict=True)}
    shapes |= {name: (decisions, *sizes.get(name, ())) for name in _DECISIONS} | dict.fromkeys(_EPISODES, (count,))
    for name, shape in shapes.items():
        if columns[name].shape != shape or columns[name].dtype.kind not in "biuf":
            raise ValueError(f"{name}: got {columns[name].dtype}{[*columns[name].shape]}, expected numbers {[*shape]}")


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise JaxrlError(f"minari: {error}; pip install 'jaxrl[minari]'") from error
    return minari


def _to_minari(name: str, kind: Kind, found: Iterator[Episode]) -> None:
    minari, spaces, dataset = _minari(), _spaces(kind.spec), None
    described = {
        "observation_space": spaces.observation,
        "action_space": spaces.action,
        "description": f"Demonstrations of the behavior {kind.behavior}, written by jaxrl.",
        "jpeg_encoding": False,
    }
    try:
        for part in _in_parts(found):
            buffers = [_buffer(minari, spaces, episode) for episode in part]
            if dataset is not None:
                dataset.update_dataset_from_buffer(buffers)
                continue
            with warnings.catch_warnings():  # of a missing author, environment, ...: demonstrations have none
                warnings.simplefilter("ignore", UserWarning)
                dataset = minari.create_dataset_from_buffers(name, buffer=buffers, **described)
        assert dataset is not None  # there is at least one episode
        notes = json.dumps({"behavior": kind.behavior, "spec": spec_to_json(kind.spec)})
        dataset.storage.update_metadata({"jaxrl": notes})
    except (OSError, ValueError, TypeError) as error:
        raise JaxrlError(f"{MINARI}{name}: Minari does not take it: {error}") from error


def _spaces(spec: BehaviorSpec) -> BehaviorSpaces:
    """Return the spaces with names that HDF5 takes."""
    from jaxrl.client.spaces import BehaviorSpaces  # needs gymnasium, which comes with minari

    named = [x._replace(name=re.sub(r"[^\w.-]", "_", x.name) or "observation") for x in spec.observations]
    return BehaviorSpaces(spec._replace(observations=tuple(named)))


def _in_parts(found: Iterable[Episode]) -> Iterator[list[Episode]]:
    part: list[Episode] = []
    for episode in found:
        part.append(episode)
        if sum(x.nbytes for item in part for x in item.obs) > _TOGETHER:
            yield part
            part = []
    if part:
        yield part


def _buffer(minari: Any, spaces: BehaviorSpaces, one: Episode) -> Any:
    numbers, choices = one.action
    single = choices[:, 0].astype(np.int64) if choices.shape[1] == 1 else choices.astype(np.int64)
    action: Any = {"continuous": numbers, "discrete": single} if numbers.shape[1] and choices.shape[1] else single
    ends = np.zeros((2, len(one.reward)), bool)
    ends[:, -1] = one.terminated, one.truncated or not one.terminated  # Minari has no episode without an end
    return minari.data_collector.EpisodeBuffer(
        observations=one.obs[0] if len(one.obs) == 1 else dict(zip(spaces.names, one.obs, strict=True)),
        actions=action if choices.shape[1] else numbers,
        rewards=one.reward,
        terminations=ends[0],
        truncations=ends[1],
        infos={_GROUP: np.append(one.group_reward, np.float32(0.0))},
    )


def _of_minari(name: str) -> tuple[Kind, Iterator[Episode]]:
    minari = _minari()
    if name not in minari.list_local_datasets():
        raise JaxrlError(f"{MINARI}{name}: there is no such data set here; `minari download {name}` may fetch it")
    dataset = minari.load_dataset(name)
    notes = dataset.storage.metadata.get("jaxrl")
    if notes is not None:
        kind = _noted(notes, f"{MINARI}{name}: what jaxrl notes in it")
        return kind, map(partial(_ours, _spaces(kind.spec).names), dataset.iterate_episodes())
    from jaxrl.envs.foreign.behaviors import AgentKind

    kind = AgentKind("agent", dataset.spec.observation_space, dataset.spec.action_space)
    converted = (_theirs(kind, episode) for episode in dataset.iterate_episodes())
    return Kind(kind.name, kind.spec), converted


def _noted(text: str, where: str) -> Kind:
    """Return behavior and specs as jaxrl notes them in a file. Raises JaxrlError."""
    try:
        document = json.loads(text)
        return Kind(str(document["behavior"]), spec_from_json(document["spec"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise JaxrlError(f"{where} cannot be read ({error!r:.200})") from error


def _ours(names: Sequence[str], one: Any) -> Episode:
    seen = tuple(one.observations[x] for x in names) if len(names) > 1 else (one.observations,)
    action, length = one.actions, len(one.rewards)
    if isinstance(action, dict):
        numbers, choices = action["continuous"], action["discrete"]
    elif np.issubdtype(action.dtype, np.integer):
        numbers, choices = np.zeros((length, 0)), action
    else:
        numbers, choices = action, np.zeros((length, 0))
    both = Action(np.asarray(numbers, np.float32), np.asarray(choices, np.int32).reshape(length, -1))
    group = np.asarray(one.infos[_GROUP], np.float32)[:length]
    return Episode(seen, both, np.asarray(one.rewards, np.float32), group, *_ends(one))


def _theirs(kind: Any, one: Any) -> Episode:
    length = len(one.rewards)
    rows = [kind.observation.read(_row(one.observations, time)) for time in range(length + 1)]
    taken = [kind.action.columns(_row(one.actions, time)) for time in range(length)]
    seen = tuple(np.stack(x) for x in zip(*rows, strict=True))
    action = Action(*(np.stack(x) for x in zip(*taken, strict=True)))
    reward = np.asarray(one.rewards, np.float32)
    return Episode(seen, action, reward, np.zeros(length, np.float32), *_ends(one))


def _row(value: Any, time: int) -> Any:
    if isinstance(value, dict):
        return {key: _row(part, time) for key, part in value.items()}
    return tuple(_row(part, time) for part in value) if isinstance(value, tuple) else value[time]


def _ends(one: Any) -> tuple[bool, bool]:
    terminated = bool(one.terminations[-1])
    return terminated, not terminated
