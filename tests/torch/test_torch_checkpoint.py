"""ML-Agents' checkpoints as learners of ours, and back: every network and action space of the parity cases."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
import yaml

from jaxrl.algorithms import make_algorithm, sac, sac_parts, updating
from jaxrl.artifacts.checkpoint import store
from jaxrl.artifacts.onnx.export import export
from jaxrl.cli import main
from jaxrl.networks.policy import squashed_network
from jaxrl.rewards.signals import bind_off_policy
from jaxrl.torch.checkpoint import composed, parsed
from jaxrl.torch.learner import checkpoint_of, in_module_order, layouts_of, learner_of
from jaxrl.torch.reading import read_torch_file
from jaxrl.torch.settings import action_of, contradictions
from jaxrl.torch.weights import TorchImportError, import_weights
from jaxrl.torch.writing import write_torch_file
from tests.helpers import ppo_settings
from tests.parity import sac_cases, update_cases
from tests.parity.cases import load
from tests.parity.compare import Comparison
from tests.parity.forward_cases import run_forward

sys.path.insert(0, str(Path(__file__).parent))

from torch_runs import checkpoint_of_case, settings_of_case

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
ALWAYS = (
    *("b_poca_vec2_hybrid_norm", "b_ppo_hybrid_shared_critic", "b_ppo_goal_hyper_1layer", "b_ppo_lstm"),
    *("b_ppo_entities_only", "b_ppo_visual_simple", "f_sac_hybrid", "f_sac_lstm_continuous_norm"),
)
CASES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in ALWAYS else [pytest.mark.slow])
    for path in sorted((*FIXTURES.glob("b_*.json"), *FIXTURES.glob("f_sac_*.json")))
]
THEIRS = Path(__file__).parent / "torch_files" / "Countdown" / "checkpoint.pt"
RANK = "network_body.observation_encoder.processors"


def fresh(case, settings):
    """A state of the right form, of a case or a spec, without anything computed: zeros."""
    spec = getattr(case, "spec", case)
    shapes = jax.eval_shape(make_algorithm(spec, settings).init, jax.random.key(0))
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes.replace(key=np.zeros(2, np.uint32)))


def flat(contents, path=""):
    """Every array and number of a file by its path."""
    if isinstance(contents, (dict, list)):
        items = contents.items() if isinstance(contents, dict) else enumerate(contents)
        return {key: value for name, item in items for key, value in flat(item, f"{path}/{name}").items()}
    return {path: contents}


def same(first, second) -> bool:
    first, second = flat(first), flat(second)
    assert list(first) == list(second)
    for name, value in first.items():
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (second[name].dtype, second[name].shape), name
            assert value.tobytes() == second[name].tobytes(), name
        else:
            assert value == second[name], name
    return True


@pytest.mark.parametrize("path", CASES)
def test_a_checkpoint_comes_back_bit_for_bit(path, tmp_path):
    case = load(path)
    settings, given = settings_of_case(case), checkpoint_of_case(case)
    write_torch_file(tmp_path / "a.pt", composed(given, 1e-3))
    written = read_torch_file(tmp_path / "a.pt")
    found = parsed(written)
    assert (found.trainer_type, found.step, found.adam.count) == (case.meta["algorithm"], 5, 11)
    assert contradictions(found, settings) == []
    assert action_of(found.policy) == case.spec.action
    blank = fresh(case, settings)
    state, remarks = learner_of(found, case.spec, settings, blank)
    if settings.trainer_type == "sac":
        begin = case.meta["hyperparameters"]["init_entcoef"]
        assert remarks == [f"temperatures, which ML-Agents does not keep: they begin at init_entcoef, {begin}"]
    else:
        assert remarks == []
    assert jax.tree.structure(state) == jax.tree.structure(blank)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(state)] == [(x.shape, x.dtype) for x in jax.tree.leaves(blank)]
    write_torch_file(tmp_path / "b.pt", composed(checkpoint_of(state, found.step, case.spec, settings), 1e-3))
    assert same(written, read_torch_file(tmp_path / "b.pt"))


def test_what_sac_moves_lies_where_the_original_numbers_it():
    case = load(FIXTURES / "f_sac_hybrid.json")
    settings = settings_of_case(case)
    contents = composed(checkpoint_of_case(case, step=700), 1e-3)
    state, _ = learner_of(parsed(contents), case.spec, settings, fresh(case, settings))
    assert int(state.step) == 700 and not int(state.own["fresh"])  # or 700 updates would be owed
    of_values, of_alpha = (contents[f"Optimizer:{name}_optimizer"]["state"] for name in ("value", "entropy"))
    (q1, q2, v), layer = (state.optimizer["critic"].mu[name]["params"] for name in ("q1", "q2", "value")), "layer_0"
    assert len(of_values) == 12
    for first, ours in ((0, q1), (4, q2), (8, v)):
        np.testing.assert_array_equal(ours["body"][layer]["kernel"].T, of_values[first]["exp_avg"])
        np.testing.assert_array_equal(ours["values"]["kernel"].T, of_values[first + 2]["exp_avg"])
    for number, kind in ((0, "discrete"), (1, "continuous")):
        np.testing.assert_array_equal(state.optimizer["entropy"].nu[kind], of_alpha[number]["exp_avg_sq"])
    assert list(contents) == [
        "Policy",
        "global_step",
        *(
            f"Optimizer:{name}"
            for name in (
                "q_network",
                "value_network",
                "target_network",
                "policy_optimizer",
                "value_optimizer",
                "entropy_optimizer",
            )
        ),
    ]
    of_alpha[0]["exp_avg"] = np.zeros(2, np.float32)
    with pytest.raises(TorchImportError, match="2 discrete temperatures, the actions have 1"):
        learner_of(parsed(contents), case.spec, settings, fresh(case, settings))


@pytest.mark.slow
def test_weights_from_a_file_give_the_outputs_of_the_original(tmp_path):
    case = load(FIXTURES / "b_ppo_hybrid_shared_critic.json")
    settings = settings_of_case(case)
    write_torch_file(tmp_path / "a.pt", composed(checkpoint_of_case(case), 1e-3))
    state, _ = learner_of(parsed(read_torch_file(tmp_path / "a.pt")), case.spec, settings, fresh(case, settings))
    back = checkpoint_of(state, 5, case.spec, settings)
    arrays = {name: array for name, array in case.arrays.items() if not name.startswith("w/")}
    assert len(arrays) < len(case.arrays)
    weights = {f"w/actor/{name}": x for name, x in back.policy.items()}
    weights |= {f"w/critic/{name}": x for name, x in back.critic.items()}
    comparison = run_forward(case._replace(arrays=arrays | weights))
    assert len(comparison.errors) >= 5
    assert max(comparison.errors.values()) < 1e-4


def continued(name, tmp_path):
    """The case's first update here, the other two from a file that holds what is known after it."""
    case = load(FIXTURES / f"{name}.json")
    settings: Any = update_cases._settings(case)
    layouts = update_cases._layouts(case)
    state, normalizers = update_cases._state(case, layouts)
    batch = update_cases._batch(case, normalizers)
    update = jax.jit(partial(updating.update, update_cases.algorithm_parts(case, settings)))
    state, _ = update(state, batch)
    own = settings_of_case(case)
    write_torch_file(tmp_path / "a.pt", composed(checkpoint_of(state, int(state.step), case.spec, own), 1e-3))
    blank = jax.tree.map(lambda x: x * 0 if x.dtype == np.float32 else x, state)
    state, _ = learner_of(parsed(read_torch_file(tmp_path / "a.pt")), case.spec, own, blank)
    for _ in range(2):
        state, _ = update(state, batch)
    comparison = Comparison()
    update_cases._compare_weights(case, comparison, layouts, state, 3)
    return comparison


