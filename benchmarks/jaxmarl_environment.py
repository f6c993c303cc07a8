"""JaxMARL's Simple Spread and ours, environments alone: env steps per second of processor time, and their ratio.

    python benchmarks/jaxmarl_environment.py
    taskset -c 0 python benchmarks/jaxmarl_environment.py

Needs the extra `jaxmarl`. One jitted scan plays random actions (drawn inside, one key per step) in 16 and 256 areas and
returns all observations and rewards, as a rollout would: merely adding them up lets XLA skip writing them, which
flatters the faster environment. JaxMARL's episodes have 26 steps, ours 25. Three contestants in one process, hence
pinned alike, take turns: JaxMARL's own `step` with its automatic reset under `vmap`, the same environment through our
adapter, and our own. A round's time is the process' CPU time, that of XLA's threads included; shown are medians over
the rounds, and the median of the ratios within the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
from jax import Array

from jaxrl.jax_envs.adapters.jaxmarl import make_jaxmarl
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, advance_areas, start_areas
from jaxrl.jax_envs.simple_spread import make_simple_spread

THEIRS, ADAPTED, OURS = "JaxMARL", "JaxMARL through the adapter", "jaxrl"
NAME = "MPE_simple_spread_v3"
Play = Callable[[Array], Any]


def play_theirs(areas: int, steps: int) -> Play:
    env = jaxmarl.make(NAME)

    def play(key: Array) -> Any:
        state = jax.vmap(env.reset)(jax.random.split(key, areas))[1]

        def one(state: Any, key: Array) -> tuple[Any, Any]:
            step_key, action_key = jax.random.split(key)
            choices = jax.random.randint(action_key, (areas, env.num_agents), 0, 5)
            actions = {agent: choices[:, i] for i, agent in enumerate(env.agents)}
            obs, state, reward, *_ = jax.vmap(env.step)(jax.random.split(step_key, areas), state, actions)
            return state, (obs, reward)

        return jax.lax.scan(one, state, jax.random.split(key, steps))[1]

    return jax.jit(play)


def play_ours(env: JaxEnv, areas: int, steps: int) -> Play:
    def play(key: Array) -> Any:
        running, _ = start_areas(env, key, areas, {})

        def one(running: Any, key: Array) -> tuple[Any, Any]:
            choices = jax.random.randint(key, (areas, env.members, 1), 0, 5)
            actions = TeamActions(continuous=jnp.zeros((areas, env.members, 0)), discrete=choices)
            running, result = advance_areas(env, running, actions, {})
            return running, (result.view.obs, result.step.reward, result.step.group_reward)

        return jax.lax.scan(one, running, jax.random.split(key, steps))[1]

    return jax.jit(play)


def measure(areas: int, env_steps: int, rounds: int) -> None:
    """Print one row for each contestant."""
    steps = max(1, env_steps // areas)
    plays = {
        THEIRS: play_theirs(areas, steps),
        ADAPTED: play_ours(make_jaxmarl(NAME), areas, steps),
        OURS: play_ours(make_simple_spread(), areas, steps),
    }
    for play in plays.values():
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(play(jax.random.key(0))))
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for turn in range(rounds):
        for name, play in plays.items():
            key = jax.random.key(1 + turn)
            begun = time.process_time()
            jax.block_until_ready(play(key))
            seconds[name].append(time.process_time() - begun)
    print(f"\n{areas} areas x {steps} steps, {rounds} rounds     env steps per CPU-second   against JaxMARL")
    for name, spent in seconds.items():
        rate = areas * steps / np.median(spent)
        ratio = np.median(np.array(seconds[THEIRS]) / np.array(spent))
        print(f"{name:36}{rate:25,.0f}{ratio:17.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--env-steps", type=int, default=200_000, help="steps of one area, times areas, in one round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, jaxmarl {jaxmarl.__version__}, {jax.devices()[0].device_kind}")
    for areas in options.areas:
        measure(areas, options.env_steps, options.rounds)


if __name__ == "__main__":
    main()
