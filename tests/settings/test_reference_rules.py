"""Every rule of ML-Agents' configuration, by section of the reference, with the message that names the broken one.

Where the original fails with a bare Python error, or takes the value and does something else, ours says what to write.
"""

from __future__ import annotations

import logging
from pathlib import Path

import jax
import pytest

import jaxrl
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.cli.commands import parse
from jaxrl.cli.flags import overrides_from
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.networks.visual import visual_problem
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for, load_run_settings
from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError, ObservationSpec
from tests.helpers import ppo_settings


def load(folder: Path, text: str, *flags: str) -> RunSettings:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_settings(path, overrides_from(parse(["learn", *flags])), HYPERPARAMETER_TYPES, strict=True)


def behavior(keys: str) -> str:
    return f"behaviors: {{A: {{{keys}}}}}"


def hyper(keys: str, trainer: str = "ppo") -> str:
    return behavior(f"trainer_type: {trainer}, hyperparameters: {{{keys}}}")


def lesson(criteria: str, last: str = "{name: b, value: 2}") -> str:
    first = f"{{name: a, value: 1, completion_criteria: {{{criteria}}}}}"
    return f"behaviors: {{A: {{}}}}\nenvironment_parameters: {{m: {{curriculum: [{first}, {last}]}}}}"


def sampler(keys: str) -> str:
    return f"environment_parameters: {{m: {{{keys}}}}}"