@pytest.mark.slow
def test_adam_goes_on_where_the_file_left_it(tmp_path):
    comparison = continued("c_ppo_update_hybrid_norm_shared", tmp_path)
    assert len(comparison.errors) > 10
    assert max(comparison.errors.values()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("c_*_update_*.json")), ids=lambda path: path.stem)
def test_adam_goes_on_in_every_case(path, tmp_path):
    assert max(continued(path.stem, tmp_path).errors.values()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("f_sac_*.json")), ids=lambda path: path.stem)
def test_sac_goes_on_where_the_file_left_it(path, tmp_path):
    """The first update here, the other two from a file; the temperatures, which no file has, are carried by hand."""
    case = load(path)
    settings: Any = sac_cases._settings(case)
    parts = sac_parts.parts_of(case.spec, settings)
    start = jax.jit(partial(sac.init, parts, bind_off_policy(case.spec, settings)))(jax.random.key(0))
    state, batch = sac_cases._weights(case, start, "w"), sac_cases._batch(case)
    update, noise = jax.jit(partial(sac.step, parts)), case.arrays.get("mb/noise", np.zeros((3, case.meta["batch"], 0)))
    for count, drawn in enumerate(noise):
        state, _ = update(state, batch, batch.reward[..., None], sac_cases._shaped(case, drawn))
        if count == 0:
            contents = composed(checkpoint_of(state, int(state.step), case.spec, settings), 1e-3)
            write_torch_file(tmp_path / "a.pt", contents)
            read, _ = learner_of(parsed(read_torch_file(tmp_path / "a.pt")), case.spec, settings, start)
            state = read.replace(own={**read.own, "log_alpha": state.own["log_alpha"]})
    comparison = Comparison()
    sac_cases._compare_weights(case, comparison, state, 3)
    assert len(comparison.errors) > 20
    assert max(comparison.errors.values()) < 1e-4


