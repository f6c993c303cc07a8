"""The ONNX graph of a policy, built node by node from its parameters.

A general converter (jax2onnx 0.17) was measured and left: its first conversion takes 6 to 10 seconds, it emits Expand,
which older Unity engines lack, and it brings eleven more packages. The policy has five kinds of layers.

Opset 9 and IR version 4 are what ML-Agents' era writes: every Unity engine (Barracuda, Sentis, Inference Engine) reads
them, and IR 4 is the first in which constants are no inputs. Operators are plain; see `OPERATORS`.
`batch` is the dynamic first axis; F is the size of one observation, E of all together, h `hidden_units`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jaxrl.networks import normalizer as normalization
from jaxrl.networks.actions import ENVIRONMENT_CLIP, FORBIDDEN
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.models import NetworkShape
from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError, ObservationSpec

OPSET = 9
IR_VERSION = 4
BATCH = "batch"
API_VERSION = 3.0
OPERATORS = (
    *("Add", "ArgMax", "Clip", "Concat", "Div", "Gemm", "Identity", "Log", "Mul", "Multinomial", "RandomNormalLike"),
    *("Sigmoid", "Slice", "Softmax", "Sub"),
)
"""All operators that a written file may contain."""

SIGMA, PROBABILITIES = "sigma", "probabilities"
"""What the parity check reads inside: a constant, float32 [C]; the tensor `probabilities/<branch>`, [batch, size]."""


class ExportError(JaxrlError):
    """The policy cannot be written as ONNX, or the file does not do what the policy does. The text says where."""


def build(
    spec: BehaviorSpec, settings: NetworkShape, params: Mapping[str, np.ndarray], normalizer: normalization.States
) -> onnx.ModelProto:
    """The model of a policy with the inputs, outputs and names that ML-Agents' Unity package expects (API version 3).

    Args:
      spec: observations (vectors) and actions.
      settings: `num_layers` of the body.
      params: the arrays of `networks.models.Actor` by path ("body/layer_0/kernel"), kernels [inputs, outputs].
      normalizer: one state per observation, or None where it is shown as it is.

    Raises:
      ExportError: an observation of a kind that the graph has no encoding for.
    """
    graph = _Graph(params)
    x = _encode(graph, spec, normalizer)
    for i in range(settings.num_layers):
        x = _swish(graph, graph.dense(x, f"body/layer_{i}"))
    if spec.action.discrete_branches:
        graph.input("action_masks", spec.action.mask_size)
    graph.constant_output("version_number", np.array([API_VERSION], np.float32))
    graph.constant_output("memory_size", np.zeros(1, np.float32))
    if spec.action.continuous_size:
        _continuous(graph, x, spec.action)
    if spec.action.discrete_branches:
        _discrete(graph, x, spec.action)
    return graph.model()


class _Graph:
    """Nodes, constants, inputs and outputs in the order in which they are added; names are the tensors' own."""

    def __init__(self, params: Mapping[str, np.ndarray]) -> None:
        self._params = params
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, size: int) -> str:
        """A float32 input [batch, size]."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, size]))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        """A float32 initializer."""
        array = np.ascontiguousarray(value, np.float32)
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """One node with one output, named like it."""
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def dense(self, x: str, layer: str, columns: slice = slice(None), output: str | None = None) -> str:
        """x · kernel + bias, restricted to some of the layer's outputs."""
        output = output or layer
        kernel = self.constant(f"{output}/kernel", self._params[f"{layer}/kernel"][:, columns])
        bias = self.constant(f"{output}/bias", self._params[f"{layer}/bias"][columns])
        return self.add("Gemm", [x, kernel, bias], output)

    def param(self, name: str) -> np.ndarray:
        """One array of the policy."""
        return self._params[name]

    def output(self, name: str, size: int, dtype: int = TensorProto.FLOAT) -> None:
        """Declare the tensor `name`, [batch, size], as an output."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, [BATCH, size]))

    def constant_output(self, name: str, value: np.ndarray) -> None:
        """A constant that can be read as an initializer and as an output of a run."""
        self.add("Identity", [self.constant(f"{name}/constant", value)], name)
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "policy", self._inputs, self._outputs, list(self._constants.values()))
        return helper.make_model(
            graph, producer_name="jaxrl", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )


def _encode(graph: _Graph, spec: BehaviorSpec, normalizer: normalization.States) -> str:
    """All observations side by side, [batch, E]."""
    if not spec.observations:
        raise ExportError("the behavior has no observation at all: add a sensor to its agents")
    parts = [
        _encoding(i, observation)(graph, f"obs_{i}", observation, state)
        for i, (observation, state) in enumerate(zip(spec.observations, normalizer, strict=True))
    ]
    return parts[0] if len(parts) == 1 else graph.add("Concat", parts, "encoding", axis=1)


def _encoding(index: int, observation: ObservationSpec) -> Callable[..., str]:
    """The function that adds an observation's input and encoding, by kind."""
    kind = kind_of(observation)
    if kind not in _ENCODINGS:
        raise ExportError(
            f"observation {index} ('{observation.name}', shape {observation.shape}) is of kind '{kind}', which the "
            f"ONNX export does not know (known: {', '.join(_ENCODINGS)}): remove the sensor or use a vector observation"
        )
    return _ENCODINGS[kind]


