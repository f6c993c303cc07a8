"""Models of version 2 of the API (packages 1.x), which today's Unity still runs: what `onnx check` says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade_models import handmade
from onnx import helper, numpy_helper

from jaxrl.artifacts.onnx.check import examine
from jaxrl.artifacts.onnx.findings import Outcome
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

CASES = Path(__file__).parents[1] / "cases"
V2 = {"version_number": [2], "memory_size": [0]}
HYBRID = BehaviorSpec(
    (ObservationSpec("ray", (2,)), ObservationSpec("camera", (3, 8, 8)), ObservationSpec("speed", (1,))),
    ActionSpec(3, (2, 3)),
)
INPUTS = {"vector_observation": [3], "visual_observation_0": [3, 8, 8], "action_masks": [5]}
SHAPES = {"continuous_action_output_shape": [3], "discrete_action_output_shape": [5]}


def hybrid(path: Path, **changes) -> Path:
    """Three sensors in two inputs, two branches side by side: as ML-Agents 0.22 to 0.26 wrote."""
    parts = {
        "inputs": INPUTS,
        "constants": V2 | SHAPES,
        "copies": {"continuous_actions": "vector_observation", "discrete_actions": "action_masks"},
    }
    return handmade(path, **(parts | changes))


def texts(path: Path, spec: BehaviorSpec | None, outcome: Outcome = Outcome.REFUSED) -> list[str]:
    return [finding.text for finding in examine(path, spec) if finding.outcome is outcome]


def test_the_small_file_is_taken():
    spec = BehaviorSpec((ObservationSpec("ray", (3,)),), ActionSpec(2, ()))
    for behavior in (None, spec):
        assert texts(CASES / "legacy_v2.onnx", behavior) == []
    two = spec._replace(observations=(ObservationSpec("a", (1,)), ObservationSpec("b", (2,))))
    assert texts(CASES / "legacy_v2.onnx", two) == []  # all sensors of numbers stand in one input


@pytest.mark.parametrize("spec", [None, HYBRID])
def test_images_masks_and_two_branches_are_taken(tmp_path, spec):
    path = hybrid(tmp_path / "a.onnx")
    assert texts(path, spec) == []
    (warning,) = {text for text in texts(path, spec, Outcome.WARNING) if "continuous" in text}
    assert warning == "output 'deterministic_continuous_actions' is missing"


def test_another_agent_is_refused(tmp_path):
    path = hybrid(tmp_path / "a.onnx")
    other = BehaviorSpec((ObservationSpec("ray", (4,)), ObservationSpec("map", (5, 6))), ActionSpec(3, (2, 2)))
    assert texts(path, other) == [
        "input 'vector_observation' is ['batch', 3], expected [batch, 4]",
        "input 'obs_1' is missing, expected [batch, 5, 6]",
        "input 'action_masks' is ['batch', 5], expected [batch, 4]",
        "input 'visual_observation_0' belongs to no camera of the agent",
        "output 'discrete_actions' is [1, 5] for one agent, expected [1, 4]",
        "output 'discrete_action_output_shape' is [5.0] (float32), expected [4] as float32",
    ]


@pytest.mark.parametrize(("continuous", "kind"), [([1], "continuous"), ([0], "discrete")])
def test_the_single_action_of_the_oldest_files_is_taken(tmp_path, continuous, kind):
    path = hybrid(
        tmp_path / "a.onnx",
        inputs={"vector_observation": [3], "epsilon": [3], "action_masks": [3], "prev_action": [1]},
        constants=V2 | {"is_continuous_control": continuous, "action_output_shape": [3]},
        copies={"action": "vector_observation"},
    )
    action = ActionSpec(3, ()) if kind == "continuous" else ActionSpec(0, (3,))
    assert texts(path, BehaviorSpec(HYBRID.observations[::2], action)) == []
    assert texts(path, None) == []
    assert texts(path, BehaviorSpec(HYBRID.observations[::2], ActionSpec(0, (3, 3)))) != []


def test_version_3_with_these_inputs_and_memory_are_refused(tmp_path):
    (text, *_) = texts(hybrid(tmp_path / "3.onnx", constants=V2 | SHAPES | {"version_number": [3]}), None)
    assert text.endswith("expected obs_0, obs_1 ...")
    remembers = hybrid(tmp_path / "m.onnx", constants=V2 | SHAPES | {"memory_size": [8]})
    assert texts(remembers, None) == ["models of version 2 with memory are rejected"]


def test_a_model_that_cannot_be_run_still_has_its_inputs_compared(tmp_path):
    seven = helper.make_node("Constant", [], ["7"], value=numpy_helper.from_array(np.array([7], np.int64)))
    nodes = [seven, helper.make_node("Reshape", ["vector_observation", "7"], ["row"])]
    path = hybrid(tmp_path / "a.onnx", nodes=nodes, copies={"continuous_actions": "row"})
    other = HYBRID._replace(observations=(ObservationSpec("ray", (4,)),))
    first, second, failed = texts(path, other)
    assert "expected [batch, 4]" in first and "no camera" in second and "cannot run it on zero inputs" in failed


def test_models_of_barracuda_are_called_so(tmp_path):
    (tmp_path / "a.nn").write_bytes(np.arange(9, dtype=np.int8).tobytes())
    (text,) = texts(tmp_path / "a.nn", None)
    assert text.endswith("is a model of Barracuda (.nn), not of ONNX; Unity's packages from 3.0 on do not read it")
