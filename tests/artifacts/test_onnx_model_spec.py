"""What a policy sees, from the ONNX file that ML-Agents wrote."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.onnx.model_spec import observations_of
from jaxrl.types import DimensionProperty, ObservationType

THEIRS = Path(__file__).parents[1] / "torch" / "torch_files" / "Countdown" / "Countdown-1000.onnx"
GOAL = ObservationType.GOAL_SIGNAL


def model(path: Path, inputs: dict[str, tuple[int, ...]], nodes=(), weights=()) -> Path:
    """A graph with these inputs, batch first."""
    shown = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *shape]) for n, shape in inputs.items()]
    held = [helper.make_tensor(name, TensorProto.FLOAT, [1], [0.0]) for name in weights]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    onnx.save(helper.make_model(helper.make_graph(list(nodes), "policy", shown, [output], held)), path)
    return path


def test_a_model_of_ml_agents():
    (sensor,) = observations_of(THEIRS)
    assert (sensor.name, sensor.shape, sensor.observation_type) == ("obs_0", (5,), ObservationType.DEFAULT)


def test_the_rank_tells_what_an_observation_is(tmp_path):
    inputs = {"obs_1": (5, 3), "obs_0": (4,), "action_masks": (2,), "obs_2": (3, 20, 24)}
    found = observations_of(model(tmp_path / "a.onnx", inputs))
    assert [sensor.shape for sensor in found] == [(4,), (5, 3), (3, 20, 24)]
    assert found[1].dimension_property == (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    assert found[2].dimension_property[1:] == (DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,) * 2
    assert {sensor.observation_type for sensor in found} == {ObservationType.DEFAULT}


def test_goals_are_what_reaches_the_hyper_network(tmp_path):
    weight = "network_body._body_endoder.layers.2.hypernet.0.weight"
    nodes = [
        helper.make_node("Sub", ["obs_3", "mean"], ["shown"]),
        helper.make_node("Concat", ["obs_0", "obs_1", "obs_2", "shown"], ["all"], axis=1),
        helper.make_node("Concat", ["obs_1", "shown"], ["goals"], axis=1),
        helper.make_node("Gemm", ["goals", weight], ["hidden"]),
        helper.make_node("Mul", ["all", "hidden"], ["out"]),
    ]
    inputs = {f"obs_{i}": (3,) for i in range(4)}
    found = observations_of(model(tmp_path / "a.onnx", inputs, nodes, (weight, "mean")))
    assert [i for i, sensor in enumerate(found) if sensor.observation_type == GOAL] == [1, 3]
    with pytest.raises(ArtifactError, match=r"a\.onnx: does not show which observation is the goal; give the environ"):
        observations_of(model(tmp_path / "a.onnx", inputs, nodes[-1:], (weight,)))


def test_models_that_do_not_tell(tmp_path):
    path = model(tmp_path / "a.onnx", {"vector_observation": (8,), "visual_observation_0": (3, 84, 84)})
    with pytest.raises(ArtifactError, match=r"its inputs are vector_observation, visual_observation_0, expected obs_0"):
        observations_of(path)
    with pytest.raises(ArtifactError, match=r"obs_0 has the shape \(0,\)"):
        observations_of(model(path, {"obs_0": (0,)}))
    with pytest.raises(ArtifactError, match="its inputs are obs_1"):
        observations_of(model(path, {"obs_1": (3,)}))
    path.write_bytes(b"no model")
    with pytest.raises(ArtifactError, match=r"a\.onnx: cannot be read as an ONNX model"):
        observations_of(path)
