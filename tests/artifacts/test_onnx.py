"""The exported file against Unity's contract and against the Flax policy, and what happens when it fails."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_policies import (
    ACTIONS,
    ROWS,
    SETTINGS,
    distribution,
    make_masks,
    make_obs,
    make_policy,
    make_spec,
    policy_mode,
    run,
    without_output,
)

from jaxrl.artifacts import files
from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx import graph as onnx_graph
from jaxrl.artifacts.onnx import operators
from jaxrl.artifacts.onnx import parity as onnx_parity
from jaxrl.artifacts.onnx import session as onnx_session
from jaxrl.networks import actions
from jaxrl.networks.encoders import UnsupportedObservationError
from jaxrl.networks.models import SharedActorCritic, SquashedActor
from jaxrl.networks.policy import actor_network, squashed_network
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

CONTINUOUS_OUTPUTS = ["continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions"]
DISCRETE_OUTPUTS = ["discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions"]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("sizes", [(4,), (4, 3), (1, 5, 2)])
@pytest.mark.parametrize("kind", ACTIONS)
def test_deterministic_actions_are_those_of_the_policy(tmp_path, kind, sizes, normalize):
    policy = make_policy(make_spec(ACTIONS[kind], sizes), normalize=normalize)
    spec, path = policy["spec"], tmp_path / "Walker-1.onnx"
    assert exporter.export(path, **policy) < 1e-5
    assert [p.name for p in tmp_path.iterdir()] == ["Walker-1.onnx"]
    obs, masks = make_obs(spec, seed=5), make_masks(spec, seed=5)
    expected = policy_mode(policy, obs, masks)
    for rows in (1, 2, 7):
        outputs = run(path, tuple(x[:rows] for x in obs), masks[:rows])
        if spec.action.continuous_size:
            found = outputs["deterministic_continuous_actions"]
            np.testing.assert_allclose(found, expected.continuous[:rows], atol=1e-5)
            assert np.abs(found).max() > 0.05
        if spec.action.discrete_branches:
            found = outputs["deterministic_discrete_actions"]
            np.testing.assert_array_equal(found, expected.discrete[:rows])


@pytest.mark.parametrize("kind", ACTIONS)
def test_names_types_and_shapes_are_the_contract(tmp_path, kind):
    spec = make_spec(ACTIONS[kind])
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    session = onnx_session.open_session(str(tmp_path / "a.onnx"))
    inputs = {node.name: (node.type, node.shape) for node in session.get_inputs()}
    expected = {"obs_0": ("tensor(float)", ["batch", 4]), "obs_1": ("tensor(float)", ["batch", 3])}
    if spec.action.discrete_branches:
        expected["action_masks"] = ("tensor(float)", ["batch", spec.action.mask_size])
    assert inputs == expected
    c, d = spec.action.continuous_size, len(spec.action.discrete_branches)
    names = ["version_number", "memory_size"] + CONTINUOUS_OUTPUTS * bool(c) + DISCRETE_OUTPUTS * bool(d)
    outputs = {node.name: (node.type, node.shape) for node in session.get_outputs()}
    assert list(outputs) == names
    assert outputs["version_number"] == outputs["memory_size"] == ("tensor(float)", [1])
    if c:
        assert outputs["continuous_action_output_shape"] == ("tensor(float)", [1])
        assert outputs["continuous_actions"] == ("tensor(float)", ["batch", c])
    if d:
        assert outputs["discrete_action_output_shape"] == ("tensor(float)", [1, d])
        assert outputs["discrete_actions"] == ("tensor(int64)", ["batch", d])


def test_constants_are_float_and_readable_both_ways(tmp_path):
    spec = make_spec(ActionSpec(2, (3, 2)))
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    outputs = run(tmp_path / "a.onnx", make_obs(spec), make_masks(spec))
    expected = {
        "version_number": [3.0],
        "memory_size": [0.0],
        "continuous_action_output_shape": [2.0],
        "discrete_action_output_shape": [[3.0, 2.0]],
    }
    graph = onnx.load(tmp_path / "a.onnx").graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    for name, value in expected.items():
        assert outputs[name].dtype == np.float32
        assert outputs[name].tolist() == value == constants[sources[name]].tolist()


@pytest.mark.parametrize("kind", ACTIONS)
def test_files_are_plain_valid_and_reproducible(tmp_path, kind):
    policy = make_policy(make_spec(ACTIONS[kind]))
    for name in ("a.onnx", "b.onnx"):
        exporter.export(tmp_path / name, **policy)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert operators.check_operators(model) == []
    assert model.opset_import[0].version == 9 and model.ir_version == 4
    assert {node.op_type for node in model.graph.node} <= set(onnx_graph.OPERATORS)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_the_policy_of_a_shared_critic_is_exported_without_its_values(tmp_path):
    spec = make_spec(ActionSpec(2, (3,)))
    policy = make_policy(spec)
    policy["actor_params"] = SharedActorCritic(spec, SETTINGS, ("extrinsic",)).init(jax.random.key(1), make_obs(spec))
    exporter.export(tmp_path / "a.onnx", **policy)
    assert not [t.name for t in onnx.load(tmp_path / "a.onnx").graph.initializer if "value" in t.name]


@pytest.mark.parametrize(
    ("kind", "constant", "output"),
    [
        ("hybrid", "body/layer_1/kernel", "deterministic_continuous_actions"),
        ("continuous", "obs_1/mean", "deterministic_continuous_actions"),
        ("continuous", "sigma", "continuous_actions"),
        ("branches", "logits/2/bias", "discrete_actions .probabilities of branch 2"),
    ],
)
def test_a_corrupted_constant_fails_the_export_and_leaves_no_file(tmp_path, monkeypatch, kind, constant, output):
    policy = make_policy(make_spec(ACTIONS[kind]))
    monkeypatch.setattr(exporter, "build", lambda *args: corrupt(onnx_graph.build(*args), constant))
    with pytest.raises(exporter.ExportError, match=rf"a\.onnx was not written: output {output}.* differs .* by"):
        exporter.export(tmp_path / "a.onnx", **policy)
    assert list(tmp_path.iterdir()) == []


def corrupt(model: onnx.ModelProto, constant: str) -> onnx.ModelProto:
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == constant]
    value = numpy_helper.to_array(tensor).copy()
    value.flat[0] += 0.1
    tensor.CopyFrom(numpy_helper.from_array(value, constant))
    return model


def test_a_failed_export_keeps_the_file_of_before(tmp_path):
    policy = make_policy(make_spec(ActionSpec(2, (3,))))
    exporter.export(tmp_path / "a.onnx", **policy)
    before = (tmp_path / "a.onnx").read_bytes()
    policy["actor_params"]["params"]["body"]["layer_0"]["kernel"][0, 0] = np.nan
    with pytest.raises(exporter.ExportError, match="training diverged"):
        exporter.export(tmp_path / "a.onnx", **policy)
    assert (tmp_path / "a.onnx").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]


def test_a_model_that_unity_would_reject_is_not_written(tmp_path, monkeypatch):
    policy = make_policy(make_spec(ActionSpec(2, ())))
    monkeypatch.setattr(exporter, "build", lambda *args: without_output(onnx_graph.build(*args), "memory_size"))
    with pytest.raises(exporter.ExportError, match="Unity could not use it: output 'memory_size' is missing"):
        exporter.export(tmp_path / "a.onnx", **policy)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(files.ArtifactError, match=r"file.a\.onnx: cannot be written"):
        exporter.export(tmp_path / "file" / "a.onnx", **make_policy(make_spec(ActionSpec(1, ()))))


def test_unsupported_observations_are_named():
    spec = BehaviorSpec((ObservationSpec("ray", (3,)), ObservationSpec("map", (4, 5))), ActionSpec(1, ()))
    with pytest.raises(UnsupportedObservationError, match=r"observation 1 .'map'.* of kind 'rank2'"):
        onnx_graph.build(spec, actor_network(spec, SETTINGS), {}, (None, None))


def test_parameters_that_no_builder_knows_and_missing_ones_are_named(tmp_path):
    policy = make_policy(make_spec(ActionSpec(1, ())))
    params = policy["actor_params"]["params"]
    params["memory"] = {"kernel": np.zeros((2, 2), np.float32)}
    with pytest.raises(exporter.ExportError, match=r"the export does not know: memory/kernel\. .*network_settings"):
        exporter.export(tmp_path / "a.onnx", **policy)
    del params["memory"], params["body"]["layer_1"]["bias"]
    with pytest.raises(exporter.ExportError, match=r"no parameter 'body/layer_1/bias', it has body/layer_0/bias, "):
        exporter.export(tmp_path / "a.onnx", **policy)


def test_no_recorded_rows_is_an_error(tmp_path):
    spec = make_spec(ActionSpec(1, (2,)))
    policy = make_policy(spec) | {"sample_obs": make_obs(spec, 0), "sample_masks": make_masks(spec, 0)}
    with pytest.raises(ValueError, match="at least one"):
        exporter.export(tmp_path / "a.onnx", **policy)


def test_ties_between_the_best_two_actions_are_no_difference():
    probabilities = np.array([[0.4, 0.399995, 0.200005], [0.5, 0.3, 0.2]])
    assert onnx_parity._disagreement("x", np.array([1, 0]), probabilities).value == 0.0
    assert onnx_parity._disagreement("x", np.array([0, 2]), probabilities) == ("x", 2.0, "at [1]")


@pytest.mark.parametrize("kind", ["continuous", "branches", "hybrid"])
def test_the_policy_of_sac_is_written_and_compared_as_it_says(tmp_path, kind):
    """Squashed and of a deviation that is no constant: no line of the export knows of it."""
    spec = make_spec(ACTIONS[kind])
    policy = make_policy(spec, make_network=squashed_network)
    assert exporter.export(tmp_path / "a.onnx", **policy) < 1e-5
    found = run(tmp_path / "a.onnx", policy["sample_obs"], policy["sample_masks"])
    dist = distribution(policy, policy["sample_obs"])
    if spec.action.discrete_branches:
        best = actions.mode(dist, policy["sample_masks"], spec.action).discrete
        np.testing.assert_array_equal(found["deterministic_discrete_actions"], best)
    if not spec.action.continuous_size:
        return
    assert dist.log_sigma.shape == dist.mean.shape and np.ptp(dist.log_sigma, axis=0).min() > 0.1
    np.testing.assert_allclose(found["deterministic_continuous_actions"], np.tanh(dist.mean), atol=1e-5)
    bare = replace(policy["network"], sent=lambda dist: Action(dist.mean, jnp.zeros((ROWS, 0), jnp.int32)))
    surer = replace(policy["network"], module=Surer(spec, SETTINGS))
    for wrong, output in ((bare, "deterministic_continuous_actions"), (surer, r"continuous_actions \(standard dev")):
        with pytest.raises(exporter.ExportError, match=f"output {output}.* differs from the policy"):
            exporter.export(tmp_path / "b.onnx", **{**policy, "network": wrong})


class Surer(SquashedActor):
    """Of half the deviation that its file has."""

    def step(self, obs, memory):
        dist, after = super().step(obs, memory)
        return dist._replace(log_sigma=dist.log_sigma - jnp.log(2.0)), after
