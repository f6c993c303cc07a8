"""Points of one program that end at different moments: what each leaves is what it had learned by its own end."""

from __future__ import annotations

import io
from pathlib import Path

import orbax.checkpoint as ocp
import yaml
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import ARRAYS, checkpoints
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.compiled.sweep_points import train_points
from jaxrl.training.interrupt import Interrupt
from tests.jax_envs.toy_jax_env import NAME, quick_compilation

RATE = "Policy/Learning Rate"


def run_settings(folder: Path, rate: float) -> RunSettings:
    written = {
        "behaviors": {
            NAME: {
                "trainer_type": "ppo",
                "hyperparameters": {
                    "batch_size": 16, "buffer_size": 64, "learning_rate": rate, "learning_rate_schedule": "constant",
                    "num_epoch": 1,
                },
                "network_settings": {"hidden_units": 4, "num_layers": 1},
                "max_steps": 800,
                "summary_freq": 200,
                "stop": {RATE: 0.005},
            }
        },
        "env_settings": {"env_path": "tests.jax_envs.toy_jax_env:make_toy", "num_areas": 4, "seed": 1},
        "checkpoint_settings": {"run_id": f"rate={rate}", "results_dir": str(folder)},
    }  # fmt: skip
    path = folder / f"{rate}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def learned(folder: Path, rate: float) -> tuple[int, int, int]:
    """Step in the name of the last checkpoint; step and number of Adam's updates of the learner in it."""
    (last,) = checkpoints(folder / f"rate={rate}" / NAME)
    learner = ocp.PyTreeCheckpointer().restore(last.path.absolute() / ARRAYS)["train"]
    return last.step, int(learner["step"]), int(learner["optimizer"]["count"])


def test_a_point_that_a_rule_ends_learns_no_more_while_others_go_on(tmp_path: Path) -> None:
    with quick_compilation(), Interrupt() as interrupt:
        console = Console(file=io.StringIO())
        train_points([run_settings(tmp_path, rate) for rate in (0.01, 0.001)], console, interrupt, None)
    label, step, updates = learned(tmp_path, 0.01)  # reached at the first summary
    longer, last, more = learned(tmp_path, 0.001)  # never
    assert 200 <= label < 300 and step == label
    assert longer >= 800 and last == longer and 2.5 * updates < more
