"""A compiled run whose environment gives NaN in one decision of one area of one seed: the whole command.

The environment reaches the command through the registry of JAX environments, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.settings import load_run_settings
from jaxrl.training.compiled.iteration import JittedState, Plan, start
from jaxrl.training.compiled.saver import contents
from tests.jax_envs.ill_toy import Illness, make_ill
from tests.jax_envs.toy_jax_env import NAME, quick_jit

ROOT = Path(__file__).parents[3]
SEEDS, AREAS = (5, 6), 3
STEPS = 11  # decisions in an iteration: 64 agent steps asked for, 3 areas of 2 agents
AGENT_STEPS = STEPS * AREAS * 2  # in an iteration
SICK_SEED, SICK_AREA, SICK_DECISION = 1, 2, 100  # index of the seed; decision since the start of the run
SAVED = 5 * AGENT_STEPS  # the first iteration that passes checkpoint_interval; the second one is the sick one
SETTINGS = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1},
            "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True},
            "max_steps": 700,
            "checkpoint_interval": 300,
            "summary_freq": 300,
        }
    },
    "env_settings": {"env_path": "jax:toy", "num_areas": AREAS, "seed": SEEDS[0], "seeds": len(SEEDS)},
}
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration, results and compiled programs of all runs here."""
    path = tmp_path_factory.mktemp("nan")
    (path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    return path


@cache
def fresh(folder: Path) -> JittedState:
    """How these runs begin."""
    env = make_ill(Illness())
    settings = load_run_settings(folder / "config.yaml", {}, HYPERPARAMETER_TYPES).behaviors[NAME]
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    plan = Plan(env, algorithm, dict(env.parameters), AREAS, STEPS, settings.time_horizon, settings.max_steps)
    return quick_jit(partial(start, plan))(np.asarray(SEEDS, np.uint32))


def train(folder: Path, illness: Illness, *flags: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with this environment."""
    place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "tests.jax_envs.ill_toy", json.dumps(illness._asdict()), "train", "config.yaml"]
    return subprocess.run(
        [*words, *flags], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **place, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )  # fmt: skip


def state_of(folder: Path, run_id: str) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint."""
    return to_arrays(checkpoint.restore(require_latest(folder / "results" / run_id / NAME), contents(fresh(folder))))


@pytest.fixture(scope="module")
def healthy(folder: Path) -> dict[str, np.ndarray]:
    """The end of a run without illness."""
    run = train(folder, Illness(), "--run-id", "healthy")
    assert run.returncode == 0, run.stderr
    return state_of(folder, "healthy")


@pytest.mark.parametrize(("what", "article"), [("observation", "an"), ("reward", "a")])
def test_the_error_names_the_place_and_the_checkpoint_before_it_is_good(
    folder: Path, healthy: dict[str, np.ndarray], what: str, article: str
) -> None:
    luck = float(fresh(folder).play.areas.state.luck[SICK_SEED, SICK_AREA])
    run = train(folder, Illness(luck, **{what: SICK_DECISION}), "--run-id", what)
    assert run.returncode == 1
    iteration, decision = divmod(SICK_DECISION, STEPS)
    assert run.stderr.strip() == (
        f"{NAME}: the environment gave {article} {what} that is not finite: seed {SEEDS[SICK_SEED]}, "
        f"area {SICK_AREA}, decision {decision} of iteration {iteration}. "
        "Mend its step or reset; what was saved before is good."
    )
    assert "Traceback" not in run.stdout and "Step: 300." in run.stdout
    results = folder / "results" / what
    assert [found.step for found in checkpoints(results / NAME)] == [SAVED]
    assert all(np.isfinite(x).all() for x in state_of(folder, what).values())
    status = json.loads((results / "run_logs" / "training_status.json").read_text())[NAME]
    assert [entry["steps"] for entry in status["checkpoints"]] == [SAVED] and "final_checkpoint" not in status
    onnxruntime.InferenceSession(results / NAME / f"{NAME}-{SAVED}.onnx")

    mended = train(folder, Illness(), "--run-id", what, "--resume")
    assert mended.returncode == 0, mended.stderr
    assert f"resuming from results/{what}/{NAME}/{NAME}-{SAVED}." in mended.stdout
    end = state_of(folder, what)
    assert [name for name in end if end[name].tobytes() != healthy[name].tobytes()] == []
    assert int(end["train/step"].min()) > SETTINGS["behaviors"][NAME]["max_steps"]


def test_nan_of_the_first_view_after_a_chunk(folder: Path) -> None:
    """Seen by the last decision of an iteration alone, which would bootstrap from it: not blamed on the learner."""
    luck = float(fresh(folder).play.areas.state.luck[SICK_SEED, SICK_AREA])
    run = train(folder, Illness(luck, observation=STEPS), "--run-id", "first")
    assert run.returncode == 1
    assert f"seed {SEEDS[SICK_SEED]}, area {SICK_AREA}, decision {STEPS} of iteration 0" in run.stderr
    assert checkpoints(folder / "results" / "first" / NAME) == []
