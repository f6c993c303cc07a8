"""The schema: defaults, coercion, and each mistake with the path of its key."""

import logging
from pathlib import Path

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.hyperparameters import POCAHyperparameters, PPOHyperparameters
from jaxrl.settings import (
    BehaviorSettings,
    NetworkSettings,
    RunSettings,
    SettingsError,
    behavior_settings_for,
    constants,
    load_run_settings,
    remarks,
    to_yaml,
)

FULL = Path(__file__).parent / "full_schema.yaml"


def load(tmp_path: Path, text: str, *, strict: bool = False, **overrides) -> RunSettings:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_settings(path, overrides, HYPERPARAMETER_TYPES, strict=strict)


def problems(tmp_path: Path, text: str, **overrides) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, strict=True, **overrides)
    return caught.value.problems


def test_defaults(tmp_path):
    settings = load(tmp_path, "behaviors: {A: {trainer_type: poca}, B: {}, C: {trainer_type: sac}}")
    a, b, c = (settings.behaviors[name] for name in "ABC")
    assert (a.max_steps, a.time_horizon, a.summary_freq, a.checkpoint_interval) == (500000, 64, 50000, 500000)
    assert (a.keep_checkpoints, a.even_checkpoints, a.threaded, a.init_path) == (5, False, False, None)
    assert a.hyperparameters == POCAHyperparameters(
        batch_size=1024, buffer_size=10240, learning_rate=3e-4, beta=5e-3, epsilon=0.2, lambd=0.95, num_epoch=3
    )
    assert b.trainer_type == "ppo" and b.hyperparameters.shared_critic is False
    assert (c.hyperparameters.batch_size, c.hyperparameters.buffer_size, c.hyperparameters.tau) == (128, 50000, 0.005)
    assert a.network_settings == NetworkSettings(normalize=False, hidden_units=128, num_layers=2)
    assert list(a.reward_signals) == ["extrinsic"] and a.reward_signals["extrinsic"].gamma == 0.99
    env, checkpoint, engine = settings.env_settings, settings.checkpoint_settings, settings.engine_settings
    assert (env.base_port, env.num_envs, env.num_areas, env.timeout_wait, env.seed) == (5005, 1, 1, 60.0, -1)
    assert (env.max_lifetime_restarts, env.restarts_rate_limit_n, env.restarts_rate_limit_period_s) == (10, 1, 60.0)
    assert (env.mode, env.inline) == ("lockstep", False)
    assert (checkpoint.run_id, checkpoint.results_dir, checkpoint.resume) == ("ppo", "results", False)
    assert (engine.width, engine.quality_level, engine.time_scale, engine.target_frame_rate) == (84, 5, 20.0, -1)


def test_coercion(tmp_path):
    behavior = load(
        tmp_path,
        'behaviors: {A: {trainer_type: ppo, max_steps: 5.0e5, time_horizon: "10", summary_freq: 1e3,'
        " hyperparameters: {learning_rate: 1e-3, beta: 1}}}\n"
        "checkpoint_settings: {run_id: 2024-01-31}",
    ).behaviors["A"]
    assert (behavior.max_steps, behavior.time_horizon, behavior.summary_freq) == (500000, 10, 1000)
    assert type(behavior.max_steps) is int and type(behavior.hyperparameters.beta) is float
    assert behavior.hyperparameters.learning_rate == 1e-3  # YAML 1.1 reads 1e-3 as text


