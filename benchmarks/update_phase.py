"""Time of one update phase: preparing a full buffer (values, returns, advantages), then all epochs of minibatches.

    taskset -c 0 python benchmarks/update_phase.py            # one core
    python benchmarks/update_phase.py                         # all cores
    python benchmarks/update_phase.py --sensors memory nature_cnn resnet cameras entities goal

The workload is that of a measured ML-Agents run: 10,304 agent steps, 32 observations, 7 discrete actions, 256 x 2
units, batch 1024, 3 epochs. `original` is what ML-Agents 1.1.0 (PyTorch, one thread, quiet machine of the same kind)
takes for trajectory processing + minibatches. `of matmul` is the rate of the minibatch phase over that of a plain
matrix product measured in the same run.

`--sensors` are rows of PPO over what `sensors.py` lists instead: fewer steps, 3 epochs, 128 x 2 units; microseconds per
agent step of both phases, seconds of compiling both, and memory of 1,000 agent steps' observations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from phases import Phases, counted, phases_of
from sensors import SENSORS, bytes_of, random_obs

from jaxrl import make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import nothing_remembered
from jaxrl.algorithms.parts import Batch
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.buffer.cells import pack
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.settings import BehaviorSettings
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

STEPS = 10_304
QUICK_STEPS = 2_048
ROWS = 16
SPEC = BehaviorSpec((ObservationSpec("vector", (32,)),), ActionSpec(0, (7,)))
ORIGINAL = {("poca", 3): (1.5, 7.4), ("poca", 8): (2.8, 18.4), ("ppo", 1): (0.6, 1.8)}  # seconds


class Case(NamedTuple):
    """One row of the table."""

    trainer: str
    members: int


def behavior_settings(trainer: str) -> BehaviorSettings:
    """ML-Agents' defaults with 256 x 2 units."""
    return make_settings(trainer, network_settings={"hidden_units": 256, "num_layers": 2})


