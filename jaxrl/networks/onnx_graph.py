"""The ONNX graph of a policy as plain records, to which each module adds its own nodes.

The builder of a module is beside the module, under its name with the ending `_onnx`: it takes the names of the module's
input tensors, adds nodes, and returns the name of the output. These are records only, so that networks do not import
onnx; `jaxrl.artifacts.onnx.graph` calls the builders of a policy and turns the records into a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.types import JaxrlError

BATCH = "batch"
"""Name of the dynamic first axis."""

FLOAT, INT64 = 1, 7
"""Data types of `onnx.TensorProto`, for attributes of nodes."""


LAYER_NORM_EPSILON = 1e-5


class ExportError(JaxrlError):
    """The policy cannot be written as ONNX, or the file gives other results than it. The text says where."""


class Node(NamedTuple):
    """Operator with one output, which gives it its name."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


class Tensor(NamedTuple):
    """An input or output of the model: float32, or int64 if `integer`."""

    name: str
    shape: tuple[int | str, ...]
    integer: bool = False


class OnnxGraph:
    """Nodes, constants, inputs and outputs in the order in which they are added; names are the tensors' own."""

    def __init__(self, params: Mapping[str, np.ndarray]) -> None:
        """Start a graph. params: arrays of an `Actor` by path ("body/layer_0/kernel"), kernels [inputs, outputs]."""
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._params = params
        self._read: set[str] = set()

    def param(self, path: str) -> np.ndarray:
        """Return one array of the policy. Raises `ExportError` if the policy has none of that path."""
        if path not in self._params:
            raise ExportError(
                f"the policy has no parameter '{path}', it has {', '.join(sorted(self._params)) or 'none'}"
            )
        self._read.add(path)
        return self._params[path]

    def unread(self) -> list[str]:
        """Return the paths of the parameters that no builder has read."""
        return sorted(set(self._params) - self._read)

    def input(self, name: str, *shape: int) -> str:
        """Declare a float32 input [batch, *shape]."""
        self.inputs.append(Tensor(name, (BATCH, *shape)))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add a float32 constant."""
        self.constants[name] = np.ascontiguousarray(value, np.float32)
        return name

    def reshape(self, x: str, shape: tuple[int, ...], output: str) -> str:
        """Add the tensor x in another shape; -1 stands for the batch."""
        self.constants[f"{output}/shape"] = np.array(shape, np.int64)
        return self.add("Reshape", [x, f"{output}/shape"], output)

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add one node. Return its output."""
        self.nodes.append(Node(operator, tuple(inputs), output, attributes))
        return output

    def dense(self, x: str, layer: str, columns: slice = slice(None), output: str | None = None) -> str:
        """Add x · kernel + bias of the linear layer at a path, restricted to some of its outputs."""
        output = output or layer
        kernel = self.constant(f"{output}/kernel", self.param(f"{layer}/kernel")[:, columns])
        bias = self.constant(f"{output}/bias", self.param(f"{layer}/bias")[columns])
        return self.add("Gemm", [x, kernel, bias], output)

    def swish(self, x: str) -> str:
        """Add x · sigmoid(x)."""
        return self.add("Mul", [x, self.add("Sigmoid", [x], f"{x}/sigmoid")], f"{x}/swish")

    def concat(self, parts: list[str], output: str) -> str:
        """Add the tensors [batch, size] side by side."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, output, axis=1)

    def layer_norm(self, x: str, axis: int, output: str) -> str:
        """Add (x - mean) / sqrt(var + 1e-5) over the last axis, whose index is `axis`, without parameters."""
        mean = self.add("ReduceMean", [x], f"{output}/mean", axes=[axis], keepdims=1)
        centred = self.add("Sub", [x, mean], f"{output}/centred")
        squares = self.add("Mul", [centred, centred], f"{output}/squares")
        variance = self.add("ReduceMean", [squares], f"{output}/variance", axes=[axis], keepdims=1)
        epsilon = self.constant(f"{output}/epsilon", np.array([LAYER_NORM_EPSILON]))
        scale = self.add("Sqrt", [self.add("Add", [variance, epsilon], f"{output}/safe")], f"{output}/scale")
        return self.add("Div", [centred, scale], output)

    def columns(self, x: str, start: int, end: int, output: str) -> str:
        """Add the columns from start up to end, exclusive, of the tensor x [batch, size]."""
        return self.add("Slice", [x], output, axes=[1], starts=[start], ends=[end])

    def output(self, name: str, size: int, *, integer: bool = False) -> None:
        """Declare the tensor `name`, [batch, size], as an output."""
        self.outputs.append(Tensor(name, (BATCH, size), integer))

    def constant_output(self, name: str, value: np.ndarray) -> None:
        """Declare an output that readers of the file also find as a constant."""
        self.add("Identity", [self.constant(f"{name}/constant", value)], name)
        self.outputs.append(Tensor(name, value.shape))
