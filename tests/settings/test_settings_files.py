"""Files and precedence: what cannot be read, old layouts, flags over file over defaults, and merging."""

import logging
import string

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import (
    BehaviorSettings,
    EngineSettings,
    EnvironmentSettings,
    SettingsError,
    load_run_settings,
    to_yaml,
)
from jaxrl.settings.inheritance import merge
from jaxrl.settings.section import setting_at

KEYS = st.text(string.ascii_lowercase, min_size=1, max_size=3)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4))
TREES = st.recursive(LEAVES, lambda children: st.dictionaries(KEYS, children, max_size=3), max_leaves=8)
MAPPINGS = st.dictionaries(KEYS, TREES, max_size=4)

WORDS = """default_settings behaviors A trainer_type hyperparameters batch_size network_settings memory hidden_units
reward_signals extrinsic curiosity gamma self_play env_settings num_envs env_path env_args checkpoint_settings run_id
resume environment_parameters mass sampler_type sampler_parameters curriculum value torch_settings"""
REAL_KEYS = st.sampled_from(WORDS.split())
REAL_LEAVES = LEAVES | st.sampled_from(["ppo", "poca", "sac", "uniform", "linear", 64, 1.5])
REAL_TREES = st.recursive(
    REAL_LEAVES,
    lambda children: st.lists(children, max_size=2) | st.dictionaries(REAL_KEYS, children, max_size=3),
    max_leaves=12,
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(tmp_path, content, overrides=None):
    path = tmp_path / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return load_run_settings(path, overrides or {}, HYPERPARAMETER_TYPES)


def test_missing_file_is_named_absolutely(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="not found") as caught:
        load_run_settings("lost.yaml", {}, HYPERPARAMETER_TYPES)
    assert str(tmp_path / "lost.yaml") in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_run_settings(tmp_path, {}, HYPERPARAMETER_TYPES)


def test_not_utf8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("behaviors: {Käfer: {}}".encode("latin-1"))
    with pytest.raises(SettingsError, match=r"latin\.yaml: save it with UTF-8"):
        load_run_settings(path, {}, HYPERPARAMETER_TYPES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("behaviors:\n  A: {\n", r"run\.yaml: YAML error at line 3"),
        ("behaviors:\n\tA: 1\n", "YAML error at line 2"),
        ("behaviors:\n  A: {}\n  A: {max_steps: 3}\n", "YAML error at line 3.*'A' twice"),
        ("behaviors: {A: &a {max_steps: 3}, B: {<<: *a, summary_freq: 1, summary_freq: 2}}", "'summary_freq' twice"),
        ("behaviors: {A: {init_path: 2024-13-45}}", "YAML error"),
        ("behaviors: &a {A: *a}", "nested without end"),
        ("- 1\n- 2", "expected a mapping with keys such as `behaviors`, got list"),
        ("behaviors: {3: {}}", r"behaviors\.3: this key is not text, put it in quotes"),
        ("behaviors: {yes: {}}", r"behaviors\.True: this key is not text"),
    ],
)
def test_unreadable(tmp_path, text, message):
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: {trainer: ppo, batch_size: 3}", "before release 0.18.*default_settings"),
        ("Ball: {trainer: ppo}", "Ball: this is the layout of ML-Agents before release 0.18"),
        ("BigWall: {measure: progress, thresholds: [0.1], parameters: {h: [1, 2]}}", "write the curriculum below"),
        ("resampling-interval: 5000", "write samplers below environment_parameters"),
        ("mass: {sampler-type: uniform, min_value: 1, max_value: 2}", "write samplers below environment_parameters"),
    ],
)
def test_old_layouts_are_explained(tmp_path, text, message):
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, text)


@FEW
@given(content=st.dictionaries(REAL_KEYS, REAL_TREES, max_size=4))
def test_any_mapping_gives_settings_or_a_settings_error(tmp_path, content):
    try:
        loaded = load(tmp_path, content)
    except SettingsError as error:
        assert error.problems and "pydantic" not in str(error) and "function-" not in str(error)
        return
    assert load(tmp_path, to_yaml(loaded)) == loaded


