"""Memory of a long run: resident set of trainer, worker and player over time. Passes when it stays constant.

    python benchmarks/soak.py                             # 30 minutes
    python benchmarks/soak.py --minutes 5 --json FILE
    python benchmarks/soak_restarts.py                    # the same with environments that die, and an account

One `jaxrl train` process with the shipped Dungeon Escape configuration, but with a summary every 10,000 steps, a
checkpoint (with its ONNX file) every 50,000 and no end; interrupted after --minutes, as a user would. The first
--warm-up share of the time does not count. `growth` is the peak of the second half less that of the first half, in MiB:
peaks, because garbage is collected from time to time. A process passes when they grew by less than 2 % and 8 MiB. Exit
code 0 when all pass. Needs psutil (extra dev).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "poca" / "dungeon_escape.yaml"
ROLES = ("trainer", "worker", "player")
STEP_SECONDS = 5.0
MOST_SHARE, MOST_MIB = 0.02, 8.0


def write_config(folder: Path) -> Path:
    """The shipped configuration without an end, with frequent summaries and checkpoints."""
    settings = yaml.safe_load(CONFIG.read_text())
    for behavior in settings["behaviors"].values():
        behavior |= {"max_steps": 10**9, "summary_freq": 10_000, "checkpoint_interval": 50_000}
    path = folder / "soak.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def role_of(process: psutil.Process, trainer: int) -> str | None:
    """Which of the three it is; None for helpers of the interpreter."""
    if process.pid == trainer:
        return "trainer"
    line = " ".join(process.cmdline())
    if "jaxrl.jax_envs.served.serve" in line:
        return "player"
    return "worker" if "spawn_main" in line else None


def resident(trainer: psutil.Process) -> dict[str, float]:
    """MiB in memory by role."""
    found = dict.fromkeys(ROLES, 0.0)
    for process in [trainer, *trainer.children(recursive=True)]:
        role = role_of(process, trainer.pid)
        if role is not None:
            found[role] += process.memory_info().rss / 2**20
    return found


def watch(command: list[str], log: Path, seconds: float) -> list[dict[str, float]]:
    """Run `command` for `seconds` and interrupt it; memory every STEP_SECONDS, with `minutes` since the start."""
    samples = []
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        trainer, begun = psutil.Process(process.pid), time.monotonic()
        while (elapsed := time.monotonic() - begun) < seconds:
            time.sleep(min(STEP_SECONDS, seconds - elapsed))
            if process.poll() is not None:
                raise SystemExit(f"the trainer ended after {elapsed:.0f} s:\n{log.read_text()[-3000:]}")
            samples.append({"minutes": (time.monotonic() - begun) / 60.0, **resident(trainer)})
        process.send_signal(signal.SIGINT)
        if process.wait(60.0):
            raise SystemExit(f"exit code {process.returncode} after the interrupt:\n{log.read_text()[-3000:]}")
    finally:
        process.kill()
    return samples


def judge(samples: list[dict[str, float]], warm_up: float) -> dict[str, dict[str, float]]:
    """By role: median MiB of both halves of what counts, growth of the peak, and the slope in MiB per hour."""
    counted = samples[int(len(samples) * warm_up) :]
    half = max(len(counted) // 2, 1)
    minutes = np.array([sample["minutes"] for sample in counted])
    found = {}
    for role in ROLES:
        mib = np.array([sample[role] for sample in counted])
        found[role] = {
            "first": float(np.median(mib[:half])),
            "last": float(np.median(mib[-half:])),
            "growth": float(mib[-half:].max() - mib[:half].max()),
            "slope": 60.0 * float(np.polyfit(minutes, mib, 1)[0]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=0.3, help="share of the time that does not count")
    parser.add_argument("--base-port", type=int, default=5505)
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "jaxrl.cli", "train", str(write_config(folder)), "--run-id=soak", "--seed=1"]
        command += [f"--results-dir={folder}", f"--base-port={options.base_port}"]
        log = folder / "soak.log"
        samples = watch(command, log, 60.0 * options.minutes)
        steps = log.read_text().rpartition("Step: ")[2].partition(".")[0]
    found = judge(samples, options.warm_up)
    print(f"{options.minutes:g} minutes, {steps} agent steps, {os.cpu_count()} cores; MiB")
    print("process   after start   first half   second half   growth   slope per hour")
    passed = True
    for role, row in found.items():
        good = row["growth"] < MOST_MIB and row["growth"] < MOST_SHARE * row["first"]
        passed = passed and good
        cells = f"{samples[1][role]:11.1f}   {row['first']:10.1f}   {row['last']:11.1f}   {row['growth']:6.2f}"
        print(f"{role:8} {cells}   {row['slope']:14.1f}   {'constant' if good else 'GROWS'}")
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"minutes": options.minutes, "found": found, "samples": samples}) + "\n")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
