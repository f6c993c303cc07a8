"""Models that no trainer has written, of a few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def handmade(
    path: Path,
    *,
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, Sequence[float]],
    copies: Mapping[str, str],
    nodes: Sequence[onnx.NodeProto] = (),
    opset: int = 9,
    domains: Sequence[str] = (),
) -> Path:
    """A file whose outputs are constants, by name, and copies of inputs, output → input; `nodes` come before them."""
    shapes = {name: ["batch", *shape] for name, shape in inputs.items()}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    values = {f"{name}/value": np.array(value, np.float32) for name, value in constants.items()}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in _named(values)]
    outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in copies]
    made = [helper.make_node("Identity", [f"{name}/value"], [name]) for name in constants]
    made += [helper.make_node("Identity", [source], [name]) for name, source in copies.items()]
    initializers = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph([*nodes, *made], "handmade", given, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, ir_version=4, opset_imports=opsets), path)
    return path


def _named(values: Mapping[str, np.ndarray]):
    return [(name.removesuffix("/value"), value) for name, value in values.items()]


def good(path: Path, **changes) -> Path:
    """Sees two numbers and sends them back as actions."""
    parts = {
        "inputs": {"obs_0": [2]},
        "constants": {"version_number": [3], "memory_size": [0], "continuous_action_output_shape": [2]},
        "copies": {"continuous_actions": "obs_0", "deterministic_continuous_actions": "obs_0"},
    }
    return handmade(path, **(parts | changes))
