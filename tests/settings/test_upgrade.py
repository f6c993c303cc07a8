"""`jaxrl upgrade-config`: files as users of ML-Agents 0.5 to 0.17 had them, with the values that they mean today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli.commands import parse, run
from jaxrl.settings import Curriculum, SettingsError, load_run_settings

TRAINERS = """
default:
    trainer: ppo
    batch_size: 1024
    beta: 5.0e-3
    hidden_units: 128
    learning_rate_schedule: linear
    max_steps: 5.0e5
    memory_size: 256
    num_layers: 2
    sequence_length: 32
    use_recurrent: false
    vis_encode_type: simple
    multi_gpu: false
    reward_signals:
        extrinsic: {strength: 1.0, gamma: 0.99}
Hallway: {use_recurrent: true, sequence_length: 16, batch_size: 128}
Wall: {max_steps: 2e7}
Pyramids:
    learning_rate_schedule: constant
    reward_signals:
        extrinsic: {strength: 1.0, gamma: 0.9}
        curiosity: {strength: 0.02, gamma: 0.99, encoding_size: 256}
    pretraining: {demo_path: Demos/P.demo, strength: 0.5, steps: 10000}
Soccer:
    self_play: {window: 7, play_against_current_self_ratio: 0.25, save_steps: 10}
    init_path: results/a/S/checkpoint.pt
    threaded: true
Alias: Hallway
"""
WALL = {"measure": "progress", "thresholds": [0.1, 0.5], "min_lesson_length": 100, "signal_smoothing": True}


@pytest.fixture
def convert(tmp_path, capsys):
    """Runs the command on files with these contents; the settings that its output gives, and its remarks."""

    def converted(*contents: str, names: tuple[str, ...] = ()):
        paths = [tmp_path / name for name in names] or [tmp_path / f"old{i}.yaml" for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        given = [path if path.parent == tmp_path else path.parent for path in paths]
        assert run(parse(["upgrade-config", *map(str, given)])) == 0
        printed = capsys.readouterr()
        new = tmp_path / "new.yaml"
        new.write_text(printed.out)
        return load_run_settings(new, {}, HYPERPARAMETER_TYPES), printed.err

    return converted


def test_a_trainer_file(convert):
    settings, remarks = convert(TRAINERS)
    behaviors, default = settings.behaviors, settings.default_settings
    assert list(behaviors) == ["Hallway", "Wall", "Pyramids", "Soccer", "Alias"] and default is not None
    assert (default.trainer_type, default.hyperparameters.batch_size, default.max_steps) == ("ppo", 1024, 500000)
    assert default.network_settings.memory is None
    hallway = behaviors["Hallway"]
    assert hallway == behaviors["Alias"] and hallway.hyperparameters.batch_size == 128
    memory = hallway.network_settings.memory
    assert memory is not None and (memory.sequence_length, memory.memory_size) == (16, 256)
    assert behaviors["Wall"].max_steps == 20_000_000 and behaviors["Wall"].hyperparameters.beta == 0.005
    pyramids = behaviors["Pyramids"]
    assert pyramids.hyperparameters.beta_schedule == "constant"
    assert pyramids.reward_signals["extrinsic"].gamma == 0.9
    assert pyramids.reward_signals["curiosity"].network_settings.hidden_units == 256
    cloning = pyramids.behavioral_cloning
    assert cloning is not None and (cloning.demo_path, cloning.strength, cloning.steps) == ("Demos/P.demo", 0.5, 10000)
    soccer = behaviors["Soccer"]
    assert soccer.self_play is not None and soccer.self_play.play_against_latest_model_ratio == 0.25
    assert (soccer.self_play.window, soccer.self_play.team_change) == (7, 50)
    assert (soccer.init_path, soccer.threaded) == ("results/a/S/checkpoint.pt", True)
    lines = remarks.splitlines()
    assert sorted(lines) == sorted(
        [
            "Hallway, Wall, Pyramids, Soccer, Alias: written below `behaviors:`",
            "default.multi_gpu: dropped, a behavior of ppo has no such key",
            "max_steps and summary_freq count steps of all agents: before ML-Agents 0.15 they counted those of the "
            "environment, so multiply them by the number of agents if the file is that old",
        ]
    )


def test_what_a_default_would_add_today_is_kept_out(convert):
    """A list of signals replaced that of `default`; today it would be merged with it."""
    text = """
