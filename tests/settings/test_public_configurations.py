"""Configurations as people have them: small odd files, and those of each generation of ML-Agents, as guides print them.

Files of before 0.18 go through `jaxrl upgrade-config`. Values are by hand, from what the original makes of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.cli import main
from jaxrl.settings import RunSettings, SettingsError, load_run_settings
from jaxrl.settings.environment_parameters import Curriculum
from jaxrl.settings.section import flatten
from jaxrl.training.host.run import train
from jaxrl.training.lessons import Lessons
from jaxrl.types import SamplerSpec
from tests.toy_runs import environment

CASES = Path(__file__).parents[1] / "cases"
PUBLIC = CASES / "public"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.WARNING, "jaxrl")
    return caplog


def loaded(path: Path, **options: Any) -> RunSettings:
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES, **options)


def upgraded(folder: Path, capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[Path, str]:
    """The new file, and what was said."""
    assert main(["upgrade-config", *map(str, paths)]) == 0
    printed = capsys.readouterr()
    new = folder / "new.yaml"
    new.write_text(printed.out, "utf-8")
    return new, printed.err


def values_of(settings: RunSettings, behavior: str) -> Mapping[str, Any]:
    return flatten(settings.behaviors[behavior].model_dump(mode="json"))


def test_small_files_that_train(said: pytest.LogCaptureFixture) -> None:
    values = values_of(loaded(CASES / "default_schedule.yaml"), "Agent")
    kinds = [values[f"hyperparameters.{name}_schedule"] for name in ("learning_rate", "beta", "epsilon")]
    assert kinds == ["constant", "linear", "linear"], "default_settings is resolved before a behavior inherits it"
    assert not said.messages
    assert loaded(CASES / "max_steps.yaml").behaviors["Agent"].max_steps == 2**31 - 1
    (text,) = said.messages
    assert "max_steps: more steps than are counted" in text
    said.clear()
    values = values_of(loaded(CASES / "net_unknown.yaml"), "Agent")
    assert values["network_settings.hidden_units"] == 64 and values["network_settings.vis_encode_type"] == "simple"
    assert [text.rpartition("; ")[2] for text in said.messages] == [
        "did you mean vis_encode_type?",
        "did you mean goal_conditioning_type?",
    ]
    with pytest.raises(SettingsError, match=r"has 2 problems(.|\n)*vis_encoder_type(.|\n)*conditioning_type"):
        loaded(CASES / "net_unknown.yaml", strict=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memfalse", r"memory: got False, expected a mapping of settings \(null or no such key for none\)"),
        ("mid_flat", r"behaviors\.Agent: trainer, batch_size, buffer_size, use_recurrent: .* `jaxrl upgrade-config"),
        ("mid_output_path", r"behaviors\.Agent: output_path: .*: `jaxrl upgrade-config OLD > new.yaml`$"),
        ("old_dup", r"default: this is the layout of ML-Agents before release 0\.18: .*jaxrl upgrade-config"),
        ("tab", r"line 2, column 1: the line begins with a tab"),
    ],
)
def test_small_files_that_are_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as error:
        loaded(CASES / f"{name}.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "note", "expected"),
    [
        ("mid_flat", "", {"hyperparameters.batch_size": 32, "hyperparameters.buffer_size": 256, "max_steps": 500_000}),
        ("mid_output_path", "Agent.output_path: dropped", {"trainer_type": "ppo", "max_steps": 500_000}),
        ("old_dup", "key 'use_recurrent' twice, the last one counts", {"network_settings.memory": None}),
    ],
)
def test_small_files_that_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, note: str, expected: Mapping[str, Any]
) -> None:
    new, told = upgraded(tmp_path, capsys, CASES / f"{name}.yaml")
    values = values_of(loaded(new), "Agent")
    assert note in told and {key: values[key] for key in expected} == expected


CURIOUS = {"hyperparameters.batch_size": 128, "reward_signals.curiosity.strength": 0.01,
           "reward_signals.curiosity.network_settings.hidden_units": 256}  # fmt: skip
MEMORY = {"network_settings.memory.memory_size": 256, "network_settings.memory.sequence_length": 64}
CLONED = {"behavioral_cloning.strength": 0.5, "behavioral_cloning.steps": 5000, "max_steps": 1_000_000}
IMITATES = {"behavioral_cloning.steps": 150_000, "reward_signals.gail.network_settings.hidden_units": 128}
SLOW_SAC = {"hyperparameters.steps_per_update": 3.0, "network_settings.num_layers": 4}
MIRRORED = {"self_play.play_against_latest_model_ratio": 0.5, "hyperparameters.beta_schedule": "constant"}
BALL = {"hyperparameters.lambd": 0.99, "hyperparameters.beta_schedule": "linear", "threaded": True}
SOCCER = {"self_play.team_change": 200_000, "network_settings.memory": None, "max_steps": 50_000_000}
SAC = {"hyperparameters.reward_signal_steps_per_update": 10.0, "network_settings.memory.sequence_length": 32}
KART = {"network_settings.vis_encode_type": "simple", "network_settings.num_layers": 2, **MEMORY,
        "network_settings.normalize": False, "reward_signals.curiosity.network_settings.hidden_units": 256}  # fmt: skip
TEAM = {"network_settings.hidden_units": 512, "hyperparameters.beta": 0.01, "hyperparameters.buffer_size": 10240,
        "hyperparameters.beta_schedule": "constant"}  # fmt: skip
MERGED = {"hyperparameters.batch_size": 32, "hyperparameters.buffer_size": 640}
GAIL = {
    "reward_signals.gail.network_settings.normalize": True,
    "reward_signals.gail.network_settings.hidden_units": 128,
}
RND = {"reward_signals.rnd.network_settings.num_layers": 3, "hyperparameters.epsilon_schedule": "linear"}
EVEN = {"checkpoint_interval": 7_500_000, "hyperparameters.shared_critic": True, "max_steps": 30_000_000}


@pytest.mark.parametrize(
    ("name", "behavior", "expected", "signals", "notes"),
    [
        ("0.4_brains", "PyramidsLearning", CURIOUS, "extrinsic curiosity", ["StudentBrain: left out"]),
        ("0.4_brains", "HallwayLearning", MEMORY, "extrinsic", ["BananaLearning, PyramidsLearning, HallwayLearning"]),
        ("0.11_pretraining", "CrawlerStatic", CLONED, "gail", []),
        ("0.12_signals", "Pyramids", IMITATES, "extrinsic curiosity gail", []),
        ("0.14_sac", "Walker", SLOW_SAC, "extrinsic", ["Walker.num_update: written as"]),
        ("0.15_self_play", "Tennis", MIRRORED, "extrinsic", []),
        ("0.18_ball", "3DBall", BALL, "extrinsic", []),
        ("0.19_windows", "Roller Ball", {"max_steps": 500_000}, "extrinsic", []),
        ("0.22_soccer", "SoccerTwos", SOCCER, "extrinsic", ["framework: deprecated"]),
        ("0.23_samplers", "3DBall", SAC, "extrinsic", ["memory.use_recurrent: unknown key, has no effect"]),
        ("0.26_guide_typos", "KartAgent", KART, "extrinsic curiosity", [
            "encoding_size: deprecated", "normalise: unknown key", "num_layer: unknown key",
            "vis_encoder_type: unknown key", "use_recurrent: unknown key",
            "did you mean play_against_latest_model_ratio?",
        ]),
        ("0.27_poca", "DungeonEscape", TEAM, "extrinsic", []),
        ("0.28_anchors", "B", MERGED, "extrinsic", []),
        ("0.28_imitation", "Crawler", GAIL, "gail", ["gail.encoding_size: deprecated"]),
        ("0.29_pyramids", "Pyramids", RND, "extrinsic rnd", []),
        ("0.30_snowball", "SnowballTarget", {"checkpoint_interval": 50_000, "keep_checkpoints": 10}, "extrinsic", []),
        ("1.1_all_sections", "Walker", EVEN, "extrinsic", []),
    ],
)  # fmt: skip
def test_generations_resolve_as_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: pytest.LogCaptureFixture,
    name: str, behavior: str, expected: Mapping[str, Any], signals: str, notes: list[str],
) -> None:  # fmt: skip
    path, converted = PUBLIC / f"{name}.yaml", ""
    if int(name.partition(".")[2].partition("_")[0]) < 18 and name.startswith("0."):
        with pytest.raises(SettingsError, match="upgrade-config"):
            loaded(path)
        path, converted = upgraded(tmp_path, capsys, path)
    settings = loaded(path)
    values = values_of(settings, behavior)
    assert {key: values[key] for key in expected} == expected
    assert list(settings.behaviors[behavior].reward_signals) == signals.split()
    told = converted + "\n".join(said.messages)
    assert [note for note in notes if note not in told] == []
    assert len(said.messages) == (0 if converted else len(notes))


def test_lessons_and_samplers_of_each_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [PUBLIC / f"{name}.yaml" for name in ("0.16_walljump", "0.16_curriculum", "0.13_sampler")]
    new, told = upgraded(tmp_path, capsys, *old)
    assert "resampling-interval: dropped" in told
    lessons = Lessons(loaded(new).environment_parameters, 0)
    assert lessons.possible()["big_wall_min_height"] == (0.0, 4.0, 6.0, 8.0)
    present = lessons.values()
    assert isinstance(present["gravity"], SamplerSpec) and present["gravity"].values == (7.0, 10.0, 15.0, 20.0)
    new, _ = upgraded(tmp_path, capsys, old[0], PUBLIC / "WallJump.json")
    heights = (loaded(new).environment_parameters or {})["wall_height"]
    assert isinstance(heights, Curriculum) and [lesson.value for lesson in heights.curriculum] == [1.5, 2.0, 4.0]
    assert {of.completion_criteria.behavior for of in heights.curriculum if of.completion_criteria} == {"WallJump"}
    present = Lessons(loaded(PUBLIC / "0.23_samplers.yaml").environment_parameters, 0).values()
    assert [getattr(value, "kind", None) for value in present.values()] == ["uniform", "multirangeuniform", "gaussian"]
    present = Lessons(loaded(PUBLIC / "0.21_curriculum.yaml").environment_parameters, 0)
    assert present.values()["small_wall_height"] == 1.5 and present.possible()["big_wall_height"][1] == 8.0


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "behavior"),
    [("0.4_brains", "BananaLearning"), pytest.param("0.26_guide_typos", "KartAgent", marks=pytest.mark.slow)],
)
def test_they_train(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, behavior: str) -> None:
    """With their own signals, memory and networks, but smaller; the agent is called as that of the file."""
    path = PUBLIC / f"{name}.yaml"
    path = upgraded(tmp_path, capsys, path)[0] if behavior == "BananaLearning" else path
    small = {"hyperparameters": {"batch_size": 64, "buffer_size": 128}, "max_steps": 300, "summary_freq": 100}
    small["network_settings"] = {"hidden_units": 8}
    overrides = {"behaviors": {"*": small}, "env_settings": {"seed": 3},
                 "checkpoint_settings": {"run_id": "run", "results_dir": str(tmp_path / "results")}}  # fmt: skip
    settings = load_run_settings(path, overrides, HYPERPARAMETER_TYPES)
    with environment(f"{behavior}?team=0") as started:
        train(settings, started=started)
    assert checkpoints(tmp_path / "results" / "run" / behavior)[-1].step >= 300
