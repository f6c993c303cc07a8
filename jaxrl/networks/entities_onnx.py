"""The ONNX graph of `entities`: plain products and reshapes, as Unity's engines know them from ML-Agents' files."""

from __future__ import annotations

import math

import numpy as np

from jaxrl.networks.attention import ABSENT, HEADS
from jaxrl.networks.encoders import JointEncoderInput
from jaxrl.networks.entities import EMBEDDING, PRESENT_FROM
from jaxrl.networks.onnx_graph import FLOAT, OnnxGraph


def entities_onnx(graph: OnnxGraph, given: JointEncoderInput) -> str:
    """Add `EntityEncoder` of tensors [batch, n, F] and the other encodings [batch, E0]: [batch, 128]."""
    path = given.path
    seen = None if given.own is None else graph.swish(graph.dense(given.own, f"{path}/self"))
    embedded = [_embedding(graph, f"{path}/embed_{i}", x, seen) for i, x in enumerate(given.xs)]
    lengths = [_length(graph, f"{path}/length_{i}", x) for i, x in enumerate(given.xs)]
    bound = graph.constant(f"{path}/present_from", np.array([PRESENT_FROM]))
    gone = graph.add("Less", [graph.concat(lengths, f"{path}/lengths"), bound], f"{path}/gone")
    absent = graph.add("Cast", [gone], f"{path}/absent", to=FLOAT)
    count = sum(observation.shape[0] for observation in given.observations)
    out = _attention(graph, f"{path}/attention", graph.concat(embedded, f"{path}/entities"), absent, count)
    return _mean_of_present(graph, path, out, absent)


def _length(graph: OnnxGraph, path: str, x: str) -> str:
    """Add the sum of squares of each entity, [batch, n, 1]."""
    squares = graph.add("Mul", [x, x], f"{path}/squares")
    return graph.add("ReduceSum", [squares], path, axes=[2], keepdims=1)


def _embedding(graph: OnnxGraph, path: str, x: str, seen: str | None) -> str:
    """Add `Embedding`: [batch, n, 128]."""
    kernel, bias = graph.param(f"{path}/kernel"), graph.constant(f"{path}/bias", graph.param(f"{path}/bias"))
    before = 0 if seen is None else EMBEDDING
    out = graph.add("MatMul", [x, graph.constant(f"{path}/kernel/features", kernel[before:])], f"{path}/features")
    if seen is not None:
        common = graph.add("Gemm", [seen, graph.constant(f"{path}/kernel/self", kernel[:before]), bias], f"{path}/self")
        bias = graph.reshape(common, (-1, 1, EMBEDDING), f"{path}/common")
    return graph.swish(graph.add("Add", [out, bias], path))


def _attention(graph: OnnxGraph, path: str, entities: str, absent: str, count: int) -> str:
    """Add `SelfAttention` without the mean: entities [batch, E, 128], absent [batch, E, 1] -> [batch, E, 128]."""
    x = graph.layer_norm(entities, 2, f"{path}/x")
    # keys are turned here, because engines dislike a transpose that is merged into the product
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (_part(graph, path, x, i, count, turn) for i, turn in enumerate(turns))
    products = graph.add("MatMul", [q, k], f"{path}/products")
    scale = graph.constant(f"{path}/scale", np.array([1.0 / math.sqrt(EMBEDDING)]))
    scores = graph.add("Mul", [products, scale], f"{path}/scaled")
    penalty = graph.add("Mul", [absent, graph.constant(f"{path}/forbidden", np.array([ABSENT]))], f"{path}/penalty")
    penalty = graph.reshape(penalty, (-1, 1, 1, count), f"{path}/penalty/keys")
    weights = graph.add("Softmax", [graph.add("Add", [scores, penalty], f"{path}/scores")], f"{path}/weights", axis=3)
    heads = graph.add("MatMul", [weights, v], f"{path}/heads")
    turned = graph.add("Transpose", [heads], f"{path}/turned", perm=[0, 2, 1, 3])
    attended = graph.reshape(turned, (-1, count, EMBEDDING), f"{path}/attended")
    kernel = graph.constant(f"{path}/out_kernel", graph.param(f"{path}/out_kernel"))
    bias = graph.constant(f"{path}/out_bias", graph.param(f"{path}/out_bias"))
    out = graph.add("Add", [graph.add("MatMul", [attended, kernel], f"{path}/projected"), bias], f"{path}/biased")
    return graph.layer_norm(graph.add("Add", [out, x], f"{path}/sum"), 2, f"{path}/out")


def _part(graph: OnnxGraph, path: str, x: str, index: int, count: int, turn: list[int]) -> str:
    """Add queries (`index` 0), keys (1) or values (2) by head."""
    place, columns = f"{path}/qkv/{index}", slice(index * EMBEDDING, (index + 1) * EMBEDDING)
    kernel = graph.constant(f"{place}/kernel", graph.param(f"{path}/qkv/kernel")[:, columns])
    bias = graph.constant(f"{place}/bias", graph.param(f"{path}/qkv/bias")[columns])
    out = graph.add("Add", [graph.add("MatMul", [x, kernel], f"{place}/product"), bias], place)
    heads = graph.reshape(out, (-1, count, HEADS, EMBEDDING // HEADS), f"{place}/heads")
    return graph.add("Transpose", [heads], f"{place}/turned", perm=turn)


def _mean_of_present(graph: OnnxGraph, path: str, x: str, absent: str) -> str:
    """Add Σ of present entities / (number present + 1e-7): x [batch, E, 128] -> [batch, 128]."""
    # 1 - absent, without the constant on the left of a subtraction
    minus = graph.add("Mul", [absent, graph.constant(f"{path}/minus_one", np.array([-1.0]))], f"{path}/minus")
    present = graph.add("Add", [minus, graph.constant(f"{path}/one", np.array([1.0]))], f"{path}/present")
    total = graph.add(
        "ReduceSum", [graph.add("Mul", [x, present], f"{path}/kept")], f"{path}/total", axes=[1], keepdims=0
    )
    number = graph.add("ReduceSum", [present], f"{path}/number", axes=[1], keepdims=0)
    safe = graph.add("Add", [number, graph.constant(f"{path}/epsilon", np.array([1e-7]))], f"{path}/number/safe")
    return graph.add("Div", [total, safe], f"{path}/mean")
