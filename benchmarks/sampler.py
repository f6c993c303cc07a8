"""What the trainer itself takes per environment step of a tiny environment: policy, bookkeeping, transport.

    python benchmarks/sampler.py [--pairs 9] [--seconds 2]

Four agents with four numbers and two actions each, in 1 and in 8 environments (areas of one worker, as a build has
them), a network of 2 x 256 units, PPO, no update within the windows. The environment costs next to nothing (its own
time is subtracted). `inline` has the environment in the trainer's process, `process` in a worker of its own. RLlib
2.60's local environment runner takes 1813 us per environment step with 1 environment and 409 with 8, on a machine of
this class.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from jaxrl.cli.device import choose_device
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.interface import HostEnv
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

AGENTS = 4
EPISODE = 200  # decisions
SPEC = BehaviorSpec((ObservationSpec("cart", (4,)),), ActionSpec(0, (2,)))
RLLIB = {1: 1813.0, 8: 409.0}  # us per environment step


def make(areas: int, worker: int) -> HostEnv:
    """A worker's environment."""
    return FourAgents(areas, worker)


class FourAgents:
    """`areas` environments of four agents; every agent of an area ends after EPISODE decisions."""

    def __init__(self, areas: int, worker: int) -> None:
        self._worker, self._agents = worker, areas * AGENTS
        self._rng = np.random.default_rng(worker)
        self._obs = self._rng.normal(size=(64, self._agents, 4)).astype(np.float32)
        self._mask = np.ones((self._agents, 2), bool)
        self._group = np.full(self._agents, NO_GROUP, np.int64)
        self._zero = np.zeros(self._agents, np.float32)
        self._clock = 0
        self._told = False

    @property
    def about(self) -> str:
        """Nothing worth a line."""
        return ""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> EnvMessage:
        """The first observations."""
        self._clock = 0
        return self._message(ended=False)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        """One decision of everybody."""
        self._clock += 1
        return self._message(ended=self._clock % EPISODE == 0)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is open."""

    def _message(self, *, ended: bool) -> EnvMessage:
        obs, episode = self._obs[self._clock % 64], self._clock // EPISODE
        ids = np.arange(self._agents, dtype=np.int64) + episode * self._agents
        n = self._agents if ended else 0
        over = TerminalSteps(
            agent_id=ids[:n] - self._agents,
            group_id=self._group[:n],
            reward=self._zero[:n] + 1,
            group_reward=self._zero[:n],
            truncated=np.zeros(n, bool),
            obs=(obs[:n],),
        )
        asking = DecisionSteps(ids, self._group, self._zero + 1, self._zero, self._mask, (obs,))
        specs, self._told = {} if self._told else {"Cart?team=0": SPEC}, True
        return EnvMessage(self._worker, {"Cart?team=0": BehaviorMessage(over, asking)}, specs, (), 0.0)


@contextmanager
def loop_of(areas: int, *, inline: bool) -> Iterator[Any]:
    """A host loop over one such worker, that has begun."""
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
        behavior = {
            "trainer_type": "ppo",
            "max_steps": 10**9,
            "summary_freq": 10**6,
            "hyperparameters": {"buffer_size": 400_000, "batch_size": 1024},
            "network_settings": {"hidden_units": 256, "num_layers": 2},
        }
        overrides = {
            "behaviors": {"Cart": behavior},
            "env_settings": {"seed": 1},
            "checkpoint_settings": {"run_id": "sampler", "results_dir": results, "inference": True},
        }
        settings = load_run_settings(None, overrides, HYPERPARAMETER_TYPES)
        folder = RunFolder(results, "sampler")
        folder.prepare()
        recorder = stack.enter_context(HostRecorder(settings, folder, ProgressBar(Console(file=io.StringIO()))))
        pool = stack.enter_context(EnvPool(partial(make, areas), 1, inline=inline))
        loop = HostLoop(settings, recorder, Interrupt(), pool)
        pool.reset()
        loop.advance(loop.receive(1))
        yield loop


def overhead(loop: Any, areas: int, seconds: float) -> float:
    """us per environment step in a window, less what the environment took."""
    begun, steps, environment = time.perf_counter(), 0, 0.0
    while time.perf_counter() - begun < seconds:
        results = loop.receive(1)
        environment += sum(result.seconds for result in results)
        loop.advance(results)
        steps += areas
    return 1e6 * (time.perf_counter() - begun - environment) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="windows of each kind")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    given = parser.parse_args()
    choose_device(None)
    enable_compilation_cache()
    kinds = [(areas, inline) for areas in RLLIB for inline in (True, False)]
    with ExitStack() as stack:
        loops = {kind: stack.enter_context(loop_of(kind[0], inline=kind[1])) for kind in kinds}
        for (areas, _), loop in loops.items():
            overhead(loop, areas, 0.5)
        windows = [{kind: overhead(loops[kind], kind[0], given.seconds) for kind in kinds} for _ in range(given.pairs)]
    print("us per environment step of 4 agents, medians")
    for areas, inline in kinds:
        median = statistics.median(window[areas, inline] for window in windows)
        form = "inline" if inline else "process"
        rllib = RLLIB[areas]
        print(f"  {areas} environment(s), {form:7} {median:7.0f}   RLlib {rllib:.0f}: {rllib / median:.0f} x")


if __name__ == "__main__":
    main()