BAD = [
    (
        "behaviors: {Walker: {trainer_type: ppo, hyperparameters: {bufer_size: 3}}}",
        "behaviors.Walker.hyperparameters.bufer_size: unknown key, did you mean buffer_size?",
    ),
    ("behaviors: {A: {max_steps: 5.5}}", "behaviors.A.max_steps: got 5.5, expected an integer"),
    ("behaviors: {A: {max_steps: true}}", "behaviors.A.max_steps: got True, expected an integer"),
    ("behaviors: {A: {max_steps: .inf}}", "behaviors.A.max_steps: got inf, expected an integer"),
    ("behaviors: {A: {max_steps: 0}}", "behaviors.A.max_steps: got 0, expected a value greater than or equal to 1"),
    ("behaviors: {A: {threaded: maybe}}", "behaviors.A.threaded: got 'maybe', expected true or false"),
    (
        "behaviors: {A: {trainer_type: dqn}}",
        "behaviors.A.trainer_type: got 'dqn', expected one of coma, mappo, poca, ppo, sac",
    ),
    ("behaviors: {A: {hyperparameters: {}}}", "behaviors.A.trainer_type: this key is required when hyperparameters"),
    ("behaviors: {A: {batch_size: 3}}", "behaviors.A.batch_size: unknown key, did you mean hyperparameters.batch_size"),
    ("behaviors: {A: {trainer: ppo}}", "behaviors.A: trainer: this is the layout of ML-Agents before release 0.18"),
    ("behaviors: {A: {output_path: x}}", "behaviors.A: output_path: this is the layout of ML-Agents before"),
    (
        "behaviors: {A: {network_settings: {memory: false}}}",
        "behaviors.A.network_settings.memory: got False, expected a mapping of settings (null or no such key for none)",
    ),
    ("behaviors: {A: }", "behaviors.A: got None, expected a mapping of settings ({} for the defaults)"),
    ("behaviors: [A]", "behaviors: got ['A'], expected a mapping of names to settings"),
    ("behaviours: {A: {}}", "behaviours: unknown key, did you mean behaviors?"),
    (
        "behaviors: {A: {trainer_type: poca, hyperparameters: {shared_critic: true}}}",
        "behaviors.A.hyperparameters.shared_critic: unknown key",
    ),
    (
        "behaviors: {A: {trainer_type: ppo, hyperparameters: {learning_rate_schedule: cosine}}}",
        "behaviors.A.hyperparameters.learning_rate_schedule: got 'cosine', expected one of 'linear' or 'constant'",
    ),
    (
        "behaviors: {A: {trainer_type: ppo, hyperparameters: {lambd: big}}}",
        "behaviors.A.hyperparameters.lambd: got 'big', expected a number",
    ),
    (
        "behaviors: {A: {network_settings: {memory: {memory_size: 127}}}}",
        "behaviors.A.network_settings.memory.memory_size: got 127, expected an even number",
    ),
    (
        "behaviors: {A: {trainer_type: ppo, hyperparameters: {batch_size: 32}, network_settings: {memory: {}}}}",
        "behaviors.A.network_settings.memory.sequence_length: got 64, expected at most hyperparameters.batch_size",
    ),
    ("behaviors: {A: {reward_signals: {}}}", "behaviors.A.reward_signals: got {}, expected a mapping with at least"),
    (
        "behaviors: {A: {reward_signals: {curiousity: {}}}}",
        "behaviors.A.reward_signals.curiousity: unknown key, did you mean curiosity?",
    ),
    (
        "behaviors: {A: {reward_signals: {gail: {gamma: 1.5}}}}",
        "behaviors.A.reward_signals.gail.demo_path: this key is required",
    ),
    ("behaviors: {A: {behavioral_cloning: {}}}", "behaviors.A.behavioral_cloning.demo_path: this key is required"),
    (
        "behaviors: {A: {even_checkpoints: true, keep_checkpoints: 0}}",
        "behaviors.A.keep_checkpoints: got 0, expected at least 1 with even_checkpoints",
    ),
    ("env_settings: {listen: everywhere}", "env_settings.listen: got 'everywhere', expected an IP address of this mac"),
    ("env_settings: {num_areas: 0}", "env_settings.num_areas: got 0, expected a value greater than or equal to 1"),
    ("env_settings: {num_envs: 2}", "env_settings.num_envs: got 2, expected 1 without env_path"),
    ("env_settings: {env_path: x, base_port: 65535, num_envs: 2}", "env_settings.base_port: got 65535, expected a"),
    ("env_settings: {mode: fast}", "env_settings.mode: got 'fast', expected one of 'lockstep' or 'async'"),
    ("engine_settings: {time_scale: 0}", "engine_settings.time_scale: got 0, expected a value greater than 0"),
    ("checkpoint_settings: {load_model: true}", "checkpoint_settings.load_model: no longer supported, use resume"),
    ("torch_settings: {device: npu}", "torch_settings.device: got 'npu', expected"),
    ("debug: 7", "debug: got 7, expected true or false"),
    (
        "environment_parameters: {m: {sampler_type: uniform, sampler_parameters: {min_value: 2, max_value: 1}}}",
        "environment_parameters.m.sampler_parameters.min_value: got 2.0, expected at most max_value, which is 1.0",
    ),
    (
        "environment_parameters: {m: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[2, 1]]}}}",
        "environment_parameters.m.sampler_parameters.intervals[0]: got [2.0, 1.0], expected the lower bound first",
    ),
    ("environment_parameters: {m: {sampler_type: uniform}}", "environment_parameters.m.sampler_parameters: this key"),
    (
        "environment_parameters: {m: {sampler_parameters: {min_value: 1}}}",
        "environment_parameters.m.sampler_type: this key is required",
    ),
    (
        "environment_parameters: {m: {sampler_type: beta, sampler_parameters: {}}}",
        "environment_parameters.m.sampler_type: got 'beta', expected one of 'constant', 'uniform', 'gaussian' or 'mult",
    ),
    (
        "environment_parameters: {m: {sampler_type: gaussian, sampler_parameters: {st_dev: -1}}}",
        "environment_parameters.m.sampler_parameters.st_dev: got -1, expected a value greater than or equal to 0",
    ),
    (
        "environment_parameters: {m: {sampler_type: multirangeuniform, sampler_parameters:"
        " {intervals: [[1, 2], [3]]}}}",
        "environment_parameters.m.sampler_parameters.intervals[1]: got [3], expected a pair of numbers: [lower bound, ",
    ),
    (
        "environment_parameters: {m: {sampler_type: multirangeuniform, sampler_parameters: {intervals: []}}}",
        "environment_parameters.m.sampler_parameters.intervals: got [], expected a list of at least 1",
    ),
    (
        "environment_parameters: {m: {sampler_type: uniform, sampler_parameters: {seed: 4294967296}}}",
        "environment_parameters.m.sampler_parameters.seed: got 4294967296, expected a value less than 2147483648",
    ),
    ("environment_parameters: {m: {uniform: [1, 2]}}", "environment_parameters.m: got {'uniform': [1, 2]}, expected a"),
    ("environment_parameters: {m: [1, 2]}", "environment_parameters.m: got [1, 2], expected a number, or a mapping wi"),
    ("environment_parameters: {größe: 3}", "environment_parameters.größe: got 'größe', expected a name of ASCII char"),
    (
        "environment_parameters: {m: {curriculum: []}}",
        "environment_parameters.m.curriculum: got [], expected a list o",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a}]}}",
        "environment_parameters.m.curriculum[0].value: this key is required",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria: {}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.behavior: this key is required",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: A, measure: rewards}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.measure: got 'rewards', expected reward, progress, "
        "group_reward, elo, or the tag of a statistic (did you mean reward?)",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: A, measure: Policy/Entropy}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.measure: got 'Policy/Entropy', expected reward, "
        "progress, group_reward, elo, or the tag of a statistic that the environment or a callback reports",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: A, measure: Environment/Cumulative Reward}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.measure: got 'Environment/Cumulative Reward', "
        "expected reward, which is measured from the episodes behind this tag",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: A, min_lesson_length: -1}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.min_lesson_length: got -1, expected a value great",
    ),
    (
        "behaviors: {Ball: {}}\nenvironment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: Bal}}, {name: b, value: 2}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.behavior: got 'Bal', expected a behavior that "
        "stands below behaviors, did you mean Ball?",
    ),
    ("environment_parameters: {m: heavy}", "environment_parameters.m: got 'heavy', expected a number"),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1}, {name: b, value: 2}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria: this key is required for every lesson",
    ),
    (
        "environment_parameters: {m: {curriculum: [{value: 1}]}}",
        "environment_parameters.m.curriculum[0].name: this key is required",
    ),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1, completion_criteria:"
        " {behavior: A, measure: progress, threshold: 2}}]}}",
        "environment_parameters.m.curriculum[0].completion_criteria.threshold: got 2.0, expected 0 to 1",
    ),
    ("env_settings: {seed: 3000000000}", "env_settings.seed: got 3000000000, expected a value less than"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message.partition(": ")[0] for _, message in BAD])
