"""Settings of records, evaluations, best checkpoints and stop rules; files without them are what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli.commands import parse
from jaxrl.cli.flags import overrides_from
from jaxrl.settings import EvaluationSettings, RunSettings, SettingsError, StopRule, load_run_settings, to_yaml

OURS = ("record_settings", "evaluation", "keep_best", "stop")


def load(folder: Path, behavior: dict[str, Any], **sections: Any) -> RunSettings:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {"Walker": behavior}, **sections}))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def test_what_is_not_asked_for_is_not_written(tmp_path: Path) -> None:
    settings = load(tmp_path, {"trainer_type": "ppo"}, default_settings={"trainer_type": "poca"})
    assert not [key for key in OURS if f"{key}:" in to_yaml(settings)]
    dumped = settings.behaviors["Walker"].model_dump(mode="json")
    assert not dumped.keys() & set(OURS)


def test_what_is_asked_for(tmp_path: Path) -> None:
    behavior = {
        "evaluation": {"interval": 1e4, "episodes": 3},
        "keep_best": "Evaluation/Episode Length",
        "stop": {"a": 9.5, "b": {"value": 1, "patience": 2}},
    }
    settings = load(tmp_path, behavior, record_settings={"wandb": "walks"})
    walker = settings.behaviors["Walker"]
    assert walker.evaluation == EvaluationSettings(interval=10000, episodes=3)
    assert walker.stop == {"a": StopRule(value=9.5), "b": StopRule(value=1.0, patience=2)}
    assert settings.record_settings is not None and settings.record_settings.mlflow is None
    (tmp_path / "config.yaml").write_text(to_yaml(settings))
    assert load_run_settings(tmp_path / "config.yaml", {}, HYPERPARAMETER_TYPES) == settings


def test_a_null_takes_back_what_default_settings_have(tmp_path: Path) -> None:
    default = {"stop": {"a": 1, "b": 2}, "keep_best": "a", "evaluation": {"interval": 5}}
    behavior = {"stop": {"a": None}, "keep_best": None, "evaluation": None}
    settings = load(tmp_path, behavior, default_settings=default)
    walker = settings.behaviors["Walker"]
    assert (list(walker.stop), walker.keep_best, walker.evaluation) == (["b"], None, None)
    (tmp_path / "config.yaml").write_text(to_yaml(settings))
    assert load_run_settings(tmp_path / "config.yaml", {}, HYPERPARAMETER_TYPES) == settings


BAD = [
    ({"evaluation": {}}, "evaluation.interval: this key is required"),
    ({"evaluation": {"interval": 5, "episodes": 0}}, "evaluation.episodes: got 0, expected a value greater than"),
    ({"stop": {"a": "high"}}, "stop.a.value: got 'high', expected a number"),
    ({"stop": {"a": {"value": 1, "patiens": 2}}}, "stop.a.patiens: unknown key, did you mean patience?"),
    ({"stop": 3}, "stop: got 3, expected a mapping"),
    (
        {"keep_best": "Evaluation/Reward", "evaluation": {"interval": 5}},
        "keep_best: got 'Evaluation/Reward', expected one of Evaluation/Cumulative Reward, Evaluation/Group",
    ),
    (
        {"stop": {"Evaluation/Episode Length": 5}},
        "stop.Evaluation/Episode Length: got 'Evaluation/Episode Length', which is written with `evaluation: {interval",
    ),
]


@pytest.mark.parametrize(("behavior", "message"), BAD, ids=[message.partition(": ")[0] for _, message in BAD])
def test_mistakes(tmp_path: Path, behavior: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, behavior)
    assert any(problem.startswith(f"behaviors.Walker.{message}") for problem in raised.value.problems), raised.value


def test_flags_with_and_without_a_value() -> None:
    given = overrides_from(parse(["train", "config.yaml", "--wandb", "--mlflow", "http://host:5000"]))
    assert given == {"record_settings": {"wandb": "jaxrl", "mlflow": "http://host:5000"}}
    given = overrides_from(parse(["train", "config.yaml", "--mlflow", "--wandb=walks"]))
    assert given == {"record_settings": {"wandb": "walks", "mlflow": "default"}}
    assert overrides_from(parse(["train", "config.yaml"])) == {}


@pytest.mark.parametrize("flag", ["wandb", "mlflow"])
def test_a_flag_that_has_swallowed_the_configuration(flag: str) -> None:
    given = overrides_from(parse(["train", f"--{flag}", "config.yaml"]))
    with pytest.raises(SettingsError, match=f"CONFIG stands before --{flag}, or write --{flag}="):
        load_run_settings(None, given, HYPERPARAMETER_TYPES)