def test_what_ml_agents_wrote_comes_back_bit_for_bit(tmp_path):
    from tests.envs.countdown_player import SPEC

    contents = read_torch_file(THEIRS)
    settings = ppo_settings(network_settings__hidden_units=4, network_settings__num_layers=1,
                            network_settings__normalize=True)  # fmt: skip
    found = parsed(contents)
    state, remarks = learner_of(found, SPEC, settings, fresh(SPEC, settings))
    assert (remarks, int(state.step), int(state.optimizer.count)) == ([], 1000, 3)
    np.testing.assert_allclose(state.policy.params["params"]["heads"]["log_sigma"], [-2.585299e-05], rtol=1e-6)
    moments = contents["Optimizer:value_optimizer"]["state"][8]
    np.testing.assert_array_equal(state.optimizer.nu["actor"]["params"]["heads"]["log_sigma"], moments["exp_avg_sq"][0])
    (statistics,) = state.policy.normalizer
    assert statistics is not None and float(statistics.count) == 41.0
    write_torch_file(tmp_path / "b.pt", composed(checkpoint_of(state, found.step, SPEC, settings), 3e-4))
    assert same(contents, read_torch_file(tmp_path / "b.pt"))


def test_modules_are_listed_in_the_order_of_their_creation():
    names = [
        "value_heads.value_heads.rnd.weight", "value_heads.value_heads.extrinsic.bias",
        "value_heads.value_heads.extrinsic.weight", "network_body._body_endoder.layers.2.hypernet.0.weight",
        "network_body._body_endoder.layers.2.bias", "network_body._body_endoder.layers.10.weight",
        "network_body._current_max_agents", f"{RANK}.1.dense.weight", f"{RANK}.1.sequential.0.weight",
        f"{RANK}.0.conv_layers.2.weight", f"{RANK}.0.dense.0.weight", "memory_size_vector",
    ]  # fmt: skip
    assert in_module_order(names, ("extrinsic", "rnd")) == [
        "memory_size_vector", "network_body._current_max_agents", f"{RANK}.0.conv_layers.2.weight",
        f"{RANK}.0.dense.0.weight", f"{RANK}.1.dense.weight", f"{RANK}.1.sequential.0.weight",
        "network_body._body_endoder.layers.2.bias", "network_body._body_endoder.layers.2.hypernet.0.weight",
        "network_body._body_endoder.layers.10.weight", "value_heads.value_heads.extrinsic.weight",
        "value_heads.value_heads.extrinsic.bias", "value_heads.value_heads.rnd.weight",
    ]  # fmt: skip


