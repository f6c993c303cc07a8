"""What self-play costs: agent steps per second with and without it, in turns in one process, a swap, and a pool.

Host loop: a duel of 16 areas in this process (tests/envs/duel_env.py), PPO, networks of 64 x 2. Compiled loop
(--compiled): Soccer Twos in 32 areas, PPO, 128 x 2. All sides decide; with self-play one side is learned from, so its
trainer steps are half of the decisions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import make_algorithm
from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.training.compiled.contest import Sides
from jaxrl.training.compiled.opponents import Rivals, drawn, groups_of
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.host.policies import copied
from jaxrl.training.host.run import host_loop
from tests.envs.duel_env import DuelEnv, DuelSettings
from tests.toy_runs import configured, environment

PLAY = {"save_steps": 2000, "team_change": 10000, "swap_steps": 1000, "window": 10}


def make(worker: int) -> DuelEnv:
    return DuelEnv(worker, DuelSettings(areas=16))


def run(self_play: dict[str, int] | None, messages: int) -> dict[str, float]:
    """After 400 messages, in which everything is compiled: rates, and the time of a swap."""
    hyperparameters = {"batch_size": 256, "buffer_size": 2048, "num_epoch": 3, "learning_rate": 1e-3}
    behavior = {
        "trainer_type": "ppo", "hyperparameters": hyperparameters, "max_steps": 10_000_000, "summary_freq": 10_000,
        "network_settings": {"hidden_units": 64, "num_layers": 2}, "self_play": self_play,
        "checkpoint_interval": 500_000,  # ML-Agents' default; the tests' 1000 would be half of the time
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = configured(Path(folder), "run", Duel=behavior)
        with environment(make=make) as started, host_loop(settings, started=started) as loop:
            turns = loop.iterate()
            for _ in range(400):
                next(turns)
            learner = loop.behaviors["Duel"]
            before, decided, cpu, wall = learner.step, messages * 32, time.process_time(), time.perf_counter()
            for _ in range(messages):
                next(turns)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            found = {
                "steps per CPU second": (learner.step - before) / cpu,
                "decisions per CPU second": decided / cpu,
                "steps per second": (learner.step - before) / wall,
            }
            if self_play is not None:
                found |= swap_of(loop)
    return found


def swap_of(loop) -> dict[str, float]:
    """Microseconds of a draw, with which an opponent acts from then on."""
    game, opponents = loop.opponents.game, loop.opponents
    side, count = game.sides["Duel"], 2000
    began = time.perf_counter()
    for _ in range(count):
        team = next(team for team in side.teams if team != side.learning)
        opponents._ghosts.send(f"Duel?team={team}", game._drawn(side, team))
    swap = (time.perf_counter() - began) / count
    return {"swap, microseconds": 1e6 * swap}


def compiled(repeats: int, iterations: int = 6) -> None:
    """Rates of Soccer Twos per CPU second, and what a swap of all opponents costs beside one decision of all areas."""
    env, trainers, states = make_environment("jax:soccer_twos"), {}, {}
    play = {"save_steps": 50_000, "team_change": 10**8, "swap_steps": 1, "window": 20}
    for name, own in {"self-play": play, "without": None}.items():
        settings = make_settings(
            "ppo",
            max_steps=10**8,
            self_play=own,
            hyperparameters={"batch_size": 1024, "buffer_size": 8192, "num_epoch": 3},
            network_settings={"hidden_units": 128, "num_layers": 2},
        )
        trainers[name] = make_jitted_trainer(env, make_algorithm(env.spec, settings), settings, areas=32)
        states[name], _ = trainers[name].run(trainers[name].init([0]), 1)
    for _ in range(repeats):
        for name, trainer in trainers.items():
            jax.block_until_ready(states[name])
            before, cpu = int(states[name].train.step[0]), time.process_time()
            states[name], _ = trainer.run(states[name], iterations)
            jax.block_until_ready(states[name])
            cpu = time.process_time() - cpu
            steps, decisions = int(states[name].train.step[0]) - before, iterations * trainer.steps * 32 * 4
            decision = 1e6 * cpu / (iterations * trainer.steps)
            print(
                f"compiled, {name}: {steps / cpu:,.0f} steps and {decisions / cpu:,.0f} decisions per CPU second, "
                f"{decision:.0f} us for each decision of all areas, learning included",
                flush=True,
            )
    print(f"a swap: {compiled_swap(states['self-play'], play):.0f} us")


def compiled_swap(state, play: dict[str, int]) -> float:
    """CPU microseconds in which all groups draw opponents and take their parameters."""
    rivals = Rivals(None, None, Sides(0, 2, 1), groups_of(32), SelfPlaySettings(**play))  # type: ignore[arg-type]

    @jax.jit
    def swap(of, policy):
        return drawn(rivals, of, policy, jnp.ones(1, bool), jnp.zeros(1, jnp.uint32))

    of = state.rivals
    jax.block_until_ready(swap(of, state.train.policy))
    began = time.process_time()
    for _ in range(200):
        of = swap(of, state.train.policy)
    jax.block_until_ready(of)
    return 1e6 * (time.process_time() - began) / 200


def pool_megabytes(snapshots: int) -> float:
    """Of policies with 256 x 2 hidden units that see 64 numbers."""
    from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

    spec = BehaviorSpec((ObservationSpec("numbers", (64,)),), ActionSpec(0, (3, 3, 3)))
    settings = make_settings("ppo", network_settings={"hidden_units": 256, "num_layers": 2})
    policy = make_algorithm(spec, settings).init(jax.random.key(0)).policy
    pool = [copied(policy) for _ in range(snapshots)]
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(pool)) / 2**20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="the compiled loop alone")
    options = parser.parse_args()
    if options.compiled:
        compiled(options.repeats)
        raise SystemExit
    print(f"a pool of 20 snapshots of 256 x 2: {pool_megabytes(20):.1f} MiB")
    for _ in range(options.repeats):
        for name, play in {"self-play": PLAY, "without": None}.items():
            figures = run(play, options.messages)
            print(name, {key: round(value, 1) for key, value in figures.items()}, flush=True)
