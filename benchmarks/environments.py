"""Env steps per second of processor time of every registered JAX environment alone, with random actions.

    taskset -c 0 python benchmarks/environments.py                               # all, on one core
    taskset -c 0 python benchmarks/environments.py --names simple_spread --areas 16 256 1024

One jitted scan draws uniform actions (masks are ignored: environments treat a closed action as none) and steps all
areas. It returns the observations and rewards of all steps, as a rollout would: added up, they would never be written,
which flatters fast environments. An env step is one decision of all agents of one area. The time is the process' CPU
time, that of XLA's threads included, so a busy machine spoils it less than a clock on the wall; on an accelerator it is
wall time. Shown is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from program_costs import clock_of

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.interface import Areas, JaxEnv, TeamActions, advance_areas, start_areas


def random_actions(env: JaxEnv, areas: int, key: Array) -> TeamActions:
    """Uniform in every branch and in [-1, 1]; leading axes [E, A]. The key is consumed."""
    lead, action = (areas, env.teams * env.members), env.spec.action
    branches_key, continuous_key = jax.random.split(key)
    branches = jnp.array(action.discrete_branches, jnp.float32)
    share = jax.random.uniform(branches_key, (*lead, len(action.discrete_branches)))
    return TeamActions(
        continuous=jax.random.uniform(continuous_key, (*lead, action.continuous_size), minval=-1.0, maxval=1.0),
        discrete=jnp.minimum(share * branches, branches - 1).astype(jnp.int32),
    )


def make_play(env: JaxEnv, areas: int, steps: int) -> tuple[Areas, Callable[[Areas, Array], Any]]:
    """Areas at their start, and the program that plays `steps` decisions: (areas, key) → (areas, what was seen)."""
    parameters = {name: jnp.full(areas, value, jnp.float32) for name, value in env.parameters.items()}

    def one(running: Areas, key: Array) -> tuple[Areas, Any]:
        running, result = advance_areas(env, running, random_actions(env, areas, key), parameters)
        step = result.step
        return running, (result.view, step.reward, step.group_reward, step.terminated, step.truncated, step.over)

    def play(running: Areas, key: Array) -> Any:
        return jax.lax.scan(one, running, jax.random.split(key, steps))

    running, _ = jax.jit(lambda key: start_areas(env, key, areas, parameters))(jax.random.key(0))
    return running, jax.jit(play)


def run_case(name: str, areas: int, env_steps: int, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    env, steps = ENVIRONMENTS[name](), max(1, env_steps // areas)
    clock = clock_of(jax.devices()[0])
    running, play = make_play(env, areas, steps)
    begun = time.perf_counter()
    program = play.lower(running, jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - begun
    running, _ = jax.block_until_ready(program(running, jax.random.key(0)))
    seconds = []
    for turn in range(rounds):
        begun = clock()
        running, _ = jax.block_until_ready(program(running, jax.random.key(1 + turn)))
        seconds.append(clock() - begun)
    rate = areas * steps / statistics.median(seconds)
    agents = env.teams * env.members
    return {"name": name, "areas": areas, "agents": agents, "env_steps_per_s": rate, "compile_s": compile_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=sorted(ENVIRONMENTS), choices=sorted(ENVIRONMENTS))
    parser.add_argument("--areas", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--steps", type=int, default=100_000, help="env steps in one round, all areas together")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three of them, 256 areas, 3 rounds of 20,000 env steps")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.areas, options.rounds, options.steps = [256], 3, 20_000
        options.names = options.names[:3]
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    print("environment     rows  areas  env steps/s  compile s")
    for name in options.names:
        for areas in options.areas:
            found = run_case(name, areas, options.steps, options.rounds)
            cells = f"{found['env_steps_per_s']:11,.0f}  {found['compile_s']:9.1f}"
            print(f"{name:14}  {found['agents']:4}  {areas:5}  {cells}", flush=True)
            if options.json:
                with open(options.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
