"""Plays one environment of Gymnasium or PettingZoo and keeps what it renders: the film of a run of the host loop.

The environment is stepped in this process, as in the host loop; each behavior's policy is one small compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import Array

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.area import Area
from jaxrl.envs.foreign.arguments import keyword_arguments, take_switch
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.rendering import DrawingOptions
from jaxrl.envs.gymnasium import simulator as gymnasium
from jaxrl.envs.pettingzoo import simulator as pettingzoo
from jaxrl.settings import load_run_settings
from jaxrl.tools.watch.acting import untrained_actions
from jaxrl.tools.watch.filmed_area import FilmedArea, Shot
from jaxrl.tools.watch.player import Player
from jaxrl.training.acting import memory_before, trained_actions
from jaxrl.training.lessons import present_values, read_lessons
from jaxrl.training.trained_policy import load_trained
from jaxrl.types import BehaviorSpec, EnvMessage, ParameterValue

_FRAMES_PER_SECOND = 30.0
_DRAWN = DrawingOptions(film_every=1)


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