def _vector(graph: _Graph, name: str, observation: ObservationSpec, state: normalization.NormalizerState | None) -> str:
    """clip((x - mean) / sqrt(M2 / count), -5, 5), or x itself without a normaliser; [batch, F]."""
    x = graph.input(name, observation.shape[0])
    if state is None:
        return x
    scale = 1.0 / np.sqrt(np.asarray(state.m2, np.float64) / np.asarray(state.count, np.float64))
    x = graph.add("Sub", [x, graph.constant(f"{name}/mean", np.asarray(state.mean))], f"{name}/centered")
    x = graph.add("Mul", [x, graph.constant(f"{name}/scale", scale)], f"{name}/scaled")
    return graph.add("Clip", [x], f"{name}/normalized", min=-normalization.CLIP, max=normalization.CLIP)


_ENCODINGS = {"vector": _vector}


def _swish(graph: _Graph, x: str) -> str:
    return graph.add("Mul", [x, graph.add("Sigmoid", [x], f"{x}/sigmoid")], f"{x}/swish")


def _continuous(graph: _Graph, x: str, action: ActionSpec) -> None:
    """a = mean + sigma · noise; what the environment gets is clip(a, -3, 3) / 3."""
    size = action.continuous_size
    mean = graph.dense(x, "heads/mean", output="mean")
    sigma = graph.constant(SIGMA, np.exp(graph.param("heads/log_sigma")))
    graph.constant("environment_clip", np.array([ENVIRONMENT_CLIP]))
    noise = graph.add("RandomNormalLike", [mean], "noise", mean=0.0, scale=1.0)
    noise = graph.add("Mul", [noise, sigma], "noise/scaled")
    _to_environment(graph, graph.add("Add", [noise, mean], "sample"), "continuous_actions")
    graph.output("continuous_actions", size)
    graph.constant_output("continuous_action_output_shape", np.array([size], np.float32))
    _to_environment(graph, mean, "deterministic_continuous_actions")
    graph.output("deterministic_continuous_actions", size)


def _to_environment(graph: _Graph, x: str, output: str) -> None:
    clipped = graph.add("Clip", [x], f"{output}/clipped", min=-ENVIRONMENT_CLIP, max=ENVIRONMENT_CLIP)
    graph.add("Div", [clipped, "environment_clip"], output)


def _discrete(graph: _Graph, x: str, action: ActionSpec) -> None:
    """One index per branch, sampled from softmax(logits · mask + (mask - 1) · 1e8), and the most probable one."""
    branches = action.discrete_branches
    graph.constant("one", np.ones(1))
    graph.constant("forbidden", np.array([FORBIDDEN]))
    logits = [_masked_logits(graph, x, action, i) for i in range(len(branches))]
    _columns(graph, [_sample(graph, masked, i) for i, masked in enumerate(logits)], "discrete_actions")
    graph.constant_output("discrete_action_output_shape", np.array([branches], np.float32))
    best = [graph.add("ArgMax", [masked], f"best/{i}", axis=1, keepdims=1) for i, masked in enumerate(logits)]
    _columns(graph, best, "deterministic_discrete_actions")


def _sample(graph: _Graph, logits: str, branch: int) -> str:
    """Sampled index of one branch, int64 [batch, 1].

    Log of the softmax, not the bare logits: the pattern in ML-Agents' own files, so every engine knows it.
    """
    probabilities = graph.add("Softmax", [logits], f"{PROBABILITIES}/{branch}", axis=1)
    logs = graph.add("Log", [probabilities], f"log_probabilities/{branch}")
    return graph.add("Multinomial", [logs], f"sample/{branch}", dtype=int(TensorProto.INT64), sample_size=1)


def _columns(graph: _Graph, columns: list[str], output: str) -> None:
    """The columns of all branches side by side, int64 [batch, D], as an output."""
    if len(columns) == 1:
        graph.add("Identity", columns, output)
    else:
        graph.add("Concat", columns, output, axis=1)
    graph.output(output, len(columns), TensorProto.INT64)


def _masked_logits(graph: _Graph, x: str, action: ActionSpec, branch: int) -> str:
    """Logits of one branch, [batch, size], -1e8 where forbidden."""
    start = sum(action.discrete_branches[:branch])
    end = start + action.discrete_branches[branch]
    logits = graph.dense(x, "heads/logits", slice(start, end), f"logits/{branch}")
    mask = graph.add("Slice", ["action_masks"], f"mask/{branch}", axes=[1], starts=[start], ends=[end])
    allowed = graph.add("Mul", [logits, mask], f"logits/{branch}/allowed")
    # (mask - 1) · 1e8, because engines dislike a constant on the left of a subtraction
    penalty = graph.add("Sub", [mask, "one"], f"mask/{branch}/minus_one")
    penalty = graph.add("Mul", [penalty, "forbidden"], f"mask/{branch}/penalty")
    return graph.add("Add", [allowed, penalty], f"logits/{branch}/masked")
