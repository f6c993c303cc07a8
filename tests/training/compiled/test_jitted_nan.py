"""A compiled run whose environment gives NaN in one decision of one area of one seed: the whole command.

Of two seeds the sick one is frozen and the other goes on; a run whose only seed is sick ends with an error.

The environment reaches the command through the registry of JAX environments, in the process of the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
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
from jaxrl.cli import main
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.settings import load_run_settings
from jaxrl.training.compiled.saver import contents
from jaxrl.training.compiled.state import JittedState
from tests.event_files import read_events
from tests.jax_envs.ill_toy import Illness, make_ill
from tests.jax_envs.toy_jax_env import NAME, quick_jit
from tests.training.compiled.alone import fresh_states

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
LOSS = "Losses/Policy Loss"
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
    return quick_jit(partial(fresh_states, env, algorithm, settings, AREAS, STEPS))(np.asarray(SEEDS, np.uint32))


def train(folder: Path, illness: Illness, *flags: str, config: str = "config.yaml") -> subprocess.CompletedProcess[str]:
    """The command in the folder, with this environment."""
    words, out, error = ["train", config, *flags], io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        patch.setitem(ENVIRONMENTS, "toy", lambda: make_ill(illness))
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())


def state_of(folder: Path, run_id: str) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint."""
    path, wanted = require_latest(folder / "results" / run_id / NAME), contents(fresh(folder))
    if "frozen" in checkpoint.read_info(path).leaves:
        wanted = wanted.replace(frozen=fresh(folder).frozen)
    return to_arrays(checkpoint.restore(path, wanted))


@pytest.fixture(scope="module")
def healthy(folder: Path) -> dict[str, np.ndarray]:
    """The end of a run without illness."""
    run = train(folder, Illness(), "--run-id", "healthy")
    assert run.returncode == 0, run.stderr
    return state_of(folder, "healthy")


@pytest.fixture(scope="module")
def luck(folder: Path) -> float:
    """By which the sick area is known."""
    return float(fresh(folder).play.areas.state.luck[SICK_SEED, SICK_AREA])


def fault(what: str, iteration: int, decision: int) -> str:
    """What is said of the sick number."""
    return (
        f"{NAME}: the environment gave {what} that is not finite: seed {SEEDS[SICK_SEED]}, area {SICK_AREA}, "
        f"decision {decision} of iteration {iteration}. Mend its step or reset; what was saved before is good."
    )


def steps_of_events(folder: Path, run_id: str, seed: int) -> list[int]:
    """At which steps a seed has summaries."""
    (path,) = (folder / "results" / run_id / NAME / f"seed_{seed}").glob("events*")
    return sorted({event.step for event in read_events(path) if any(v.tag == LOSS for v in event.summary.value)})


@pytest.mark.parametrize(
    ("what", "article"), [pytest.param("observation", "an", marks=pytest.mark.slow), ("reward", "a")]
)
def test_the_sick_seed_is_frozen_and_the_other_goes_on_bit_for_bit(
    folder: Path, healthy: dict[str, np.ndarray], luck: float, what: str, article: str
) -> None:
    run = train(folder, Illness(luck, **{what: SICK_DECISION}), "--run-id", what)
    assert run.returncode == 0, run.stderr
    iteration, decision = divmod(SICK_DECISION, STEPS)
    said = " ".join(run.stdout.split())
    assert fault(f"{article} {what}", iteration, decision) in said
    before = iteration * AGENT_STEPS
    assert f"Seed 6 is frozen as it was at step {before}; the other seeds go on." in said
    assert (
        "left out: frozen seeds, whose numbers were not finite: 6." in said
        and "Traceback" not in run.stdout + run.stderr
    )
    state = state_of(folder, what)
    others = [name for name in state if name != "frozen" and state[name][0].tobytes() != healthy[name][0].tobytes()]
    assert others == []
    assert state["frozen"].tolist() == [False, True] and state["train/step"].tolist()[SICK_SEED] == before
    learned = [x[SICK_SEED] for name, x in state.items() if name.startswith("train/policy")]
    assert all(np.isfinite(x).all() for x in learned)
    status = json.loads((folder / "results" / what / "run_logs" / "training_status.json").read_text())[NAME]
    assert status["seed"] == 5 and status["frozen_seeds"]["6"]["steps"] == before
    assert steps_of_events(folder, what, 5) == [300, 600, 700] and steps_of_events(folder, what, 6) == [300]


@pytest.mark.slow
def test_a_resumed_run_leaves_it_frozen(folder: Path, luck: float) -> None:
    """Also where the environment has been mended meanwhile."""
    train(folder, Illness(luck, reward=SICK_DECISION), "--run-id", "again")
    before = state_of(folder, "again")
    longer = SETTINGS["behaviors"][NAME] | {"max_steps": 900}
    (folder / "longer.yaml").write_text(yaml.safe_dump(SETTINGS | {"behaviors": {NAME: longer}}))
    run = train(folder, Illness(), "--run-id", "again", "--resume", config="longer.yaml")
    assert run.returncode == 0, run.stderr
    assert "seed 6 stays frozen" in run.stdout
    after = state_of(folder, "again")
    assert after["frozen"].tolist() == [False, True]
    assert after["train/step"][0] > 900 > before["train/step"][0]
    learned = [name for name in after if name.startswith("train/")]
    assert [name for name in learned if after[name][SICK_SEED].tobytes() != before[name][SICK_SEED].tobytes()] == []


def test_the_only_seed_ends_the_run_and_the_checkpoint_before_it_is_good(folder: Path, luck: float) -> None:
    alone = ("--seed", str(SEEDS[SICK_SEED]), "--seeds", "1", "--run-id", "alone")
    run = train(folder, Illness(luck, reward=SICK_DECISION), *alone)
    assert run.returncode == 1
    assert run.stderr.strip() == fault("a reward", *divmod(SICK_DECISION, STEPS))
    assert "Traceback" not in run.stdout and "Step: 300." in run.stdout
    results = folder / "results" / "alone"
    assert [found.step for found in checkpoints(results / NAME)] == [SAVED]
    status = json.loads((results / "run_logs" / "training_status.json").read_text())[NAME]
    assert [entry["steps"] for entry in status["checkpoints"]] == [SAVED] and "final_checkpoint" not in status
    onnxruntime.InferenceSession(results / NAME / f"{NAME}-{SAVED}.onnx")
    mended = train(folder, Illness(), *alone, "--resume")
    assert mended.returncode == 0, mended.stderr
    assert f"resuming from results/alone/{NAME}/{NAME}-{SAVED}." in mended.stdout


def test_nan_of_the_first_view_after_a_chunk(folder: Path, luck: float) -> None:
    """Seen by the last decision of an iteration alone, which would bootstrap from it: not blamed on the learner."""
    alone = ("--seed", str(SEEDS[SICK_SEED]), "--seeds", "1", "--run-id", "first")
    run = train(folder, Illness(luck, observation=STEPS), *alone)
    assert run.returncode == 1
    assert run.stderr.strip() == fault("an observation", 0, STEPS)
    assert checkpoints(folder / "results" / "first" / NAME) == []
