"""Speed of the compiled loop on Simple Spread, and how close it is to the sum of what it cannot do without.

    taskset -c 0 python benchmarks/jitted.py                 # one core
    python benchmarks/jitted.py --trainers mappo             # all cores: look at the wall times
    taskset -c 0 python benchmarks/jitted.py --sensors memory nature_cnn resnet cameras entities goal

16 areas of 3 agents, 128 decisions an iteration, 4 epochs of 4 minibatches, 2 x 64 units, as in the runs of JaxMARL
that results.md compares with. `--sensors`: PPO over what `sensors.py` lists instead. An environment step is one
decision of all agents of one area. `alone` is the environment with random actions in a loop of its own, `bare` the same
number of minibatch steps on one minibatch that is never cut from a full rollout; `additive` is (alone + bare) /
training: 1 would be a loop that costs nothing besides. `trace` and `compile` are those of the program of an iteration,
without a cache. Cases take turns, medians are shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from phases import phases_of
from sensors import SENSORS
from sensors_player import make_sensors_environment

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import acting
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, advance_areas
from jaxrl.jax_envs.scene import scene_of
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled import iteration as jitted_iteration
from jaxrl.training.compiled import plan, starting
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.planning import agents_at_start
from jaxrl.training.compiled.play import remembered
from jaxrl.training.compiled.stacking import stack

AREAS, STEPS, EPOCHS, MINIBATCHES, UNITS = 16, 128, 4, 4, 64


def settings_for(trainer: str, members: int, areas: int = AREAS) -> BehaviorSettings:
    """The sizes of the comparison; a minibatch is a quarter of the rollout."""
    agents = areas * STEPS * members
    capacity = {"team_capacity": members} if trainer in ("mappo", "coma") else {}
    return make_settings(
        trainer,
        max_steps=10**9,
        hyperparameters={
            "buffer_size": agents,
            "batch_size": agents // MINIBATCHES,
            "num_epoch": EPOCHS,
            "learning_rate_schedule": "constant",
            **capacity,
        },
        network_settings={"hidden_units": UNITS, "num_layers": 2, "normalize": False},
        time_horizon=STEPS,
    )


def sensors_settings(name: str) -> BehaviorSettings:
    """PPO over one kind of sensors, as in `update_phase.py`."""
    case = SENSORS[name]
    sizes = {"buffer_size": case.steps, "batch_size": case.batch, "num_epoch": 3}
    return make_settings("ppo", max_steps=10**9, hyperparameters=sizes, network_settings=dict(case.network))


def plan_for(env: JaxEnv, settings: BehaviorSettings, areas: int = AREAS) -> plan.Plan:
    """What `make_jitted_trainer` binds, here compiled by hand so that its phases can be told apart."""
    agents = int(agents_at_start(env, env.parameters)[env.name])
    steps = settings.hyperparameters.buffer_size // (areas * agents)
    algorithm, scene = ALGORITHMS[settings.trainer_type](env.spec, settings), scene_of(env)
    learner = plan.Learner(scene.parts[0], algorithm, settings.time_horizon, settings.max_steps)
    return plan.Plan(scene, {env.name: learner}, dict(env.parameters), areas, steps)


def environment_alone(env: JaxEnv, state: Any, steps: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`steps` steps of AREAS areas with random actions."""
    areas = jax.tree.map(lambda x: x[0], state.areas)
    values = {name: jnp.full(AREAS, value, jnp.float32) for name, value in env.parameters.items()}
    shape, action = (AREAS, env.teams * env.members), env.spec.action

    def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        draw = jax.random.uniform(key, (*shape, action.columns))
        sizes = jnp.asarray(action.discrete_branches, jnp.float32)
        actions = TeamActions(
            continuous=2.0 * draw[..., : action.continuous_size] - 1.0,
            discrete=(draw[..., action.continuous_size :] * sizes).astype(jnp.int32),
        )
        carry, result = advance_areas(env, carry, actions, values)
        return carry, result.step.group_reward.sum() + sum(o.sum() for o in result.view.obs)

    def run(areas: Any, key: jax.Array) -> Any:
        return jax.lax.scan(step, areas, jax.random.split(key, steps))

    return run, (areas, jax.random.key(1))