A, M = "behaviors.A", "environment_parameters.m"
WRONG = [
    # 1.1 loading: unknown keys, sections, types; keys one level off
    (behavior("gamma: 0.9"), f"{A}.gamma: unknown key, did you mean reward_signals.extrinsic.gamma?"),
    (hyper("max_steps: 5"), f"{A}.hyperparameters.max_steps: unknown key, did you mean max_steps, beside hyper"),
    (hyper("gamma: 1"), f"{A}.hyperparameters.gamma: unknown key, did you mean reward_signals.extrinsic.gamma, beside"),
    (hyper("normalize: 1"), f"{A}.hyperparameters.normalize: unknown key, did you mean network_settings.normalize, b"),
    (
        behavior("network_settings: {memory_size: 8}"),
        f"{A}.network_settings.memory_size: unknown key, did you mean memory.memory_size?",
    ),
    (
        behavior("network_settings: {normalize_from_data: true}"),
        f"{A}.network_settings.normalize_from_data: got true, expected false without normalize: true",
    ),
    ("behaviors: {'A?team=1': {}}", f"{A}?team=1: got 'A?team=1', expected 'A': all teams of a behavior share its"),
    ("checkpoint_settings: {run_id: ''}", "checkpoint_settings.run_id: got '', expected text that is not empty"),
    ("seeds: 3", "seeds: unknown key, known keys: default_settings, behaviors"),
    ("torch_setting: {}", "torch_setting: unknown key, did you mean torch_settings?"),
    ("env_settings: {prt: 3}", "env_settings.prt: unknown key, known keys: env_path"),
    ("engine_settings: {widht: 3}", "engine_settings.widht: unknown key, did you mean width?"),
    ("checkpoint_settings: {runid: x}", "checkpoint_settings.runid: unknown key, did you mean run_id?"),
    ("torch_settings: {devise: cpu}", "torch_settings.devise: unknown key, did you mean device?"),
    ("env_settings: 3", "env_settings: got 3, expected a mapping of settings ({} for the defaults)"),
    ("behaviors: 3", "behaviors: got 3, expected a mapping of names to settings"),
    (behavior("network_settings: 3"), f"{A}.network_settings: got 3, expected a mapping of settings"),
    ("env_settings: {num_areas: many}", "env_settings.num_areas: got 'many', expected an integer"),
    ("debug: perhaps", "debug: got 'perhaps', expected true or false"),
    # 1.2 a behavior
    (behavior("trainer_type: td3"), f"{A}.trainer_type: got 'td3', expected one of coma, mappo, poca, ppo, sac"),
    (behavior("hyperparameters: {}"), f"{A}.trainer_type: this key is required when hyperparameters are given"),
    (behavior("reward_signals: {rnt: {}}"), f"{A}.reward_signals.rnt: unknown key, did you mean rnd?"),
    (behavior("max_steps: a lot"), f"{A}.max_steps: got 'a lot', expected an integer"),
    (behavior("time_horizon: 0"), f"{A}.time_horizon: got 0, expected a value greater than or equal to 1"),
    (behavior("summary_freq: 0"), f"{A}.summary_freq: got 0, expected a value greater than or equal to 1"),
    (behavior("checkpoint_interval: 0"), f"{A}.checkpoint_interval: got 0, expected a value greater than or"),
    (
        behavior("even_checkpoints: true, keep_checkpoints: -1"),
        f"{A}.keep_checkpoints: got -1, expected at least 1 with even_checkpoints",
    ),
    (
        hyper("batch_size: 8") + "\ndefault_settings: {network_settings: {memory: {sequence_length: 9}}}",
        f"{A}.network_settings.memory.sequence_length: got 9, expected at most hyperparameters.batch_size, which is 8",
    ),
    (
        "default_settings: {trainer_type: sac, hyperparameters: {tau: 0.1}}\nbehaviors: {A: {trainer_type: ppo}}",
        f"{A}.hyperparameters.tau: unknown key",
    ),
    # 1.3 hyperparameters of each trainer
    (hyper("tau: 0.1"), f"{A}.hyperparameters.tau: unknown key, it belongs to trainer_type: sac"),
    (hyper("beta: 0.1", "sac"), f"{A}.hyperparameters.beta: unknown key"),
    (hyper("shared_critic: true", "sac"), f"{A}.hyperparameters.shared_critic: unknown key"),
    (hyper("shared_critic: true", "poca"), f"{A}.hyperparameters.shared_critic: unknown key"),
    (hyper("batch_size: 0"), f"{A}.hyperparameters.batch_size: got 0, expected a value greater than or equal to 1"),
    (hyper("buffer_size: 1.5"), f"{A}.hyperparameters.buffer_size: got 1.5, expected an integer"),
    (hyper("learning_rate: -1"), f"{A}.hyperparameters.learning_rate: got -1, expected a value greater than or equal"),
    (hyper("beta_schedule: cosine"), f"{A}.hyperparameters.beta_schedule: got 'cosine', expected one of 'linear' or"),
    (hyper("epsilon_schedule: 3"), f"{A}.hyperparameters.epsilon_schedule: got 3, expected one of 'linear' or"),
    (hyper("epsilon: 0"), f"{A}.hyperparameters.epsilon: got 0, expected a value greater than 0"),
    (hyper("lambd: 2"), f"{A}.hyperparameters.lambd: got 2, expected a value less than or equal to 1"),
    (hyper("num_epoch: 0"), f"{A}.hyperparameters.num_epoch: got 0, expected a value greater than or equal to 1"),
    (hyper("tau: 2", "sac"), f"{A}.hyperparameters.tau: got 2, expected a value less than or equal to 1"),
    (hyper("steps_per_update: 0", "sac"), f"{A}.hyperparameters.steps_per_update: got 0, expected a value greater"),
    (hyper("buffer_init_steps: -1", "sac"), f"{A}.hyperparameters.buffer_init_steps: got -1, expected a value"),
    (hyper("save_replay_buffer: 3", "sac"), f"{A}.hyperparameters.save_replay_buffer: got 3, expected true or false"),
    (hyper("init_entcoef: x", "sac"), f"{A}.hyperparameters.init_entcoef: got 'x', expected a number"),
    # 1.5 networks
    (
        behavior("network_settings: {vis_encode_type: vgg}"),
        f"{A}.network_settings.vis_encode_type: got 'vgg', expected",
    ),
    (
        behavior("network_settings: {goal_conditioning_type: film}"),
        f"{A}.network_settings.goal_conditioning_type: got 'film', expected one of 'hyper' or 'none'",
    ),
    (
        behavior("network_settings: {memory: {memory_size: 0}}"),
        f"{A}.network_settings.memory.memory_size: got 0, expected a value greater than 0",
    ),
    (
        behavior("network_settings: {memory: {memory_size: 7}}"),
        f"{A}.network_settings.memory.memory_size: got 7, expected an even number",
    ),
    (behavior("network_settings: {hidden_units: 0}"), f"{A}.network_settings.hidden_units: got 0, expected a value"),
    (behavior("network_settings: {num_layers: 0}"), f"{A}.network_settings.num_layers: got 0, expected a value"),
    # 1.6 reward signals
    (behavior("reward_signals: {gail: {}}"), f"{A}.reward_signals.gail.demo_path: this key is required"),
    (behavior("reward_signals: {rnd: {gamma: 2}}"), f"{A}.reward_signals.rnd.gamma: got 2, expected a value less"),
    (
        behavior("reward_signals: {extrinsic: {learning_rate: 1}}"),
        f"{A}.reward_signals.extrinsic.learning_rate: unknown key",
    ),
    (behavior("reward_signals: {curiosity: {use_vail: 1}}"), f"{A}.reward_signals.curiosity.use_vail: unknown key"),
    (
        behavior("reward_signals: {rnd: {strength: 0}}"),
        f"{A}.reward_signals.rnd.strength: got 0, expected another number",
    ),
    (
        behavior("reward_signals: {}"),
        f"{A}.reward_signals: got {{}}, expected a mapping with at least one of extrinsic",
    ),
    # 1.7 cloning, 1.8 self-play
    (behavior("behavioral_cloning: {}"), f"{A}.behavioral_cloning.demo_path: this key is required"),
    (
        behavior("behavioral_cloning: {demo_path: x, samples_per_update: -1}"),
        f"{A}.behavioral_cloning.samples_per_update: got -1, expected a value greater than or equal to 0",
    ),
    (behavior("self_play: {windw: 3}"), f"{A}.self_play.windw: unknown key, did you mean window?"),
    (
        behavior("self_play: {save_steps: 0}"),
        f"{A}.self_play.save_steps: got 0, expected a value greater than or equal",
    ),
    (behavior("self_play: {window: 0}"), f"{A}.self_play.window: got 0, expected a value greater than or equal to 1"),
    (
        behavior("self_play: {play_against_latest_model_ratio: 1.5}"),
        f"{A}.self_play.play_against_latest_model_ratio: got 1.5, expected a value less than or equal to 1",
    ),
    (
        behavior("self_play: {play_against_latest_model_ratio: -0.1}"),
        f"{A}.self_play.play_against_latest_model_ratio: got -0.1, expected a value greater than or equal to 0",
    ),
    (
        behavior("self_play: {opponent_sampling: newest}"),
        f"{A}.self_play.opponent_sampling: got 'newest', expected one of 'uniform' or 'pfsp'",
    ),
    (
        behavior("self_play: {result: sign}"),
        f"{A}.self_play.result: got 'sign', expected one of 'final_reward' or 'return'",
    ),
    # 1.9 and 1.10 environment and engine
    ("env_settings: {num_envs: 2}", "env_settings.num_envs: got 2, expected 1 without env_path"),
    ("env_settings: {num_envs: 0}", "env_settings.num_envs: got 0, expected a value greater than or equal to 1"),
    ("env_settings: {num_areas: 0}", "env_settings.num_areas: got 0, expected a value greater than or equal to 1"),
    ("env_settings: {timeout_wait: 0}", "env_settings.timeout_wait: got 0, expected a value greater than 0"),
    ("env_settings: {seed: -2}", "env_settings.seed: got -2, expected a value greater than or equal to -1"),
    ("env_settings: {max_lifetime_restarts: -2}", "env_settings.max_lifetime_restarts: got -2, expected a value"),
    ("env_settings: {restarts_rate_limit_n: -2}", "env_settings.restarts_rate_limit_n: got -2, expected a value"),
    ("env_settings: {restarts_rate_limit_period_s: -1}", "env_settings.restarts_rate_limit_period_s: got -1, expected"),
    ("env_settings: {env_args: a}", "env_settings.env_args: got 'a', expected"),
    ("env_settings: {base_port: 70000}", "env_settings.base_port: got 70000, expected a value less than or equal to"),
    ("engine_settings: {time_scale: 0}", "engine_settings.time_scale: got 0, expected a value greater than 0"),
    ("engine_settings: {target_frame_rate: -2}", "engine_settings.target_frame_rate: got -2, expected a value"),
    # 1.11 and 1.12
    (
        "checkpoint_settings: {load_model: true}",
        "checkpoint_settings.load_model: no longer supported, use resume: true",
    ),
    ("checkpoint_settings: {run_id: ''}", "checkpoint_settings.run_id: got ''"),
    (
        "torch_settings: {device: mps}",
        "torch_settings.device: got 'mps', expected cpu, gpu, tpu, cuda or cuda:N: JAX has no",
    ),
    # 9 environment parameters
    (sampler("sampler_type: uniform"), f"{M}.sampler_parameters: this key is required"),
    (sampler("sampler_parameters: {}"), f"{M}.sampler_type: this key is required"),
    (sampler("sampler_type: beta, sampler_parameters: {}"), f"{M}.sampler_type: got 'beta', expected one of"),
    (
        sampler("sampler_type: uniform, sampler_parameters: {min_value: 3, max_value: 1}"),
        f"{M}.sampler_parameters.min_value: got 3.0, expected at most max_value, which is 1.0",
    ),
    (
        sampler("sampler_type: gaussian, sampler_parameters: {sd: 1}"),
        f"{M}.sampler_parameters.sd: unknown key",
    ),
    (
        sampler("sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1], [3, 2]]}"),
        f"{M}.sampler_parameters.intervals[1]: got [3.0, 2.0], expected the lower bound first",
    ),
    (
        sampler("sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0]]}"),
        f"{M}.sampler_parameters.intervals[0]: got [0], expected a pair of numbers: [lower bound, upper bound]",
    ),
    (sampler("a: 3"), f"{M}: got {{'a': 3}}, expected a number, or a mapping with curriculum, or one with"),
    ("environment_parameters: {m: [1]}", f"{M}: got [1], expected a number, or a mapping with"),
    (lesson("measure: reward"), f"{M}.curriculum[0].completion_criteria.behavior: this key is required"),
    (
        lesson("behavior: A, measure: rewards"),
        f"{M}.curriculum[0].completion_criteria.measure: got 'rewards', expected",
    ),
    (
        lesson("behavior: A, measure: progress, threshold: 1.5"),
        f"{M}.curriculum[0].completion_criteria.threshold: got 1.5, expected 0 to 1 with measure: progress",
    ),
    (lesson("behavior: A", "{value: 2}"), f"{M}.curriculum[1].name: this key is required"),
    (lesson("behavior: A", "{name: b}"), f"{M}.curriculum[1].value: this key is required"),
    (
        "environment_parameters: {m: {curriculum: [{name: a, value: 1}, {name: b, value: 2}]}}",
        f"{M}.curriculum[0].completion_criteria: this key is required for every lesson but the last",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message.partition(": ")[0] for _, message in WRONG])