@given(base=MAPPINGS, over=MAPPINGS)
def test_merge_is_leaf_by_leaf(base, over):
    merged = merge(base, over)
    assert merge(merged, over) == merged
    assert merge(base, {}) == base and merge({}, over) == over
    for key in base.keys() | over.keys():
        if key not in over:
            assert merged[key] == base[key]
        elif not (isinstance(over[key], dict) and isinstance(base.get(key), dict)):
            assert merged[key] == over[key]
        else:
            assert merged[key] == merge(base[key], over[key])


ENGINE = st.dictionaries(st.sampled_from(["width", "height", "quality_level"]), st.integers(1, 100))
ENV = st.dictionaries(st.sampled_from(["base_port", "num_areas", "seed"]), st.integers(1, 100))


@FEW
@given(engine=ENGINE, env=ENV, engine_flags=ENGINE, env_flags=ENV)
def test_flags_over_file_over_defaults(tmp_path, engine, env, engine_flags, env_flags):
    content = {"behaviors": {"A": {}}, "engine_settings": engine, "env_settings": env}
    loaded = load(tmp_path, content, {"engine_settings": engine_flags, "env_settings": env_flags})
    for name, field in EngineSettings.model_fields.items():
        assert getattr(loaded.engine_settings, name) == engine_flags.get(name, engine.get(name, field.default))
    for name, field in EnvironmentSettings.model_fields.items():
        assert getattr(loaded.env_settings, name) == env_flags.get(name, env.get(name, field.default))


BEHAVIOR = st.dictionaries(st.sampled_from(["max_steps", "time_horizon", "keep_checkpoints"]), st.integers(1, 100))


@FEW
@given(default=BEHAVIOR, own=BEHAVIOR)
def test_behavior_over_default_settings(tmp_path, default, own):
    loaded = load(tmp_path, {"default_settings": default, "behaviors": {"A": own}})
    for name in ("max_steps", "time_horizon", "keep_checkpoints"):
        expected = own.get(name, default.get(name, BehaviorSettings.model_fields[name].default))
        assert getattr(loaded.behaviors["A"], name) == expected


def test_default_settings_merge_what_was_written(tmp_path):
    text = """default_settings:
  trainer_type: poca
  hyperparameters: {batch_size: 7, learning_rate_schedule: constant}
  network_settings: {memory: {memory_size: 4, sequence_length: 2}}
  reward_signals: {curiosity: {gamma: 0.5}}
behaviors:
  A: {trainer_type: ppo}
  B: {network_settings: {memory: null}, reward_signals: {extrinsic: {}}}
  C: {hyperparameters: {batch_size: 8}, reward_signals: {curiosity: null, extrinsic: {}}}
"""
    a, b, c = load(tmp_path, text).behaviors.values()
    assert (a.trainer_type, a.hyperparameters.batch_size, a.hyperparameters.beta_schedule) == ("ppo", 7, "constant")
    assert list(a.reward_signals) == ["curiosity"] and set(b.reward_signals) == {"curiosity", "extrinsic"}
    assert b.network_settings.memory is None and b.reward_signals["curiosity"].gamma == 0.5
    assert c.trainer_type == "poca" and c.hyperparameters.batch_size == 8 and list(c.reward_signals) == ["extrinsic"]


