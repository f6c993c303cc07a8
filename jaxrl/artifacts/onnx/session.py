"""ONNX Runtime with jaxrl's options."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as runtime_errors

Outputs = Mapping[str, np.ndarray]

RuntimeErrors = (
    runtime_errors.Fail,
    runtime_errors.EPFail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NoSuchFile,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
    UnicodeDecodeError,
)
"""Errors of ONNX Runtime when it cannot load or run a model; they share no base class of their own."""

DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
"""Types of inputs that can be fed, by ONNX Runtime's names."""
_FATAL_ONLY = 4


def open_session(model: str | bytes) -> onnxruntime.InferenceSession:
    """Open a session on the CPU, one thread (policies are small), silent; `model` is a path or the file's bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY  # errors are raised anyway
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def run(session: onnxruntime.InferenceSession, names: list[str], feed: Mapping[str, np.ndarray]) -> Outputs:
    """Return the named outputs for one batch of inputs."""
    return {name: np.asarray(value) for name, value in zip(names, session.run(names, dict(feed)), strict=True)}


def run_on_zeros(session: onnxruntime.InferenceSession, rows: int = 1) -> Outputs:
    """Return all outputs for rows of zeros; Unity asks for one row first. MemoryError: inputs of more than a GB."""
    shapes = {n.name: [size if isinstance(size, int) else 1 for size in n.shape] for n in session.get_inputs()}
    for node in session.get_inputs():
        if node.shape and not isinstance(node.shape[0], int):
            shapes[node.name][0] = rows
    if sum(math.prod(shape) for shape in shapes.values()) > 2**28:
        raise MemoryError("its inputs have more than a gigabyte")
    zeros = {node.name: np.zeros(shapes[node.name], DTYPES[node.type]) for node in session.get_inputs()}
    return run(session, [node.name for node in session.get_outputs()], zeros)
