"""λ-returns of a whole rollout, numpy in and numpy out, against a Python loop over trajectories and steps.

    python benchmarks/returns.py
    taskset -c 0 python benchmarks/returns.py --json FILE

`jaxrl` is the jitted `lambda_return` of all trajectories at once: numpy arrays go in, `np.asarray` reads the result.
`loop` is the way of ML-Agents' trainers: one trajectory after the other, step by step backwards, on numpy numbers. Both
give the same returns. Columns are medians in microseconds; both take turns, so that other load hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxrl.cli.device import choose_device
from jaxrl.learning.returns import lambda_return

GRID = ((64, 16), (256, 16), (256, 128))  # steps x trajectories
GOALS = {(64, 16): 8, (256, 16): 40, (256, 128): 150}  # times faster than the loop
DISCOUNT, LAMBDA = 0.99, 0.95


def trajectory_returns(reward: np.ndarray, value: np.ndarray, bootstrap: float) -> np.ndarray:
    """The λ-returns of one trajectory, [T]: R_t = r_t + γ ((1 - λ) V_{t+1} + λ R_{t+1})."""
    returns = np.zeros_like(reward)
    returns[-1] = reward[-1] + DISCOUNT * bootstrap
    for t in range(reward.size - 2, -1, -1):
        returns[t] = reward[t] + DISCOUNT * ((1.0 - LAMBDA) * value[t + 1] + LAMBDA * returns[t + 1])
    return returns


def loop(reward: np.ndarray, value: np.ndarray, bootstrap: np.ndarray) -> np.ndarray:
    """All trajectories in turn, [B, T]."""
    return np.stack([trajectory_returns(r, v, last) for r, v, last in zip(reward, value, bootstrap, strict=True)])


def seconds_of(calls: dict[str, Callable[[], Any]], repeats: dict[str, int], rounds: int) -> dict[str, float]:
    """Median time of one call of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(repeats[name]):
                begun = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(found) for name, found in times.items()}


def run_case(steps: int, trajectories: int, rounds: int) -> dict[str, float]:
    """Microseconds of both and their ratio."""
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, steps, trajectories)).astype(np.float32)
    bootstrap = rng.normal(size=trajectories).astype(np.float32)
    compiled = jax.jit(lambda *arrays: lambda_return(*arrays, DISCOUNT, LAMBDA))
    rows = np.ascontiguousarray(reward.T), np.ascontiguousarray(value.T), bootstrap  # as the loop likes them best
    np.testing.assert_allclose(np.asarray(compiled(reward, value, bootstrap)).T, loop(*rows), rtol=1e-4, atol=1e-4)
    calls = {"jaxrl": lambda: np.asarray(compiled(reward, value, bootstrap)), "loop": partial(loop, *rows)}
    found = seconds_of(calls, {"jaxrl": 50, "loop": 1}, rounds)
    return {"jaxrl_us": 1e6 * found["jaxrl"], "loop_us": 1e6 * found["loop"], "ratio": found["loop"] / found["jaxrl"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    choose_device(None)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    print("steps  trajectories  jaxrl us    loop us  ratio  goal")
    for steps, trajectories in GRID:
        found = run_case(steps, trajectories, 3 if options.quick else options.rounds)
        cells = f"{found['jaxrl_us']:8.0f}  {found['loop_us']:9.0f}  {found['ratio']:5.0f}"
        print(f"{steps:5}  {trajectories:12}  {cells}  {GOALS[steps, trajectories]:4}", flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({"steps": steps, "trajectories": trajectories, **found}) + "\n")


if __name__ == "__main__":
    main()