# Of a behavior over `default_settings`: both sections, dotted key of the behavior, its value in ML-Agents 1.1.0.
DERIVED = [
    ("", "hyperparameters: {learning_rate_schedule: constant}", "hyperparameters.beta_schedule", "linear"),
    (
        "trainer_type: ppo, hyperparameters: {learning_rate: 3.0e-4}",
        "trainer_type: ppo, hyperparameters: {learning_rate_schedule: constant}",
        "hyperparameters.epsilon_schedule",
        "linear",
    ),
    (
        "trainer_type: poca, hyperparameters: {learning_rate_schedule: constant}",
        "trainer_type: ppo, hyperparameters: {learning_rate_schedule: linear}",
        "hyperparameters.beta_schedule",
        "constant",
    ),
    (
        "trainer_type: poca, hyperparameters: {learning_rate_schedule: constant, beta_schedule: linear}",
        "max_steps: 9",
        "hyperparameters.epsilon_schedule",
        "constant",
    ),
    (
        "trainer_type: sac, hyperparameters: {steps_per_update: 10}",
        "trainer_type: sac, hyperparameters: {steps_per_update: 20}",
        "hyperparameters.reward_signal_steps_per_update",
        10.0,
    ),
    ("self_play: {}", "self_play: {save_steps: 2000}", "self_play.team_change", 100000),
    ("max_steps: 9", "self_play: {save_steps: 2000}", "self_play.team_change", 10000),
    ("even_checkpoints: true, max_steps: 100", "even_checkpoints: false", "checkpoint_interval", 20),
    ("even_checkpoints: true", "max_steps: 1000", "checkpoint_interval", 200),
    ("max_steps: 9", "reward_signals: {curiosity: {}}", "reward_signals.extrinsic.strength", 1.0),
    ("reward_signals: {rnd: {}}", "reward_signals: {curiosity: {}}", "reward_signals.extrinsic", None),
    (
        "framework: pytorch, reward_signals: {curiosity: {encoding_size: 64}}",
        "reward_signals: {curiosity: {encoding_size: 32}}",
        "reward_signals.curiosity.network_settings.hidden_units",
        64,
    ),
]


@pytest.mark.parametrize(("default", "own", "key", "expected"), DERIVED)
def test_default_settings_are_a_whole_behavior(tmp_path, default, own, key, expected):
    """What `default_settings` has without having written it, is inherited as well: values of ML-Agents 1.1.0."""
    loaded = load(tmp_path, f"{{default_settings: {{{default}}}, behaviors: {{A: {{{own}}}}}}}")
    assert setting_at(loaded.behaviors["A"], key) == expected
    assert load(tmp_path, to_yaml(loaded)) == loaded


def test_another_trainer_type_keeps_its_own_defaults(tmp_path):
    """ML-Agents refuses such a file. Only what both have with one default is inherited without having been written."""
    text = """default_settings: {trainer_type: ppo, hyperparameters: {learning_rate: 1.0e-3, num_epoch: 3}}
behaviors:
  S: {trainer_type: sac}
  P: {trainer_type: poca, hyperparameters: {learning_rate_schedule: constant}}
"""
    s, p = (behavior.hyperparameters for behavior in load(tmp_path, text).behaviors.values())
    assert (s.learning_rate, s.batch_size, s.buffer_size, s.learning_rate_schedule) == (1e-3, 128, 50000, "constant")
    assert (p.learning_rate, p.learning_rate_schedule, p.beta_schedule) == (1e-3, "constant", "linear")


def test_schedules_of_listed_behaviors_follow_without_default_settings(tmp_path):
    loaded = load(tmp_path, "behaviors: {A: {trainer_type: ppo, hyperparameters: {learning_rate_schedule: constant}}}")
    hyperparameters = loaded.behaviors["A"].hyperparameters
    assert (hyperparameters.beta_schedule, hyperparameters.epsilon_schedule) == ("constant", "constant")


def test_keys_that_are_merged_from_further_down_are_not_written_twice(tmp_path):
    """`<<` of a mapping that merges one itself, and stands deeper than where it is merged."""
    text = """behaviors:
  A: {network_settings: &small {hidden_units: 32, num_layers: 1}}
  B:
    reward_signals: {rnd: {network_settings: &deep {<<: *small, num_layers: 3}}}
    network_settings: {<<: *deep, hidden_units: 8}
"""
    b = load(tmp_path, text).behaviors["B"]
    own, of_signal = b.network_settings, b.reward_signals["rnd"].network_settings
    assert (own.hidden_units, own.num_layers, of_signal.hidden_units, of_signal.num_layers) == (8, 3, 32, 3)


def test_resolved_defaults_of_another_trainer_type_read_back(tmp_path):
    text = "default_settings: {trainer_type: ppo}\nbehaviors: {A: {trainer_type: poca}, B: {reward_signals: {rnd: {}}}}"
    loaded = load(tmp_path, text)
    assert load(tmp_path, to_yaml(loaded)) == loaded