def test_what_breaks_a_rule_is_named(tmp_path, text, message):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert any(problem.startswith(message) for problem in caught.value.problems), caught.value.problems


ODD = [
    (behavior("framework: pytorch"), f"{A}.framework: deprecated, has no effect, remove it"),
    (
        behavior("reward_signals: {curiosity: {encoding_size: 3}}"),
        f"{A}.reward_signals.curiosity.encoding_size: deprecated, write network_settings.hidden_units",
    ),
    (
        behavior("reward_signals: {rnd: {network_settings: {memory: {memory_size: 4}}}}"),
        f"{A}.reward_signals.rnd.network_settings.memory: reward signals have no memory, this has no effect, remove it",
    ),
    (
        behavior("max_steps: 10, self_play: {}"),
        f"{A}.self_play.team_change: got 100000, expected at most max_steps, which is 10: the learning team never "
        "changes; lower it (it is 5 x save_steps unless given)",
    ),
    (hyper("epsilon: 0.05"), f"{A}.hyperparameters.epsilon: 0.05 grows under epsilon_schedule: linear"),
    ("checkpoint_settings: {train_model: true}", "checkpoint_settings.train_model: deprecated, has no effect"),
    (
        lesson("behavior: A", "{name: b, value: 2, completion_criteria: {behavior: A}}"),
        f"{M}.curriculum[1].completion_criteria: the last lesson never ends, this has no effect",
    ),
    (
        "checkpoint_settings: {resume: true, initialize_from: a}",
        "checkpoint_settings.initialize_from is dropped: the run is resumed",
    ),
]


