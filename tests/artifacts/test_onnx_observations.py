"""Images, entities and goals in exported files: equal to the policy for every encoder and mixture, several batches."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest

from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx import operators
from jaxrl.networks import normalizer
from jaxrl.networks.models import Actor
from jaxrl.networks.policy import actor_network
from jaxrl.networks.visual import IMAGE_ENCODERS
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.artifacts.onnx_policies import distribution, make_masks, policy_mode, run

ROWS = 7
GOAL = ObservationType.GOAL_SIGNAL
VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
SENSORS = {
    "vector": ObservationSpec("vector", (3,)),
    "camera": ObservationSpec("camera", (3, 6, 5), dtype="uint8"),
    "grid": ObservationSpec("grid", (4, 5, 5)),
    "tiles": ObservationSpec("tiles", (5, 3), VARIABLE),
    "enemies": ObservationSpec("enemies", (3, 2), VARIABLE),
    "colour": ObservationSpec("colour", (2,), observation_type=GOAL),
    "sign": ObservationSpec("sign", (1, 5, 6), observation_type=GOAL, dtype="uint8"),
}
MIXTURES = {
    "cameras": ("grid", "camera"),
    "entities": ("tiles",),
    "two buffers and a vector": ("tiles", "vector", "enemies"),
    "goal": ("vector", "colour"),
    "goals and images": ("sign", "camera", "colour"),
    "everything": ("enemies", "colour", "camera", "tiles", "vector", "sign"),
}


def make_policy(sensors: tuple[ObservationSpec, ...], settings: NetworkSettings) -> dict:
    """Arguments of `export`, hybrid actions, random parameters; entities 0 to 3 of the rows are missing."""
    spec, rng = BehaviorSpec(sensors, ActionSpec(2, (3, 2))), np.random.default_rng(0)
    obs = []
    for sensor in sensors:
        x = rng.normal(1, 1, (ROWS, *sensor.shape)).astype(np.float32)
        if sensor.dtype == "uint8":
            x = rng.integers(0, 256, x.shape, np.uint8)
        if sensor.dimension_property == VARIABLE:
            x[np.arange(ROWS)[:, None] % 4 > np.arange(sensor.shape[0])] = 0  # row 0 keeps all, rows 3 the fewest
            x[1] = 0
        obs.append(x)
    shapes = jax.eval_shape(Actor(spec, settings).init, jax.random.key(0), tuple(obs))

    def draw(x):
        """Large enough that every term shows in the outputs: kernels keep the size of what they read."""
        return rng.normal(0, 1.4 / np.prod(x.shape[:-1]) ** 0.5 if x.ndim > 1 else 0.3, x.shape).astype(np.float32)

    params = jax.tree.map(draw, shapes)
    states = normalizer.update_all(normalizer.init_all(spec, True), tuple(obs), None)
    return {
        "spec": spec,
        "network": actor_network(spec, settings),
        "actor_params": params,
        "normalizer": states,
        "sample_obs": tuple(obs),
        "sample_masks": make_masks(spec),
    }


def test_statistics_that_began_with_data_are_shown_as_in_training(tmp_path) -> None:
    """Far from 0, with a number that never changes, and before any data at all."""
    policy = make_policy((ObservationSpec("v", (3,)),), NetworkSettings(hidden_units=8, num_layers=1))
    (obs,) = policy["sample_obs"]
    far = obs + np.array([1e5, -1000.0, 0.0], np.float32)
    far[:, 2] = 7.0
    fresh = normalizer.init_all(policy["spec"], True, from_data=True)
    for states, rows in ((fresh, obs), (normalizer.update_all(fresh, (far,), None), far)):
        check(tmp_path / "policy.onnx", {**policy, "normalizer": states, "sample_obs": (rows,)})


def check(path, policy: dict) -> onnx.ModelProto:
    """Export, and compare all deterministic outputs for 1, 3 and 7 agents; images go in as 0 to 1."""
    assert exporter.export(path, **policy) < 1e-5
    spec, obs, masks = policy["spec"], policy["sample_obs"], policy["sample_masks"]
    expected = policy_mode(policy, obs, masks)
    shown = tuple(x.astype(np.float32) / 255 if x.dtype == np.uint8 else x for x in obs)
    for rows in (1, 3, ROWS):
        outputs = run(path, tuple(x[:rows] for x in shown), masks[:rows])
        found = outputs["deterministic_continuous_actions"]
        np.testing.assert_allclose(found, expected.continuous[:rows], atol=1e-5)
        np.testing.assert_array_equal(outputs["deterministic_discrete_actions"], expected.discrete[:rows])
    assert np.ptp(np.asarray(distribution(policy, obs).mean), axis=0).min() > 0.01  # the observations do matter
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert operators.check_operators(model) == []
    assert [
        tuple(d.dim_value for d in node.type.tensor_type.shape.dim[1:]) for node in list(model.graph.input)[:-1]
    ] == [sensor.shape for sensor in spec.observations]
    assert all(node.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for node in model.graph.input)
    return model


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
def test_image_encoders(tmp_path, name):
    side = IMAGE_ENCODERS[name].smallest
    sensors = (ObservationSpec("camera", (3, side + 2, side + 5), dtype="uint8"), SENSORS["vector"])
    model = check(tmp_path / "a.onnx", make_policy(sensors, NetworkSettings(hidden_units=8, vis_encode_type=name)))
    filters = [node.op_type for node in model.graph.node].count("Conv")
    assert filters == {"simple": 2, "nature_cnn": 3, "resnet": 15, "match3": 2, "fully_connected": 0}[name]


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(tmp_path, name):
    """With one layer, or two, of which a goal makes the last."""
    settings = NetworkSettings(hidden_units=8, num_layers=1 + (name != "goal"), vis_encode_type="match3")
    check(tmp_path / "a.onnx", make_policy(tuple(SENSORS[sensor] for sensor in MIXTURES[name]), settings))


def test_a_goal_that_conditions_nothing_is_an_ordinary_input(tmp_path):
    settings = NetworkSettings(hidden_units=8, goal_conditioning_type="none")
    model = check(tmp_path / "a.onnx", make_policy((SENSORS["vector"], SENSORS["colour"]), settings))
    assert "MatMul" not in {node.op_type for node in model.graph.node}


def test_nobody_there_is_a_row_without_nan(tmp_path):
    """Unity runs each model once on zeros: all entities absent."""
    settings = NetworkSettings(hidden_units=8)
    policy = make_policy((SENSORS["tiles"], SENSORS["enemies"]), settings)
    exporter.export(tmp_path / "a.onnx", **policy)
    nobody = (np.zeros((2, 5, 3), np.float32), np.full((2, 3, 2), 0.07, np.float32))  # 2 · 0.07² = 0.0098 < 0.01
    outputs = run(tmp_path / "a.onnx", nobody, policy["sample_masks"][:2])
    expected = policy_mode(policy, nobody, policy["sample_masks"][:2]).continuous
    np.testing.assert_allclose(outputs["deterministic_continuous_actions"], expected, atol=1e-6)