@pytest.mark.parametrize(
    ("default", "other"),
    [
        ("trainer_type: poca, hyperparameters: {learning_rate_schedule: constant}", "sac"),
        ("trainer_type: sac", "ppo"),
    ],
    ids=["schedules", "steps of reward signals"],
)
def test_what_follows_from_another_key_of_another_trainer_type_reads_back(tmp_path, default, other):
    loaded = load(tmp_path, f"{{default_settings: {{{default}}}, behaviors: {{A: {{trainer_type: {other}}}}}}}")
    text = to_yaml(loaded)
    implied = "epsilon_schedule: constant" if other == "sac" else "reward_signal_steps_per_update: 1.0"
    assert implied in text and load(tmp_path, text) == loaded


@pytest.mark.parametrize(
    ("default", "own"),
    [
        ("network_settings: {compute_dtype: bfloat16}", "network_settings: {compute_dtype: float32}"),
        ("self_play: {opponent_sampling: pfsp, league: {}}", "self_play: {opponent_sampling: uniform, league: null}"),
        ("reward_signals: {rnd: {episodic: true}}", "reward_signals: {rnd: {episodic: null}}"),
        (
            "trainer_type: poca, hyperparameters: {share_policy: false, team_capacity: 3}",
            "hyperparameters: {share_policy: true, team_capacity: null}",
        ),
    ],
    ids=["network", "self-play", "reward signal", "hyperparameters"],
)
def test_usual_values_below_others_of_default_settings_read_back(tmp_path, default, own):
    """They are not written where they are usual, and would be inherited."""
    loaded = load(tmp_path, f"{{default_settings: {{{default}}}, behaviors: {{A: {{{own}}}}}}}")
    assert loaded.behaviors["A"] != loaded.default_settings
    assert load(tmp_path, to_yaml(loaded)) == loaded


def test_problem_of_default_settings_is_said_once(tmp_path):
    text = """default_settings: {trainer_type: ppo, hyperparameters: {shared_critic: true, bta: 1}}
behaviors:
  A: {}
  B: {trainer_type: poca}
"""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, {"env_settings": {"num_areas": 0}})
    first, *others = caught.value.problems
    assert first == "default_settings.hyperparameters.bta: unknown key, did you mean beta?"
    assert not any(text.startswith("behaviors.A") for text in others)
    assert any("shared_critic: unknown key" in t and "(inherited from default_settings)" in t for t in others)
    assert any(t.startswith("env_settings.num_areas") and t.endswith("(given on the command line)") for t in others)


@pytest.mark.parametrize(
    ("flags", "resume", "source"),
    [
        ({}, True, None),
        ({"resume": True}, True, None),
        ({"initialize_from": "x"}, False, "x"),
        ({"resume": True, "initialize_from": "x"}, True, None),
    ],
)
def test_resume_or_initialize_from(tmp_path, caplog, flags, resume, source):
    text = "behaviors: {A: {}}\ncheckpoint_settings: {resume: true, initialize_from: y}"
    checkpoint = load(tmp_path, text, {"checkpoint_settings": flags}).checkpoint_settings
    assert (checkpoint.resume, checkpoint.initialize_from) == (resume, source)
    assert "is dropped" in caplog.text


def test_no_file_trains_everything_with_defaults(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    loaded = load_run_settings(None, {}, HYPERPARAMETER_TYPES)
    assert loaded.default_settings is not None and loaded.default_settings.trainer_type == "ppo"
    assert "no configuration file" in caplog.text
    assert load(tmp_path, to_yaml(loaded)) == loaded


def test_deterministic_concerns_listed_behaviors(tmp_path, caplog):
    flags = {"behaviors": {"*": {"network_settings": {"deterministic": True}}}}
    loaded = load(tmp_path, "default_settings: {}\nbehaviors: {A: {}}", flags)
    assert loaded.behaviors["A"].network_settings.deterministic
    assert loaded.default_settings is not None and not loaded.default_settings.network_settings.deterministic
    assert "--deterministic" in caplog.text