def tiny():
    case = load(FIXTURES / "b_ppo_vec_continuous.json")
    return case, settings_of_case(case), composed(checkpoint_of_case(case), 1e-3)


def test_a_parameter_without_a_gradient_has_no_moments():
    case, settings, contents = tiny()
    state = contents["Optimizer:value_optimizer"]["state"]
    last = max(state)
    del state[last]
    found = parsed(contents)
    assert len(found.adam.first) == len(state)
    imported, _ = learner_of(found, case.spec, settings, fresh(case, settings))
    assert not np.asarray(imported.optimizer.nu["critic"]["params"]["values"]["bias"]).any()
    back = composed(checkpoint_of(imported, 5, case.spec, settings), 1e-3)
    assert sorted(back["Optimizer:value_optimizer"]["state"]) == sorted(state)


def test_fewer_updates_of_one_parameter_are_told():
    _, _, contents = tiny()
    contents["Optimizer:value_optimizer"]["state"][6]["step"] = 4  # a number, as before PyTorch 1.12
    found = parsed(contents)
    assert found.adam.count == 11
    (remark,) = found.remarks
    assert remark.startswith("Adam has updated network_body._body_endoder.seq_layers.0.weight less often than the 11")


def test_heads_of_other_signals_stay_behind():
    case, settings, contents = tiny()
    critic = contents["Optimizer:critic"]
    for leaf in ("weight", "bias"):
        critic[f"value_heads.value_heads.gail.{leaf}"] = critic[f"value_heads.value_heads.extrinsic.{leaf}"]
    contents["Module:GAIL"] = {}
    contents["Optimizer:value_optimizer"]["param_groups"][0]["params"] += [90, 91]
    found = parsed(contents)
    assert found.others == ("Module:GAIL",)
    _, remarks = learner_of(found, case.spec, settings, fresh(case, settings))
    assert remarks == ["value head gail"]


def test_statistics_of_a_critic_that_saw_something_else():
    case = load(FIXTURES / "b_ppo_vec_multibranch_norm.json")
    settings, given = settings_of_case(case), checkpoint_of_case(case)
    name = "network_body.observation_encoder.processors.0.normalizer.running_mean"
    given = given._replace(critic={**given.critic, name: given.critic[name] + 1})
    state, remarks = learner_of(given, case.spec, settings, fresh(case, settings))
    assert remarks[0].startswith("the critic's own statistics of observations, which differ from the policy's")
    (statistics, *_) = state.policy.normalizer
    assert statistics is not None
    np.testing.assert_array_equal(statistics.mean, given.policy[name])


WRONG = {
    "nothing": ({}, "holds nothing, expected the modules Policy and global_step"),
    "a list": ([1], "holds list, expected the modules"),
    "another network": ({"layers.0.weight": 1}, "holds layers.0.weight, expected the modules"),
    "half of SAC": (
        {"Policy": {}, "global_step": {}, "Optimizer:q_network": {}},
        "but no Optimizer:entropy_optimizer, Optimizer:policy_optimizer, Optimizer:q_network, ",
    ),
    "a policy alone": ({"Policy": {}, "global_step": {}}, "Optimizer:critic, Optimizer:value_optimizer (ppo) or "),
}


@pytest.mark.parametrize(("contents", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_checkpoint_of_ppo_or_poca(contents, text):
    with pytest.raises(TorchImportError) as caught:
        parsed(contents)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(Policy={"a": 1}), "Policy: expected arrays by name"),
        (lambda c: c["global_step"].clear(), "global_step: expected an entry _GlobalSteps__global_step, found "),
        (lambda c: c.update({"Optimizer:value_optimizer": {}}), "optimizer: expected one group of parameters"),
        (lambda c: c["Optimizer:value_optimizer"]["param_groups"][0]["params"].pop(), "optimizer: it has 18 "
         "parameters, "
         "the networks of the file have 19"),
    ],
)  # fmt: skip
def test_parts_that_do_not_belong_together(change, text):
    _, _, contents = tiny()
    change(contents)
    with pytest.raises(TorchImportError) as caught:
        parsed(contents)
    assert str(caught.value).startswith(text)


