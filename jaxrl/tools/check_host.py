"""Checks an environment that the host loop steps: `jaxrl check-env` with Gymnasium, PettingZoo, RLlib, Unity.

Two workers play at random. Where a reset takes a seed, both have one seed and act alike, so they must see the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts.names import RunFolderError, behavior_name
from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.inspected import NOTES, ORDER, inspected_factory
from jaxrl.envs.foreign.masks import closed_branches
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity.ports import free_port, port_problem
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import EnvironmentSettings, NetworkSettings, RunSettings
from jaxrl.training.teams import CancellingRewards
from jaxrl.types import Action, BehaviorSpec, EnvMessage, ObservationSpec

_WORKERS = 2
FOREIGN = (Kind.GYMNASIUM, Kind.PETTINGZOO, Kind.RLLIB)


class HostFindings(NamedTuple):
    """Sentences about an environment."""

    problems: list[str]  # bad data of agents, or the failure of the environment
    remarks: list[str]  # may be intended, but seldom are
    behaviors: tuple[str, ...]  # ids, in words
    episodes: int  # of agents, that have ended


def check_host(
    address: str,
    env_args: Sequence[str] | None = None,
    *,
    areas: int = 2,
    steps: int = 200,
    seed: int = 0,
    inline: bool = False,
) -> HostFindings:
    """Play `steps` steps of an environment in two workers, in processes of their own unless they are `inline`.

    Raises JaxrlError where there is no such environment.
    """
    kind, name = parse_address(address)
    simulator(kind).check(name)
    logs = tempfile.mkdtemp(prefix="jaxrl-check-")
    play = _Play(simulator(kind).reseeds, placed=kind is Kind.RLLIB)
    try:
        written = {"env_path": address, "env_args": tuple(env_args or ()), "num_areas": areas, "seed": seed}
        options = EnvironmentSettings(num_envs=_WORKERS, base_port=_free_ports(), **written)
        if kind in FOREIGN:
            placed = _WORKERS if kind is Kind.RLLIB else None
            factory: EnvFactory = inspected_factory(address, env_args, areas, options.timeout_wait, placed)
        else:
            factory = simulator(kind).make_factory(name, RunSettings(env_settings=options), logs)
        wait = options.timeout_wait
        with EnvPool(factory, _WORKERS, timeout=wait + 10.0, startup_timeout=wait + 60.0, inline=inline) as pool:
            play.all(pool, steps, seed)
    except EnvironmentFailure as error:
        play.problems[str(error)] = None
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    return HostFindings(list(play.problems), [*play.remarks, *play.at_the_end(steps, areas)], play.known, play.episodes)


def _free_ports() -> int:
    """Return a port that is free, with free ports after it for the other workers."""
    first = free_port()
    while first > 65_000 or any(port_problem(first + number) for number in range(1, _WORKERS)):
        first = free_port()
    return first


class _Play:
    """Steps workers and gathers problems. `seeded`: a reset takes a seed. `placed`: copies know their worker."""

    def __init__(self, seeded: bool, placed: bool) -> None:
        self._placed = placed
        self.problems: dict[str, None] = {}
        self.remarks: dict[str, None] = {}
        self.episodes = 0
        self._seeded = seeded
        self._specs: dict[str, BehaviorSpec] = {}
        self._teams = CancellingRewards()
        self._comparing = seeded

    @property
    def known(self) -> tuple[str, ...]:
        """Behavior ids with the size of their observations and actions."""
        return tuple(f"{name}: {_words(spec)}" for name, spec in self._specs.items())

    def all(self, pool: EnvPool, steps: int, seed: int) -> None:
        """Play. Raises EnvironmentFailure."""
        randoms = [np.random.default_rng(seed) for _ in range(_WORKERS)]
        pool.reset(None, [seed] * _WORKERS if self._seeded else None)
        for number in range(steps):
            results = pool.recv(_WORKERS)
            self._compare(results, number)
            for result in results:
                self._look(result)
                pool.send(result.worker, self._actions(result, randoms[result.worker]))

    def at_the_end(self, steps: int, areas: int) -> Iterator[str]:
        """Yield problems that only the whole play shows."""
        yield from self._images()
        if not self._specs and not self.problems:
            yield f"no agent has asked for a decision in {steps} steps"
        elif not self.episodes and not self.problems:
            yield (
                f"no episode has ended in {steps} steps of {areas * _WORKERS} copies: if none ever does, end them by a "
                "limit (truncated), or there are no returns to show"
            )

    def _images(self) -> Iterator[str]:
        """Name images that the usual encoder does not read."""
        for name, spec in self._specs.items():
            for sensor in spec.observations:
                if len(sensor.shape) == 3:
                    from jaxrl.networks.visual import visual_problem  # which imports JAX

                    text = visual_problem(sensor, NetworkSettings())
                    if text:
                        yield f"{name}: observation {sensor.name!r}, {_size(sensor)}, {text}"

    def _look(self, result: EnvMessage) -> None:
        self._specs |= result.new_specs
        for name in result.new_specs:
            try:
                behavior_name(name)
            except RunFolderError as error:
                self.problems[str(error)] = None
        for fault in result.faults:
            self.problems[fault.why] = None
        for name, steps in result.steps.items():
            self.episodes += len(steps.ended.agent_id)
            branches = self._specs[name].action.discrete_branches
            closed = {branch for mask in steps.deciding.action_mask for branch in closed_branches(branches, mask)}
            for branch in closed:
                self.problems[f"{name}: action_mask forbids every choice of branch {branch}: leave one allowed"] = None
            both = zip(*((part.group_id, part.reward) for part in (steps.ended, steps.deciding)), strict=True)
            text = self._teams.see(name, "an algorithm for teams (poca, coma)", *map(np.concatenate, both))
            if text:
                self.remarks[text] = None
        for infos in result.infos.values():
            self.remarks |= dict.fromkeys(infos.get(NOTES, ()))

    def _compare(self, results: Sequence[EnvMessage], number: int) -> None:
        """Name the first difference between workers that had the same seed and acted alike."""
        if not self._comparing:
            return
        first, second = results
        text = _other_order(first, second)
        if not text and not _equal(first, second):
            text = (
                f"two processes with one seed and the same actions differ after {number} steps: draw all that is "
                "random from the seed of reset (self.np_random in Gymnasium), or a run does not repeat"
                f"{', unless they differ by worker_index alone' if self._placed else ''}"
            )
        if text:
            self._comparing = False
            self.remarks[text] = None

    def _actions(self, result: EnvMessage, random: np.random.Generator) -> dict[str, Action]:
        return {
            name: _random_actions(self._specs[name], steps.deciding, random) for name, steps in result.steps.items()
        }


def _random_actions(spec: BehaviorSpec, deciding: Any, random: np.random.Generator) -> Action:
    """Return random allowed actions, any where none is allowed."""
    count, action = len(deciding.agent_id), spec.action
    discrete, start = np.zeros((count, len(action.discrete_branches)), np.int32), 0
    for branch, size in enumerate(action.discrete_branches):
        allowed = deciding.action_mask[:, start : start + size]
        chance = random.random((count, size)) + allowed
        discrete[:, branch], start = np.argmax(chance, axis=1), start + size
    continuous = random.uniform(-1.0, 1.0, (count, action.continuous_size)).astype(np.float32)
    return Action(continuous=continuous, discrete=discrete)


def _other_order(first: EnvMessage, second: EnvMessage) -> str:
    """Say that the same agents have come in another order, or nothing."""
    for area, infos in first.infos.items():
        ids, other = (infos.get(ORDER) or [], second.infos.get(area, {}).get(ORDER) or [])
        if ids != other and sorted(ids) == sorted(other):
            return (
                f"agents come in another order in another process ({', '.join(ids)} and {', '.join(other)}): keep them "
                "in a list or dictionary, not in a set, or a run does not repeat"
            )
    return ""


def _equal(first: EnvMessage, second: EnvMessage) -> bool:
    if first.steps.keys() != second.steps.keys():
        return False
    for name, one in first.steps.items():
        other = second.steps[name]
        for part in ("ended", "deciding"):
            ours, theirs = getattr(one, part), getattr(other, part)
            arrays = [(ours.reward, theirs.reward), (ours.group_reward, theirs.group_reward)]
            arrays += [(ours.agent_id, theirs.agent_id), *zip(ours.obs, theirs.obs, strict=True)]
            if any(not np.array_equal(a, b) for a, b in arrays):
                return False
    return True


def _words(spec: BehaviorSpec) -> str:
    sensors = ", ".join(f"{sensor.name} {_size(sensor)}" for sensor in spec.observations)
    branches = ", ".join(map(str, spec.action.discrete_branches))
    does = [f"{spec.action.continuous_size} continuous"] if spec.action.continuous_size else []
    does += [f"branches of {branches}"] if branches else []
    return f"sees {sensors}; does {' and '.join(does)}"


def _size(sensor: ObservationSpec) -> str:
    return "x".join(map(str, sensor.shape))
