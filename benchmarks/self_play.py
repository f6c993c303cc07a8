"""What self-play costs in the host loop: agent steps per second with and without it, in turns, a swap, and a pool.

A duel of 16 areas in this process (tests/envs/duel_env.py), PPO, networks of 64 x 2. Both sides decide in every
message; with self-play one side is learned from, so its trainer steps are half of the decisions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl.algorithms import make_algorithm
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
        opponents._frozen[f"Duel?team={team}"].actor.policy = game._drawn(side).policy
    swap = (time.perf_counter() - began) / count
    return {"swap, microseconds": 1e6 * swap}


def pool_megabytes(snapshots: int) -> float:
    """Of policies with 256 x 2 hidden units that see 64 numbers."""
    from jaxrl import make_settings
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
    options = parser.parse_args()
    print(f"a pool of 20 snapshots of 256 x 2: {pool_megabytes(20):.1f} MiB")
    for _ in range(options.repeats):
        for name, play in {"self-play": PLAY, "without": None}.items():
            figures = run(play, options.messages)
            print(name, {key: round(value, 1) for key, value in figures.items()}, flush=True)
