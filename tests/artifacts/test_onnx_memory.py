"""Files of policies that remember, and of policies that see images: against the Flax policy and Unity's contract."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_policies import ROWS, make_masks, make_obs, make_policy, make_spec, run

from jaxrl.artifacts.onnx import check as onnx_check
from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx import graph as onnx_graph
from jaxrl.artifacts.onnx import operators
from jaxrl.artifacts.onnx import session as onnx_session
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import Actor, SharedActorCritic
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

KINDS = ["lstm", "gru"]
MOVES, NONE = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
SEEN = (NONE, MOVES, MOVES)


def remembering(kind: str, size: int = 6) -> NetworkSettings:
    return NetworkSettings(hidden_units=8, num_layers=1, memory=MemorySettings(memory_type=kind, memory_size=size))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_remembers_what_the_policy_remembers_over_three_steps(tmp_path, kind):
    """Two agents of a new batch begin with zeros, as in Unity, and the file's memory goes back into it."""
    policy = make_policy(make_spec(ActionSpec(2, (3,))), settings=remembering(kind))
    spec, path = policy["spec"], tmp_path / "a.onnx"
    assert exporter.export(path, **policy) < 1e-5
    carry, memory = np.zeros((2, 6), np.float32), np.zeros((2, 1, 6), np.float32)
    for step in range(3):
        obs, masks = make_obs(spec, 2, seed=step), make_masks(spec, 2, seed=step)
        with jax.default_matmul_precision("highest"):
            shown = normalizer.normalize_all(policy["normalizer"], obs)
            network = Actor(spec, policy["network"].module.settings)
            dist, carry = network.apply(policy["actor_params"], shown, carry, method="step")
        found = run(path, obs, masks, memory)
        memory = found["recurrent_out"]
        expected = actions.to_environment(actions.mode(dist, masks, spec.action))
        np.testing.assert_allclose(found["deterministic_continuous_actions"], expected.continuous, atol=1e-5)
        np.testing.assert_array_equal(found["deterministic_discrete_actions"], expected.discrete)
        np.testing.assert_allclose(memory[:, 0], carry, atol=1e-5)
        assert np.abs(memory).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_of_a_file_with_memory(tmp_path, kind):
    spec = make_spec(ActionSpec(1, (2,)), (4,))
    exporter.export(tmp_path / "a.onnx", **make_policy(spec, settings=remembering(kind)))
    session = onnx_session.open_session(str(tmp_path / "a.onnx"))
    assert {node.name: node.shape for node in session.get_inputs()} == {
        "obs_0": ["batch", 4], "action_masks": ["batch", 2], "recurrent_in": ["batch", 1, 6],
    }  # fmt: skip
    names = [node.name for node in session.get_outputs()]
    assert names[:2] == ["version_number", "memory_size"] and names[-1] == "recurrent_out"
    assert session.get_outputs()[-1].shape == ["batch", 1, 6]
    found = run(tmp_path / "a.onnx", make_obs(spec), make_masks(spec), np.zeros((ROWS, 1, 6), np.float32))
    assert found["memory_size"].tolist() == [6.0] and found["recurrent_out"].shape == (ROWS, 1, 6)
    model = onnx.load(tmp_path / "a.onnx")
    assert operators.check_operators(model) == onnx_check.check_contract(tmp_path / "a.onnx", spec) == []
    onnx.checker.check_model(model, full_check=True)
    used = {node.op_type for node in model.graph.node}
    assert not used & {"LSTM", "GRU"} and {"Tanh", "Sigmoid", "Slice"} <= used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant", ["memory/again/kernel", "memory/given/bias"])
def test_a_corrupted_memory_fails_the_export(tmp_path, monkeypatch, kind, constant):
    policy = make_policy(make_spec(ActionSpec(1, ())), settings=remembering(kind))
    build = onnx_graph.build

    def corrupted(*args):
        model = build(*args)
        (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == constant]
        value = numpy_helper.to_array(tensor) + np.float32(0.1)
        tensor.CopyFrom(numpy_helper.from_array(value, constant))
        return model

    monkeypatch.setattr(exporter, "build", corrupted)
    with pytest.raises(exporter.ExportError, match=r"differs from the policy by .* at \[.*\], step 1"):
        exporter.export(tmp_path / "a.onnx", **policy)
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_a_shared_critic_is_the_policys(tmp_path):
    policy = make_policy(make_spec(ActionSpec(1, ())), settings=remembering("lstm"))
    network = SharedActorCritic(policy["spec"], policy["network"].module.settings, ("extrinsic",))
    carry = np.zeros((ROWS, 6), np.float32)
    policy["actor_params"] = network.init(jax.random.key(1), make_obs(policy["spec"]), carry)
    assert exporter.export(tmp_path / "a.onnx", **policy) < 1e-5


