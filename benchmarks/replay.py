"""What an iteration costs with a replay of 4,096 to 1,048,576 transitions: the same, in both loops.

    python benchmarks/replay.py
    python benchmarks/replay.py --json FILE

The algorithm is the replay of the tests (`tests/algorithms/replay_algorithm.py`): 16 decisions are added, an update
draws four minibatches of 64. `compiled` is an iteration of `JittedTrainer.run` over four areas of jaxrl's Basic, with
one seed and with two; `host` is the one call of an update of the host loop from the same rollout. Columns are medians
in microseconds, sizes take turns, so that other load hits all; the last is the dearest size over the cheapest.
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
import jax.numpy as jnp

from jaxrl import make_environment, make_jitted_trainer, make_settings
from jaxrl.cli.device import choose_device
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.host.learner import learn_from
from jaxrl.types import Action
from tests.algorithms.replay_algorithm import ReplaySettings, make_replay

SIZES = (2**12, 2**16, 2**18, 2**20)
AREAS, DECISIONS = 4, 16
ENV = make_environment("jax:basic")
SETTINGS = make_settings("ppo", hyperparameters={"batch_size": 16, "buffer_size": DECISIONS}, max_steps=10**9)


def of(size: int) -> Any:
    """The replay algorithm with this many transitions; it learns in every iteration."""
    return make_replay(ENV.spec, ReplaySettings(ring=size, initial=DECISIONS, per_update=DECISIONS))


def compiled(size: int, seeds: int, iterations: int = 100) -> Callable[[], float]:
    """Seconds of an iteration, each time it is called."""
    trainer = make_jitted_trainer(ENV, of(size), SETTINGS, areas=AREAS, seeds=seeds)
    held = [trainer.init(range(seeds))]

    def once() -> float:
        began = time.perf_counter()
        state, _ = trainer.run(held.pop(), iterations)
        held.append(jax.block_until_ready(state))
        return (time.perf_counter() - began) / iterations

    return once


def one_rollout() -> Rollout:
    """[T, B, 1] of which each state but the last has acted."""
    axes = (DECISIONS // AREAS + 1, AREAS, 1)
    no, yes = jnp.zeros(axes, bool), jnp.ones(axes, bool)
    return Rollout(
        obs=tuple(jnp.ones((*axes, *sensor.shape), sensor.dtype) for sensor in ENV.spec.observations),
        carry=(),
        action_mask=jnp.ones((*axes, ENV.spec.action.mask_size), bool),
        action=Action(jnp.zeros((*axes, 0)), jnp.zeros((*axes, 1), jnp.int32)),
        extras={},
        begin=no,
        present=yes,
        acted=yes.at[-1].set(False),
        waiting=no,
        reward=jnp.ones(axes),
        mates_reward=jnp.zeros(axes),
        group_reward=jnp.zeros(axes),
        terminated=no,
        truncated=no,
        left=no,
        cut=no,
    )


def host(size: int, updates: int = 100) -> Callable[[], float]:
    """Seconds of an update, each time it is called."""
    algorithm, rollout = of(size), one_rollout()
    program = jax.jit(partial(learn_from, algorithm), donate_argnums=(0, 1))
    held = [(algorithm.init(jax.random.key(0)), algorithm.storage.init())]

    def once() -> float:
        state, store = held.pop()
        began = time.perf_counter()
        for _ in range(updates):
            state, store, _ = program(state, store, rollout)
        jax.block_until_ready(store)
        took = (time.perf_counter() - began) / updates
        held.append((state, store))
        return took

    return once


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="also write the medians there")
    given = parser.parse_args()
    choose_device(None)
    kinds = {
        "compiled, 1 seed": partial(compiled, seeds=1),
        "compiled, 2 seeds": partial(compiled, seeds=2),
        "host": host,
    }
    found: dict[str, dict[int, float]] = {}
    print(f"{'':20}" + "".join(f"{size:>12,}" for size in SIZES) + "   dearest / cheapest")
    for name, make in kinds.items():
        runs = {size: make(size) for size in SIZES}
        for run in runs.values():
            run()
        taken = [{size: run() for size, run in runs.items()} for _ in range(given.repeats)]
        found[name] = {size: 1e6 * statistics.median(t[size] for t in taken) for size in SIZES}
        ratio = max(found[name].values()) / min(found[name].values())
        print(f"{name:20}" + "".join(f"{t:12.0f}" for t in found[name].values()) + f"   {ratio:.2f}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
