"""Agent steps per second of whole runs that see images, entities and goals, or remember: small tasks, 16 areas.

    python benchmarks/senses.py                       # host loop on the bundled player, then the compiled loop
    python benchmarks/senses.py --only memory --steps 40000 --json FILE
    python benchmarks/senses.py --delay 0             # episodes of one decision instead of five

PPO with 128 x 2 units, batches of 256 of 2,048 agent steps, 3 epochs, one worker; images are 20 x 20 x 3 with `simple`,
memory is an LSTM of 128 numbers in sequences of 16. Episodes are five decisions long. What is timed is the run after
its first summary, so without start and compilation, but with everything else. ML-Agents 1.1.0 takes on this class of
machine (2 cores, 16 areas, probe tasks of its own of the same kind): images 470, memory 500, entities 250, goals 225
agent steps per second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ORIGINAL = {"image": 470, "memory": 500, "entities": 250, "goal": 225}
NAMES = {"image": "ProbeImage", "memory": "ProbeMemory", "entities": "ProbeEntities", "goal": "ProbeGoal"}
CONFIG = """
behaviors:
  {name}:
    trainer_type: ppo
    hyperparameters: {{batch_size: 256, buffer_size: 2048, num_epoch: 3, learning_rate: 0.001}}
    network_settings:
      hidden_units: 128
      num_layers: 2
      memory: {memory}
    max_steps: {steps}
    time_horizon: 64
    summary_freq: {summary}
env_settings: {{env_path: "{kind}:probe_{task}", num_areas: 16, seed: 1}}
environment_parameters: {{delay: {delay}}}
"""
LINE = re.compile(r"Step: (\d+)\. Time Elapsed: ([\d.]+) s")


def speed(task: str, kind: str, steps: int, delay: int) -> float:
    """Agent steps per second between the first and the last summary of one run."""
    memory = "{memory_size: 128, sequence_length: 16}" if task == "memory" else "null"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(
            CONFIG.format(
                name=NAMES[task], memory=memory, steps=steps, summary=steps // 4, kind=kind, task=task, delay=delay
            )
        )
        arguments = ["train", str(path), "--run-id", "bench", "--results-dir", folder, "--base-port", "6205"]
        found = subprocess.run(
            [sys.executable, "-m", "jaxrl.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=1200,
            check=True,
        )
    points = [(int(step), float(seconds)) for step, seconds in LINE.findall(found.stdout + found.stderr)]
    (first, begun), (last, over) = points[0], points[-1]
    return (last - first) / (over - begun)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(ORIGINAL))
    parser.add_argument("--steps", type=int, default=40000)
    parser.add_argument("--delay", type=int, default=4, help="decisions of an episode before the one that counts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| task | host loop | of the original's | compiled loop |\n|---|---|---|---|")
    for task, original in ORIGINAL.items():
        if options.only in (None, task):
            host = speed(task, "player", options.steps, options.delay)
            compiled = speed(task, "jax", 5 * options.steps, options.delay)
            rows.append({"task": task, "host": host, "ratio": host / original, "compiled": compiled})
            print(f"| {task} | {host:,.0f} | {host / original:.1f} x {original} | {compiled:,.0f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