def test_mistake_is_named_by_path(tmp_path, text, message):
    found = problems(tmp_path, text)
    assert any(line.startswith(message) for line in found), found


def test_all_problems_at_once(tmp_path):
    text = "\n".join(
        (
            "behaviors:",
            "  A: {max_stps: 1, trainer_type: ppo, hyperparameters: {batch_size: x, bta: 1}}",
            "env_settings: {num_areas: -1, port: 3}",
        )
    )
    paths = {line.partition(":")[0] for line in problems(tmp_path, text)}
    assert paths == {
        "behaviors.A.max_stps",
        "behaviors.A.hyperparameters.batch_size",
        "behaviors.A.hyperparameters.bta",
        "env_settings.num_areas",
        "env_settings.port",
    }


def test_direct_construction_is_as_strict():
    with pytest.raises(ValueError, match="did you mean beta"):
        PPOHyperparameters.model_validate({"bet": 3})
    with pytest.raises(ValueError, match="expected the hyperparameters object"):
        BehaviorSettings(trainer_type="ppo", hyperparameters={})
    behavior = BehaviorSettings(trainer_type="ppo", hyperparameters=PPOHyperparameters(batch_size=8))
    with pytest.raises(ValueError, match="frozen"):
        behavior.max_steps = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_derived_defaults(tmp_path):
    text = """behaviors:
  A: {max_steps: 1000, keep_checkpoints: 3, even_checkpoints: true, checkpoint_interval: 7,
      self_play: {save_steps: 10}}
  B: {trainer_type: ppo, hyperparameters: {learning_rate_schedule: constant}}
  C: {trainer_type: poca, hyperparameters: {learning_rate_schedule: constant, beta_schedule: linear}}
  D: {trainer_type: sac, hyperparameters: {steps_per_update: 10}}
"""
    behaviors = load(tmp_path, text).behaviors
    assert behaviors["A"].checkpoint_interval == 333  # int(1000 / 3)
    assert behaviors["A"].self_play.team_change == 50  # 5 * 10
    b, c, d = (behaviors[name].hyperparameters for name in "BCD")
    assert (b.beta_schedule, b.epsilon_schedule) == ("constant", "constant")
    assert (c.beta_schedule, c.epsilon_schedule) == ("linear", "constant")
    assert d.reward_signal_steps_per_update == 10


