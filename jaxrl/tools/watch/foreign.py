"""Plays one environment of Gymnasium or PettingZoo and keeps what it renders: the film of a run of the host loop.

The environment is stepped in this process, as in the host loop; each behavior's policy is one small compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from PIL import Image

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.arguments import keyword_arguments, take_switch
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.rendering import DrawingOptions, checked_picture
from jaxrl.envs.gymnasium import simulator as gymnasium
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.pettingzoo import simulator as pettingzoo
from jaxrl.jax_envs.interface import TeamView
from jaxrl.settings import load_run_settings
from jaxrl.training.acting import Act, Moment, memory_before, trained_actions, untrained_actions
from jaxrl.training.lessons import present_values, read_lessons
from jaxrl.training.trained_policy import load_trained
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, EnvMessage, ParameterValue

_FRAMES_PER_SECOND = 30.0
_DRAWN = DrawingOptions(film_every=1)
FRAMES = 400
"""Pictures that are kept at most, beside the ends of episodes: of a longer film every second, fourth and so on."""
LONGEST = 480
"""Pixels of the longer side of a kept picture."""


class Played(NamedTuple):
    """What was played."""

    behaviors: tuple[str, ...]
    origin: str  # whose policies
    steps: int
    shots: tuple[Shot, ...]  # at least one
    returns: tuple[tuple[float, ...], ...]  # of each episode, by behavior: the sum of its agents' own rewards
    frame_seconds: float  # for how long a picture stays


def play_foreign(
    address: str,
    run: Path | None,
    env_args: Sequence[str] | None,
    *,
    seed: int,
    episodes: int,
    steps: int,
    deterministic: bool,
) -> Played:
    """Play until `episodes` have ended, or `steps` steps.

    Environment parameters, and `env_args` unless some are given, are those of the run.

    Raises JaxrlError: it cannot be made, filmed or played with the policies of the run.
    """
    kind, name = parse_address(address)
    written, parameters = _settings_of(run)
    arguments = keyword_arguments(written if env_args is None else env_args)
    opened = _opener(kind, name or "", arguments)
    filmed: list[FilmedArea] = []

    def make_area(_: int) -> FilmedArea:
        filmed.append(FilmedArea(opened(), address))
        return filmed[0]

    env = ForeignEnvironment(worker=0, name=address, make_area=make_area, areas=1, seed=seed)
    players: dict[str, Player] = {}
    origins: dict[str, str] = {}
    try:
        area, make = filmed[0], partial(_player, run, jax.random.key(seed), deterministic)
        message = env.reset(parameters)
        _meet(message, players, origins, make)
        while area.ended < episodes and area.steps < steps:
            message = env.step({behavior: players[behavior].act(part) for behavior, part in message.steps.items()})
            _meet(message, players, origins, make)
    finally:
        env.close()
    last = episodes if area.ended >= episodes else len(area.returns)  # the next episode has begun by itself
    return Played(
        behaviors=tuple(map(behavior_name, players)),
        origin=", ".join(dict.fromkeys(origins.values())),
        steps=area.steps,
        shots=tuple(shot for shot in area.shots if shot.episode <= last),
        returns=tuple(area.returns[:last]),
        frame_seconds=area.stride / (area.frames_per_second or _FRAMES_PER_SECOND),
    )


def _opener(kind: Kind, name: str, arguments: dict[str, Any]) -> Callable[[], Area]:
    """What makes the copy, drawn. `team_reward` changes what is learned from, not what is played."""
    if kind is Kind.GYMNASIUM:
        return partial(gymnasium.open_area, name, arguments, _DRAWN)
    take_switch(arguments, "team_reward", False)
    teams = take_switch(arguments, "teams", True)
    return partial(pettingzoo.open_area, name, arguments, _DRAWN, teams=teams)


def _meet(
    message: EnvMessage,
    players: dict[str, Player],
    origins: dict[str, str],
    make: Callable[[str, BehaviorSpec, int], tuple[Player, str]],
) -> None:
    for behavior, spec in message.new_specs.items():
        players[behavior], origins[behavior] = make(behavior, spec, len(players))


def _settings_of(run: Path | None) -> tuple[tuple[str, ...], dict[str, ParameterValue]]:
    """env_args of a run, and environment parameters in its present lessons; one that was killed early has none."""
    folder = None if run is None else RunFolder(run.parent, run.name)
    if folder is None or not folder.configuration.is_file():
        return (), {}
    settings = load_run_settings(folder.configuration, {}, HYPERPARAMETER_TYPES, of_folder=True)
    lessons = read_lessons(folder.status)
    parameters = present_values(settings.environment_parameters, settings.env_settings.seed, lessons)
    return settings.env_settings.env_args or (), parameters


def _player(
    run: Path | None, key: Array, deterministic: bool, behavior: str, spec: BehaviorSpec, number: int
) -> tuple[Player, str]:
    """Who plays a behavior, and in words whose policy that is."""
    key = jax.random.fold_in(key, number)
    if run is None:
        return Player(spec, untrained_actions(spec.action), None, lambda rows: (), key), "random actions"
    trained = load_trained(run, spec, behavior=behavior_name(behavior), deterministic=deterministic)

    def memory(rows: int) -> Any:
        return memory_before(trained.algorithm, trained.policy, rows)

    return Player(spec, trained_actions(trained.algorithm), trained.policy, memory, key), trained.origin


class Shot(NamedTuple):
    """A picture and what led to it."""

    picture: Image.Image
    episode: int  # from 1
    clock: int  # steps in this episode
    earned: tuple[float, ...]  # in this episode so far, by behavior: the sum of its agents' own rewards
    ends: bool


class FilmedArea:
    """`area`, which it passes everything on to, and its pictures so far in `shots`.

    Raises EnvironmentFailure from `reset` and `step` where it renders no picture.
    """

    def __init__(self, area: Area, address: str) -> None:
        self.teams = area.teams
        self.frames_per_second = area.frames_per_second
        self.shots: list[Shot] = []
        self.stride = 1  # steps from one kept picture to the next
        self.returns: list[tuple[float, ...]] = []  # of each episode, by behavior; the last one may go on
        self.steps = 0
        self.ended = 0  # episodes
        self.spaces, self.behavior, self.render, self.close = area.spaces, area.behavior, area.render, area.close
        self._area = area
        self._address = address
        self._earned: dict[str, float] = {}
        self._clock = 0

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AreaOutcome:
        """Begin an episode."""
        outcome = self._area.reset(seed, options)
        self._earned = dict.fromkeys(dict.fromkeys(map(self.behavior, outcome.living)), 0.0)
        self._clock = 0
        self.returns.append(tuple(self._earned.values()))
        self._shoot(ends=False)
        return outcome

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """One step."""
        outcome = self._area.step(actions)
        self.steps, self._clock = self.steps + 1, self._clock + 1
        for agent, reward in outcome.reward.items():
            name = self.behavior(agent)
            self._earned[name] = self._earned.get(name, 0.0) + float(np.asarray(reward))
        self.returns[-1] = tuple(self._earned.values())
        self.ended += not outcome.living
        self._shoot(ends=not outcome.living)
        return outcome

    def _shoot(self, *, ends: bool) -> None:
        if self._clock % self.stride and not ends:
            return
        given = self._area.render()
        if given is None or isinstance(given, bool | np.bool_):
            raise EnvironmentFailure(
                f"{self._address}: its render gives {given} in place of a picture, so there is nothing to film; an "
                "environment that can be filmed offers render_mode rgb_array"
            )
        picture = Image.fromarray(checked_picture(given, self._address, "mend it, or watch another environment"))
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.BOX)
        self.shots.append(Shot(picture, len(self.returns), self._clock, self.returns[-1], ends))
        if sum(not shot.ends for shot in self.shots) > FRAMES:
            self.stride *= 2
            self.shots = [shot for shot in self.shots if shot.clock % self.stride == 0 or shot.ends]


class Player:
    """Decides for the agents of one behavior. Each has a row; the number of rows grows in powers of two.

    Args:
      act: compiled here.
      memory: rows → what `act` remembers before the first decision.
    """

    def __init__(self, spec: BehaviorSpec, act: Act, policy: Any, memory: Callable[[int], Any], key: Array) -> None:
        self._spec, self._policy, self._make_memory, self._key = spec, policy, memory, key
        self._act = jax.jit(act)
        self._rows: dict[int, int] = {}  # by agent id
        self._size = 0
        self._memory: Any = ()
        self._turns = 0

    def act(self, message: BehaviorMessage) -> Action:
        """Actions for those who ask, in their order; those who ended are forgotten."""
        ended, asking = message.ended, message.deciding
        known = [*zip(ended.agent_id, ended.reward, ended.group_reward, strict=True)]
        known += [*zip(asking.agent_id, asking.reward, asking.group_reward, strict=True)]
        paid = {self._rows[int(who)]: pay for who, *pay in known if int(who) in self._rows}
        for who in ended.agent_id:
            self._rows.pop(int(who), None)
        new = [int(who) for who in asking.agent_id if int(who) not in self._rows]
        self._grow(len(self._rows) + len(new))
        free = sorted(set(range(self._size)) - set(self._rows.values()))
        self._rows |= dict(zip(new, free, strict=False))
        rows = np.array([self._rows[int(who)] for who in asking.agent_id], int)
        begin, decided, reward = (np.zeros(shape, kind) for shape, kind in self._blanks())
        begin[[self._rows[who] for who in new]] = True
        for row, pay in paid.items():
            decided[row], reward[row] = True, pay
        key = jax.random.fold_in(self._key, self._turns)
        self._turns += 1
        moment = Moment(self._view(asking, rows), jnp.asarray(begin), jnp.asarray(decided), jnp.asarray(reward))
        actions, self._memory = self._act(self._policy, self._memory, moment, key)
        return Action(continuous=np.asarray(actions.continuous)[rows], discrete=np.asarray(actions.discrete)[rows])

    def _blanks(self) -> tuple[tuple[Any, Any], ...]:
        return ((self._size, bool), (self._size, bool), ((self._size, 2), np.float32))

    def _view(self, asking: Any, rows: np.ndarray) -> TeamView:
        obs = []
        for sensor, seen in zip(self._spec.observations, asking.obs, strict=True):
            table = np.zeros((self._size, *sensor.shape), sensor.dtype)
            table[rows] = seen
            obs.append(jnp.asarray(table))
        mask = np.ones((self._size, self._spec.action.mask_size), bool)
        mask[rows] = asking.action_mask
        alive = np.zeros(self._size, bool)
        alive[rows] = True
        return TeamView(tuple(obs), jnp.asarray(mask), jnp.asarray(alive))

    def _grow(self, wanted: int) -> None:
        """Room for `wanted` rows; those that are there keep what is remembered of them."""
        if wanted <= self._size:
            return
        before, self._size = self._size, 1 << (wanted - 1).bit_length()
        fresh = self._make_memory(self._size)
        if before:  # arrays without a row for each agent, such as statistics, have kept their shape

            def keep(old: Array, new: Array) -> Array:
                return old if old.shape == new.shape else new.at[: len(old)].set(old)

            fresh = jax.tree.map(keep, self._memory, fresh)
        self._memory = fresh
