"""Whole runs with environments of others: files, films, refusals; the slow ones learn to known returns."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml

from tests import trainer

pytestmark = [*trainer.MARKS, trainer.TRACED_ONCE]
CONFIGS = Path(__file__).parents[3] / "configs"
TINY = {
    "hyperparameters": {"batch_size": 32, "buffer_size": 128, "learning_rate_schedule": "constant", "num_epoch": 1},
    "network_settings": {"hidden_units": 8, "num_layers": 1},
    "max_steps": 600, "summary_freq": 200, "checkpoint_interval": 10_000,
}  # fmt: skip


def configuration(folder: Path, env_path: str, behaviors: dict[str, str], **env_settings) -> Path:
    """A tiny run of the environment; trainer types by behavior."""
    settings = {
        "behaviors": {name: {"trainer_type": kind, **TINY} for name, kind in behaviors.items()},
        "env_settings": {"env_path": env_path, "seed": 1, **env_settings},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_a_run_of_gymnasium_leaves_the_files_of_any_run_and_films(tmp_path, capfd):
    path = configuration(tmp_path, "gymnasium:CartPole-v1", {"CartPole-v1": "ppo"}, num_envs=2, num_areas=2)
    assert trainer.train(path, tmp_path, "--video", "5") == 0
    run = tmp_path / "run"
    assert (run / "CartPole-v1.onnx").is_file() and (run / "run_logs" / "timers.json").is_file()
    films = sorted(film.stem for film in (run / "videos").iterdir())
    assert films[:2] == ["episode-000000", "episode-000005"]
    assert "gymnasium:CartPole-v1 of Gymnasium" in capfd.readouterr().out


def test_one_seed_one_result_with_two_workers(tmp_path):
    path = configuration(tmp_path, "gymnasium:CartPole-v1", {"CartPole-v1": "ppo"}, num_envs=2, num_areas=2)
    files = []
    for name in ("first", "second"):
        assert trainer.train(path, tmp_path, run_id=name) == 0
        files.append((tmp_path / name / "CartPole-v1.onnx").read_bytes())
    assert files[0] == files[1]


@pytest.mark.slow
def test_two_behaviors_of_pettingzoo_with_two_algorithms(tmp_path):
    behaviors = {"adversary": "poca", "agent": "ppo"}
    path = configuration(tmp_path, "pettingzoo:mpe2.simple_tag_v3", behaviors, num_areas=2, env_args=["max_cycles=10"])
    assert trainer.train(path, tmp_path) == 0
    assert (tmp_path / "run" / "adversary.onnx").is_file() and (tmp_path / "run" / "agent.onnx").is_file()


@pytest.mark.parametrize(
    ("env_path", "words"),
    [
        ("gymnasium:CartPole-v9", "env_settings.env_path: gymnasium:CartPole-v9: no such environment, did you mean"),
        ("pettingzoo:no_such_module", "module no_such_module cannot be imported"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(tmp_path, capfd, env_path, words):
    path = configuration(tmp_path, env_path, {"A": "ppo"})
    assert trainer.train(path, tmp_path / "results") == 1
    assert words in capfd.readouterr().err
    assert not (tmp_path / "results").exists()


def test_arguments_that_are_none_are_refused_before_anything_is_written(tmp_path, capfd):
    path = configuration(tmp_path, "gymnasium:CartPole-v1", {"A": "ppo"}, env_args=["--fast"])
    assert trainer.train(path, tmp_path / "results") == 1
    assert "env_settings.env_args: got '--fast', expected key=value" in capfd.readouterr().err
    assert not (tmp_path / "results" / "run").exists()


GAME = """
import gymnasium, numpy

class Game(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0  # of all copies in this process

    def __init__(self, fault="none"):
        self.fault = fault

    def reset(self, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        Game.steps += 1
        if Game.steps == 400 and self.fault == "raises":
            raise ValueError("worn out")
        bad = Game.steps == 400 and self.fault == "nan"
        return numpy.zeros(2, numpy.float32), numpy.nan if bad else 0.0, False, Game.steps % 20 == 0, {}

gymnasium.register("own/Game-v0", entry_point=Game)
"""


@pytest.mark.parametrize(
    ("fault", "more", "code", "words"),
    [
        ("raises", [], 0, "area 3: step raised ValueError: worn out"),
        ("nan", ["--on-bad-data", "restart"], 0, "area 3, agent 'agent', reward: nan is not a finite number"),
        ("nan", [], 1, "area 3, agent 'agent', reward: nan is not a finite number"),
    ],
)
def test_an_environment_that_goes_wrong_is_started_again_or_ends_the_run(
    tmp_path, capfd, monkeypatch, fault, more, code, words
):
    """The 400th step of a process goes wrong; 600 agent steps need one process more."""
    (tmp_path / "worn_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{trainer.ROOT}")
    monkeypatch.delitem(sys.modules, "worn_game", raising=False)
    monkeypatch.delitem(gymnasium.registry, "own/Game-v0", raising=False)  # an earlier test's
    name = "gymnasium:worn_game:own/Game-v0"
    path = configuration(tmp_path, name, {"Game-v0": "ppo"}, num_areas=4, env_args=[f"fault={fault}"])
    assert trainer.train(path, tmp_path, *more) == code
    said = capfd.readouterr()
    assert words in " ".join((said.out + said.err).split())
    assert (tmp_path / "run" / "Game-v0.onnx").is_file()  # saved, however it ends


def last_means(output: str, which: str) -> list[float]:
    """The numbers of the summaries on the console."""
    return [float(number) for number in re.findall(rf"{which}: (-?\d+\.\d+)", output)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("config", "which", "least"),
    [
        ("gymnasium/cartpole", "Mean Reward", 475.0),
        ("gymnasium/pendulum", "Mean Reward", -200.0),
        ("gymnasium/lunar_lander", "Mean Reward", 200.0),
        ("pettingzoo/simple_spread", "Mean Group Reward", -19.5),
        ("pettingzoo/multiwalker", "Mean Reward", -90.0),  # -102 for those who have learnt nothing
    ],
)
def test_known_returns_are_reached(tmp_path, capfd, config, which, least):
    """Over the last three summaries of the whole run."""
    assert trainer.train(CONFIGS / f"{config}.yaml", tmp_path, "--seed", "1") == 0
    means = last_means(capfd.readouterr().out.replace("\n", " "), which)[-3:]
    assert sum(means) / 3 >= least, means
