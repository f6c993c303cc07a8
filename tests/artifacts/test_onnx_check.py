"""The checks of Unity's contract and of the operators, on files with one fault each."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_policies import make_policy, make_spec, without_output

from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx import operators
from jaxrl.types import ActionSpec


def test_plain_operators_only():
    def model(*nodes: onnx.NodeProto, opset: int = 9) -> onnx.ModelProto:
        one = numpy_helper.from_array(np.ones(1, np.float32), "one")
        graph = helper.make_graph(list(nodes), "g", [], [], [one])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])

    assert operators.check_operators(model(helper.make_node("Sub", ["x", "one"], ["y"]))) == []
    (problem,) = operators.check_operators(model(helper.make_node("Sub", ["one", "x"], ["y"], name="n")))
    assert problem == "node 'n': subtracts from the constant 'one'"
    for operator in ("Split", "Expand", "Einsum", "LSTM", "Where"):
        (problem,) = operators.check_operators(model(helper.make_node(operator, ["x"], ["y"])))
        assert f"operator {operator} is not one of" in problem
    (problem,) = operators.check_operators(model(opset=16))
    assert problem == "opset 16 of '', expected 9 of ''"


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


def test_inputs_of_another_type_are_named(tmp_path):
    spec = make_spec(ActionSpec(1, ()))
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    model = with_input(onnx.load(tmp_path / "a.onnx"), "epsilon")
    model.graph.input[-1].type.tensor_type.elem_type = TensorProto.STRING
    onnx.save(model, tmp_path / "a.onnx")
    (problem,) = exporter.check_contract(tmp_path / "a.onnx", spec)
    assert "input 'epsilon' is of type tensor(string)" in problem
