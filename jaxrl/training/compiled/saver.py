"""Checkpoints of a compiled run: all seeds in one, the best seed's policy as ONNX.

A checkpoint of one seed holds its learner without the seed axis, as the host loop's does, so that either can start
from the other's weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.loop import AREAS, FIRST_SEED, OF_RUN, SEEDS, require_loop
from jaxrl.artifacts.checkpoint.mismatch import moved_signals
from jaxrl.artifacts.checkpoint.replay import belongs_to
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import ELO
from jaxrl.settings import BehaviorSettings, RunSettings
from jaxrl.training import saver
from jaxrl.training.compiled.opponents import RivalState, begin_pool
from jaxrl.training.compiled.state import JittedState, Pending, SceneState, step_of, stored, with_stored
from jaxrl.training.saver import Snapshot
from jaxrl.training.trained_policy import EXPORTED_SEED
from jaxrl.types import BehaviorSpec

log = logging.getLogger(__name__)


class Subject(NamedTuple):
    """A behavior that is trained, and its seeds."""

    name: str
    spec: BehaviorSpec
    settings: BehaviorSettings
    seeds: tuple[int, ...]
    areas: int
    changing: bool = False  # whether settings in which its seeds differ change in training, and must be saved
    algorithm: Algorithm | None = None  # set once it is made

    @property
    def saves(self) -> bool:
        """True if a checkpoint holds the algorithm's replay."""
        return self.algorithm is not None and self.algorithm.storage.saved

    @property
    def exploits(self) -> np.ndarray:
        """Seeds that are exploiters of a league, which never count as a result, bool [S]."""
        size = 1 if self.settings.self_play is None else self.settings.self_play.league_size
        return np.arange(len(self.seeds)) % size > 0

    def described(self) -> dict[str, Any]:
        """Return the settings as JSON values, with the sizes that a checkpoint's arrays depend on, and its seeds."""
        of_run = dict(zip(OF_RUN, (len(self.seeds), self.areas, self.seeds[0]), strict=True))
        return {**saver.settings_of(self.settings), **of_run}


def contents(state: JittedState, *, changing: bool = False) -> JittedState:
    """Return the state for a checkpoint, without fields that follow from the settings, and without the replay.

    It holds `frozen` only if a seed is frozen, so that checkpoints without frozen seeds keep their older layout.
    """
    values = state.values if changing else {}
    state = state.replace(parameters={}, values=values, frozen=state.frozen if np.any(state.frozen) else ())
    state = state.replace(newest=(), recent=(), last_step=())  # the next iterations fill them again
    state, single = with_stored(state, ()), state.key.shape[0] == 1
    return state.replace(train=seed_of(state.train, 0)) if single else state


def seed_of(tree: Any, index: int) -> Any:
    """Return one seed of a pytree with leading seed axes."""
    return jax.tree.map(lambda x: x[index], tree)


def snapshot(subject: Subject, state: JittedState, step: int, best: int) -> Snapshot:
    """Return a snapshot of the run at trainer step `step`; `best`: index of the seed whose policy is exported."""
    rating = {ELO: float(state.rivals.rating[best, -1])} if isinstance(state.rivals, RivalState) else {}
    return Snapshot(
        name=subject.name,
        step=step,
        contents=contents(state, changing=subject.changing),
        policy=seed_of(state.train.policy, best),
        learned=(state.train.policy, state.train.critic),
        spec=subject.spec,
        settings=subject.settings,
        described=subject.described(),
        samples=_samples(state, best),
        notes={EXPORTED_SEED: subject.seeds[best], **rating},
        network=None if subject.algorithm is None else subject.algorithm.policy,
        store=stored(state) if subject.saves else (),
    )


def snapshot_of_seed(subject: Subject, state: JittedState, index: int) -> Snapshot:
    """Return a snapshot of one seed's train state, without environments: to start from or play with, not to resume."""
    train = seed_of(state.train, index)
    whole = snapshot(subject, state, int(train.step), index)
    described = whole.described | {SEEDS: 1, FIRST_SEED: subject.seeds[index]}
    fields = {"contents": {"train": train}, "learned": (train.policy, train.critic), "described": described}
    return whole._replace(**fields, notes={}, store=())


