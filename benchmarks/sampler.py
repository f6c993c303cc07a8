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
import statistics
import time
from contextlib import ExitStack
from typing import Any

from crowd import Crowd, host_loop

from jaxrl.cli.device import choose_device
from jaxrl.compilation import enable_compilation_cache

AGENTS = 4
SETTINGS = {
    "trainer_type": "ppo",
    "max_steps": 10**9,
    "summary_freq": 10**6,
    "hyperparameters": {"buffer_size": 400_000, "batch_size": 1024},
    "network_settings": {"hidden_units": 256, "num_layers": 2},
}
RLLIB = {1: 1813.0, 8: 409.0}  # us per environment step


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
        loops = {}
        for areas, inline in kinds:
            crowd = Crowd(areas * AGENTS, numbers=4, episode=200)
            of_kind = host_loop(crowd, SETTINGS, inline=inline, inference=True)
            loops[areas, inline] = stack.enter_context(of_kind)
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
