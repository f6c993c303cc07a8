"""configuration.yaml of a run: ML-Agents loads it, jaxrl reads all of it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import RunSettings, SettingsError, load_run_settings, to_yaml
from jaxrl.settings.original import MARK
from jaxrl.settings.reading import read_yaml

FULL = Path(__file__).parent / "full_schema.yaml"
OWN = f"{Path(__file__).parents[2]}/examples/own_reward_signal.py:make_novelty"

# The tables of the reference (sections 1.1 to 1.12), as ML-Agents 1.1.0 checks them.
SECTIONS = {
    "env_settings": "env_path env_args base_port num_envs num_areas timeout_wait seed max_lifetime_restarts "
    "restarts_rate_limit_n restarts_rate_limit_period_s",
    "engine_settings": "width height quality_level time_scale target_frame_rate capture_frame_rate no_graphics "
    "no_graphics_monitor",
    "checkpoint_settings": "run_id initialize_from load_model resume force train_model inference results_dir",
    "torch_settings": "device",
}
TOP = {*SECTIONS, "default_settings", "behaviors", "environment_parameters", "debug"}
BEHAVIOR = (
    "trainer_type hyperparameters network_settings reward_signals behavioral_cloning self_play max_steps time_horizon "
    "summary_freq checkpoint_interval keep_checkpoints even_checkpoints init_path threaded"
)
ON_POLICY = (
    "batch_size buffer_size learning_rate learning_rate_schedule beta beta_schedule epsilon epsilon_schedule lambd "
    "num_epoch"
)
HYPERPARAMETERS = {
    "ppo": f"{ON_POLICY} shared_critic",
    "poca": ON_POLICY,
    "sac": "batch_size buffer_size learning_rate learning_rate_schedule buffer_init_steps tau steps_per_update "
    "reward_signal_steps_per_update save_replay_buffer init_entcoef",
}
NETWORK = "normalize hidden_units num_layers vis_encode_type memory goal_conditioning_type deterministic"
COMMON = "gamma strength network_settings"
SIGNALS = {
    "extrinsic": COMMON,
    "curiosity": f"{COMMON} learning_rate",
    "gail": f"{COMMON} learning_rate demo_path use_actions use_vail",
    "rnd": f"{COMMON} learning_rate",
}
CLONING = "demo_path steps strength samples_per_update num_epoch batch_size"
SELF_PLAY = "save_steps team_change swap_steps window play_against_latest_model_ratio initial_elo"
SAMPLERS = {
    "constant": "value seed",
    "uniform": "min_value max_value seed",
    "gaussian": "mean st_dev seed",
    "multirangeuniform": "intervals seed",
}


def unknown(section: Any, keys: str, where: str, optional: bool = False) -> Iterator[str]:
    if section is None and optional:
        return
    if not isinstance(section, Mapping):
        yield f"{where} is no mapping"
        return
    yield from (f"{where}.{key}" for key in section if key not in keys.split())


def network(section: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from unknown(section, NETWORK, where)
    yield from unknown(section["memory"], "memory_size sequence_length", f"{where}.memory", optional=True)


def behavior(section: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from unknown(section, BEHAVIOR, where)
    yield from unknown(section["hyperparameters"], HYPERPARAMETERS[section["trainer_type"]], f"{where}.hyperparameters")
    yield from network(section["network_settings"], f"{where}.network_settings")
    for name, signal in section["reward_signals"].items():
        yield from unknown(signal, SIGNALS[name], f"{where}.reward_signals.{name}")
        yield from network(signal["network_settings"], f"{where}.reward_signals.{name}.network_settings")
    yield from unknown(section["behavioral_cloning"], CLONING, f"{where}.behavioral_cloning", optional=True)
    yield from unknown(section["self_play"], SELF_PLAY, f"{where}.self_play", optional=True)


def sampled(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, int | float):
        return
    yield from unknown(value, "sampler_type sampler_parameters", where)
    yield from unknown(value["sampler_parameters"], SAMPLERS[value["sampler_type"]], f"{where}.sampler_parameters")


def parameter(value: Any, where: str) -> Iterator[str]:
    if not (isinstance(value, Mapping) and "curriculum" in value):
        yield from sampled(value, where)
        return
    yield from unknown(value, "curriculum", where)
    for lesson in value["curriculum"]:
        yield from unknown(lesson, "name value completion_criteria", where)
        yield from sampled(lesson["value"], where)
        criteria = "behavior measure min_lesson_length signal_smoothing threshold require_reset"
        yield from unknown(lesson["completion_criteria"], criteria, where, optional=True)


def refused_by_the_original(text: str) -> list[str]:
    """Keys of a configuration file that ML-Agents 1.1.0 does not know."""
    content = yaml.safe_load(text)
    found = [key for key in content if key not in TOP]
    for name, keys in SECTIONS.items():
        found += unknown(content[name], keys, name)
    behaviors = {f"behaviors.{name}": section for name, section in content["behaviors"].items()}
    if content["default_settings"] is not None:
        behaviors["default_settings"] = content["default_settings"]
    for where, section in behaviors.items():
        found += behavior(section, where)
    for name, value in (content["environment_parameters"] or {}).items():
        found += parameter(value, f"environment_parameters.{name}")
    return found


def load(folder: Path, text: str) -> RunSettings:
    path = folder / "configuration.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


@pytest.mark.parametrize(
    "written",
    [
        FULL.read_text(),
        "behaviors: {A: {}}",
        # what a behavior has not is a null for jaxrl, which the original would not take for a signal
        "default_settings: {reward_signals: {rnd: {}}, keep_best: a}\n"
        "behaviors: {A: {reward_signals: {curiosity: {}}}}",
        "default_settings: {reward_signals: {rnd: {}}}\nbehaviors: {A: {reward_signals: {rnd: null, extrinsic: {}}}}",
        # signals have an order, also where one's own stands before the original's
        f"behaviors: {{A: {{reward_signals: {{gail: {{demo_path: x}}, own: {{type: '{OWN}'}}, extrinsic: {{}}}}}}}}",
        "behaviors: {A: {network_settings: {memory: {}}, postprocess: 'mine:change'}}\ncallbacks: ['mine:Ears']\n"
        "env_settings: {env_path: x, mode: async, seeds: 3}",
    ],
)
def test_the_original_knows_every_key_and_jaxrl_reads_all_back(tmp_path, written):
    settings = load(tmp_path, written)
    text = to_yaml(settings)
    assert refused_by_the_original(text) == []
    signals = [list(one.reward_signals) for _, one in settings.every_behavior()]
    assert [list(one.reward_signals) for _, one in load(tmp_path, text).every_behavior()] == signals
    assert load(tmp_path, text) == settings and to_yaml(load(tmp_path, text)) == text
    assert load(tmp_path, text.replace("\n", "\r\n")) == settings


def test_no_key_of_the_original_is_missing(tmp_path):
    """What a resolved file of ML-Agents has, ours has as well, in the same place."""
    content = yaml.safe_load(to_yaml(load(tmp_path, "behaviors: {A: {}, B: {trainer_type: sac}}")))
    assert set(content) == TOP and content["default_settings"] is None and content["environment_parameters"] is None
    for section, keys in SECTIONS.items():
        assert set(content[section]) == set(keys.split()), section
    for trainer, section in zip(("ppo", "sac"), content["behaviors"].values(), strict=True):
        assert set(section) == set(BEHAVIOR.split()) and section["self_play"] is section["behavioral_cloning"] is None
        assert set(section["hyperparameters"]) == set(HYPERPARAMETERS[trainer].split())
        extrinsic = section["reward_signals"]["extrinsic"]
        assert set(extrinsic) == set(COMMON.split())
        for network_settings in (section["network_settings"], extrinsic["network_settings"]):
            assert set(network_settings) == set(NETWORK.split()) and network_settings["memory"] is None


def test_the_parser_here_finds_what_is_not_the_originals(tmp_path):
    text = to_yaml(load(tmp_path, "behaviors: {A: {network_settings: {memory: {}}}}")).partition(MARK)[0]
    wrong = yaml.safe_load(text)
    wrong["env_settings"]["mode"] = "async"
    wrong["behaviors"]["A"]["network_settings"]["memory"]["memory_type"] = "lstm"
    found = refused_by_the_original(yaml.safe_dump(wrong))
    assert found == ["env_settings.mode", "behaviors.A.network_settings.memory.memory_type"]


def test_a_file_of_an_older_run_has_all_keys_in_one_place(tmp_path):
    settings = load(tmp_path, FULL.read_text())
    older = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
    assert MARK not in older and load(tmp_path, older).env_settings == settings.env_settings


def test_the_block_may_be_edited(tmp_path):
    text = to_yaml(load(tmp_path, "behaviors: {A: {}}"))
    assert load(tmp_path, text.replace("#   mode: lockstep", "#   mode: async")).env_settings.mode == "async"
    assert load(tmp_path, text.partition(MARK)[0]).behaviors["A"].count_by == "agent_steps"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("\nengine_settings:", "\n  mode: async\nengine_settings:", "env_settings.mode: got 'async' in the file and"),
        ("#   mode:", "#   mod:", "env_settings.mod: unknown key, did you mean mode?"),
        ("#   mode: lockstep", "#   mode: [", "YAML error at line"),
        ("#   mode: lockstep", "    mode: lockstep", "and is no comment: move it above that line"),
        ("  A:\n    trainer", "  B:\n    trainer", "behaviors.A: stands in jaxrl's own settings at the end alone"),
    ],
)
def test_what_is_wrong_with_the_block_is_named(tmp_path, before, after, message):
    text = to_yaml(load(tmp_path, "behaviors: {A: {}}"))
    assert before in text
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text.replace(before, after, 1))
    assert message in str(caught.value) and "configuration.yaml" in str(caught.value)


def test_run_options_as_json(tmp_path):
    """What `mlagents-run-experiment` is given: tabs, which YAML does not allow, and no duplicate keys."""
    path = tmp_path / "options.json"
    path.write_text('{\n\t"behaviors": {"A": {"max_steps": 7}},\n\t"env_settings": {"seed": 3}\n}')
    settings = load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert settings.behaviors["A"].max_steps == 7 and settings.env_settings.seed == 3
    for text, message in (
        ('{"behaviors": {}', "JSON error at line 1, column 17"),
        ('{"debug": true, "debug": false}', "key 'debug' twice"),
        ("[1]", "expected a mapping with keys such as `behaviors`, got list"),
        ('{"behaviours": {}}', "behaviours: unknown key, did you mean behaviors?"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
            load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert read_yaml(FULL)["debug"] is True
