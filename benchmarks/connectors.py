"""What each connector adds to one decision of the host loop, and to one step of a compiled run.

    python benchmarks/connectors.py
    python benchmarks/connectors.py --rows 16 128 --json FILE

`decide` is the one compiled call of `training.host.decide.decide` with its actions read, of PPO (2 x 64 units) for
--rows agents that all decide, each with a vector of 34 numbers, another of 32, 2 continuous actions and 3 choices;
`flatten` is the same with the second sensor as a table of 4 x 8. `step` is a step of a compiled run of 3D Ball with as
many areas, without updates. Each is timed with one connector and with none, in turn, so that another load of the
machine hits both; columns are lower quartiles in microseconds: without, with, and the difference.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.cli.device import choose_device
from jaxrl.jax_envs.scene import scene_of
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.noise import noise_key
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.play import start_play
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.paged_buffer import Wanted
from jaxrl.training.host.programs import compile_programs
from jaxrl.types import (
    NO_GROUP,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    ObservationSpec,
    TerminalSteps,
)

SOURCE = Source(0, "Bench?team=0")
STEPS = 64
CONNECTORS: dict[str, list[dict[str, Any]]] = {
    "clip": [{"type": "clip", "low": -5, "high": 5}],
    "scale": [{"type": "scale", "factor": 0.5}],
    "flatten": [{"type": "flatten"}],
    "one_hot": [{"type": "one_hot", "sensor": "sensor_0", "column": 3, "values": 4}],
    "mask": [{"type": "mask", "sensors": ["sensor_0"], "columns": [1, 2]}],
    "normalize": [{"type": "normalize"}],
    "frame_stack": [{"type": "frame_stack", "frames": 4}],
    "previous_action": [{"type": "previous_action"}],
    "previous_reward": [{"type": "previous_reward"}],
    "normalize_rewards": [{"type": "normalize_rewards"}],
    "clip rewards": [{"type": "clip", "of": "rewards", "low": -1, "high": 1}],
    "clip actions": [{"type": "clip", "of": "actions", "low": -1, "high": 1}],
    "unsquash": [{"type": "unsquash", "low": -2, "high": 2}],
}
ALL = [c for name, chain in CONNECTORS.items() if name != "flatten" for c in chain]


def spec_of(name: str) -> BehaviorSpec:
    """What is observed and done in the case of one connector."""
    second = (4, 8) if name == "flatten" else (32,)
    return BehaviorSpec((ObservationSpec("sensor_0", (34,)), ObservationSpec("sensor_1", second)), ActionSpec(2, (3,)))


def decision(name: str, connectors: list[dict[str, Any]], rows: int) -> Callable[[], None]:
    """One decision of `rows` agents."""
    spec = spec_of(name)
    settings = make_settings("ppo", network_settings={"hidden_units": 64}, connectors=connectors)
    algorithm = ALGORITHMS["ppo"](spec, settings)
    programs = compile_programs(algorithm, settings.time_horizon).actor
    policy, key = jax.jit(algorithm.init)(jax.random.key(0)).policy, noise_key([1, 2], 7)
    actor = ActingPolicy("Bench", spec, algorithm, programs, policy, [1, 2], Wanted(2048))
    rng, none = np.random.default_rng(0), np.zeros(0, np.float32)
    seen = tuple(rng.normal(size=(rows, *s.shape)).astype(np.float32) for s in spec.observations)
    nobody, group, zeros = np.zeros(0, np.int64), np.full(rows, NO_GROUP), np.zeros(rows, np.float32)
    ended = TerminalSteps(nobody, nobody, none, none, none.astype(bool), tuple(x[:0] for x in seen))
    deciding = DecisionSteps(np.arange(rows), group, zeros, zeros, np.ones((rows, 3), bool), seen)
    actor.act({SOURCE: BehaviorMessage(ended, deciding)})
    paged = actor.paged
    assert paged is not None
    steps = paged.slots.ingest({SOURCE: BehaviorMessage(ended, deciding)}).steps

    def decide() -> None:
        action, paged.buffer, actor.connected = programs.decide(policy, paged.buffer, steps, key, actor.connected)
        np.asarray(action.continuous)
        np.asarray(action.discrete)

    return decide


def compiled(connectors: list[dict[str, Any]], areas: int) -> Callable[[], None]:
    """STEPS steps of 3D Ball in so many areas."""
    env = make_environment("jax:ball3d")
    named = [{**c, "sensor": "VectorSensor_size8"} if "sensor" in c else c for c in connectors]
    named = [{**c, "sensors": ["VectorSensor_size8"]} if "sensors" in c else c for c in named]
    settings = make_settings("ppo", network_settings={"hidden_units": 64}, connectors=named)
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    policy = jax.tree.map(lambda x: jax.numpy.asarray(x)[None], algorithm.init(jax.random.key(0)).policy)
    keys = jax.random.split(jax.random.key(1), (STEPS + 1, 1))
    values = {name: jax.numpy.full(1, value) for name, value in env.parameters.items()}
    scene, name = scene_of(env), env.name
    world = start_play(scene, {name: algorithm}, keys[0], areas, values)
    run = jax.jit(partial(collect, scene, {name: algorithm}))
    return lambda: jax.block_until_ready(run({name: policy}, world, {name: keys[1:]}, values))


def measure(without: Callable[[], None], with_it: Callable[[], None], calls: int) -> tuple[float, float, float]:
    """Lower quartiles in microseconds: without, with, and their difference."""
    for _ in range(20):
        without()
        with_it()
    walls = np.zeros((calls, 2))
    for i in range(calls):
        for at, call in enumerate((without, with_it)):
            begun = time.perf_counter()
            call()
            walls[i, at] = time.perf_counter() - begun
    bare, connected = np.percentile(1e6 * walls, 25, axis=0).tolist()
    return bare, connected, connected - bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16])
    parser.add_argument("--only", nargs="+", default=[*CONNECTORS, "all"], help="connectors to measure")
    parser.add_argument("--calls", type=int, default=2000, help="decisions of each case")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    choose_device(None)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}; us: without, with, difference")
    print(f"{'connector':>18}  rows  {'one decision':>20}  {'one compiled step':>20}")
    for rows in options.rows:
        for name in options.only:
            chain = ALL if name == "all" else CONNECTORS[name]
            decided = measure(decision("", [], rows), decision(name, chain, rows), options.calls)
            found = {"decide": decided}
            if name != "flatten":
                steps = measure(compiled([], rows), compiled(chain, rows), max(options.calls // 20, 5))
                found["step"] = tuple(x / STEPS for x in steps)  # pyright: ignore[reportArgumentType]
            cells = "  ".join(f"{a:6.1f} {b:6.1f} {c:6.1f}" for a, b, c in found.values())
            print(f"{name:>18}  {rows:4}  {cells}", flush=True)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps({"connector": name, "rows": rows, **found}) + "\n")


if __name__ == "__main__":
    main()
