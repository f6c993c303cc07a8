"""Environments that cost next to nothing, of any number of agents, teams, behaviors and numbers; and a host loop there.

Everybody asks with every step, is paid 1 and ends together with all others: what is measured around them is jaxrl's.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import (
    NO_GROUP,
    Action,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    EnvMessage,
    ObservationSpec,
    ParameterValue,
    TerminalSteps,
)


class Crowd(NamedTuple):
    """What one environment holds."""

    agents: int = 16  # of each behavior
    team: int = 1  # so many of them are a team; 1: nobody has a mate
    behaviors: int = 1
    numbers: int = 8  # that an agent sees
    episode: int = 64  # decisions
    alike: bool = True  # whether all behaviors see as many numbers, or each one more than the one before
    tells: bool = True  # of endings; False: who has ended is not heard of again
    delay: float = 0.0  # seconds that a step takes at most, each another time, without the processor: as a game does

    def spec(self, behavior: int = 0) -> BehaviorSpec:
        """Of a behavior."""
        numbers = self.numbers + (0 if self.alike else behavior)
        return BehaviorSpec((ObservationSpec("numbers", (numbers,)),), ActionSpec(0, (2,)))

    def names(self) -> list[str]:
        """Of the behaviors."""
        return [f"Crowd{i}" for i in range(self.behaviors)]


class CrowdEnv:
    """The environment of a worker, in numpy."""

    about = ""

    def __init__(self, crowd: Crowd, worker: int) -> None:
        self._crowd, self._worker, self._clock, self._told = crowd, worker, 0, False
        rng, agents = np.random.default_rng(worker), crowd.agents
        self._luck = random.Random(worker)
        specs = [crowd.spec(i) for i in range(crowd.behaviors)]
        self._specs = {f"{name}?team=0": spec for name, spec in zip(crowd.names(), specs, strict=True)}
        self._obs = {
            name: rng.normal(size=(2, agents, *spec.observations[0].shape)).astype(np.float32)
            for name, spec in self._specs.items()
        }
        self._mask, self._zero = np.ones((agents, 2), bool), np.zeros(agents, np.float32)
        lone = np.full(agents, NO_GROUP, np.int64)
        self._group = lone if crowd.team == 1 else np.arange(agents, dtype=np.int64) // crowd.team + 1

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        """The first observations."""
        self._clock = 0
        return self._message(ended=False)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """One decision of everybody."""
        self._clock += 1
        if self._crowd.delay:
            time.sleep(self._crowd.delay * self._luck.random())
        return self._message(ended=self._clock % self._crowd.episode == 0)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is open."""

    def _message(self, *, ended: bool) -> EnvMessage:
        steps = {name: self._behavior(name, ended) for name in self._specs}
        specs, self._told = {} if self._told else self._specs, True
        return EnvMessage(self._worker, steps, specs, (), 0.0)

    def _behavior(self, name: str, ended: bool) -> BehaviorMessage:
        agents, obs = self._crowd.agents, self._obs[name][self._clock % 2]
        episode, paid = self._clock // self._crowd.episode, self._zero + 1
        ids, n = np.arange(agents, dtype=np.int64) + episode * agents, agents if ended and self._crowd.tells else 0
        own, shared = (paid, self._zero) if self._crowd.team == 1 else (self._zero, paid)
        group = self._group + (0 if self._crowd.team == 1 else episode * agents)
        over = TerminalSteps(
            agent_id=ids[:n] - agents,
            group_id=(group - (0 if self._crowd.team == 1 else agents))[:n],
            reward=own[:n],
            group_reward=shared[:n],
            truncated=np.zeros(n, bool),
            obs=(obs[:n],),
        )
        return BehaviorMessage(over, DecisionSteps(ids, group, own, shared, self._mask, (obs,)))


def make(crowd: Crowd, worker: int) -> CrowdEnv:
    """A worker's environment."""
    return CrowdEnv(crowd, worker)


@contextmanager
def host_loop(
    crowd: Crowd,
    settings: Mapping[str, Any],
    *,
    workers: int = 1,
    inline: bool = True,
    mode: str = "lockstep",
    inference: bool = False,
) -> Iterator[Any]:
    """A host loop over such workers, with these settings of every behavior, that has begun: `advance` and `receive`."""
    from rich.console import Console

    from jaxrl.algorithms import HYPERPARAMETER_TYPES
    from jaxrl.artifacts.metrics.progress import ProgressBar
    from jaxrl.artifacts.run_folder import RunFolder
    from jaxrl.settings import load_run_settings
    from jaxrl.training.host.loop import HostLoop
    from jaxrl.training.host.recorder import HostRecorder
    from jaxrl.training.interrupt import Interrupt

    with ExitStack() as stack:
        results = stack.enter_context(tempfile.TemporaryDirectory())
        overrides = {
            "behaviors": {name: dict(settings) for name in crowd.names()},
            "env_settings": {"seed": 1, "mode": mode},
            "checkpoint_settings": {"run_id": "crowd", "results_dir": results, "inference": inference},
        }
        given = load_run_settings(None, overrides, HYPERPARAMETER_TYPES)
        folder = RunFolder(results, "crowd")
        folder.prepare()
        recorder = stack.enter_context(HostRecorder(given, folder, ProgressBar(Console(file=io.StringIO()))))
        pool = stack.enter_context(EnvPool(partial(make, crowd), workers, inline=inline))
        loop = HostLoop(given, recorder, Interrupt(), pool)
        stack.callback(loop.updates.join)
        pool.reset()
        loop.advance(loop.receive(workers))
        yield loop
