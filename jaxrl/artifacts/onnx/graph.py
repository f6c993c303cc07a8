"""Builds the ONNX model of a policy: the builders of its modules in order, and their records as a model of onnx.

A general converter (jax2onnx 0.17) was measured and left: its first conversion takes 6 to 10 seconds, it emits Expand,
which older Unity engines lack, and it brings eleven more packages. Each module of `jaxrl.networks` has its builder
beside it.

Opset 9 and IR version 4 are what ML-Agents' era writes: every Unity engine (Barracuda, Sentis, Inference Engine) reads
them, and IR 4 is the first in which constants are no inputs. Operators are plain; see `OPERATORS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jaxrl.connectors import chain as chains
from jaxrl.connectors.chain import Chain
from jaxrl.networks.normalizer import States
from jaxrl.networks.onnx_graph import ExportError, OnnxGraph, Tensor
from jaxrl.networks.policy import PolicyNetwork
from jaxrl.types import BehaviorSpec

Connectors = tuple[Chain, tuple[Any, ...]]
"""Connectors of a behavior, and their statistics: `PolicyState.connectors`."""

OPSET = 9
IR_VERSION = 4
API_VERSION = 3.0
OPERATORS = (
    *("Add", "ArgMax", "Clip", "Concat", "Div", "Gemm", "Identity", "Log", "Mul", "Multinomial", "RandomNormalLike"),
    *("Sigmoid", "Slice", "Softmax", "Sub"),
    *("Conv", "Flatten", "LeakyRelu", "MaxPool", "Relu"),  # of images
    *("Cast", "Less", "MatMul", "ReduceMean", "ReduceSum", "Reshape", "Sqrt", "Transpose"),  # of entities and goals
    *("Tanh", "Unsqueeze"),  # of memory
    "Exp",  # of squashed actions
)
"""All operators that a written file may contain."""


def build(
    spec: BehaviorSpec,
    network: PolicyNetwork,
    params: Mapping[str, np.ndarray],
    normalizer: States,
    connectors: Connectors | None = None,
) -> onnx.ModelProto:
    """Build a policy's model, with inputs, outputs and names as ML-Agents' Unity package expects (API version 3).

    Args:
      spec: observations and actions of the environment.
      network: the algorithm's, for observations and actions behind the connectors.
      params: its arrays by path ("body/layer_0/kernel"), kernels [inputs, outputs].
      normalizer: one state per observation, or None where it is not normalized.
      connectors: connectors between the environment and the actor, and their statistics as numpy arrays.

    Raises:
      UnsupportedObservationError: an observation of a kind without an encoder.
      ExportError: a parameter that is missing, or one that no builder knows.
    """
    graph, seen, finish = OnnxGraph(params), None, None
    if connectors is not None:
        chain, statistics = connectors
        inputs = tuple(graph.input(f"obs_{i}", *sensor.shape) for i, sensor in enumerate(spec.observations))
        seen, finish = (
            chains.observations_onnx(graph, chain, statistics, inputs),
            partial(chains.sent_onnx, graph, chain),
        )
    remembered = network.memory.memory_size if network.memory else 0
    graph.constant_output("version_number", np.array([API_VERSION], np.float32))
    graph.constant_output("memory_size", np.array([remembered], np.float32))
    network.write(graph, network.module, normalizer, seen, finish)
    if graph.unread():
        raise ExportError(
            f"the policy has parameters that the export does not know: {', '.join(graph.unread())}. Does the policy "
            "belong to this behavior and these network_settings?"
        )
    return _model(graph)


def _model(graph: OnnxGraph) -> onnx.ModelProto:
    """Convert the records of a graph to a model."""
    nodes = [helper.make_node(n.operator, n.inputs, [n.output], name=n.output, **n.attributes) for n in graph.nodes]
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    inputs, outputs = ([_value_info(tensor) for tensor in tensors] for tensors in (graph.inputs, graph.outputs))
    return helper.make_model(
        helper.make_graph(nodes, "policy", inputs, outputs, constants),
        producer_name="jaxrl",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    dtype = TensorProto.INT64 if tensor.integer else TensorProto.FLOAT
    return helper.make_tensor_value_info(tensor.name, dtype, tensor.shape)