default: {trainer: ppo, beta: 0.01, reward_signals: {extrinsic: {gamma: 0.9}}}
Copy: {reward_signals: {gail: {demo_path: a.demo, gamma: 0.99, strength: 1.0, samples_per_update: 5}}}
Sac: {trainer: sac, tau: 0.01, train_interval: 6, num_update: 2, reward_signal_num_update: 3}
"""
    settings, remarks = convert(text)
    assert settings.default_settings is None
    assert list(settings.behaviors["Copy"].reward_signals) == ["gail"]
    assert settings.behaviors["Copy"].hyperparameters.beta == 0.01
    sac = settings.behaviors["Sac"]
    assert (sac.hyperparameters.tau, sac.hyperparameters.steps_per_update) == (0.01, 3.0)
    assert sac.hyperparameters.reward_signal_steps_per_update == 2.0 and sac.reward_signals["extrinsic"].gamma == 0.9
    assert "there is no default_settings: Copy, Sac would inherit what it had not" in remarks
    assert "Copy.reward_signals.gail.samples_per_update: dropped" in remarks
    assert "Sac.num_update: written as hyperparameters.steps_per_update: 3, which counts steps of all agents" in remarks


def test_before_there_were_reward_signals(convert):
    text = "B: {trainer: ppo, batch_size: 32, gamma: 0.95, use_curiosity: true, curiosity_strength: 0.02, "
    settings, _ = convert(text + "curiosity_enc_size: 64}")
    signals = settings.behaviors["B"].reward_signals
    assert signals["extrinsic"].gamma == signals["curiosity"].gamma == 0.95
    assert signals["curiosity"].strength == 0.02 and signals["curiosity"].network_settings.hidden_units == 64


@pytest.mark.parametrize("kind", ["yaml", "json", "folder", "same file"])
def test_a_curriculum_and_a_sampler_file(convert, kind):
    trainer = "Wall: {trainer: ppo, batch_size: 32}\n"
    curriculum = {**WALL, "parameters": {"height": [0.0, 4.0, 8.0]}}
    sampler = "resampling-interval: 5000\nmass: {sampler-type: uniform, min_value: 0.5, max_value: 10}\n"
    sampler += "pull: {sampler-type: multirange_uniform, intervals: [[7, 10], [15, 20]]}\n"
    sampler += "height: {sampler-type: gaussian, mean: 1, st_dev: 2}\n"
    if kind == "same file":
        whole: dict[str, Any] = {**yaml.safe_load(trainer), "curriculum": {"Wall": curriculum}}
        settings, remarks = convert(yaml.safe_dump({**whole, "parameter_randomization": yaml.safe_load(sampler)}))
    else:
        text = yaml.safe_dump(curriculum if kind != "yaml" else {"Wall": curriculum}, default_flow_style=True)
        name = {"yaml": "any.yaml", "json": "Wall.json", "folder": "lessons/Wall.yaml"}[kind]
        if kind == "json":
            text = '{"measure": "progress", "thresholds": [0.1, 0.5],\n\t"min_lesson_length": 100, '
            text += '"signal_smoothing": true, "parameters": {"height": [0.0, 4.0, 8.0]}}'
        settings, remarks = convert(trainer, sampler, text, names=("t.yaml", "s.yaml", name))
    parameters = settings.environment_parameters or {}
    assert set(parameters) == {"mass", "pull", "height"}
    assert parameters["mass"].sampler_parameters.max_value == 10
    assert parameters["pull"].sampler_parameters.intervals == ((7, 10), (15, 20))
    height = parameters["height"]
    assert isinstance(height, Curriculum) and [lesson.value for lesson in height.curriculum] == [0.0, 4.0, 8.0]
    first, second, last = (lesson.completion_criteria for lesson in height.curriculum)
    assert last is None and first is not None and second is not None
    assert (first.behavior, first.measure, first.threshold, second.threshold) == ("Wall", "progress", 0.1, 0.5)
    assert (first.min_lesson_length, first.signal_smoothing) == (100, True)
    assert "resampling-interval: dropped" in remarks and "height: its sampler is dropped" in remarks


def test_a_present_day_file_without_behaviors(convert):
    text = """
Walker: {trainer_type: ppo, hyperparameters: {batch_size: 7}, output_path: default}
Other: {max_steps: 5}
env_settings: {seed: 3}
environment_parameters:
  size: {curriculum: [{First: {value: 1.0, completion_criteria: {behavior: Walker}}}, {Second: {value: 2}}]}
