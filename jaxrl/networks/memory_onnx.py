"""`Memory` in an ONNX file: one step from `recurrent_in` to `recurrent_out`, of plain operators.

The operators LSTM and GRU are not used: engines read them in different layouts, none of which is ML-Agents' shape of
the memory, [batch, 1, m]. The outputs' order and names are ML-Agents'.
"""

from __future__ import annotations

from jaxrl.networks.memory import features
from jaxrl.networks.onnx_graph import BATCH, OnnxGraph, Tensor
from jaxrl.settings.networks import MemorySettings

BEFORE, AFTER = "recurrent_in", "recurrent_out"
"""Names of the input and the output of the memory, float32 [batch, 1, m]."""


def memory_onnx(graph: OnnxGraph, x: str, memory: MemorySettings) -> tuple[str, str]:
    """Add `Memory` of the tensor x [batch, F] and the input `recurrent_in`, with its parameters at `memory/...`.

    Returns the tensors of the features for heads, [batch, h], and of the new memory, [batch, m], which
    `memory_output_onnx` makes an output.
    """
    carry = graph.add("Flatten", [BEFORE], "memory/before", axis=1)
    inputs = _linear(graph, x, "kernel", "bias", "memory/given")
    return (_lstm if memory.memory_type == "lstm" else _gru)(graph, inputs, carry, features(memory))


def memory_output_onnx(graph: OnnxGraph, memory: str, size: int) -> None:
    """Declare the tensor [batch, m] as the output `recurrent_out`."""
    graph.add("Unsqueeze", [memory], AFTER, axes=[1])
    graph.outputs.append(Tensor(AFTER, (BATCH, 1, size)))


def _lstm(graph: OnnxGraph, given: str, carry: str, hidden: int) -> tuple[str, str]:
    """Add an LSTM step: given [batch, 4 h], carry [batch, 2 h] -> h and the new carry."""
    h = graph.columns(carry, 0, hidden, "memory/h")
    c = graph.columns(carry, hidden, 2 * hidden, "memory/c")
    recurrent = _linear(graph, h, "recurrent", "recurrent_bias", "memory/again")
    gates = graph.add("Add", [given, recurrent], "memory/gates")
    i, f, g, o = (
        graph.add(operator, [_gate(graph, gates, number, hidden)], f"memory/{'ifgo'[number]}")
        for number, operator in enumerate(("Sigmoid", "Sigmoid", "Tanh", "Sigmoid"))
    )
    remembered = graph.add("Mul", [f, c], "memory/kept")
    cell = graph.add("Add", [remembered, graph.add("Mul", [i, g], "memory/new")], "memory/cell")
    out = graph.add("Mul", [o, graph.add("Tanh", [cell], "memory/cell/tanh")], "memory/out")
    return out, graph.concat([out, cell], "memory/after")


def _gru(graph: OnnxGraph, given: str, carry: str, hidden: int) -> tuple[str, str]:
    """Add a GRU step: given [batch, 3 h], carry [batch, h]. h' = n + z (h - n), because engines dislike 1 - z."""
    recurrent = _linear(graph, carry, "recurrent", "recurrent_bias", "memory/again")
    r, z = (_gru_gate(graph, given, recurrent, number, hidden) for number in range(2))
    of_h = graph.add("Mul", [r, _gate(graph, recurrent, 2, hidden)], "memory/n/recurrent")
    n = graph.add("Tanh", [graph.add("Add", [_gate(graph, given, 2, hidden), of_h], "memory/n/sum")], "memory/n")
    rest = graph.add("Mul", [z, graph.add("Sub", [carry, n], "memory/distance")], "memory/rest")
    out = graph.add("Add", [n, rest], "memory/out")
    return out, out


def _gru_gate(graph: OnnxGraph, given: str, recurrent: str, number: int, hidden: int) -> str:
    name = f"memory/{'rz'[number]}"
    parts = [_gate(graph, tensor, number, hidden) for tensor in (given, recurrent)]
    return graph.add("Sigmoid", [graph.add("Add", parts, f"{name}/sum")], name)


def _linear(graph: OnnxGraph, x: str, kernel: str, bias: str, output: str) -> str:
    """Add x · kernel + bias for all gates side by side."""
    weights = graph.constant(f"{output}/kernel", graph.param(f"memory/{kernel}"))
    return graph.add("Gemm", [x, weights, graph.constant(f"{output}/bias", graph.param(f"memory/{bias}"))], output)


def _gate(graph: OnnxGraph, x: str, number: int, hidden: int) -> str:
    """Add the columns of one gate of the tensor x [batch, gates * h]."""
    return graph.columns(x, number * hidden, (number + 1) * hidden, f"{x}/{number}")