def test_whole_schema_round_trip(tmp_path):
    settings = load_run_settings(FULL, {}, HYPERPARAMETER_TYPES)
    text = to_yaml(settings)
    assert sorted(RunSettings.model_fields) == sorted([*yaml.safe_load(text), "callbacks", "record_settings"])
    assert load(tmp_path, text) == settings
    assert to_yaml(load(tmp_path, text)) == text
    assert constants(settings.environment_parameters) == {"gravity": -9.81, "drag": 0.5}


def test_lessons_that_are_allowed(tmp_path):
    """A behavior that default_settings stand for, and criteria of a last lesson, which are remarked."""
    ends = "completion_criteria: {behavior: Late, measure: Goals, threshold: 7}"
    lessons = f"[{{name: a, value: 1, {ends}}}, {{name: b, value: 2, {ends}}}]"
    settings = load(tmp_path, f"default_settings: {{}}\nenvironment_parameters: {{m: {{curriculum: {lessons}}}}}")
    (one,) = [remark for remark in remarks(settings) if "environment_parameters" in remark]
    assert one == (
        "environment_parameters.m.curriculum[1].completion_criteria: the last lesson never ends, this has no effect"
    )


def test_fault_settings_without_effect_are_remarked(tmp_path):
    def said(text: str) -> list[str]:
        return [remark for remark in remarks(load(tmp_path, text)) if "no effect" in remark]

    (one,) = said("env_settings: {restarts_rate_limit_n: 2, max_lifetime_restarts: 0}")
    assert one.startswith("env_settings.restarts_rate_limit_n: no effect beside env_settings.max_lifetime_restarts: 0")
    (one,) = said("env_settings: {env_path: Game, editor_wait: 5}")
    assert one.startswith("env_settings.editor_wait: no effect with env_path Game")
    for usual in ("max_lifetime_restarts: 0", "restarts_rate_limit_n: 2", "editor_wait: 5", "seed: 1"):
        assert said(f"env_settings: {{{usual}}}") == []


