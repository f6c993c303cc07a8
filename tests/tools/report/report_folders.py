"""Results folders as training leaves them, small, for the tests of the report."""

import json
from pathlib import Path

import yaml

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter

TIMERS = {
    "name": "root",
    "total": 12.0,
    "children": {
        "run_training.setup": {"total": 1.0},
        "TrainerController.start_learning": {
            "total": 10.0,
            "children": {
                "env_step": {"total": 4.0, "children": {"workers": {"total": 3.9, "is_parallel": True}}},
                "TorchPolicy.evaluate": {"total": 2.0},
                "_update_policy": {"total": 3.0},
            },
        },
    },
    "metadata": {"jaxrl_version": "0.1.0", "jax_version": "0.10.2"},
}


def scalar(value):
    return Summary(value=value, mean=value, std=0.0, sum=value, count=1, histogram=None)


def write_events(folder, points, tag=tags.GROUP_CUMULATIVE_REWARD, resume_step=None):
    """One event file with {step: value} of a tag."""
    writer = TensorBoardWriter(folder, resume_step)
    for step, value in points.items():
        writer.summaries(step, {tag: scalar(value), tags.ENTROPY: scalar(1.0)})
    writer.close()
    return writer.path


def write_run(results: Path, name, *, seed=1, scores=(0.0, 0.5), trainer="poca", seeds=None, configuration=True):
    """A run of 1,000 steps per score; `seeds`: that many in one run, each 0.1 above the one before."""
    run = results / name
    for n in range(seeds or 1):
        folder = run / "Walker" / f"seed_{n}" if seeds else run / "Walker"
        write_events(folder, {1000 * (i + 1): score + 0.1 * n for i, score in enumerate(scores)})
    (run / "run_logs").mkdir()
    (run / "run_logs" / "timers.json").write_text(json.dumps(TIMERS))
    settings = {
        "behaviors": {"Walker": {"trainer_type": trainer, "hyperparameters": {"beta": 0.01}}},
        "env_settings": {"seed": seed, "seeds": seeds or 1, "base_port": 5000 + seed},
        "checkpoint_settings": {"run_id": name},
    }
    if configuration:
        (run / "configuration.yaml").write_text(yaml.safe_dump(settings))
    return run
