"""Checks the operators of a model: the few that jaxrl writes, and those that Unity's engines accept of any model.

Engines: Barracuda (packages up to 2.x), Sentis, which is also called Inference Engine. Its manuals promise opsets 7 to
15, from 2.6 on up to 25, and say of others that they may import with unexpected results.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from jaxrl.artifacts.onnx.findings import Finding, Outcome
from jaxrl.artifacts.onnx.graph import OPERATORS, OPSET

CHECK = "operators"
OLDEST_OPSET, NEWEST_OPSET = 7, 25
"""Oldest and newest opset that any engine promises."""
NEWEST_BEFORE = 15
"""Newest opset before Inference Engine 2.6."""
NOWHERE = (
    *("GRU", "If", "Loop", "RNN", "Scan", "Unique", "Optional", "OptionalGetElement", "OptionalHasElement"),
    *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "SplitToSequence", "StringNormalizer", "TfIdfVectorizer"),
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"),
)
"""Operators that no engine has: control flow, sequences, strings, whole-number arithmetic, recurrent cells but LSTM."""
NOT_IN_OLDER = ("Einsum", "Expand", "FusedMatMul", "Split")
"""Operators that older engines lack or read wrongly; ML-Agents' exporter goes out of their way."""
_STANDARD = ("", "ai.onnx")


def check_operators(model: onnx.ModelProto) -> list[str]:
    """Return reasons why an engine of Unity might not read a file that jaxrl writes, one line each.

    Only the operators of `OPERATORS` at opset 9, and no constant on the left of a subtraction.
    """
    problems = [
        f"opset {entry.version} of '{entry.domain}', expected {OPSET} of ''"
        for entry in model.opset_import
        if (entry.domain, entry.version) != ("", OPSET)
    ]
    for node in model.graph.node:
        if node.op_type not in OPERATORS:
            problems.append(f"node '{node.name}': operator {node.op_type} is not one of {', '.join(OPERATORS)}")
    problems += [
        f"node '{node.name}': subtracts from the constant '{node.input[0]}'" for node in _from_constants(model.graph)
    ]
    return problems


def operator_findings(model: onnx.ModelProto) -> list[Finding]:
    """Check the operators of any model against Unity's engines; return one finding that all is well if it is."""
    findings = [*_opset_findings(model), *_node_findings(model.graph)]
    if findings:
        return findings
    opset = next((entry.version for entry in model.opset_import if entry.domain in _STANDARD), "?")
    used = sorted({node.op_type for node in _nodes(model.graph)})
    return [Finding(CHECK, Outcome.OK, f"opset {opset}: {', '.join(used)}")]


def _opset_findings(model: onnx.ModelProto) -> Iterator[Finding]:
    for entry in model.opset_import:
        if entry.domain not in _STANDARD or OLDEST_OPSET <= entry.version <= NEWEST_BEFORE:
            continue
        promise = f"Unity's Inference Engine promises {OLDEST_OPSET} to {NEWEST_OPSET}, before 2.6 {NEWEST_BEFORE}"
        newer = NEWEST_BEFORE < entry.version <= NEWEST_OPSET
        remedy = "use 2.6 or newer, or export" if newer else "export"
        yield Finding(
            CHECK, Outcome.WARNING, f"opset {entry.version}, {promise}", f"{remedy} with opset 9, as ML-Agents does"
        )


def weight_findings(model: onnx.ModelProto) -> list[Finding]:
    """Find arrays with entries that are NaN: every action would be NaN."""
    tensors = [*model.graph.initializer]
    tensors += [a.t for node in _nodes(model.graph) for a in node.attribute if a.type == AttributeProto.TENSOR]
    bad = [tensor.name or "a constant" for tensor in tensors if not _all_numbers(tensor)]
    if not bad:
        return []
    text = f"NaN in {', '.join(bad[:3])}{f' and {len(bad) - 3} more' if len(bad) > 3 else ''}: no action is a number"
    return [Finding("weights", Outcome.REFUSED, text, "take an earlier checkpoint, from before training diverged")]


def _all_numbers(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor has no NaN; infinities stand in masks. Data in a file of their own are not looked at."""
    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
    if tensor.data_type not in kinds or tensor.data_location == TensorProto.EXTERNAL:
        return True
    return not np.isnan(numpy_helper.to_array(tensor)).any()


def _node_findings(graph: onnx.GraphProto) -> Iterator[Finding]:
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in _nodes(graph) if node.domain not in _STANDARD})
    if foreign:
        text = f"of no standard domain: {', '.join(foreign)}"
        yield Finding(CHECK, Outcome.REFUSED, text, "export with ONNX's own operators")
    used = {node.op_type for node in _nodes(graph)}
    if used & set(NOWHERE):
        text = f"no engine of Unity has {', '.join(sorted(used & set(NOWHERE)))}"
        yield Finding(CHECK, Outcome.REFUSED, text, "unroll or replace them by plain operators before the export")
    if used & set(NOT_IN_OLDER):
        text = f"older engines (Barracuda) lack or misread {', '.join(sorted(used & set(NOT_IN_OLDER)))}"
        yield Finding(CHECK, Outcome.WARNING, text, "use Slice, Mul and MatMul instead, or a package from 3.0 on")
    left = [node.name or node.output[0] for node in _from_constants(graph)]
    if left:
        text = f"older engines (Barracuda) misread a constant on the left of Sub: {', '.join(left)}"
        yield Finding(CHECK, Outcome.WARNING, text, "write c - x as (x - c) · (-1), or use a package from 3.0 on")


def _from_constants(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the subtractions from a constant."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return [node for node in graph.node if node.op_type == "Sub" and node.input[0] in constants]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph and of the graphs within its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)