def test_deprecated_keys_warn_once(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    text = """behaviors:
  A: {framework: pytorch, reward_signals: {extrinsic: {}, curiosity: {encoding_size: 32}}}
  B: {framework: tensorflow, reward_signals: {rnd: {encoding_size: 32, network_settings: {hidden_units: 8}}}}
"""
    a, b = load(tmp_path, text).behaviors.values()
    assert a.reward_signals["curiosity"].network_settings.hidden_units == 32
    assert b.reward_signals["rnd"].network_settings.hidden_units == 8
    lines = [record.getMessage() for record in caplog.records]
    assert sum("framework" in line for line in lines) == 1 and sum("encoding_size" in line for line in lines) == 1


IGNORED = """
default_settings: {self_play: {windw: 3}}
behaviors:
  A:
    network_settings: {hidden_units: 8, vis_encoder_type: simple, memory: {use_recurrent: true, memory_size: 4}}
    reward_signals: {curiosity: {network_settings: {num_layer: 1}}}
    behavioral_cloning: {demo_path: x, steps: 5, fade: 2}
"""


def test_keys_that_the_original_passes_over_are_said_once_and_trained_without(tmp_path, caplog):
    behavior = load(tmp_path, IGNORED).behaviors["A"]
    assert behavior.network_settings.hidden_units == 8 and behavior.network_settings.memory.memory_size == 4
    assert behavior.behavioral_cloning.steps == 5 and behavior.self_play.window == 10
    keys = {text.partition(":")[0]: text for text in caplog.messages if "unknown key, has no effect" in text}
    assert set(keys) == {
        "default_settings.self_play.windw",
        "behaviors.A.network_settings.vis_encoder_type",
        "behaviors.A.network_settings.memory.use_recurrent",
        "behaviors.A.reward_signals.curiosity.network_settings.num_layer",
        "behaviors.A.behavioral_cloning.fade",
    }
    assert keys["behaviors.A.network_settings.vis_encoder_type"].endswith("did you mean vis_encode_type?")
    assert len(problems(tmp_path, IGNORED)) == 5
    with pytest.raises(SettingsError, match="hiddn_units: unknown key"):  # what is typed here is meant
        load(tmp_path, IGNORED, behaviors={"A": {"network_settings": {"hiddn_units": 3}}})


def test_a_tab_is_called_a_tab(tmp_path):
    (problem,) = problems(tmp_path, "behaviors:\n\tA: {}\n")
    assert problem.startswith("YAML error at line 2, column 1: the line begins with a tab")


def test_behavior_lookup(tmp_path):
    settings = load(tmp_path, "behaviors: {Walker: {max_steps: 7}}")
    assert behavior_settings_for(settings, "Walker?team=1").max_steps == 7
    with pytest.raises(SettingsError, match=r"behaviors.Walkr: .*did you mean Walker\?.*default_settings"):
        behavior_settings_for(settings, "Walkr")
    settings = load(tmp_path, "default_settings: {max_steps: 9}\nbehaviors: {Walker: {}}")
    assert behavior_settings_for(settings, "Other").max_steps == 9
    assert settings.behaviors["Walker"].max_steps == 9


@pytest.mark.parametrize("number", ["2147483648", "1e10", "1.0e10", "10_000_000_000"])
def test_more_steps_than_are_counted_are_a_run_without_end_other_numbers_are_refused(tmp_path, number, caplog):
    for path, text in (
        ("behaviors.A.max_steps", f"behaviors: {{A: {{max_steps: {number}}}}}"),
        ("default_settings.max_steps", f"default_settings: {{max_steps: {number}}}\nbehaviors: {{A: {{}}}}"),
    ):
        caplog.clear()
        assert load(tmp_path, text).behaviors["A"].max_steps == 2147483647
        assert path in caplog.messages[0] and "the run goes on until 2147483647" in caplog.messages[0]
    (problem,) = problems(tmp_path, f"behaviors: {{A: {{time_horizon: {number}}}}}")
    assert problem.startswith("behaviors.A.time_horizon: got ") and "at most 2147483647" in problem
    for trainer in ("poca", "sac"):
        text = f"behaviors: {{A: {{trainer_type: {trainer}, hyperparameters: {{buffer_size: {number}}}}}}}"
        (problem,) = problems(tmp_path, text)
        assert problem.startswith("behaviors.A.hyperparameters.buffer_size: got ")


def test_the_largest_step_is_taken_and_intervals_have_no_limit(tmp_path):
    a = load(
        tmp_path,
        "behaviors: {A: {trainer_type: ppo, max_steps: 2147483647, time_horizon: 2147483647, summary_freq: 1e12, "
        "checkpoint_interval: 10000000000, hyperparameters: {buffer_size: 2147483647, batch_size: 1.0e+10}, "
        "self_play: {save_steps: 10000000000}}}",
    ).behaviors["A"]
    assert (a.max_steps, a.last_step, a.time_horizon) == (2**31 - 1, 2**31 - 2, 2**31 - 1)
    assert (a.summary_freq, a.checkpoint_interval, a.hyperparameters.batch_size) == (10**12, 10**10, 10**10)
    assert load(tmp_path, "behaviors: {A: {max_steps: 7}}").behaviors["A"].last_step == 7