"""
    settings, remarks = convert(text)
    assert settings.behaviors["Walker"].hyperparameters.batch_size == 7 and settings.env_settings.seed == 3
    assert settings.behaviors["Other"].max_steps == 5 and settings.default_settings is None
    size = (settings.environment_parameters or {})["size"]
    assert isinstance(size, Curriculum) and [lesson.name for lesson in size.curriculum] == ["First", "Second"]
    assert remarks.splitlines() == [
        "Walker, Other: written below `behaviors:`",
        "Walker.output_path: dropped, there is no such key",
    ]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (["B: {trainer: offline_bc, batch_size: 3}"], "B.trainer: got 'offline_bc', expected ppo or sac: it is gone"),
        (["default: {trainer: ppo}\nB: Other"], "B: got {'': 'Other'}, expected the settings of a behavior"),
        (
            ["B: {trainer: ppo, batch_size: many}"],
            "behaviors.B.hyperparameters.batch_size: got 'many', expected an int",
        ),
        (["B: {size: 3}"], "B: got {'size': 3}, expected the settings of a behavior"),
        (["B: {trainer: ppo, batch_size: 3}", "C: {trainer: ppo, batch_size: 3}"], "old1: is a second trainer file"),
        (
            ["B: {measure: progress, thresholds: [0.1], parameters: {x: [1, 2, 3]}}"],
            "B.parameters.x: got [1, 2, 3], expected a list of numbers, one more than thresholds, which is [0.1]",
        ),
        (["m: {sampler-type: beta, a: 3}"], "m.sampler-type: got 'beta', expected one of constant, uniform"),
        (["curriculum: [1]"], "curriculum: got [1], expected a mapping of names to settings"),
        ([""], "holds nothing to convert"),
        (["default: {max_steps: 3}"], "default: got {'max_steps': 3}, expected settings of before 0.18"),
    ],
)
def test_what_cannot_be_converted_is_named_and_nothing_is_printed(tmp_path, capsys, contents, message):
    paths = [tmp_path / f"old{i}.yaml" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    assert run(parse(["upgrade-config", *map(str, paths)])) == 1
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == "" and str(paths[0]) in printed.err
    assert run(parse(["upgrade-config", str(tmp_path / "lost.yaml")])) == 1
    assert "configuration file not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "default: {trainer: ppo, batch_size: 3}",
            "default: this is the layout of ML-Agents before release 0.18: write",
        ),
        ("Walker: {trainer_type: ppo}", "Walker: a behavior on top: write it below `behaviors:`"),
        ("Walker: {network_settings: {normalize: true}}", "Walker: a behavior on top"),
        ("W: {measure: a, thresholds: [1], parameters: {}}", "W: this is the layout of ML-Agents before release 0.18"),
        ("behaviors: {}\ncurriculum: {W: {measure: a, thresholds: [1], parameters: {}}}", "curriculum: this is the"),
        ("behaviors: {}\nparameter_randomization: {}", "parameter_randomization: this is the layout"),
        (
            "behaviors: {W: {batch_size: 3, use_recurrent: false}}",
            "behaviors.W: batch_size, use_recurrent: this is the",
        ),
        ("behaviors: {W: {trainer_type: ppo, output_path: x}}", "behaviors.W: output_path: this is the layout"),
        ("W: {batch_size: 3, batch_size: 4}", "W: this is the layout of ML-Agents before release 0.18"),
    ],
)
def test_a_refusal_names_the_command(tmp_path, text, message):
    path: Path = tmp_path / "old.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert caught.value.problems[0].startswith(message) and "jaxrl upgrade-config OLD" in caught.value.problems[0]


def test_of_keys_that_stand_twice_the_last_counts_and_a_trainer_that_is_gone_is_left_out(tmp_path, capsys):
    """As in Unity's own sac_trainer_config.yaml; the original's reader keeps the last one in silence."""
    old = tmp_path / "old.yaml"
    old.write_text("default: {trainer: ppo}\nStudent: {trainer: offline_bc}\nA:\n  batch_size: 3\n  batch_size: 4\n")
    assert run(parse(["upgrade-config", str(old)])) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["behaviors"] == {
        "A": {"trainer_type": "ppo", "hyperparameters": {"batch_size": 4}}
    }
    assert "line 5, column 3: key 'batch_size' twice, the last one counts" in printed.err
    assert "Student: left out, trainer: got 'offline_bc'" in printed.err
    old.write_text("Student: {trainer: offline_bc}")
    assert run(parse(["upgrade-config", str(old)])) == 1
    assert "Student.trainer: got 'offline_bc', expected ppo or sac" in capsys.readouterr().err
