"""Training on Simple Spread: JaxMARL's feed-forward IPPO against PPO, MAPPO and MA-POCA of the compiled loop, in turns.

    taskset -c 0 python benchmarks/jaxmarl_training.py
    python benchmarks/jaxmarl_training.py --areas 4096 --trainers ppo    # on an accelerator

Needs the extra `jaxmarl`. JaxMARL's scripts are not part of its package, so `ippo` below is the same amount of work in
words of our own: 16 environments (`--areas`) x 128 steps, tanh actor and critic of 2 x 64 units, all agents as one
batch, Gumbel draws, GAE, advantages normalised per minibatch, 4 epochs of 4 minibatches of a fresh permutation, Adam
behind a clip of the global norm. Ours are the cases of `jitted.py`. All are jitted scans or calls of one iteration in
one process, hence pinned alike; they take turns. A round's time is the process' CPU time, that of XLA's threads
included, on an accelerator the wall's; shown are medians over the rounds, and the median of the ratios within them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import optax
from jax import Array
from jitted import AREAS, EPOCHS, MINIBATCHES, STEPS, UNITS, plan_for, settings_for
from program_costs import clock_of

from jaxrl import make_environment
from jaxrl.training.compiled import iteration, starting

NAME, THEIRS = "MPE_simple_spread_v3", "IPPO"
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5


class Networks(nn.Module):
    """Logits and value, on a body each."""

    actions: int

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        dense = partial(nn.Dense, kernel_init=nn.initializers.orthogonal(2**0.5))
        logits, value = obs, obs
        for _ in range(2):
            logits = nn.tanh(dense(UNITS)(logits))
        for _ in range(2):
            value = nn.tanh(dense(UNITS)(value))
        return dense(self.actions)(logits), dense(1)(value)[..., 0]


class Step(NamedTuple):
    """One decision of every agent; arrays [agents · areas, ...]."""

    obs: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    done: Array
    episode: Array  # return of the episode under way, which their wrapper logs


def log_prob_of(logits: Array, action: Array) -> Array:
    chosen = jax.nn.one_hot(action, logits.shape[-1])
    return jnp.sum(jnp.where(chosen == 0, 0.0, jax.nn.log_softmax(logits) * chosen), axis=-1)


def gae(steps: Step, last: Array) -> Array:
    def back(carry: tuple[Array, Array], step: Step) -> tuple[tuple[Array, Array], Array]:
        advantage, following = carry
        delta = step.reward + GAMMA * following * (1.0 - step.done) - step.value
        advantage = delta + GAMMA * LAMBDA * (1.0 - step.done) * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), steps, reverse=True, unroll=8)[1]


def loss(networks: Networks, params: Any, steps: Step, advantage: Array, target: Array) -> tuple[Array, Any]:
    logits, value = networks.apply(params, steps.obs)  # pyright: ignore[reportAssignmentType]
    clipped = steps.value + jnp.clip(value - steps.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target)).mean()
    ratio = jnp.exp(log_prob_of(logits, steps.action) - steps.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage).mean()
    known = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(known) * known).sum(-1).mean()
    return policy + VALUE * value_loss - ENTROPY * entropy, (value_loss, policy, entropy, ratio)


def ippo(areas: int) -> tuple[Callable[[Any], Any], Any]:
    """(one iteration: state → state, the state at the start)."""
    env = jaxmarl.make(NAME)
    networks = Networks(env.action_space(env.agents[0]).n)
    adam = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(lambda n: 2.5e-4 * (1.0 - n / 1e6), eps=1e-5))
    agents = env.num_agents * areas

    def rows(of_agents: dict[str, Array]) -> Array:
        return jnp.stack([of_agents[a] for a in env.agents]).reshape(agents, -1)

    def step(params: Any, carry: Any, key: Array) -> tuple[Any, Step]:
        state, obs, episode = carry
        draw, move = jax.random.split(key)
        seen = rows(obs)
        logits, value = networks.apply(params, seen)  # pyright: ignore[reportAssignmentType]
        action = jax.random.categorical(draw, logits)
        by_agent = dict(zip(env.agents, action.reshape(env.num_agents, areas), strict=True))
        obs, state, reward, done, _ = jax.vmap(env.step)(jax.random.split(move, areas), state, by_agent)
        reward, done = rows(reward)[:, 0], rows(done)[:, 0].astype(jnp.float32)
        episode = (episode + reward) * (1.0 - done)
        kept = Step(seen, action, log_prob_of(logits, action), value, reward, done, episode)
        return (state, obs, episode), kept

    def minibatch(carry: Any, part: Any) -> tuple[Any, Any]:
        params, optimizer = carry
        (total, parts), found = jax.value_and_grad(partial(loss, networks), has_aux=True)(params, *part)
        change, optimizer = adam.update(found, optimizer, params)
        return (optax.apply_updates(params, change), optimizer), (total, parts)

    def epoch(batch: Any, carry: Any, key: Array) -> tuple[Any, Any]:
        order = jax.random.permutation(key, STEPS * agents)
        parts = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), batch)
        return jax.lax.scan(minibatch, carry, parts)

    def iterate(state: Any) -> Any:
        params, optimizer, carry, key = state
        key, playing, learning = jax.random.split(key, 3)
        carry, steps = jax.lax.scan(partial(step, params), carry, jax.random.split(playing, STEPS))
        advantage = gae(steps, networks.apply(params, rows(carry[1]))[1])
        batch = (steps, advantage, advantage + steps.value)
        batch = jax.tree.map(lambda x: x.reshape(STEPS * agents, *x.shape[2:]), batch)
        learned, told = jax.lax.scan(partial(epoch, batch), (params, optimizer), jax.random.split(learning, EPOCHS))
        return (*learned, carry, key), jax.tree.map(jnp.mean, (told, steps.episode))

    key, first = jax.random.split(jax.random.key(0))
    obs, state = jax.vmap(env.reset)(jax.random.split(first, areas))
    params = networks.init(key, rows(obs))
    return iterate, (params, adam.init(params), (state, obs, jnp.zeros(agents)), key)


def ours(trainer: str, areas: int) -> tuple[Callable[[Any], Any], Any]:
    env = make_environment("jax:simple_spread")
    plan = plan_for(env, settings_for(trainer, env.members, areas), areas)
    return partial(iteration.iterate, plan), jax.jit(partial(starting.start, plan))(jnp.zeros(1, jnp.uint32))


def measure(cases: dict[str, tuple[Callable[[Any], Any], Any]], rounds: int, each: int) -> dict[str, list[float]]:
    """Seconds of one iteration, by case and round; `each` iterations in a round."""
    clock = clock_of(jax.devices()[0])
    programs = {
        name: jax.jit(iterate, donate_argnums=0).lower(state).compile() for name, (iterate, state) in cases.items()
    }
    states = {name: state for name, (_, state) in cases.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, program in programs.items():
            begun = clock()
            for _ in range(each):
                states[name], told = program(states[name])
            jax.block_until_ready(states[name])
            if turn:  # the first is a warm-up
                seconds[name].append((clock() - begun) / each)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(told) if np.asarray(x).dtype == np.float32)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", nargs="+", default=["ppo", "mappo", "poca"])
    parser.add_argument("--areas", type=int, default=AREAS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--iterations", type=int, default=5, help="in one round")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    given = parser.parse_args()
    if given.areas < 1:
        parser.error(f"--areas {given.areas}: expected a number of 1 or more")
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {given.areas} x {STEPS} env steps an iteration")
    cases = {THEIRS: ippo(given.areas), **{name: ours(name, given.areas) for name in given.trainers}}
    seconds = measure(cases, given.rounds, given.iterations)
    print("              ms    env steps per second   against IPPO")
    for name, spent in seconds.items():
        ratio = float(np.median(np.array(seconds[THEIRS]) / np.array(spent)))
        middle = float(np.median(spent))
        print(f"{name:8}{1000 * middle:8.1f}{given.areas * STEPS / middle:24,.0f}{ratio:14.2f}x", flush=True)
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"trainer": name, "areas": given.areas, "ms": 1000 * middle, "ratio": ratio}) + "\n"
                )


if __name__ == "__main__":
    main()