def _samples(state: JittedState, best: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return observations [N, *shape] and masks [N, M] of one seed's living agents, repeated to N = E·A rows."""
    view = jax.tree.map(np.asarray, seed_of(state.play.view, best))
    alive = view.alive.reshape(-1)
    chosen = np.resize(np.flatnonzero(alive) if alive.any() else np.arange(alive.size), alive.size)
    obs = tuple(o.reshape(alive.size, *o.shape[2:])[chosen] for o in view.obs)
    return obs, view.action_mask.reshape(alive.size, -1)[chosen]


def restored(settings: RunSettings, folder: RunFolder, subjects: Sequence[Subject], fresh: SceneState) -> SceneState:
    """Return the state of the run's latest checkpoints with --resume, else `fresh`, perhaps with another run's weights.

    From another run with several seeds, the weights are those of its best seed.

    Raises CheckpointError when there is none, it does not fit, the host loop wrote the one to resume or the behaviors
    have none of one moment; RunFolderError when the other run names a best seed that it lacks. Writes nothing.
    """
    states = {subject.name: fresh.of(subject.name) for subject in subjects}
    if settings.checkpoint_settings.resume:
        loaded = _of_one_moment(folder, subjects, states)
        for subject in subjects:
            if all(step_of(loaded[other.name]) > other.settings.last_step for other in subjects):
                log.warning("%s: %s", subject.name, subject.settings.passed_text)
    else:
        loaded = {item.name: _initialized(settings, folder, item, states[item.name]) for item in subjects}
    same = all(loaded[name] is state for name, state in states.items())
    return fresh if same else SceneState.made_of(loaded)


def _initialized(settings: RunSettings, folder: RunFolder, subject: Subject, fresh: JittedState) -> JittedState:
    """Return `fresh` with the weights of another run, if the settings name one; all else differs by seed as before."""
    like = seed_of(fresh.train, 0), subject.spec, subject.settings
    loaded = saver.initialized(settings, folder, subject.name, *like)
    if loaded is None:
        return fresh
    train = jax.tree.map(
        lambda x, old, every: every if x is old else jnp.broadcast_to(x, every.shape), loaded, like[0], fresh.train
    )
    begun = fresh.replace(train=train)
    if not isinstance(fresh.rivals, RivalState):
        return begun
    rivals = fresh.rivals
    sizes = rivals.rating.shape[1] - 1, rivals.opponent.shape
    pool, playing = begin_pool(begun.train.policy, *sizes)  # only of this run's policies
    return begun.replace(rivals=rivals.replace(pool=pool, playing=playing))


def _of_one_moment(
    folder: RunFolder, subjects: Sequence[Subject], fresh: Mapping[str, JittedState]
) -> dict[str, JittedState]:
    """Read, by behavior, the newest checkpoints of one iteration that all behaviors have.

    All are saved at the same iterations, one after the other: a run that is killed meanwhile leaves some behaviors with
    a newer checkpoint.
    """
    older: dict[str, list[Path]] = {}
    paths: dict[str, Path] = {}

    def resume(subject: Subject) -> JittedState:
        paths[subject.name] = older[subject.name].pop()
        return resumed(paths[subject.name], subject, fresh[subject.name])

    for subject in subjects:
        behavior = folder.behavior(subject.name)
        newest = checkpoint.require_latest(behavior)
        known = sorted(checkpoints(behavior), key=lambda item: item.step)
        step = checkpoint.read_info(newest).step
        candidates = [item.path for item in known if item.step < step] + [newest]
        older[subject.name] = _up_to_replay(folder, subject, candidates)
    states = {subject.name: resume(subject) for subject in subjects}
    while len({_iteration(state) for state in states.values()}) > 1:
        last = max(subjects, key=lambda subject: _iteration(states[subject.name]))
        if not older[last.name]:
            names = ", ".join(subject.name for subject in subjects)
            raise CheckpointError(
                f"{folder.path}: the checkpoints of {names} are of different moments, and no older ones are left of "
                f"{last.name}: start a new run with their weights: --initialize-from={folder.run_id} and another "
                "--run-id."
            )
        log.warning("%s: its newest checkpoint is of a later moment than the others': taking an older one.", last.name)
        states[last.name] = resume(last)
    return {item.name: _with_replay(paths[item.name], item, states[item.name]) for item in subjects}


def _up_to_replay(folder: RunFolder, subject: Subject, paths: list[Path]) -> list[Path]:
    """Return the checkpoints, oldest first, up to the newest with a replay; all if there is no replay at all."""
    held = [path for path in paths if belongs_to(folder.behavior(subject.name), checkpoint.read_info(path))]
    if not subject.saves or not held or held[-1] == paths[-1]:
        return paths
    log.warning(
        "%s: the run ended while %s was being saved: it goes on from %s, to which the replay belongs.",
        subject.name, paths[-1].name, held[-1].name,
    )  # fmt: skip
    return paths[: paths.index(held[-1]) + 1]


def _iteration(state: JittedState) -> int:
    return int(np.asarray(state.iteration)[0])


def _with_replay(path: Path, subject: Subject, state: JittedState) -> JittedState:
    """Return the state of checkpoint `path` with the replay, which is a separate file."""
    arguments = path, subject.spec, subject.settings, subject.described()
    return with_stored(state, saver.resumed_store(stored(state), *arguments, saved=subject.saves))


def resumed(path: Path, subject: Subject, fresh: JittedState) -> JittedState:
    """Read the state in a checkpoint of the run, without the replay. Raises CheckpointError."""
    require_loop(path, compiled=True)
    _check_pool(path, subject)
    info = checkpoint.read_info(path)
    some, areas = "frozen" in info.leaves, info.settings.get(AREAS, subject.areas)
    wanted = contents(fresh, changing=subject.changing).replace(frozen=fresh.frozen if some else ())
    whole = isinstance(fresh.store, Pending) or isinstance(fresh.rivals, RivalState)
    anew = areas != subject.areas and not whole and moved_signals(info.settings, subject.described()) is None
    if anew:  # what has areas begins with new episodes
        wanted = wanted.replace(play=(), paid=())
    saved = checkpoint.restore(path, wanted, spec=subject.spec, settings=subject.described(), part=anew)
    log.info("%s: resuming from %s.", subject.name, path)
    if anew:
        log.info("%s: episodes begin anew, in %d areas instead of %d.", subject.name, subject.areas, areas)
        saved = saved.replace(play=fresh.play, paid=fresh.paid)
    saved = saved.replace(parameters=fresh.parameters, values=saved.values or fresh.values, newest=fresh.newest)
    saved = with_stored(saved.replace(recent=fresh.recent, last_step=fresh.last_step), stored(fresh))
    saved = saved.replace(frozen=saved.frozen if some else fresh.frozen)
    if len(subject.seeds) == 1:
        saved = saved.replace(train=for_all_seeds(saved.train, fresh.train))
    return saved


def _check_pool(path: Path, subject: Subject) -> None:
    """Raise CheckpointError if the self-play pool of a checkpoint has another form than this run's."""
    old, new = (_pool_of(written) for written in (checkpoint.read_info(path).settings, subject.described()))
    for key, value in new.items():
        if old.get(key, value) != value:
            raise CheckpointError(
                f"{path}: behaviors.{subject.name}.{key}: got {value}, and the pool in this checkpoint was made with "
                f"{old[key]}, which a compiled run keeps: set it back, or begin a new pool with this policy: "
                f"--initialize-from={path.absolute().parents[1].name} and another --run-id."
            )


def _pool_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by key, the settings that the arrays of a pool depend on."""
    game = settings.get("self_play")
    if game is None:
        return {"self_play": None}
    sampling = game.get("opponent_sampling", "uniform")
    exploiters = (game.get("league") or {}).get("exploiters", 0)
    return {
        "self_play": "on",
        "self_play.window": game["window"],
        "self_play.opponent_sampling": sampling,
        "self_play.league": f"{exploiters} exploiter(s)",
    }


def for_all_seeds(one: TrainState, like: TrainState) -> TrainState:
    """Repeat one train state for each seed of `like`."""
    return jax.tree.map(lambda x, every: jnp.broadcast_to(x, every.shape), one, like)
