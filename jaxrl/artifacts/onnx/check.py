"""What Unity's ML-Agents package checks of a model before it uses it, and which operators we let into a file.

`check_contract` takes any model, also those of ML-Agents; `check_operators` is for the files that jaxrl writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as runtime_errors

from jaxrl.artifacts.onnx.graph import OPERATORS, OPSET
from jaxrl.types import BehaviorSpec

Outputs = Mapping[str, np.ndarray]

RuntimeErrors = (
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NoSuchFile,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
)
"""What ONNX Runtime raises when it cannot load or run a model; they share no base class of their own."""

LEGACY_INPUTS = ("prev_action", "epsilon", "sequence_length")  # ignored by Unity without a warning
_FATAL_ONLY = 4
_DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}


def open_session(model: str | bytes) -> onnxruntime.InferenceSession:
    """A session on the CPU, one thread (policies are small), silent; `model` is a path or the file's bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY  # errors are raised anyway
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, names: list[str], feed: Mapping[str, np.ndarray]) -> Outputs:
    """The named outputs for one batch of inputs."""
    return {name: np.asarray(value) for name, value in zip(names, session.run(names, dict(feed)), strict=True)}


def check_contract(path: Path, spec: BehaviorSpec) -> list[str]:
    """What Unity (4.x) would reject or warn about, one line each; empty when the file fits the behavior.

    The model is run once on zero inputs, as Unity does. Inputs must match the sensors, the version must be 2 or 3, and
    the shape outputs must name the behavior's actions; sampled and deterministic outputs must exist.
    """
    try:
        session = open_session(str(path))
    except RuntimeErrors as error:
        return [f"{path}: ONNX Runtime cannot load it: {error}"]
    problems = list(_input_problems(session, spec))
    if any(node.type not in _DTYPES for node in session.get_inputs()):
        return problems
    try:
        outputs = _run_on_zeros(session)
    except RuntimeErrors as error:
        return [*problems, f"{path}: ONNX Runtime cannot run it on zero inputs: {error}"]
    return [
        *problems,
        *_version_problems(outputs),
        *_memory_problems(outputs, {node.name for node in session.get_inputs()}),
        *_action_problems(outputs, spec),
    ]


def check_operators(model: onnx.ModelProto) -> list[str]:
    """What an engine of Unity might not read, one line each.

    Only the operators of `OPERATORS` at opset 9, and no constant on the left of a subtraction.
    """
    problems = [
        f"opset {entry.version} of '{entry.domain}', expected {OPSET} of ''"
        for entry in model.opset_import
        if (entry.domain, entry.version) != ("", OPSET)
    ]
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in OPERATORS:
            problems.append(f"node '{node.name}': operator {node.op_type} is not one of {', '.join(OPERATORS)}")
        if node.op_type == "Sub" and node.input[0] in constants:
            problems.append(f"node '{node.name}': subtracts from the constant '{node.input[0]}'")
    return problems


def _run_on_zeros(session: onnxruntime.InferenceSession) -> Outputs:
    """All outputs for a batch of one row of zeros."""
    zeros = {
        node.name: np.zeros([size if isinstance(size, int) else 1 for size in node.shape], _DTYPES[node.type])
        for node in session.get_inputs()
    }
    return run(session, [node.name for node in session.get_outputs()], zeros)


def _input_problems(session: onnxruntime.InferenceSession, spec: BehaviorSpec) -> Iterator[str]:
    """Each sensor needs an input of its shape; discrete actions need masks."""
    shapes = {node.name: tuple(node.shape) for node in session.get_inputs()}
    expected = {f"obs_{i}": sensor.shape for i, sensor in enumerate(spec.observations)}
    if spec.action.discrete_branches:
        expected["action_masks"] = (spec.action.mask_size,)
    for name, shape in expected.items():
        if name not in shapes:
            yield f"input '{name}' is missing, expected [batch, {', '.join(map(str, shape))}]"
        elif shapes[name][1:] != shape:
            yield f"input '{name}' is {list(shapes[name])}, expected [batch, {', '.join(map(str, shape))}]"
    for name in sorted(shapes.keys() - expected.keys() - {"recurrent_in", *LEGACY_INPUTS}):
        yield f"input '{name}' is not known to Unity and belongs to no sensor"
    for node in session.get_inputs():
        if node.type not in _DTYPES:
            yield f"input '{node.name}' is of type {node.type}, expected {', '.join(_DTYPES)}"


def _version_problems(outputs: Outputs) -> Iterator[str]:
    version = _number(outputs, "version_number")
    if version is None:
        yield "output 'version_number' is missing, expected 3"
    elif not 2 <= version <= 3:
        yield f"output 'version_number' is {version:g}, expected 2 or 3"


def _memory_problems(outputs: Outputs, inputs: set[str]) -> Iterator[str]:
    """Memory needs its input and output and version 3."""
    memory = _number(outputs, "memory_size")
    if memory is None:
        yield "output 'memory_size' is missing, expected 0 without memory"
    elif memory > 0:
        if "recurrent_in" not in inputs:
            yield f"memory_size is {memory:g} but the input 'recurrent_in' is missing"
        if "recurrent_out" not in outputs:
            yield f"memory_size is {memory:g} but the output 'recurrent_out' is missing"
        if _number(outputs, "version_number") == 2:
            yield "models of version 2 with memory are rejected"


def _action_problems(outputs: Outputs, spec: BehaviorSpec) -> Iterator[str]:
    """Sampled, deterministic and shape outputs of each kind of action that the behavior has."""
    kinds = {"continuous": [spec.action.continuous_size], "discrete": list(spec.action.discrete_branches)}
    for kind, sizes in kinds.items():
        if sum(sizes):
            yield from _kind_problems(outputs, kind, sizes)
        elif f"{kind}_actions" in outputs:
            yield f"output '{kind}_actions' exists, but the behavior has no {kind} actions"
    if not any(sum(sizes) for sizes in kinds.values()):
        yield "the behavior has no actions"


def _kind_problems(outputs: Outputs, kind: str, sizes: list[int]) -> Iterator[str]:
    width = sum(sizes) if kind == "continuous" else len(sizes)
    for name in (f"{kind}_actions", f"deterministic_{kind}_actions"):
        if name not in outputs:
            yield f"output '{name}' is missing"
        elif outputs[name].shape != (1, width):
            yield f"output '{name}' is {list(outputs[name].shape)} for one agent, expected [1, {width}]"
    name = f"{kind}_action_output_shape"
    if name not in outputs:
        yield f"output '{name}' is missing"
    elif outputs[name].dtype != np.float32 or outputs[name].ravel().tolist() != sizes:
        yield f"output '{name}' is {outputs[name].tolist()} ({outputs[name].dtype}), expected {sizes} as float32"


def _number(outputs: Outputs, name: str) -> float | None:
    """A constant output as a number; None where it is missing."""
    return float(outputs[name].ravel()[0]) if name in outputs and outputs[name].size else None