@pytest.mark.parametrize(("text", "message"), ODD, ids=[message.partition(": ")[0] for _, message in ODD])
def test_what_is_odd_is_a_warning(tmp_path, caplog, text, message):
    with caplog.at_level(logging.WARNING, "jaxrl"):
        load(tmp_path, text)
    assert any(record.getMessage().startswith(message) for record in caplog.records), caplog.text


def test_what_looks_at_a_run_does_not_repeat_its_warnings(tmp_path, caplog):
    (tmp_path / "run.yaml").write_text(behavior("max_steps: 10, self_play: {}"))
    with caplog.at_level(logging.WARNING, "jaxrl"):
        load_run_settings(tmp_path / "run.yaml", {}, HYPERPARAMETER_TYPES, of_folder=True)
    assert not caplog.records


FLAGS = [  # section 2: the flag's key is named, and that it stands on the command line
    (["--num-envs", "2"], "env_settings.num_envs: got 2, expected 1 without env_path"),
    (["--num-areas", "0"], "env_settings.num_areas: got 0, expected a value greater than or equal to 1"),
    (["--load"], "checkpoint_settings.load_model: no longer supported, use resume: true or --resume"),
    (["--torch-device", "xpu"], "torch_settings.device: got 'xpu', expected cpu, gpu, tpu, cuda or cuda:N"),
    (["--time-scale", "0"], "engine_settings.time_scale: got 0.0, expected a value greater than 0"),
    (["--base-port", "0"], "env_settings.base_port: got 0, expected a value greater than or equal to 1"),
]


