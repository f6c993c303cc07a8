"""Records demonstrations of a trained policy: it plays an environment as the host loop does, and its pairs are kept."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl import trust as trusted
from jaxrl.artifacts.run_folder import behavior_name
from jaxrl.artifacts.zoo import run_path
from jaxrl.demonstrations import Pair, write
from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.behavior_names import NamedEnvironment
from jaxrl.envs.interface import HostEnv
from jaxrl.rollout.following.fair_share import FairShare
from jaxrl.settings import EnvironmentSettings, RunSettings
from jaxrl.training.player import Players, names_of_run, settings_of_run
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, EnvMessage, JaxrlError, ParameterValue


class Recorded(NamedTuple):
    """Contents of a file; lists have one entry per episode, in its order."""

    behavior: str
    origin: str  # source of the actions, in words
    returns: list[float]  # of its agent: own rewards and the group's
    lengths: list[int]  # decisions


def record(
    run: str | Path,
    env: str,
    out: str | Path,
    *,
    behavior: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    deterministic: bool = True,
    steps: int = 10_000,
    env_args: Sequence[str] | None = None,
    force: bool = False,
    trust: bool = False,
) -> Recorded:
    """Write a trained policy's observations, actions and rewards, in whole episodes of single agents.

    Every place in the environment, such as an area, plays its share of the episodes.

    Args:
      run: results folder, or `zoo:NAME`.
      env: as `--env` of `jaxrl train`; `jax:NAME` is played as `player:NAME`.
      out: the file, `*.demo`.
      behavior: name of the recorded one, where several play; None: the only one.
      seed: of the environment and of sampled actions.
      deterministic: the mean or most likely actions; False: as in the run's settings, usually a sample.
      steps: decisions after which an episode counts as endless.
      env_args: as in `jaxrl train`.
      force: replace an existing file.
      trust: import code that the folder of the run names.

    Raises:
      JaxrlError: the file exists, has another ending, or an episode does not end.
      JaxrlError: the run or the environment cannot be used. An existing file stays.
    """
    out, folder = Path(out), run_path(run).absolute()
    if out.suffix != ".demo":
        raise JaxrlError(f"{out}: a demonstration is a .demo file, which Unity and jaxrl know by its ending")
    if out.exists() and not force:
        raise JaxrlError(f"{out} is there already: --force writes another in its place")
    if episodes < 1 or steps < 1:
        raise JaxrlError(f"episodes = {episodes}, steps = {steps}: expected at least one of each")
    if trust:
        trusted.accept(folder)
    trusted.ours(env)
    written, parameters = settings_of_run(folder)
    with tempfile.TemporaryDirectory(prefix="jaxrl-record-") as logs:
        host = _environment(env, seed, written if env_args is None else env_args, logs)
        host = NamedEnvironment(host, names_of_run(folder))
        try:
            players = Players(folder, seed, deterministic)
            return _Recording(host, players, parameters, steps).write(out, behavior, episodes)
        finally:
            host.close()


def _environment(env: str, seed: int, env_args: Sequence[str], logs: str) -> HostEnv:
    """Return the environment as the first worker of a run has it. Raises JaxrlError."""
    kind, name = parse_address(env)
    if kind.compiled and kind not in (Kind.JAX, Kind.FUNCTION):
        raise JaxrlError(f"{env}: is only played in a training; record jax:NAME, gymnasium:ID or a Unity build")
    options = EnvironmentSettings(env_path=env, seed=seed, env_args=tuple(env_args) or None)
    module = simulator(Kind.PLAYER if kind.compiled else kind)
    return module.make_factory(name, RunSettings(env_settings=options), logs)(0)


class _Recording:
    """Plays all behaviors, and keeps each decision of one behavior's episodes that count."""

    def __init__(self, env: HostEnv, players: Players, parameters: Mapping[str, ParameterValue], steps: int) -> None:
        self._env, self._players, self._steps = env, players, steps
        self._specs: dict[str, BehaviorSpec] = {}
        self._numbers: dict[int, int] = {}  # running episode by agent
        self._running: dict[int, list[Pair]] = {}  # of episodes that count
        self._begun = itertools.count()
        self._message = self._meet(env.reset(parameters))

    def write(self, out: Path, behavior: str | None, episodes: int) -> Recorded:
        """Play until so many episodes of the behavior are in the file."""
        names = sorted(set(map(behavior_name, self._specs)))
        name = names[0] if behavior is None and len(names) == 1 else behavior
        if name not in names:
            got = "none is named" if name is None else f"{name} is none of them"
            raise JaxrlError(f"the environment has the behaviors {', '.join(names)}, and {got}: say which to record")
        rewards: list[list[float]] = []
        ids = [id_ for id_ in self._specs if behavior_name(id_) == name]

        def pairs() -> Iterator[Pair]:
            for episode in self._played(name, FairShare[int](episodes)):
                rewards.append([pair.reward + pair.group_reward for pair in episode[1:]])
                yield from episode

        write(out, name, self._specs[ids[0]], pairs())
        return Recorded(name, self._players.origins[ids[0]], [sum(x) for x in rewards], [len(x) for x in rewards])

    def _meet(self, message: EnvMessage) -> EnvMessage:
        """Make players for the behaviors of the message and return it. Raises as `Players.meet`."""
        self._players.meet(message)
        self._specs |= message.new_specs
        return message

    def _of(self, name: str) -> list[tuple[str, BehaviorMessage]]:
        return [(id_, part) for id_, part in self._message.steps.items() if behavior_name(id_) == name]

    def _played(self, name: str, share: FairShare[int]) -> Iterator[list[Pair]]:
        """Yield episodes that count, each as soon as that is certain. Raises JaxrlError where one does not begin."""
        ended: dict[int, list[Pair]] = {}
        idle = 0
        while True:
            ended |= self._ended(name, share)
            for number in [number for number in ended if share.is_certain(number)]:
                yield ended.pop(number)
            if share.complete:
                return
            self._act(name, share)
            idle = 0 if share.running else idle + 1
            if idle > self._steps:
                raise JaxrlError(f"{name}: no other episode has begun in {self._steps:,} steps; ask for fewer")

    def _ended(self, name: str, share: FairShare[int]) -> dict[int, list[Pair]]:
        """Return episodes that count and ended with the message, by number, with their last pair."""
        episodes = {}
        for _, part in self._of(name):
            ended = part.ended
            for row, who in enumerate(map(int, ended.agent_id)):
                number = self._numbers.pop(who, None)
                if number is not None:
                    share.end(number)
                if number is not None and who in self._running:
                    seen = tuple(x[row] for x in ended.obs)
                    earned = float(ended.reward[row]), float(ended.group_reward[row])
                    last = Pair(seen, (), (), *earned, done=True, interrupted=bool(ended.truncated[row]))
                    episodes[number] = [*self._running.pop(who), last]
        return episodes

    def _act(self, name: str, share: FairShare[int]) -> None:
        """Decide, note the decisions, and step."""
        actions = self._players.act(self._message)
        for id_, part in self._of(name):
            self._note(part, actions[id_], share)
        self._message = self._meet(self._env.step(actions))

    def _note(self, part: BehaviorMessage, action: Action, share: FairShare[int]) -> None:
        asking = part.deciding
        for row, who in enumerate(map(int, asking.agent_id)):
            if who not in self._numbers:
                number = self._numbers[who] = next(self._begun)
                if share.begin(number, who):
                    self._running[who] = []
            if who not in self._running:
                continue
            seen = tuple(np.array(x[row]) for x in asking.obs)
            earned = float(asking.reward[row]), float(asking.group_reward[row])
            pairs = self._running[who]
            pairs.append(Pair(seen, action.continuous[row], action.discrete[row], *earned))
            if len(pairs) > self._steps:
                raise JaxrlError(f"an episode has not ended after {self._steps:,} decisions; `steps` says how many")
