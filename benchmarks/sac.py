"""SAC and its replay, in CPU seconds (user and system), so that other work on the machine does not count as ours.

    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python benchmarks/sac.py update     # one core
    python benchmarks/sac.py replay seeds host

update  One update (256 units, 2 layers, batch 256, 32 numbers, 4 continuous actions) in a loop of updates, in turns
        with products of 256 x 256 x 256, whose rate says what the update's own products would take.
replay  Single transitions of 32 numbers at 1 % and at 100 % of 1,000,000: drawn 256 at a time, added 16 at a time.
seeds   3D Ball with 16 seeds in one program against 16 times one, the same iterations; compilation is left out.
host    Agent steps per second of deciding, storing and learning, 16 areas, 64 x 2 units, batch 128, an update for every
        4 steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import make_environment, make_jitted_trainer, make_settings
from jaxrl.algorithms import ALGORITHMS, sac, sac_parts
from jaxrl.cli.device import choose_device
from jaxrl.learning import replay as replays
from jaxrl.rewards.signals import bind_off_policy
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.host.behavior import make_behavior
from jaxrl.training.host.programs import compile_programs
from jaxrl.types import Action
from tests.helpers import make_spec
from tests.probe_envs import EndlessReward, ProbeEnv

SPEC = make_spec((32,), continuous=4)
FORWARD, BACKWARD = 7, (1, 3)  # passes of networks: π, V, V̄, Q₁ and Q₂ of two actions; π back, then V, Q₁ and Q₂


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds of this process until the work is done."""
    began = time.process_time()
    jax.block_until_ready(work())
    return time.process_time() - began