def test_settings_that_contradict_the_file_are_named_with_what_to_write():
    found = parsed(read_torch_file(THEIRS))
    settings = ppo_settings(network_settings__memory={}, hyperparameters__shared_critic=True)
    assert contradictions(found, settings) == [
        "network_settings.hidden_units: got 128, but the checkpoint has 4: write 4",
        "network_settings.num_layers: got 2, but the checkpoint has 1: write 1",
        "network_settings.memory: got 128, but the checkpoint has null: write null",
        "network_settings.normalize: got false, but the checkpoint has true: write true",
        "hyperparameters.shared_critic: got true, but the checkpoint has false: write false",
    ]
    case = load(FIXTURES / "b_ppo_visual_nature.json")
    images = settings_of_case(case).model_copy(update={"network_settings": settings_of_case(
        case, ).network_settings.model_copy(update={"vis_encode_type": "simple"})})  # fmt: skip
    assert contradictions(checkpoint_of_case(case), images) == [
        'network_settings.vis_encode_type: got "simple", but the checkpoint has "nature_cnn": write "nature_cnn"'
    ]


def test_a_network_of_other_observations_names_entry_and_shapes():
    case, settings, contents = tiny()
    spec = case.spec._replace(observations=case.spec.observations[:1] * 2)
    layouts = layouts_of(spec, settings)
    with pytest.raises(TorchImportError, match=r"seq_layers\.0\.weight: shape \(\d+, \d+\) in the checkpoint, \(\d+, "):
        import_weights(parsed(contents).policy, layouts["actor"], spec)


def test_a_run_of_sac_comes_and_goes(tmp_path, capsys):
    """Beside its ONNX file as ML-Agents writes it, whose deterministic action is the mean without tanh."""
    case = load(FIXTURES / "f_sac_hybrid.json")
    settings = settings_of_case(case, learning_rate_schedule="constant")
    given = composed(checkpoint_of_case(case, step=700), float(np.float32(1e-3)))
    state, _ = learner_of(parsed(given), case.spec, settings, fresh(case, settings))
    old, (sensor,) = tmp_path / "old" / "Case", case.spec.observations
    write_torch_file(old / "checkpoint.pt", given)
    rows = np.random.default_rng(0).normal(size=(8, *sensor.shape)).astype(np.float32)
    export(
        old / "Case-700.onnx",
        spec=case.spec,
        network=squashed_network(case.spec, settings.network_settings),
        actor_params=state.policy.params,
        normalizer=state.policy.normalizer,
        sample_obs=(rows,),
        sample_masks=np.ones((8, case.spec.action.mask_size), bool),
    )
    model = onnx.load(old / "Case-700.onnx")
    (squashing,) = (node for node in model.graph.node if "deterministic_continuous_actions" in node.output)
    squashing.op_type = "Identity"
    onnx.save(model, old / "Case-700.onnx")
    hyper = {**case.meta["hyperparameters"], "learning_rate_schedule": "constant"}
    network = {**case.meta["network_settings"], "normalize": False}
    written = {"trainer_type": "sac", "hyperparameters": hyper, "network_settings": network}
    (tmp_path / "old" / "configuration.yaml").write_text(yaml.safe_dump({"behaviors": {"Case": written}}))
    new = tmp_path / "results" / "new"
    assert main(["import-torch", str(old.parent), "--out", str(new)]) == 0
    said = capsys.readouterr().out
    assert "Case: sac, step 700" in said and "Adam: 11 updates" in said and "acts as Case-700.onnx does" in said
    assert "not taken: temperatures, which ML-Agents does not keep: they begin at init_entcoef, 0.5" in said
    like = {"train": state.replace(key=jax.random.key(0))}
    kept = store.restore_params_only(store.require_latest(new / "Case"), like, fields=("train",))["train"]
    np.testing.assert_allclose(np.exp(kept.own["log_alpha"]["discrete"]), [0.5], rtol=1e-6)
    assert main(["export-torch", str(new)]) == 0
    assert same(read_torch_file(old / "checkpoint.pt"), read_torch_file(new / "Case" / "checkpoint.pt"))
