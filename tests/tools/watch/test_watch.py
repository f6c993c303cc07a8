"""`jaxrl watch`: what is played is what the policy does, the film shows it, and every mistake gets its own text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError
from jaxrl.artifacts.run_folder import RunFolderError
from jaxrl.cli import main
from jaxrl.compilation import enable_compilation_cache
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.settings import load_run_settings
from jaxrl.tools.watch import film as module
from jaxrl.tools.watch.film import WatchSummary, watch
from jaxrl.training.host.saver import Saved
from jaxrl.types import JaxrlError

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs" / "ppo" / "basic.yaml"
LEFT, RIGHT = 1, 2
STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def compiled_once(runs: None) -> None:
    """Tests that play the same game share its compiled program through the cache of the test session."""
    enable_compilation_cache()


@pytest.fixture(scope="module")
def fresh() -> tuple[Any, dict[str, Any], TrainState]:
    """Spec, settings and a fresh learner of Basic."""
    spec = ENVIRONMENTS["basic"]().spec
    settings = load_run_settings(CONFIG, {}, HYPERPARAMETER_TYPES).behaviors["Basic"]
    state = jax.jit(ALGORITHMS["ppo"](spec, settings).init)(jax.random.key(0))
    return spec, settings.model_dump(mode="json"), state


def always(state: TrainState, action: int) -> TrainState:
    """A learner whose policy takes one action wherever it is."""
    params = jax.tree.map(lambda leaf: leaf, state.policy.params)
    logits = params["params"]["heads"]["logits"]
    logits["bias"] = jnp.full_like(logits["bias"], -50.0).at[action].set(50.0)
    return state.replace(policy=state.policy.replace(params=params))


def save(run: Path, fresh: tuple[Any, dict[str, Any], TrainState], train: Any, behavior: str = "Basic") -> Path:
    """A run with one checkpoint."""
    spec, settings, _ = fresh
    saved = Saved(train=train, step=np.int64(700), decisions=np.int64(9))
    checkpoint.save(run / behavior, 700, saved, spec=spec, settings=settings)
    return run


def show(run: Path | None, out: Path, **options: Any) -> WatchSummary:
    return watch("jax:basic", run=run, out=out, **{"steps": STEPS, **options})


def test_a_policy_plays_its_episodes_and_the_film_shows_them(tmp_path, fresh):
    run = save(tmp_path / "run", fresh, always(fresh[2], RIGHT))
    out = tmp_path / "episode.gif"
    summary = show(run, out)
    assert summary.behavior == "Basic" and summary.policy == "Basic-700" and summary.out == out
    assert summary.steps == 7 and summary.finished
    np.testing.assert_allclose(summary.returns, [[1 - 7 * 0.01]], rtol=1e-5)  # seven steps to the right
    summary = show(run, out, episodes=2)
    assert summary.steps == STEPS and not summary.finished  # five steps of the second episode
    np.testing.assert_allclose(summary.returns, [[0.93], [-0.05]], rtol=1e-5)
    with Image.open(out) as film:
        assert film.n_frames == (1 + 7) + (1 + 5)
        film.seek(7)
        assert film.info["duration"] == 1500  # an episode's end stays


def test_of_several_seeds_the_best_plays(tmp_path, fresh, caplog):
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), always(fresh[2], LEFT), always(fresh[2], RIGHT))
    run = save(tmp_path / "run", fresh, both)
    summary = show(run, tmp_path / "a.png")
    assert summary.policy == "Basic-700, seed 0 of 2 seeds" and summary.steps == 3  # to the small goal
    assert "names no best seed" in caplog.text
    status = run / "run_logs" / "training_status.json"
    status.parent.mkdir()
    status.write_text(json.dumps({"Basic": {"seed": 1}, "metadata": {}}))
    summary = show(run, tmp_path / "a.png")
    assert summary.policy == "Basic-700, seed 1 of 2 seeds" and summary.steps == 7
    status.write_text(json.dumps({"Basic": {"seed": 2}}))
    with pytest.raises(RunFolderError, match=r"Basic\.seed = 2, but the checkpoint has 2 seeds"):
        show(run, tmp_path / "a.png")


def test_deterministic_takes_the_most_likely_action(tmp_path, fresh):
    params = jax.tree.map(jnp.zeros_like, fresh[2].policy.params)
    params["params"]["heads"]["logits"]["bias"] = jnp.array([0.0, 0.0, 0.1])  # hardly better than the others
    run = save(tmp_path / "run", fresh, fresh[2].replace(policy=fresh[2].policy.replace(params=params)))
    straight = show(run, tmp_path / "a.png", deterministic=True)
    sampled = show(run, tmp_path / "a.png")
    assert straight.returns[0][0] == pytest.approx(0.93) and sampled.returns[0][0] < 0.9


def test_a_bare_model_plays(tmp_path, capsys):
    model, out = ROOT / "zoo" / "basic" / "Basic.onnx", str(tmp_path / "a.gif")
    for option in ("--model", "--run"):
        command = ["watch", "jax:basic", option, str(model), "--out", out, "--steps", str(STEPS), "--deterministic"]
        assert main(command) == 0
        assert "Basic, Basic.onnx: reward 0.93 in 7 steps" in capsys.readouterr().out
    assert main(["watch", "--model", str(model), "--out", out]) == 1
    assert "Basic.onnx: a model does not tell its environment: name it" in capsys.readouterr().err
    assert main(["watch", "jax:ball3d", "--model", str(model), "--out", out]) == 1
    assert "input 'obs_0' is ['batch', 20], expected [batch, 8]" in capsys.readouterr().err


def test_random_play_through_the_command_repeats_with_its_seed(tmp_path, capsys):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        out = str(tmp_path / f"{name}.gif")
        assert main(["watch", "jax:basic", "--out", out, "--seed", str(seed), "--steps", str(STEPS)]) == 0
    first, second, other = ((tmp_path / f"{name}.gif").read_bytes() for name in "abc")
    assert first == second != other
    assert "Basic, random actions: reward -0.12 in 12 steps, cut there by --steps" in capsys.readouterr().out
    assert main(["watch", "jax:basic", "--out", "film.avi"]) == 1
    assert "film.avi: a film is written as .gif or .png" in capsys.readouterr().err


def test_two_teams_are_counted_apart():
    env = ENVIRONMENTS["basic"]()._replace(teams=2, members=3)
    game = module.Game(
        before=None,
        after=None,
        reward={env.name: np.array([[0, 0, 0, 0, 0.5, 0]], np.float32)},
        # the dead member gets nothing, its mates lose 1; the other team wins 1
        group_reward={env.name: np.array([[-1, -1, 0, 1, 1, 1]], np.float32)},
        over=np.array([True]),
    )
    np.testing.assert_allclose(module.team_rewards(env, game), [[-1.0, 1.5]])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jax:basik", r"jax:basik: no such environment, did you mean jax:basic\?"),
        ("basic", r"basic: no such environment, did you mean jax:basic\?"),
        ("jax:zzz", r"jax:zzz: no such environment, jaxrl can show jax:ball3d, "),
    ],
)
def test_unknown_environments_are_answered_with_the_nearest(tmp_path, name, text):
    with pytest.raises(JaxrlError, match=text):
        watch(name, run=None, out=tmp_path / "a.gif")


def test_an_environment_without_a_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "blind", lambda: ENVIRONMENTS["basic"]()._replace(draw=None))
    with pytest.raises(JaxrlError, match="jax:blind: the environment has no picture"):
        watch("jax:blind", run=None, out=tmp_path / "a.gif")


def test_impossible_limits_and_endings(tmp_path):
    with pytest.raises(JaxrlError, match="episodes = 0"):
        show(None, tmp_path / "a.gif", episodes=0)
    with pytest.raises(JaxrlError, match=r"a\.avi"):
        show(None, tmp_path / "a.avi")


def test_runs_that_cannot_be_shown(tmp_path, fresh):
    out = tmp_path / "a.gif"
    with pytest.raises(RunFolderError, match="no such folder"):
        show(tmp_path / "nothing", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no complete checkpoint"):
        show(tmp_path / "empty", out)
    save(tmp_path / "other", fresh, fresh[2], behavior="Walker")
    with pytest.raises(RunFolderError, match="holds no policy for behavior Basic, only for Walker"):
        show(tmp_path / "other", out)
    spec, settings, state = fresh
    (sensor,) = spec.observations
    narrow = spec._replace(observations=(sensor._replace(shape=(5,)),))
    policy = state.policy.replace(params=jax.tree.map(lambda leaf: leaf[:5], state.policy.params))
    run = save(tmp_path / "narrow", (narrow, settings, state), state.replace(policy=policy))
    with pytest.raises(CheckpointError, match=r"does not fit Basic .*shape: \[5\] in the checkpoint, \[20\] now"):
        show(run, out)
    assert not out.exists()