@pytest.mark.parametrize("encoder", ["simple", pytest.param("match3", marks=pytest.mark.slow)])
def test_images_in_bytes_enter_as_zero_to_one(tmp_path, encoder):
    """Beside a vector and an image of floats, which enters as it is."""
    sensors = (
        ObservationSpec("camera", (3, 20, 22), SEEN, dtype="uint8"),
        ObservationSpec("speed", (2,)),
        ObservationSpec("grid", (2, 20, 20), SEEN),
    )
    settings = NetworkSettings(hidden_units=8, num_layers=1, vis_encode_type=encoder)
    policy = make_policy(BehaviorSpec(sensors, ActionSpec(2, (3,))), settings=settings, spread=0.03)
    assert exporter.export(tmp_path / "a.onnx", **policy) < 1e-4
    shapes = {node.name: node.shape for node in onnx_session.open_session(str(tmp_path / "a.onnx")).get_inputs()}
    assert shapes["obs_0"] == ["batch", 3, 20, 22] and shapes["obs_2"] == ["batch", 2, 20, 20]
    black = tuple(x * 0 for x in make_obs(policy["spec"]))
    bright = (np.full_like(black[0], 255), *black[1:])
    masks = make_masks(policy["spec"])
    one, other = (run(tmp_path / "a.onnx", obs, masks)["deterministic_continuous_actions"] for obs in (black, bright))
    assert np.abs(one - other).max() > 1e-4
    assert operators.check_operators(onnx.load(tmp_path / "a.onnx")) == []


def test_a_wrong_scale_of_images_fails_the_export(tmp_path, monkeypatch):
    """The check itself divides by 255; a file that divides once more is caught."""
    spec = BehaviorSpec((ObservationSpec("camera", (3, 5, 5), SEEN, dtype="uint8"),), ActionSpec(1, ()))
    policy = make_policy(spec, settings=NetworkSettings(hidden_units=8, num_layers=1, vis_encode_type="match3"))
    monkeypatch.setattr(exporter, "build", lambda *args: _scaled(onnx_graph.build(*args)))
    with pytest.raises(exporter.ExportError, match="differs from the policy"):
        exporter.export(tmp_path / "a.onnx", **policy)


def _scaled(model: onnx.ModelProto) -> onnx.ModelProto:
    first = next(node for node in model.graph.node if node.input[0] == "obs_0")
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == first.input[1]]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / np.float32(255), tensor.name))
    return model


def test_a_goal_image_beside_others_keeps_its_place(tmp_path):
    view = ObservationSpec("view", (1, 4, 4), SEEN, ObservationType.GOAL_SIGNAL, "uint8")
    sensors = (ObservationSpec("speed", (2,)), view, ObservationSpec("camera", (3, 5, 4), SEEN, dtype="uint8"))
    settings = NetworkSettings(
        hidden_units=8, num_layers=1, goal_conditioning_type="none", vis_encode_type="fully_connected"
    )
    policy = make_policy(BehaviorSpec(sensors, ActionSpec(1, ())), settings=settings)
    assert exporter.export(tmp_path / "a.onnx", **policy) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_a_policy_can_see_and_remember_in_one_file(tmp_path, kind):
    """Entities of which some, in one row all, are absent; an image in bytes; a goal that chooses weights; memory."""
    tiles = ObservationSpec("tiles", (3, 2), (DimensionProperty.VARIABLE_SIZE, NONE))
    wish = ObservationSpec("wish", (2,), (NONE,), ObservationType.GOAL_SIGNAL)
    camera = ObservationSpec("camera", (3, 5, 4), SEEN, dtype="uint8")
    spec = BehaviorSpec((tiles, camera, wish, ObservationSpec("speed", (2,))), ActionSpec(2, (3,)))
    settings = NetworkSettings(
        hidden_units=8,
        num_layers=2,
        vis_encode_type="fully_connected",
        memory=MemorySettings(memory_type=kind, memory_size=6),
    )
    policy = make_policy(spec, settings=settings, spread=0.1)
    entities = policy["sample_obs"][0]
    entities[0] = 0
    entities[1:4, 1:] = 0
    assert exporter.export(tmp_path / "a.onnx", **policy) < 1e-4
    assert onnx_check.check_contract(tmp_path / "a.onnx", spec) == []
    found = operators.operator_findings(onnx.load(tmp_path / "a.onnx"))
    assert [finding.outcome for finding in found] == ["ok"]
