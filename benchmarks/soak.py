"""Memory over a long run: resident memory of trainer, worker and player, which must stay where it is.

    python benchmarks/soak.py --minutes 30

Trains the main job without end and samples each process of the run every ten seconds. The slope is fitted over the
second half of the run; the test passes when it is below `--limit` MB per hour for every kind of process. Needs psutil
(extra `dev`).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 10.0


def kind(process: psutil.Process) -> str:
    """trainer, worker, player or other, by its command line."""
    words = " ".join(process.cmdline())
    if "jaxrl.jax_envs.serve" in words:
        return "player"
    if "spawn_main" in words:
        return "worker"
    return "trainer" if "jaxrl.cli" in words else "other"


def sample(trainer: psutil.Process) -> dict[str, float]:
    """Resident memory in MB by kind of process, summed."""
    found: dict[str, float] = {}
    for process in [trainer, *trainer.children(recursive=True)]:
        try:
            name, size = kind(process), process.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            continue
        found[name] = found.get(name, 0.0) + size
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--limit", type=float, default=20.0, help="MB per hour")
    parser.add_argument("--base-port", type=int, default=5405)
    options = parser.parse_args()
    written = (
        (ROOT / "configs/poca/dungeon_escape.yaml").read_text().replace("max_steps: 300000", "max_steps: 1000000000")
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "soak.yaml"
        config.write_text(written)
        command = [sys.executable, "-m", "jaxrl.cli", "train", str(config), "--run-id=soak", "--seed=1"]
        command += [f"--results-dir={folder}/results", f"--base-port={options.base_port}"]
        trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        series: list[tuple[float, dict[str, float]]] = []
        begun = time.monotonic()
        while time.monotonic() - begun < options.minutes * 60 and trainer.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            series.append((time.monotonic() - begun, sample(psutil.Process(trainer.pid))))
        trainer.send_signal(signal.SIGINT)
        code = trainer.wait(timeout=60)
    return report(series, options.limit, code)


def report(series: list[tuple[float, dict[str, float]]], limit: float, code: int) -> int:
    """Print the table; 0 when the run ended well and no process grew."""
    late = series[len(series) // 2 :]
    hours = np.array([seconds / 3600 for seconds, _ in late])
    print(f"{len(series)} samples over {series[-1][0] / 60:.1f} minutes, exit code {code}")
    print("process  first MB  half MB  last MB  slope of the second half, MB/h")
    grown = False
    for name in ("trainer", "worker", "player"):
        sizes = np.array([memory.get(name, 0.0) for _, memory in late])
        slope = float(np.polyfit(hours, sizes, 1)[0])
        grown |= slope > limit
        print(f"{name:7}  {series[0][1].get(name, 0.0):8.0f}  {sizes[0]:7.0f}  {sizes[-1]:7.0f}  {slope:8.1f}")
    return 1 if grown or code else 0


if __name__ == "__main__":
    raise SystemExit(main())
