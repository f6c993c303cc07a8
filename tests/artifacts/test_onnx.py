"""The exported file against Unity's contract, against the Flax policy, and as a sampler."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from jaxrl.artifacts import files, onnx_check, onnx_graph, onnx_parity
from jaxrl.artifacts import onnx as exporter
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor, SharedActorCritic
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

SETTINGS = NetworkSettings(hidden_units=16, num_layers=2)
ACTIONS = {
    "discrete": ActionSpec(0, (4,)),
    "branches": ActionSpec(0, (3, 2, 5)),
    "continuous": ActionSpec(3, ()),
    "hybrid": ActionSpec(2, (3, 2)),
}
CONTINUOUS_OUTPUTS = ["continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions"]
DISCRETE_OUTPUTS = ["discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions"]


def make_spec(action: ActionSpec, sizes: tuple[int, ...] = (4, 3)) -> BehaviorSpec:
    return BehaviorSpec(tuple(ObservationSpec(f"sensor {i}", (size,)) for i, size in enumerate(sizes)), action)


def make_obs(spec: BehaviorSpec, rows: int = 8, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple((3.0 * rng.normal(size=(rows, *o.shape)) + 1.0).astype(np.float32) for o in spec.observations)


def make_masks(spec: BehaviorSpec, rows: int = 8, seed: int = 0) -> np.ndarray:
    """Half of the actions allowed, the last one of each branch always."""
    masks = np.random.default_rng(seed).random((rows, spec.action.mask_size)) < 0.5
    masks[:, np.cumsum(spec.action.discrete_branches, dtype=int) - 1] = True
    return masks


def make_policy(spec: BehaviorSpec, *, normalize: bool = True, settings: NetworkSettings = SETTINGS) -> dict:
    """Arguments of `export` with weights large enough that every term shows in the outputs."""
    obs = make_obs(spec)
    params = Actor(spec, settings).init(jax.random.key(0), obs)
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda p: np.asarray(p) + 0.3 * rng.normal(size=p.shape).astype(np.float32), params)
    states = normalizer.update_all(normalizer.init_all(spec, normalize), obs, None)
    return {
        "spec": spec,
        "network_settings": settings,
        "actor_params": params,
        "normalizer": states,
        "sample_obs": obs,
        "sample_masks": make_masks(spec),
    }


def policy_mode(policy: dict, obs: tuple[np.ndarray, ...], masks: np.ndarray) -> Action:
    """What the Flax policy would send to the environment, deterministically."""
    spec = policy["spec"]
    shown = normalizer.normalize_all(policy["normalizer"], obs)
    dist = Actor(spec, policy["network_settings"]).apply(policy["actor_params"], shown)
    return actions.to_environment(actions.mode(dist, masks, spec.action))


def distribution(policy: dict, obs: tuple[np.ndarray, ...]) -> actions.ActionDistribution:
    shown = normalizer.normalize_all(policy["normalizer"], obs)
    return Actor(policy["spec"], policy["network_settings"]).apply(policy["actor_params"], shown)


def run(path: Path, obs: tuple[np.ndarray, ...], masks: np.ndarray) -> dict[str, np.ndarray]:
    """All outputs of a file, sampling seeded."""
    onnxruntime.set_seed(7)
    session = onnx_check.open_session(str(path))
    feed = {f"obs_{i}": x for i, x in enumerate(obs)}
    if masks.shape[1]:
        feed["action_masks"] = masks.astype(np.float32)
    return dict(onnx_check.run(session, [node.name for node in session.get_outputs()], feed))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("sizes", [(4,), (4, 3), (1, 5, 2)])
@pytest.mark.parametrize("kind", ACTIONS)
def test_deterministic_actions_are_those_of_the_policy(tmp_path, kind, sizes, normalize):
    policy = make_policy(make_spec(ACTIONS[kind], sizes), normalize=normalize)
    spec, path = policy["spec"], tmp_path / "Walker-1.onnx"
    assert exporter.export(path, **policy) < 1e-5
    assert [p.name for p in tmp_path.iterdir()] == ["Walker-1.onnx"]
    obs, masks = make_obs(spec, 7, seed=5), make_masks(spec, 7, seed=5)
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
    session = onnx_check.open_session(str(tmp_path / "a.onnx"))
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
    assert onnx_check.check_operators(model) == []
    assert model.opset_import[0].version == 9 and model.ir_version == 4
    assert {node.op_type for node in model.graph.node} <= set(onnx_graph.OPERATORS)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_plain_operators_only():
    def model(*nodes: onnx.NodeProto, opset: int = 9) -> onnx.ModelProto:
        one = numpy_helper.from_array(np.ones(1, np.float32), "one")
        graph = helper.make_graph(list(nodes), "g", [], [], [one])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])

    assert onnx_check.check_operators(model(helper.make_node("Sub", ["x", "one"], ["y"]))) == []
    (problem,) = onnx_check.check_operators(model(helper.make_node("Sub", ["one", "x"], ["y"], name="n")))
    assert problem == "node 'n': subtracts from the constant 'one'"
    for operator in ("Split", "Expand", "Einsum", "Transpose", "MatMul"):
        (problem,) = onnx_check.check_operators(model(helper.make_node(operator, ["x"], ["y"])))
        assert f"operator {operator} is not one of" in problem
    (problem,) = onnx_check.check_operators(model(opset=16))
    assert problem == "opset 16 of '', expected 9 of ''"


def test_discrete_samples_follow_the_masked_softmax(tmp_path):
    spec, rows = make_spec(ActionSpec(0, (4, 3))), 20_000
    policy = make_policy(spec)
    exporter.export(tmp_path / "a.onnx", **policy)
    obs = tuple(np.repeat(x[:1], rows, axis=0) for x in make_obs(spec, seed=3))
    masks = np.repeat([[True, False, True, True, True, True, True]], rows, axis=0)
    sampled = run(tmp_path / "a.onnx", obs, masks)["discrete_actions"]
    dist = distribution(policy, tuple(x[:1] for x in obs))
    for branch, p in enumerate(actions.probabilities(dist, masks[:1], spec.action)):
        p = np.asarray(p[0], np.float64)
        counts = np.bincount(sampled[:, branch], minlength=len(p))
        assert (counts[p == 0.0] == 0).all()
        expected = rows * p[p > 0.0]
        assert expected.min() > 20
        # 0.999 quantile of chi-square with 2 degrees of freedom: 13.82 (both branches have three possible actions)
        assert ((counts[p > 0.0] - expected) ** 2 / expected).sum() < 13.82


def test_masked_actions_are_never_chosen(tmp_path):
    spec, rows = make_spec(ActionSpec(1, (3, 2, 5))), 4_000
    policy = make_policy(spec)
    exporter.export(tmp_path / "a.onnx", **policy)
    masks = make_masks(spec, rows, seed=4)
    outputs = run(tmp_path / "a.onnx", make_obs(spec, rows), masks)
    starts = np.array([0, 3, 5])
    for name in ("discrete_actions", "deterministic_discrete_actions"):
        assert masks[np.arange(rows)[:, None], outputs[name] + starts].all()
    assert not masks.all(axis=0)[:2].any()


def test_a_branch_that_is_forbidden_altogether_is_uniform(tmp_path):
    spec, rows = make_spec(ActionSpec(0, (4,))), 4_000
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    sampled = run(tmp_path / "a.onnx", make_obs(spec, rows), np.zeros((rows, 4), bool))["discrete_actions"]
    counts = np.bincount(sampled[:, 0], minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.27  # 0.999 quantile, 3 degrees of freedom


def test_continuous_samples_have_the_mean_and_deviation_of_the_policy(tmp_path):
    spec, rows = make_spec(ActionSpec(2, ())), 20_000
    policy = make_policy(spec)
    sigma = np.array([0.2, 0.05], np.float32)
    policy["actor_params"]["params"]["heads"]["log_sigma"] = np.log(sigma)
    exporter.export(tmp_path / "a.onnx", **policy)
    obs = tuple(np.repeat(x[:1], rows, axis=0) for x in make_obs(spec))
    outputs = run(tmp_path / "a.onnx", obs, np.ones((rows, 0), bool))
    sampled, mean = outputs["continuous_actions"], outputs["deterministic_continuous_actions"][0]
    assert (np.abs(mean) < 0.6).all()  # more than five deviations away from the clip at 1
    # the environment receives a third of the raw action; five standard errors of mean and deviation
    np.testing.assert_allclose(sampled.mean(axis=0), mean, atol=5 * 0.2 / 3 / np.sqrt(rows))
    np.testing.assert_allclose(sampled.std(axis=0), sigma / 3, rtol=5 / np.sqrt(2 * rows))


def test_continuous_samples_are_clipped_at_one(tmp_path):
    spec = make_spec(ActionSpec(2, ()))
    policy = make_policy(spec)
    policy["actor_params"]["params"]["heads"]["log_sigma"] = np.full(2, 3.0, np.float32)
    exporter.export(tmp_path / "a.onnx", **policy)
    sampled = run(tmp_path / "a.onnx", make_obs(spec, 500), np.ones((500, 0), bool))["continuous_actions"]
    assert np.abs(sampled).max() == 1.0 and (np.abs(sampled) == 1.0).mean() > 0.5


def test_the_policy_of_a_shared_critic_is_exported_without_its_values(tmp_path):
    spec = make_spec(ActionSpec(2, (3,)))
    policy = make_policy(spec)
    policy["actor_params"] = SharedActorCritic(spec, SETTINGS, ("extrinsic",)).init(jax.random.key(1), make_obs(spec))
    exporter.export(tmp_path / "a.onnx", **policy)
    assert not [t.name for t in onnx.load(tmp_path / "a.onnx").graph.initializer if "value" in t.name]


def test_256_units_are_written_fast(tmp_path):
    spec = make_spec(ActionSpec(2, (3,)), (32,))
    policy = make_policy(spec, settings=NetworkSettings(hidden_units=256, num_layers=2))
    exporter.export(tmp_path / "a.onnx", **policy)
    # (32 + 1 + 256 + 1) · 256 + 257 · 5 numbers of 4 bytes, and little around them
    assert (tmp_path / "a.onnx").stat().st_size < 4 * (290 * 256 + 257 * 5) + 8_000


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


@pytest.mark.parametrize(
    ("observation", "kind"),
    [
        (ObservationSpec("camera", (3, 20, 20)), "visual"),
        (ObservationSpec("others", (4, 5), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)), "entities"),
        (ObservationSpec("goal", (2,), (), ObservationType.GOAL_SIGNAL), "goal"),
    ],
)
def test_unsupported_observations_are_named(observation, kind):
    spec = BehaviorSpec((ObservationSpec("ray", (3,)), observation), ActionSpec(1, ()))
    with pytest.raises(onnx_graph.ExportError, match=f"observation 1 .'{observation.name}'.* of kind '{kind}'"):
        onnx_graph.build(spec, SETTINGS, {}, (None, None))


def test_parameters_that_the_graph_does_not_know_are_named(tmp_path):
    policy = make_policy(make_spec(ActionSpec(1, ())))
    policy["actor_params"]["params"]["memory"] = {"kernel": np.zeros((2, 2), np.float32)}
    with pytest.raises(exporter.ExportError, match=r"not known to the exporter \['memory/kernel'\], missing \[\]"):
        exporter.export(tmp_path / "a.onnx", **policy)


def test_no_recorded_rows_is_an_error(tmp_path):
    spec = make_spec(ActionSpec(1, (2,)))
    policy = make_policy(spec) | {"sample_obs": make_obs(spec, 0), "sample_masks": make_masks(spec, 0)}
    with pytest.raises(ValueError, match="at least one"):
        exporter.export(tmp_path / "a.onnx", **policy)


def without_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    kept = [output for output in model.graph.output if output.name != name]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model


def with_constant(model: onnx.ModelProto, name: str, value: list[float]) -> onnx.ModelProto:
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == f"{name}/constant"]
    tensor.CopyFrom(numpy_helper.from_array(np.array(value, np.float32), tensor.name))
    return model


def with_input(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2]))
    return model


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: without_output(m, "version_number"), "output 'version_number' is missing, expected 3"),
        (lambda m: with_constant(m, "version_number", [4.0]), "output 'version_number' is 4, expected 2 or 3"),
        (lambda m: with_constant(m, "memory_size", [8.0]), "memory_size is 8 but the input 'recurrent_in' is missing"),
        (lambda m: without_output(m, "continuous_actions"), "output 'continuous_actions' is missing"),
        (lambda m: without_output(m, "deterministic_discrete_actions"), "'deterministic_discrete_actions' is missing"),
        (lambda m: with_constant(m, "continuous_action_output_shape", [3.0]), r"is \[3.0\] .float32., expected \[2\]"),
        (lambda m: with_constant(m, "discrete_action_output_shape", [[3, 3]]), r"expected \[3, 2\] as float32"),
        (lambda m: with_input(m, "obs_2"), "input 'obs_2' is not known to Unity and belongs to no sensor"),
    ],
)
def test_breaches_of_the_contract_are_named(tmp_path, change, problem):
    spec = make_spec(ActionSpec(2, (3, 2)))
    path = tmp_path / "a.onnx"
    exporter.export(path, **make_policy(spec))
    assert exporter.check_contract(path, spec) == []
    onnx.save(change(onnx.load(path)), path)
    assert any(re.search(problem, line) for line in exporter.check_contract(path, spec))


def test_a_file_of_another_behavior_is_recognised(tmp_path):
    exporter.export(tmp_path / "a.onnx", **make_policy(make_spec(ActionSpec(2, (3, 2)))))
    other = make_spec(ActionSpec(0, (4,)), (4, 5, 1))
    assert exporter.check_contract(tmp_path / "a.onnx", other) == [
        "input 'obs_1' is ['batch', 3], expected [batch, 5]",
        "input 'obs_2' is missing, expected [batch, 1]",
        "input 'action_masks' is ['batch', 5], expected [batch, 4]",
        "output 'continuous_actions' exists, but the behavior has no continuous actions",
        "output 'discrete_actions' is [1, 2] for one agent, expected [1, 1]",
        "output 'deterministic_discrete_actions' is [1, 2] for one agent, expected [1, 1]",
        "output 'discrete_action_output_shape' is [[3.0, 2.0]] (float32), expected [4] as float32",
    ]


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"not a model")
    for name in ("a.onnx", "missing.onnx"):
        (problem,) = exporter.check_contract(tmp_path / name, make_spec(ActionSpec(1, ())))
        assert f"{name}: ONNX Runtime cannot load it" in problem


def test_ties_between_the_best_two_actions_are_no_difference():
    probabilities = np.array([[0.4, 0.399995, 0.200005], [0.5, 0.3, 0.2]])
    assert onnx_parity._disagreement("x", np.array([1, 0]), probabilities).value == 0.0
    assert onnx_parity._disagreement("x", np.array([0, 2]), probabilities) == ("x", 2.0, "at [1]")
