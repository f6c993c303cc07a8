"""Cameras through one worker: agent steps per second, time per picture, and bytes per 1,000 agent steps.

    python benchmarks/camera.py                        # 16 agents, 20 x 20 and 84 x 84 in colour
    python benchmarks/camera.py --side 84 --agents 16 --seconds 10 --json FILE

A player of its own process shows pictures (drawn once, packed as PNG anew at every step), a worker's process unpacks
them, this process takes them and sends random actions: all that the host loop does but learning. `decode` is the
worker's time from a message's bytes to arrays per picture, `exchange` its wait for the player, `socket` what comes from
the worker, `buffer` what the learner keeps on the device. Needs psutil (extra dev).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import AreasOutcome, BehaviorPart
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

PICTURES = 32
MEGABYTE = 1e6
BEHAVIOR = "Camera?team=0"


def spec_of(side: int) -> BehaviorSpec:
    """One colour camera, one branch of five actions."""
    return BehaviorSpec(
        (ObservationSpec("camera", (3, side, side), IMAGE_PROPERTIES, dtype="uint8"),), ActionSpec(0, (5,))
    )


def pictures(side: int) -> np.ndarray:
    """Uint8 [PICTURES, 3, side, side]: gradients with a dozen coloured squares, about as hard to pack as a scene."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    ground = np.stack([x * 255 // side, y * 255 // side, (x + y) * 127 // side]).astype(np.uint8)
    drawn = np.repeat(ground[None], PICTURES, axis=0)
    size = max(side // 10, 2)
    for picture in drawn:
        for top, left in random.integers(side - size, size=(12, 2)):
            picture[:, top : top + size, left : left + size] = random.integers(256, size=(3, 1, 1))
    return drawn


class Camera:
    """E areas of one agent that never ends."""

    def __init__(self, side: int, areas: int) -> None:
        self._areas, self._clock, self._pictures = areas, 0, pictures(side)

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Everybody begins."""
        shape = (self._areas, 1)
        obs = self._pictures[(np.arange(self._areas) + self._clock) % PICTURES][:, None]
        outcome = AreasOutcome(
            ended=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
            reward=np.zeros(shape, np.float32),
            group_reward=np.zeros(shape, np.float32),
            last_obs=(obs,),
            alive=np.ones(shape, bool),
            action_mask=np.ones((*shape, 5), bool),
            obs=(obs,),
            over=np.zeros(self._areas, bool),
            stats={},
        )
        return (outcome,)

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """The next pictures."""
        self._clock += 1
        return self.reset(parameters)


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, nargs="+", default=[20, 84], help="pixels")
    parser.add_argument("--agents", type=int, default=16, help="areas of one agent each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--json", help="append the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="half a second each")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mlagents-port", type=int, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.serve:
        side = options.side[0]
        part = BehaviorPart("Camera", spec_of(side), 1)
        served = ServedScene("Camera", (part,), {}, lambda areas, seed: Camera(side, areas))
        serve(served, PlayerOptions(port=options.mlagents_port))
        return
    print(f"{'camera':<12}{'agent steps/s':>14}{'decode us':>11}{'exchange us':>13}{'socket MB':>11}{'buffer MB':>11}"
          f"{'worker MB':>11}")  # fmt: skip
    for side in options.side:
        found = measure(side, options.agents, 0.5 if options.quick else options.seconds)
        print(f"{side:>3} x {side:<6}{found['agent_steps_per_second']:>14.0f}{found['decode_us']:>11.1f}"
              f"{found['exchange_us']:>13.1f}{found['socket_mb']:>11.2f}{found['buffer_mb']:>11.2f}"
              f"{found['worker_mb']:>11.0f}")  # fmt: skip
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps(found) + "\n")


def measure(side: int, agents: int, seconds: float) -> dict[str, Any]:
    """One camera of `side` pixels. Megabytes of socket and buffer are for 1,000 agent steps."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder, "camera.x86_64")
        start = f'exec "{sys.executable}" "{Path(__file__).resolve()}" --serve --side {side} "$@"'
        build.write_text(f"#!/bin/sh\n{start}\n")
        build.chmod(0o755)
        arguments = {"file_name": str(build), "base_port": 5905, "num_areas": agents, "log_folder": folder}
        with EnvPool(partial(make_unity, arguments, 0, True, False), 1) as pool:
            return {"side": side, "agents": agents, **_stepped(pool, agents, seconds), "buffer_mb": buffer_mb(side)}


def _stepped(pool: EnvPool, agents: int, seconds: float) -> dict[str, float]:
    random = np.random.default_rng(0).integers(5, size=(64, agents, 1), dtype=np.int32)
    pool.reset()
    (result,) = pool.recv()
    decode = exchange = received = steps = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        pool.send(0, {BEHAVIOR: Action(np.zeros((agents, 0), np.float32), random[int(steps) % 64])})
        (result,) = pool.recv()
        decode, exchange = decode + result.timing.decode, exchange + result.timing.exchange
        received += sum(x.nbytes for x in result.steps[BEHAVIOR].deciding.obs)
        steps += 1
    took, decisions = time.perf_counter() - begin, steps * agents
    (worker,) = [child for child in psutil.Process().children() if "spawn" in " ".join(child.cmdline())]
    return {
        "agent_steps_per_second": decisions / took,
        "decode_us": 1e6 * decode / decisions,
        "exchange_us": 1e6 * exchange / decisions,
        "socket_mb": 1000 * received / decisions / MEGABYTE,
        "worker_mb": worker.memory_info().rss / MEGABYTE,
    }


def buffer_mb(side: int) -> float:
    """Of 1,000 agent steps in the learner's buffer: one row of 1,000 states."""
    import jax

    from jaxrl.rollout.buffer import trajectory

    spec, capacity = spec_of(side), 1000
    state = jax.eval_shape(
        lambda: trajectory.init(spec, (("log_prob", (1,)),), (), capacity=capacity, rows=1, members=1)
    )
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)) / MEGABYTE


if __name__ == "__main__":
    main()
