"""The cases of `signals.py` as whole `jaxrl train` processes, in both loops, and as ML-Agents has them.

    python benchmarks/signals_host.py                # all, first with an empty cache of compiled programs, then warm
    python benchmarks/signals_host.py rnd gail_sac --runs 4 --loops host
    python benchmarks/signals_host.py --trainer mlagents-learn   # ML-Agents trains the same files in the same player

In the host loop the task is played by a process of its own in numpy, 16 areas behind Unity's protocol, one worker; in
the compiled one it is the JAX environment of `signals.py`. Told are the step after which the mean reward of a thousand
steps is 0.9 or more, seconds from start to exit, and CPU: user + system time of trainer, worker and player. On a busy
machine look at that.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import AreasOutcome, BehaviorPart
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

ROOT = Path(__file__).resolve().parents[1]
STEP, COST, LIMIT = 0.2, 0.01, 40  # as in signals.py, whose JAX a player is not to import
ORIGINAL = ("curiosity", "rnd", "gail", "gail_sac", "cloning", "cloning_poca")
"""Cases without keys of ours."""
NAMES = ("curiosity", "rnd", "gail", "gail_steady", "gail_sac", "gail_sac_steady", "cloning", "cloning_poca")


class Line:
    """The task of `signals.make_line` in numpy, E areas of A members."""

    def __init__(self, areas: int, members: int, seed: int) -> None:
        self._shape, self._draw = (areas, members), np.random.default_rng(seed)
        self._goal, self._place = np.zeros(self._shape), np.zeros(self._shape)
        self._clock = np.zeros(areas, int)

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        everywhere = np.ones(self._shape[0], bool)
        self._begin(everywhere)
        nothing = np.zeros(self._shape, np.float32)
        return (self._outcome(~everywhere, nothing, self._seen()),)

    def step(self, sent: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        way = STEP * (2.0 * sent[0].discrete[..., 0] - 1.0)
        self._place += np.where(self._arrived(), 0.0, way)
        self._clock += 1
        over = self._arrived().all(1) | (self._clock >= LIMIT)
        result = np.where(self._arrived(), np.sign(self._goal * self._place), 0.0).mean(1)
        paid = np.broadcast_to((np.where(over, result, 0.0) - COST)[:, None], self._shape).astype(np.float32)
        last = self._seen()
        self._begin(over)
        return (self._outcome(over, paid, last),)

    def _arrived(self) -> np.ndarray:
        return np.abs(self._place) > 1.0 - STEP / 2

    def _begin(self, areas: np.ndarray) -> None:
        self._goal[areas] = self._draw.choice([-1.0, 1.0], self._goal[areas].shape)
        self._place[areas], self._clock[areas] = 0.0, 0

    def _seen(self) -> np.ndarray:
        return np.stack([self._goal, self._place], axis=2).astype(np.float32)

    def _outcome(self, over: np.ndarray, paid: np.ndarray, last: np.ndarray) -> AreasOutcome:
        ended, nothing = np.repeat(over[:, None], self._shape[1], 1), np.zeros(self._shape, np.float32)
        own, group = (paid, nothing) if self._shape[1] == 1 else (nothing, paid)
        mask, here = np.ones((*self._shape, 2), bool), np.ones(self._shape, bool)
        return AreasOutcome(ended, np.zeros_like(ended), own, group, (last,), here, mask, (self._seen(),), over, {})


def play(members: int, port: int) -> None:
    """As a Unity player would."""
    spec = BehaviorSpec((ObservationSpec("sensor_0", (2,)),), ActionSpec(0, (2,)))
    part = BehaviorPart("Line", spec, members, 1)
    serve(ServedScene("Line", (part,), {}, lambda areas, seed: Line(areas, members, seed)), PlayerOptions(port=port))


def written(name: str, loop: str, folder: Path, base_port: int) -> Path:
    """The configuration file of a case."""
    case = CASES[name]
    members = 2 if case.trainer == "poca" else 1
    behavior: dict[str, Any] = {"trainer_type": case.trainer, **section(name, str(folder / "line.demo"))}
    behavior |= {"max_steps": case.steps, "summary_freq": 1000, "time_horizon": 64}
    if loop == "host":
        build = folder / f"line{members}.x86_64"
        script = f'exec "{sys.executable}" "{Path(__file__).resolve()}" --members {members} "$@"'
        build.write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\n{script}\n')
        build.chmod(0o755)
        environment = {"env_path": str(build), "base_port": base_port}
    else:
        environment = {
            "env_path": f"{ROOT / 'benchmarks' / 'signals.py'}:make_line",
            "env_args": [f"members={members}"],
        }
    config = folder / f"{name}-{loop}.yaml"
    config.write_text(
        yaml.safe_dump({"behaviors": {"Line": behavior}, "env_settings": environment | {"num_areas": 16}})
    )
    return config


def train(trainer: list[str], config: Path, seed: int) -> tuple[float, float, str]:
    """Seconds of wall and CPU of a run, and the step at which it was told that the mean reward is 0.9 or more."""
    command = [*trainer, str(config), f"--run-id={config.stem}-{seed}", f"--seed={seed}"]
    cache = config.parent / f"cache-{config.stem}"
    environment = os.environ | {"JAXRL_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    log = config.with_suffix(".log")
    with log.open("wb") as output:
        begun = time.perf_counter()
        arguments = [*command, f"--results-dir={config.parent / 'results'}"]
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
    told = log.read_text()
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{told[-3000:]}")
    means = re.findall(r"Step: (\d+)\..*Mean (?:Group )?Reward: (-?\d+\.\d+)", told)  # the last: a team is paid as such
    reached = next((f"{int(step):,}" for step, mean in means if float(mean) >= 0.9), "never")
    return wall, usage.ru_utime + usage.ru_stime, reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases (default: all)")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="the first with an empty cache (default: 2)")
    parser.add_argument("--loops", nargs="+", choices=("host", "compiled"), default=["host", "compiled"])
    parser.add_argument("--trainer", metavar="PROGRAM", help="in the place of `jaxrl train`, such as mlagents-learn")
    parser.add_argument("--base-port", type=int, default=6105)
    given = parser.parse_args()
    trainer = [sys.executable, "-m", "jaxrl.cli", "train"] if given.trainer is None else [given.trainer]
    loops, names = (given.loops, NAMES) if given.trainer is None else (["host"], ORIGINAL)
    print("| case | loop | steps | to 0.9, by run | seconds (CPU), by run |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        demonstrate(folder / "line.demo")
        for name in given.names or names:
            for loop in loops:
                config = written(name, loop, folder, given.base_port)
                runs = [train(trainer, config, seed) for seed in range(given.runs)]
                steps, spent = " ".join(run[2] for run in runs), ", ".join(f"{w:.1f} ({c:.1f})" for w, c, _ in runs)
                print(f"| {name} | {loop} | {CASES[name].steps:,} | {steps} | {spent} |", flush=True)


if __name__ == "__main__":
    if any(argument.startswith("--mlagents-port") for argument in sys.argv):
        player = argparse.ArgumentParser()
        player.add_argument("--members", type=int)
        player.add_argument("--mlagents-port", type=int, dest="port")
        asked = player.parse_known_args()[0]
        play(asked.members, asked.port)
    else:
        sys.path.insert(0, str(ROOT))
        import yaml

        from benchmarks.signals import CASES, demonstrate, section

        main()