def in_turns(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, A B A B, after a first call that compiles."""
    for work in works.values():
        jax.block_until_ready(work())
    taken = [{name: cpu(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: statistics.median(t[name] for t in taken) for name in works}


def update(rounds: int) -> None:
    """Milliseconds of an update, of the products in it, and the share that they are."""
    hyper = {"batch_size": 256, "buffer_size": 10_000}
    shape = {"hidden_units": 256, "num_layers": 2}
    settings = make_settings("sac", hyperparameters=hyper, network_settings=shape)
    parts, signals = sac_parts.parts_of(SPEC, settings), bind_off_policy(SPEC, settings)
    state = jax.jit(partial(sac.init, parts, signals))(jax.random.key(0))
    storage, count = parts.storage, 20
    store = filled(10_000)

    @jax.jit
    def updates(state: Any) -> Any:
        def one(i: jax.Array, state: Any) -> Any:
            drawn, noise = jax.random.split(jax.random.fold_in(state.key, i))
            return sac.one_update(parts, signals, state, storage.sample(store, drawn), noise)[0]

        return jax.lax.fori_loop(0, count, one, state)

    x, w, products = jnp.ones((256, 256)), jnp.eye(256), 400
    multiplied = jax.jit(lambda x: jax.lax.fori_loop(0, products, lambda i, x: x @ w, x))
    found = in_turns({"update": lambda: updates(state), "products": lambda: multiplied(x)}, rounds)
    layer = [2 * 256 * inputs * 256 for inputs in (32, 256)]
    forward, back = sum(layer), sum(layer) + layer[1]
    flop = FORWARD * forward + sum(BACKWARD) * back + sum(layer)  # last: Q₁ back to the action
    rate = products * 2 * 256**3 / found["products"]
    ours, theirs = found["update"] / count, flop / rate
    print(f"update: {1e3 * ours:.2f} ms; products ({flop / 1e6:.0f} MFLOP at {rate / 1e9:.0f} GFLOP/s): "
          f"{1e3 * theirs:.2f} ms, {theirs / ours:.0%} of it")  # fmt: skip


def rollout_of(decisions: int) -> Rollout:
    """16 agents that decide so often each, and are then seen once more."""
    axes = (decisions + 1, 16, 1)
    no, yes = jnp.zeros(axes, bool), jnp.ones(axes, bool)
    flags = dict.fromkeys(("begin", "waiting", "terminated", "truncated", "left", "cut"), no)
    rewards = dict.fromkeys(("reward", "mates_reward", "group_reward"), jnp.ones(axes))
    return Rollout(
        obs=(jnp.ones((*axes, 32)),),
        carry=(),
        action_mask=jnp.ones((*axes, 0), bool),
        action=Action(jnp.zeros((*axes, 4)), jnp.zeros((*axes, 0), jnp.int32)),
        extras={},
        present=yes,
        acted=yes.at[-1].set(False),
        **flags,
        **rewards,
    )


def filled(size: int, share: float = 1.0, room: int | None = None) -> replays.Replay:
    """A replay with so much of it taken."""
    put, store = jax.jit(replays.add, donate_argnums=0), replays.empty(SPEC, room or size)
    decisions, left = 625, round(size * share)
    while left > 0:
        now = min(decisions, max(left // 16, 1))
        store, left = put(store, rollout_of(now)), left - 16 * now
    return store


def replay(rounds: int, size: int = 1_000_000) -> None:
    """Millions of transitions a CPU second."""
    draws, turns, one = 2000, 2000, rollout_of(1)

    @jax.jit
    def drawn(store: Any) -> Any:
        def draw(i: jax.Array, sums: Any) -> Any:
            found = replays.sample(store, jax.random.fold_in(jax.random.key(0), i), 256)
            return jax.tree.map(lambda x, y: x + y.sum(0), sums, (found.obs, found.next_obs, found.reward))

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), (store.obs, store.obs, store.kept.reward))
        return jax.lax.fori_loop(0, draws, draw, nothing)

    added = jax.jit(lambda s: jax.lax.fori_loop(0, turns, lambda i, s: replays.add(s, one), s), donate_argnums=0)
    for share in (0.01, 1.0):
        held = [filled(size, share)]

        def work(held: list[Any] = held) -> Any:
            held.append(added(held.pop()))
            return held[0]

        found = in_turns({"drawn": lambda held=held: drawn(held[0]), "added": work}, rounds)
        print(f"replay {share:.0%} full: {draws * 256 / found['drawn'] / 1e6:.1f} M/s drawn, "
              f"{turns * 16 / found['added'] / 1e6:.2f} M/s added")  # fmt: skip


def seeds(rounds: int, count: int = 16) -> None:
    """CPU seconds of many seeds in one program over those of as many programs."""
    env = make_environment("jax:ball3d")
    hyper = {"batch_size": 64, "buffer_size": 20_000, "steps_per_update": 10.0}
    settings = make_settings("sac", hyperparameters=hyper, network_settings={"hidden_units": 64, "num_layers": 2})
    held, works = {}, {}
    for n in (1, count):
        trainer = make_jitted_trainer(env, ALGORITHMS["sac"](env.spec, settings), settings, areas=12, seeds=n)
        held[n] = trainer.init(range(n))

        def work(n: int = n, trainer: Any = trainer) -> Any:
            held[n], _ = trainer.run(held[n], 40)
            return held[n]

        works[str(n)] = work
    found = in_turns(works, rounds)
    print(f"seeds: {count} in one program {found[str(count)]:.2f} CPU-s, one {found['1']:.2f}: "
          f"{found[str(count)] / (count * found['1']):.2f} of {count} single programs")  # fmt: skip


def host(rounds: int) -> None:
    """Agent steps a CPU second of the host loop's behavior, without processes and connections."""
    env = ProbeEnv(EndlessReward(truncated=True, length=100), copies=16)
    hyper = {"batch_size": 128, "buffer_size": 50_000, "steps_per_update": 4.0}
    settings = make_settings("sac", hyperparameters=hyper, network_settings={"hidden_units": 64, "num_layers": 2})
    algorithm, source = ALGORITHMS["sac"](env.spec, settings), Source(0, "Probe?team=0")
    programs = compile_programs(algorithm, settings.segment_limit)
    behavior = make_behavior("Probe", env.spec, settings, algorithm, programs, jax.random.key(0), training=True)
    steps = [env.first()]

    def turns(count: int = 500) -> None:
        for _ in range(count):
            actions, _ = behavior.act({source: steps[0]})
            steps[0] = env.step(actions[source])
            if behavior.due():
                behavior.learn()
        jax.block_until_ready(behavior.state.step)

    turns()
    before = int(behavior.state.step), int(behavior.state.optimizer["policy"].count)
    began, taken = time.perf_counter(), [cpu(turns) for _ in range(rounds)]
    wall, total = time.perf_counter() - began, sum(taken)
    done = int(behavior.state.step) - before[0], int(behavior.state.optimizer["policy"].count) - before[1]
    rates = f"{done[0] / total:.0f} steps a CPU second, {done[0] / wall:.0f} a second"
    print(f"host: {done[0]} steps, {done[1]} updates: {rates}")


def main() -> None:
    """Print what is asked for."""
    kinds: dict[str, Callable[[int], None]] = {"update": update, "replay": replay, "seeds": seeds, "host": host}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=list(kinds), default=list(kinds))
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    choose_device(None)
    for name in given.parts:
        kinds[name](given.rounds)


if __name__ == "__main__":
    main()
