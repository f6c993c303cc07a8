"""`jaxrl onnx check` on models that jaxrl has not written, each with one fault, and where it finds the behavior."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from jaxrl.artifacts.checkpoint import store
from jaxrl.cli import main
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests import trainer

sys.path.insert(0, str(Path(__file__).parents[1] / "artifacts"))

from handmade_models import good

ROOT = Path(__file__).parents[2]
V = {"version_number": [3], "memory_size": [0]}
TWO = {"continuous_action_output_shape": [2]}
SENT = {"continuous_actions": "obs_0", "deterministic_continuous_actions": "obs_0"}
SPEC = BehaviorSpec((ObservationSpec("ray", (2,)),), ActionSpec(2, ()))


def check(capsys, *arguments) -> tuple[int, list[str]]:
    code = main(["onnx", "check", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


def test_a_good_model_that_is_compared_with_nothing(tmp_path, capsys):
    path = good(tmp_path / "a.onnx")
    code, lines = check(capsys, path)
    assert code == 0
    assert lines == [
        f"{path}, for no behavior in particular:",
        "not compared inputs    obs_0 [batch, 2]: has to be what the agent's sensors show: give --env, --config, or a "
        "file that lies in its run folder",
        "ok           version   version_number is 3.0",
        "ok           memory    memory_size is 0.0",
        "ok           actions   continuous [2]",
        "ok           operators opset 9: Identity",
        "Unity takes this model.",
    ]


MANY = [helper.make_node("Constant", [], ["one"], value_float=1.0), helper.make_node("Sub", ["one", "obs_0"], ["less"])]
REFUSED = {
    "no version": ({"constants": {"memory_size": [0], **TWO}}, "version", "'version_number' is missing, expected 3"),
    "future": ({"constants": {**V, "version_number": [4], **TWO}}, "version", "'version_number' is 4, expected 2 or 3"),
    "no memory size": ({"constants": {"version_number": [3], **TWO}}, "memory", "'memory_size' is missing, expected 0"),
    "memory alone": ({"constants": {**V, "memory_size": [8], **TWO}}, "memory", "input 'recurrent_in' is miss"),
    "memory of another size": (
        {
            "constants": {**V, "memory_size": [8], **TWO},
            "inputs": {"obs_0": [2], "recurrent_in": [1, 6]},
            "copies": {**SENT, "recurrent_out": "recurrent_in"},
        },
        "memory",
        "input 'recurrent_in' is ['batch', 1, 6], expected [batch, 1, 8]: memory_size, recurrent_in",
    ),
    "old memory": (
        {
            "constants": {**V, "version_number": [2], "memory_size": [4], **TWO},
            "inputs": {"obs_0": [2], "recurrent_in": [1, 4]},
            "copies": {**SENT, "recurrent_out": "recurrent_in"},
        },
        "memory",
        "models of version 2 with memory are rejected",
    ),
    "no actions": ({"copies": {"value": "obs_0"}}, "actions", "neither 'continuous_actions' nor 'discrete_actions'"),
    "no shape": ({"constants": V}, "actions", "output 'continuous_action_output_shape' is missing"),
    "another width": (
        {"constants": {**V, "continuous_action_output_shape": [3]}},
        "actions",
        "output 'continuous_actions' is [1, 2] for one agent, expected [1, 3]",
    ),
    "no masks": (
        {
            "constants": {**V, "discrete_action_output_shape": [[3, 2]]},
            "copies": {"discrete_actions": "obs_0", "deterministic_discrete_actions": "obs_0"},
        },
        "actions",
        "discrete actions need the input 'action_masks'",
    ),
    "masks of other branches": (
        {
            "inputs": {"obs_0": [2], "action_masks": [4]},
            "constants": {**V, "discrete_action_output_shape": [[3, 2]]},
            "copies": {"discrete_actions": "obs_0", "deterministic_discrete_actions": "obs_0"},
        },
        "actions",
        "input 'action_masks' is ['batch', 4], 'discrete_action_output_shape' says [3, 2], which is 5: export it with",
    ),
    "no numbers": (
        {
            "nodes": [helper.make_node("Add", ["obs_0", "weight/value"], ["sum"])],
            "constants": {**V, **TWO, "weight": [1.0, float("nan")]},
        },
        "weights",
        "NaN in weight/value: no action is a number: take an earlier checkpoint",
    ),
    "one agent inside": (
        {
            "nodes": [
                helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array([1, 2], np.int64))),
                helper.make_node("Reshape", ["obs_0", "one"], ["row"]),
            ],
            "copies": dict.fromkeys(SENT, "row"),
        },
        "batch",
        "it cannot be run for three agents",
    ),
    "old names": (
        {"inputs": {"vector_observation": [2]}, "copies": dict.fromkeys(SENT, "vector_observation")},
        "inputs",
        "vector_observation [batch, 2], expected obs_0, obs_1 ...: one input for each sensor",
    ),
    "control flow": (
        {"nodes": [helper.make_node("Unique", ["obs_0"], ["u"])], "opset": 11},
        "operators",
        "no engine of Unity has Unique: unroll or replace",
    ),
    "own operators": (
        {"nodes": [helper.make_node("FusedMatMul", ["obs_0", "obs_0"], ["u"], domain="com.microsoft", transB=1)],
         "domains": ["com.microsoft"]},
        "operators",
        "of no standard domain: com.microsoft.FusedMatMul",
    ),
}  # fmt: skip
WARNED = {
    "no deterministic": (
        {"copies": {"continuous_actions": "obs_0"}},
        "'deterministic_continuous_actions' is missing: leave",
    ),
    "new opset": (
        {"opset": 17},
        "promises 7 to 25, before 2.6 15: use 2.6 or newer, or export with",
    ),
    "split": (
        {"nodes": [helper.make_node("Split", ["obs_0"], ["a", "b"], axis=1)]},
        "older engines (Barracuda) lack or misread Split",
    ),
    "constant first": ({"nodes": MANY, "opset": 12}, "misread a constant on the left of Sub: less"),
    "input of nobody": ({"inputs": {"obs_0": [2], "wind": [1]}}, "input 'wind' is not known to Unity"),
}


@pytest.mark.parametrize(("changes", "what", "words"), REFUSED.values(), ids=REFUSED)
def test_what_unity_would_refuse(tmp_path, capsys, changes, what, words):
    code, lines = check(capsys, good(tmp_path / "a.onnx", **changes))
    (line,) = [line for line in lines if words in line]
    assert line.startswith(f"refused      {what} ") and code == 1 and lines[-1] == "Unity refuses this model."


@pytest.mark.parametrize(("changes", "words"), WARNED.values(), ids=WARNED)
def test_what_unity_takes_with_a_warning(tmp_path, capsys, changes, words):
    code, lines = check(capsys, good(tmp_path / "a.onnx", **changes))
    (line,) = [line for line in lines if words in line]
    assert line.startswith("warning ") and code == 0 and lines[-1] == "Unity takes this model."


def test_a_batch_fixed_to_one_is_refused(tmp_path, capsys):
    path = good(tmp_path / "a.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    code, lines = check(capsys, path)
    (line,) = [line for line in lines if line.startswith("refused      batch")]
    assert "obs_0: the number of agents is fixed to 1: leave the first axis" in line and code == 1


def test_damaged_models_are_one_sentence(tmp_path, capsys):
    """Bytes changed at random, also where names, types and sizes stand."""
    source, path = (ROOT / "zoo" / "basic" / "Basic.onnx").read_bytes(), tmp_path / "a.onnx"
    drawn = np.random.default_rng(0)
    for _ in range(40):
        changed = bytearray(source)
        for place in drawn.integers(0, drawn.choice([600, len(source)]), 4):
            changed[place] = drawn.integers(256)
        path.write_bytes(changed)
        code, lines = check(capsys, path)
        assert lines[-1].startswith("Unity refuses" if code else "Unity takes")
    path.unlink()
    os.mkfifo(path)
    assert main(["onnx", "check", str(path)]) == 1
    capsys.readouterr()


def test_files_that_are_no_models(tmp_path, capsys):
    (tmp_path / "text.onnx").write_text("no model")
    code, lines = check(capsys, tmp_path / "text.onnx")
    assert code == 1 and lines[1].startswith("refused      file ") and "text.onnx: cannot be read as ONNX" in lines[1]
    for path, what in ((tmp_path / "missing.onnx", "no such file"), (tmp_path, "is a folder")):
        assert main(["onnx", "check", str(path)]) == 1
        told = capsys.readouterr()
        assert (told.out, told.err) == ("", f"{path}: {what}; give an .onnx file\n"), "Unity is not asked"


def test_a_file_in_its_run_folder_is_compared_with_its_behavior(tmp_path, capsys):
    folder = tmp_path / "Walker"
    state = {"weight": jax.numpy.zeros(2)}
    store.save(folder, 500, state, spec=SPEC)
    for path in (folder / "Walker-500.onnx", tmp_path / "Walker.onnx"):
        code, lines = check(capsys, good(path))
        assert code == 0 and lines[0] == f"{path}, for Walker:" and "ok           inputs    obs_0 [batch, 2]" in lines
        code, lines = check(capsys, good(path, inputs={"obs_0": [2], "obs_1": [3, 84, 84]}))
        assert code == 0 and any(line.startswith("warning") and "'obs_1'" in line for line in lines)
        three = {"constants": {**V, "continuous_action_output_shape": [3]}, "inputs": {"obs_0": [3]}}
        code, lines = check(capsys, good(path, **three))
        assert code == 1 and sum(line.startswith("refused") for line in lines) == 4
        assert any("input 'obs_0' is ['batch', 3], expected [batch, 2]" in line for line in lines)


def test_a_file_for_an_environment(tmp_path, capsys):
    """Countdown shows five numbers and takes one continuous action and a branch of three."""
    build = trainer.player(tmp_path)
    path = good(tmp_path / "a.onnx", inputs={"obs_0": [5]}, constants={**V, "continuous_action_output_shape": [5]})
    code, lines = check(capsys, path, "--env", build)
    assert code == 1 and lines[0] == f"{path}, for Countdown?team=0:"
    assert any("input 'action_masks' is missing, expected [batch, 3]: train for the sensors" in line for line in lines)
    code, lines = check(capsys, path, "--config", trainer.config(tmp_path), "--behavior", "Countdown")
    assert code == 1 and lines[0] == f"{path}, for Countdown?team=0:"
    assert main(["onnx", "check", str(path), "--env", str(build), "--behavior", "Countdwn"]) == 1
    assert (
        f"--behavior Countdwn: is not in the first step of {build}, did you mean Countdown?" in capsys.readouterr().err
    )


def test_a_file_for_an_environment_of_gymnasium(tmp_path, capsys):
    """CartPole shows four numbers and takes one branch of two."""
    code, lines = check(capsys, good(tmp_path / "CartPole-v1-500.onnx"), "--env", "gymnasium:CartPole-v1")
    assert code == 1 and lines[0].endswith("CartPole-v1-500.onnx, for CartPole-v1:")
    assert any("input 'obs_0' is ['batch', 2], expected [batch, 4]" in line for line in lines)


def test_a_file_for_a_compiled_environment(tmp_path, capsys):
    code, lines = check(capsys, good(tmp_path / "Basic.onnx"), "--env", "jax:basic")
    assert code == 1 and lines[0].endswith(", for Basic:")
    assert any("input 'obs_0' is ['batch', 2], expected [batch, 20]" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--behavior", "Walker"], "--behavior: got Walker, expected none without --env or --config"),
        (["--env", "jax:bsic"], "did you mean basic"),
        (["--env", "nothing.x86_64"], "nothing.x86_64"),
    ],
)
def test_what_the_user_can_mend(tmp_path, capsys, arguments, words):
    assert main(["onnx", "check", str(good(tmp_path / "a.onnx")), *arguments]) == 1
    assert words in capsys.readouterr().err
    assert np.all([path.name == "a.onnx" for path in tmp_path.iterdir()])