def bare_steps(env: JaxEnv, settings: BehaviorSettings, state: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """As many minibatch steps as an update takes, on one minibatch."""
    plan, sizes = plan_for(env, settings), settings.hyperparameters
    minibatches = sizes.buffer_size // sizes.batch_size
    more = sizes.model_copy(update={"num_epoch": sizes.num_epoch * minibatches})
    often = settings.model_copy(update={"hyperparameters": more})
    every = phases_of(settings.trainer_type, env.spec, often)
    name, learner = env.name, plan.learners[env.name]
    train, algorithm = jax.tree.map(lambda x: x[0], state.parts[name].train), learner.algorithm

    def batch_of(state: Any) -> Any:
        part = state.parts[name]
        keys = jax.vmap(lambda key: jax.random.split(key, plan.steps))(part.key).T
        given = {name: acting(algorithm, part.train)}, state.world, {name: keys}, state.parameters
        (_, plays), steps = collect(plan.scene, plan.algorithms, *given)
        first, last = jax.tree.map(lambda x: x[:, 0], steps[name]), jax.tree.map(lambda x: x[0], plays[name])
        memory = remembered(last) if algorithm.memories else ()
        rollout = stack(env, first, last.view, memory, team_rows=algorithm.team_rows, time_horizon=learner.time_horizon)
        return every.prepare(train, rollout)

    ready, batch, _ = jax.jit(batch_of)(state)
    valid = np.flatnonzero(np.asarray(batch.acted).any(axis=tuple(range(1, batch.acted.ndim))))
    part = jax.tree.map(lambda x: x[valid[: len(valid) // minibatches]], batch)
    return every.update, (ready, part)


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float, float]:
    """The program, and the seconds that tracing and compiling took."""
    begun = time.perf_counter()
    lowered = jax.jit(function).lower(*arguments)
    traced = time.perf_counter()
    program = lowered.compile()
    return program, traced - begun, time.perf_counter() - traced


def measure(programs: dict[str, tuple[Any, tuple[Any, ...]]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of one call of each, in turn."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for program, arguments in programs.values():
        jax.block_until_ready(program(*arguments))
    for _ in range(rounds):
        for name, (program, arguments) in programs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(program(*arguments))
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: tuple(statistics.median(column) for column in zip(*t, strict=True)) for name, t in taken.items()}  # pyright: ignore


def figures(name: str, env: JaxEnv, settings: BehaviorSettings, rounds: int) -> dict[str, Any]:
    """One row."""
    plan = plan_for(env, settings)
    state = jax.jit(partial(starting.start, plan))(jnp.zeros(1, jnp.uint32))
    iterate, trace, compiling = compiled(partial(jitted_iteration.iterate, plan), (state,))
    alone, alone_arguments = environment_alone(env, state, plan.steps)
    bare, bare_arguments = bare_steps(env, settings, state)
    programs = {
        "training": (iterate, (state,)),
        "alone": (compiled(alone, alone_arguments)[0], alone_arguments),
        "bare": (compiled(bare, bare_arguments)[0], bare_arguments),
    }
    times = measure(programs, rounds)
    steps = AREAS * plan.steps
    (wall, cpu), (_, alone_cpu), (_, bare_cpu) = times["training"], times["alone"], times["bare"]
    return {
        "trainer": name,
        "env_steps_per_cpu_second": steps / cpu,
        "env_steps_per_second": steps / wall,
        "training_ms": 1000 * cpu,
        "alone_ms": 1000 * alone_cpu,
        "bare_ms": 1000 * bare_cpu,
        "additive": (alone_cpu + bare_cpu) / cpu,
        "trace_s": trace,
        "compile_s": compiling,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="jax:simple_spread")
    parser.add_argument("--trainers", nargs="+", default=["mappo", "poca", "ppo"])
    parser.add_argument("--sensors", nargs="+", choices=SENSORS, help="PPO over these observations instead")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="one trainer, few rounds")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    given = parser.parse_args()
    env = make_environment(given.env)
    trainers = given.trainers[: 1 if given.quick else None]
    cases = {name: (env, settings_for(name, env.members)) for name in trainers}
    if given.sensors:
        cases = {name: (make_sensors_environment(name), sensors_settings(name)) for name in given.sensors}
    what = "sensors" if given.sensors else given.env
    print(f"{what}, {AREAS} areas, {jax.devices()[0].platform}, jax {jax.__version__}")
    print("trainer     env steps/CPU-s  per second   training ms  alone ms  bare ms  additive   trace s  compile s")
    for name, case in cases.items():
        row = figures(name, *case, 3 if given.quick else given.rounds)
        print(
            "{trainer:<10}{env_steps_per_cpu_second:17,.0f}{env_steps_per_second:12,.0f}{training_ms:14.1f}"
            "{alone_ms:10.2f}{bare_ms:9.1f}{additive:10.2f}{trace_s:10.1f}{compile_s:11.1f}".format(**row),
            flush=True,
        )
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
