"""Reads the words of the command line as players of an environment.

RUN             the newest policy of a results folder, or zoo:NAME
RUN@STEP        that of one of its checkpoints
RUN@pool        those of its self-play pool and the newest; RUN@checkpoints: of all its checkpoints
FILE.onnx       a model that Unity runs, of anybody's
random          random allowed actions
FILE.py:NAME    or module:NAME, a scripted player: a function of the observations of each sensor (JAX arrays with
                any leading axes) that gives the actions [..., size], or several by behavior
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl import own_code
from jaxrl.algorithms.interface import PolicyState
from jaxrl.artifacts.checkpoint import earlier
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.artifacts.checkpoint.mismatch import spec_differences
from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.artifacts.checkpoint.store import CheckpointInfo
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.zoo import PREFIX, run_path
from jaxrl.jax_envs.interface import TeamActions
from jaxrl.jax_envs.scene import Sizes
from jaxrl.settings.teams import check_places
from jaxrl.tools.tournament.matches import Player
from jaxrl.tools.watch.film import Role
from jaxrl.tools.watch.painter import spread
from jaxrl.training.acting import Act, Moment, memory_before, trained_actions, untrained_actions
from jaxrl.training.file_policy import is_model, load_policy
from jaxrl.training.trained_policy import Trained, best_seed, load_trained
from jaxrl.types import JaxrlError

RANDOM, POOL, CHECKPOINTS = "random", "pool", "checkpoints"
EARLIER = "earlier"
"""The pool, or the checkpoints where there is no pool."""
_ROWS, _SAVES, _RATING = "rivals/pool/", "rivals/saves", "rivals/rating"


class Word(NamedTuple):
    """A word of the command line: `which` of the policies of a `run`, or a player without a run."""

    text: str
    run: Path | None = None  # a results folder
    which: str = ""  # "", a step, POOL, CHECKPOINTS or EARLIER
    label: str = ""  # of the run, the first part of its players' names
    model: Path | None = None  # an ONNX file


def read(texts: Sequence[str]) -> list[Word]:
    """Return the words of a command line; a run alone stands for its earlier policies.

    Raises JaxrlError for a policy that is not in the zoo.
    """
    words = [_read(text) for text in texts]
    names = [run.resolve().name for run in {word.run for word in words if word.run is not None}]
    words = [
        word._replace(label=str(word.run) if names.count(word.run.resolve().name) > 1 else word.run.resolve().name)
        if word.run is not None
        else word
        for word in words
    ]
    alone = len(words) == 1 and words[0].run is not None and not words[0].which
    return [words[0]._replace(which=EARLIER)] if alone else words


def _read(text: str) -> Word:
    if is_model(text):
        return Word(text, model=Path(text))
    if text == RANDOM or (own_code.split_address(text) is not None and not text.startswith(PREFIX)):
        return Word(text)
    place, at, which = text.rpartition("@")
    if at and not Path(text).exists() and (which in (POOL, CHECKPOINTS) or which.isdecimal()):
        return Word(text, run_path(place), which)
    return Word(text, run_path(text))


class Earlier(NamedTuple):
    """An earlier policy of a run."""

    name: str  # within its run
    policy: PolicyState


class Entry:
    """Makes players of words; players of equal settings share compiled programs.

    Args:
      parts: behaviors of the environment.
      where: its address, for messages.
      most: number of a run's earlier policies, evenly spread; its newest is always there.
      deterministic: the mean or most likely action instead of a sample.
    """

    def __init__(self, parts: Sequence[Sizes], where: str, *, most: int, deterministic: bool) -> None:
        self._parts = parts
        self._where, self._most, self._deterministic = where, most, deterministic
        self._acts: dict[str, Act] = {}  # by settings

    def players(self, word: Word) -> list[Player]:
        """Return the players of a word, oldest first.

        Raises JaxrlError for a run with other observations or actions than the environment, and for a run, checkpoint
        or function that cannot be used.
        """
        if word.run is not None:
            return self._of_run(word, word.run)
        if word.model is not None:
            return [self._of_model(word.model)]
        if word.text == RANDOM:
            return [Player(RANDOM, {part.name: Role(self._random(part), None, ()) for part in self._parts})]
        function = own_code.load(word.text, where="tournament: ")
        name = word.text.rpartition(":")[2]
        return [Player(name, {part.name: self._scripted(part, word, function) for part in self._parts})]

    def _of_model(self, model: Path) -> Player:
        """Return the player of a model. Raises JaxrlError where there are several behaviors to play."""
        part, *others = self._parts
        if others:
            names = ", ".join(part.name for part in self._parts)
            raise JaxrlError(
                f"{model}: one model plays one behavior, and {self._where} has {names}: name a run instead"
            )

        trained = load_policy(model, part.spec, behavior=part.name, deterministic=self._deterministic)
        return Player(model.stem, {part.name: self._role(part, trained, trained.policy, str(model))})

    def _of_run(self, word: Word, run: Path) -> list[Player]:
        step = int(word.which) if word.which.isdecimal() else None
        newest = {part.name: self._newest(part, run, step) for part in self._parts}
        last = self._player(word.label, newest, {name: trained.policy for name, trained in newest.items()})
        if word.which not in (POOL, CHECKPOINTS, EARLIER):
            return [last if step is None else last._replace(name=f"{word.label}@{step}")]
        pools = {name: self._earlier(word, run, trained) for name, trained in newest.items()}
        count = min(map(len, pools.values()))  # behaviors save at other steps: they are matched from the newest on
        players = []
        for together in zip(*(policies[len(policies) - count :] for policies in pools.values()), strict=True):
            policies = {name: saved.policy for name, saved in zip(pools, together, strict=True)}
            players.append(self._player(f"{word.label}@{together[0].name}", newest, policies))
        return [*spread(players, self._most), last]

    def _earlier(self, word: Word, run: Path, newest: Trained) -> list[Earlier]:
        pool = [] if word.which == CHECKPOINTS else of_pool(run, newest)
        if word.which == POOL and not pool:
            raise JaxrlError(
                f"{word.text}: {newest.behavior} was trained without self_play, and has no pool: {run}@{CHECKPOINTS} "
                "takes its checkpoints"
            )
        return pool or of_checkpoints(run, newest)[:-1]  # the last of them is the newest

    def _player(self, name: str, of: Mapping[str, Trained], policies: Mapping[str, PolicyState]) -> Player:
        return Player(name, {part.name: self._role(part, of[part.name], policies[part.name]) for part in self._parts})

    def _newest(self, part: Sizes, run: Path, step: int | None) -> Trained:
        """Return the newest policy. Raises JaxrlError if the run was trained with other observations or actions."""
        folder = RunFolder(run.parent, run.name).behavior(part.name)
        if folder.is_dir():
            noted = checkpoint.read_info(checkpoint.require_latest(folder)).spec
            changes = spec_differences(noted, spec_to_json(part.spec), ("there", "here")) if noted else []
            if changes:
                raise JaxrlError(
                    f"{run}: was trained with other observations or actions of {part.name} than {self._where} has "
                    f"({'; '.join(changes)}): leave it out, or name another environment with --env"
                )
        known = {"behavior": part.name, "checkpoint_at": step, "deterministic": self._deterministic}
        trained = load_trained(run, part.spec, **known)
        check_places(part.name, trained.algorithm.places, part.members)
        return trained

    def _role(self, part: Sizes, trained: Trained, policy: PolicyState, model: str = "") -> Role:
        act = self._acts.setdefault(repr((part.name, trained.settings, model)), trained_actions(trained.algorithm))
        return Role(act, policy, memory_before(trained.algorithm, policy, part.teams * part.members))

    def _random(self, part: Sizes) -> Act:
        return self._acts.setdefault(repr((part.name, RANDOM)), untrained_actions(part.spec.action))

    def _scripted(self, part: Sizes, word: Word, found: Any) -> Role:
        function = found.get(part.name) if isinstance(found, Mapping) else found
        if not callable(function):
            what = f"has nobody who plays {part.name}" if isinstance(found, Mapping) else f"is {found!r:.60}"
            raise JaxrlError(
                f"{word.text}: {what}, expected a function of the observations, or a mapping of such by behavior "
                f"({', '.join(part.name for part in self._parts)})"
            )
        act = self._acts.setdefault(repr((part.name, word.text)), scripted_actions(part, function))
        return Role(act, None, ())


def scripted_actions(part: Sizes, function: Callable[..., Any]) -> Act:
    """Return the decisions of a function of the observations of each sensor, [A, *shape] each, for all A members.

    It gives actions [A, C] where the behavior has C continuous ones, [A, B] of its B branches, or both as a pair.
    """
    action = part.spec.action
    branches = len(action.discrete_branches)

    def act(policy: None, memory: Any, moment: Moment, key: Any) -> tuple[TeamActions, Any]:
        actions = function(*moment.view.obs)
        members = moment.view.alive.shape
        both = action.continuous_size > 0 and branches > 0
        continuous, discrete = actions if both else (actions, actions)
        sent = TeamActions(
            jnp.asarray(continuous, jnp.float32) if action.continuous_size else jnp.zeros((*members, 0)),
            jnp.asarray(discrete, jnp.int32) if branches else jnp.zeros((*members, 0), jnp.int32),
        )
        wanted = (*members, action.continuous_size), (*members, branches)
        got = sent.continuous.shape, sent.discrete.shape
        if got != wanted:
            raise JaxrlError(
                f"{getattr(function, '__name__', function)}: gives actions of the shapes {got}, expected {wanted} "
                f"(continuous, discrete) of {part.name}"
            )
        return sent, memory

    return act


def of_checkpoints(run: Path, newest: Trained) -> list[Earlier]:
    """Return the policies of all checkpoints, oldest first. Raises as `load_trained`."""
    folder = RunFolder(run.parent, run.name).behavior(newest.behavior)
    steps = sorted(item.step for item in checkpoints(folder))

    def loaded(step: int) -> PolicyState:
        return load_trained(run, newest.spec, behavior=newest.behavior, checkpoint_at=step).policy

    return [Earlier(str(step), loaded(step)) for step in steps]


def of_pool(run: Path, newest: Trained) -> list[Earlier]:
    """Return the snapshots of the self-play pool in the newest checkpoint, oldest first; none where there is no pool.

    Raises CheckpointError for a missing or damaged snapshot.
    """
    folder = RunFolder(run.parent, run.name)
    path = checkpoint.require_latest(folder.behavior(newest.behavior))
    info = checkpoint.read_info(path)
    state = info.settings.get(SELF_PLAY)
    if state is not None:
        snapshots = sorted(state["snapshots"], key=lambda each: each["step"])
        place = folder.behavior(newest.behavior)
        return [Earlier(str(row["step"]), earlier.read(place, row["weights"], newest.policy)) for row in snapshots]
    return list(_compiled_pool(path, info, folder, newest)) if _SAVES in info.leaves else []


def _compiled_pool(path: Path, info: CheckpointInfo, folder: RunFolder, newest: Trained) -> Iterator[Earlier]:
    """Yield the snapshots of the compiled loop, whose pool is an array with the axes seed and row.

    Raises CheckpointError for a pool of other policies.
    """
    wanted, seed = trees.leaves_of(newest.policy), best_seed(folder, info)
    shapes = {name: leaf["shape"] for name, leaf in info.leaves.items()}
    rows = {p.removeprefix(_ROWS): leaf for p, leaf in info.leaves.items() if p.startswith(_ROWS)}
    size = shapes.get(_RATING, [])
    unfit = trees.leaf_mismatches({name: {**leaf, "shape": leaf["shape"][2:]} for name, leaf in rows.items()}, wanted)
    places = {tuple(leaf["shape"][:2]) for leaf in rows.values()}
    if len(size) != 2 or shapes[_SAVES] != size[:1] or places - {(size[0], size[1] - 1)}:
        unfit.append(f"{size} ratings of {shapes[_SAVES]} pools")
    if unfit or not seed < size[0]:
        raise checkpoint.CheckpointError(f"{path}: the pool in it is not one of this policy ({'; '.join(unfit[:3])})")
    values = checkpoint.read_arrays(path, [_SAVES, *(_ROWS + name for name in rows)])
    window, saves = size[1] - 1, int(values[_SAVES][seed])
    for number in range(max(saves - window, 0), saves):
        arrays = {name: values[_ROWS + name][seed, number % window] for name in rows if _ROWS + name in values}
        yield Earlier(f"snapshot{number}", trees.rebuild(newest.policy, arrays, wanted))