def full_buffer(
    members: int, steps: int = STEPS, seed: int = 0, spec: BehaviorSpec = SPEC, memory: Any = ()
) -> TrajectoryState:
    """A buffer with `steps` finished decisions of random content and an episode end every 50 states."""
    rng = np.random.default_rng(seed)
    states = -(-steps // (ROWS * members)) + 1  # the last state of each row only bootstraps
    lead = (states, ROWS, members)
    extras = (("log_prob", (1,)),)
    empty = trajectory.init(spec, extras, memory, capacity=states, rows=ROWS, members=members)
    ending = np.full(lead, Ending.CONTINUES, np.float32)
    ending[49::50] = Ending.TERMINATED
    nothing = np.zeros(lead)
    outcome = np.stack([rng.normal(size=lead), nothing, nothing, ending], axis=-1).astype(np.float32)
    outcome[-1, ..., 3] = Ending.OPEN
    cells = empty.cells._replace(
        obs=tuple(map(jnp.asarray, random_obs(spec.observations, lead, seed))),
        action_mask=jnp.ones((*lead, 7), bool),
        action=empty.cells.action._replace(discrete=jnp.asarray(rng.integers(0, 7, (*lead, 1)), jnp.int32)),
        extras={"log_prob": jnp.full((*lead, 1), -np.log(7.0), jnp.float32)},
        present=jnp.ones(lead, bool),
        acted=jnp.ones(lead, bool),
        outcome=jnp.asarray(outcome),
    )
    clock = empty.clock.at[0].set(states).at[1].set(states - 1)
    return dataclasses.replace(empty, stored=pack(cells, empty.layout), clock=clock)


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median time of `call` after one that compiles; on one core CPU time, which others disturb less."""
    clock = time.process_time if cores() == 1 else time.perf_counter
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        begun = clock()
        jax.block_until_ready(call())
        seconds.append(clock() - begun)
    return statistics.median(seconds)


def cores() -> int | None:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def matmul_flops(repeats: int = 50) -> float:
    """FLOP/s of a 1024 x 256 by 256 x 256 product, the size of the networks' own."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 256)), jnp.float32)
    b = jnp.asarray(np.random.default_rng(1).normal(size=(256, 256)), jnp.float32)
    inner = 200

    def many(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, inner, lambda _, x: x @ b * 0.05, a)

    product = jax.jit(many)
    return 2.0 * 1024 * 256 * 256 * inner / median_seconds(lambda: product(a, b), repeats // 5)


def step_flops(phases: Phases, state: Any, batch: Batch, count: int) -> float:
    """FLOP of the matrix products of one update, counted by XLA on one minibatch's share of the program."""
    analysis = counted(phases.update, state, batch).cost_analysis()
    return float(analysis["flops"]) * count if analysis else float("nan")


def run_case(case: Case, repeats: int, steps: int) -> dict[str, float]:
    """Seconds of both phases and the FLOP rate of the second."""
    settings = behavior_settings(case.trainer)
    phases = phases_of(case.trainer, SPEC, settings)
    state = jax.jit(ALGORITHMS[case.trainer](SPEC, settings).init)(jax.random.key(0))
    buffer = full_buffer(case.members, steps)

    def take_and_prepare(state: Any, buffer: TrajectoryState) -> Any:
        rollout, _ = trajectory.take(buffer)
        return phases.prepare(state, rollout)

    prepare, update = jax.jit(take_and_prepare), jax.jit(phases.update)
    prepare_seconds = median_seconds(partial(prepare, state, buffer), repeats)
    state, batch, _ = prepare(state, buffer)
    update_seconds = median_seconds(partial(update, state, batch), repeats)
    size = settings.hyperparameters.batch_size // case.members
    minibatches = int(batch.acted.any(-1).sum()) // size * settings.hyperparameters.num_epoch
    return {
        "prepare": prepare_seconds,
        "update": update_seconds,
        "minibatches": minibatches,
        "flops": step_flops(phases, state, batch, minibatches) / update_seconds,
    }


def run_sensors(name: str, repeats: int) -> dict[str, float]:
    """One row over other observations: seconds of both phases and of compiling them, FLOP rate, memory."""
    case = SENSORS[name]
    spec = SPEC._replace(observations=case.observations)
    settings = make_settings(
        "ppo", network_settings=dict(case.network), hyperparameters={"batch_size": case.batch, "num_epoch": 3}
    )
    phases, algorithm = phases_of("ppo", spec, settings), ALGORITHMS["ppo"](spec, settings)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    buffer = full_buffer(1, case.steps, spec=spec, memory=nothing_remembered(algorithm))

    def take_and_prepare(state: Any, buffer: TrajectoryState) -> Any:
        return phases.prepare(state, trajectory.take(buffer)[0])

    begun = time.perf_counter()
    prepare = jax.jit(take_and_prepare).lower(state, buffer).compile()
    prepared, batch, _ = prepare(state, buffer)
    update = jax.jit(phases.update).lower(prepared, batch).compile()
    compiling = time.perf_counter() - begun
    minibatches = case.steps // case.batch * settings.hyperparameters.num_epoch
    update_seconds = median_seconds(partial(update, prepared, batch), repeats)
    return {
        "prepare": median_seconds(partial(prepare, state, buffer), repeats),
        "update": update_seconds,
        "compile": compiling,
        "flops": step_flops(phases, prepared, batch, minibatches) / update_seconds,
        "bytes": bytes_of(spec.observations),
    }


def print_sensors(names: list[str], repeats: int, peak: float) -> None:
    """The table of `--sensors`."""
    print("sensors     steps  prepare us  update us  compile s  GFLOP/s  of matmul  MB/1000 steps")
    for name in names:
        found, steps = run_sensors(name, repeats), SENSORS[name].steps
        print(
            f"{name:10}  {steps:5}  {1e6 * found['prepare'] / steps:10.0f}  {1e6 * found['update'] / steps:9.0f}  "
            f"{found['compile']:9.1f}  {found['flops'] / 1e9:7.0f}  {found['flops'] / peak:9.0%}  "
            f"{found['bytes'] / 1e3:13.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="MA-POCA with 3 agents alone, 2,048 steps, 2 repeats")
    parser.add_argument("--sensors", nargs="+", choices=SENSORS, help="PPO over these observations instead")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    cases, steps = [Case("poca", 3), Case("poca", 8), Case("ppo", 1)], STEPS
    if options.quick:
        cases, steps, options.repeats = cases[:1], QUICK_STEPS, 2
    peak = matmul_flops()
    print(f"{cores()} core(s), {jax.devices()[0].device_kind}, jax {jax.__version__}, matmul {peak / 1e9:.0f} GFLOP/s")
    if options.sensors:
        print_sensors(options.sensors, options.repeats, peak)
        return
    print("trainer  team  prepare s  update s  original s  ratio  minibatches  GFLOP/s  of matmul")
    for case in cases:
        found = run_case(case, options.repeats, steps)
        # The original was timed at STEPS alone: no ratio for fewer.
        original = sum(ORIGINAL[case.trainer, case.members]) if steps == STEPS else float("nan")
        total = found["prepare"] + found["update"]
        print(
            f"{case.trainer:7}  {case.members:4}  {found['prepare']:9.2f}  {found['update']:8.2f}  {original:10.1f}  "
            f"{original / total:5.1f}  {found['minibatches']:11.0f}  {found['flops'] / 1e9:7.0f}  "
            f"{found['flops'] / peak:9.0%}",
            flush=True,
        )
        if options.json:
            with open(options.json, "a") as file:
                row = {**case._asdict(), "steps": steps, **found, "matmul": peak, "cores": cores()}
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