@pytest.mark.parametrize(("flags", "message"), FLAGS, ids=[words[0] for words, _ in FLAGS])
def test_a_wrong_flag_is_named_by_its_key(tmp_path, flags, message):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "behaviors: {A: {}}", *flags)
    (problem,) = caught.value.problems
    assert problem.startswith(message) and problem.endswith("(given on the command line)")


@pytest.mark.parametrize("words", [["--num-envs", "two"], ["--no-such-flag"], ["a.yaml", "b.yaml"], ["--seed"]])
def test_what_is_no_flag_ends_with_the_usage(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        parse(["learn", *words])
    error = capsys.readouterr().err
    assert "usage: jaxrl learn" in error or ("usage: jaxrl" in error and words[-1] in error)


def test_a_behavior_that_nothing_covers(tmp_path):
    settings = load(tmp_path, "behaviors: {Walker: {}}")
    with pytest.raises(SettingsError, match=r"behaviors\.Runner: the environment has this behavior.*default_settings"):
        behavior_settings_for(settings, "Runner?team=0")


@pytest.mark.parametrize(
    ("kind", "side"), [("simple", 20), ("nature_cnn", 36), ("resnet", 15), ("match3", 5), ("fully_connected", 1)]
)
def test_an_image_that_is_too_small_for_its_encoder(kind, side):
    settings = ppo_settings(network_settings__vis_encode_type=kind)

    def camera(height: int) -> ObservationSpec:
        return ObservationSpec("camera", (3, height, 64), IMAGE_PROPERTIES)

    assert visual_problem(camera(side), settings.network_settings) == ""
    told = visual_problem(camera(side - 1), settings.network_settings)
    assert f"vis_encode_type {kind}, which needs at least {side} x {side} pixels" in told
    if kind == "simple":  # the whole way, which is one for all
        algorithm = jaxrl.make_algorithm(BehaviorSpec((camera(side - 1),), ActionSpec(1, ())), settings)
        with pytest.raises(JaxrlError, match=r"camera.* is too small for network_settings\.vis_encode_type simple"):
            jax.eval_shape(algorithm.init, jax.random.key(0))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"run_id": "old"}, "old already holds a run. "),
        ({"run_id": "new", "resume": True}, "new does not exist, so --resume has nothing to continue. Check --run-id"),
        ({"run_id": "new", "initialize_from": "none"}, "--initialize-from none: "),
        ({"run_id": "new", "initialize_from": "old", "behaviors": {"Walker": None}}, "Walker"),
        ({"run_id": "../b"}, "--run-id '../b'"),
    ],
)
def test_section_3_folders(tmp_path, asked, message):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "configuration.yaml").write_text("{}")
    run_id, options = asked["run_id"], {key: value for key, value in asked.items() if key != "run_id"}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArtifactError) as caught:
        RunFolder(tmp_path, run_id).check(**options)
    assert message in str(caught.value) and sorted(tmp_path.rglob("*")) == before
