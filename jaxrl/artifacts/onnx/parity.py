"""Does the exported file do what the policy does? ONNX Runtime against Flax on recorded observations.

Deterministic outputs alone would miss a wrong number that changes no argmax here, so the probabilities of every branch
and the standard deviation of the noise are read from inside the graph and compared as well.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrl.artifacts.onnx.check import Outputs, open_session, run
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.actions_onnx import PROBABILITIES, SIGMA
from jaxrl.types import ActionSpec, BehaviorSpec

BRIGHTEST = 255.0
"""Of images in whole numbers."""
TIE = 1e-5
"""Probability gap of the two best actions below which either may come out as the best one."""


class Expected(NamedTuple):
    """What the policy says about the N recorded rows."""

    dist: ActionDistribution
    sent: np.ndarray  # float32 [N, C], the mean as the environment gets it


class Difference(NamedTuple):
    """Largest absolute difference of one output; NaN where a side gave NaN."""

    output: str
    value: float
    where: str


def output_differences(
    model: onnx.ModelProto, spec: BehaviorSpec, expected: Expected, obs: tuple[np.ndarray, ...], masks: np.ndarray
) -> list[Difference]:
    """One entry per output compared: the file against the policy.

    Args:
      model: the file as it was read back.
      spec: observations and actions.
      expected: the policy's answers to the N recorded rows.
      obs: recorded observations, raw, their dtype [N, *shape] each; images in whole numbers are given as 0 to 1.
      masks: bool or float [N, M], 1 where allowed.
    """
    outputs, dist = _run(model, spec.action, obs, masks), expected.dist
    found = _continuous(model, outputs, expected) if spec.action.continuous_size else []
    return found + (_discrete(outputs, dist, masks, spec.action) if spec.action.discrete_branches else [])


def _run(model: onnx.ModelProto, action: ActionSpec, obs: tuple[np.ndarray, ...], masks: np.ndarray) -> Outputs:
    """Deterministic outputs and the inner tensors, from a copy of the model in which those are outputs too."""
    inner = [f"{PROBABILITIES}/{i}" for i in range(len(action.discrete_branches))]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name, size in zip(inner, action.discrete_branches, strict=True):
        probe.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, size]))
    names = [*inner, *(node.name for node in model.graph.output if node.name.startswith("deterministic_"))]
    feed = {
        f"obs_{i}": np.asarray(x, np.float32) / (BRIGHTEST if x.dtype == np.uint8 else 1) for i, x in enumerate(obs)
    }
    if action.discrete_branches:
        feed["action_masks"] = np.asarray(masks, np.float32)
    return run(open_session(probe.SerializeToString()), names, feed)


def _continuous(model: onnx.ModelProto, outputs: Outputs, expected: Expected) -> list[Difference]:
    sigma = next(numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == SIGMA)
    name = "deterministic_continuous_actions"
    return [
        _largest(name, outputs[name], expected.sent),
        _largest("continuous_actions (standard deviation of the noise)", sigma, np.exp(expected.dist.log_sigma)),
    ]


def _discrete(outputs: Outputs, dist: ActionDistribution, masks: np.ndarray, action: ActionSpec) -> list[Difference]:
    found = []
    allowed = np.where(np.asarray(masks, bool), np.asarray(dist.logits, np.float64), -actions.FORBIDDEN)
    ends = np.cumsum(action.discrete_branches)
    for i, logits in enumerate(np.split(allowed, ends[:-1], axis=-1)):
        # numpy, because JAX would compile each of these small steps at the first export
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        name = f"discrete_actions (probabilities of branch {i})"
        found.append(_largest(name, outputs[f"{PROBABILITIES}/{i}"], p))
        name = "deterministic_discrete_actions"
        found.append(_disagreement(f"{name} (branch {i})", outputs[name][:, i], p))
    return found


def _largest(output: str, found: np.ndarray, expected: np.ndarray | jax.Array) -> Difference:
    gap = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    index = np.unravel_index(np.argmax(gap), gap.shape)  # NaN counts as the largest
    return Difference(output=output, value=float(gap[index]), where=f"at {[int(i) for i in index]}")


def _disagreement(output: str, found: np.ndarray, probabilities: np.ndarray) -> Difference:
    """Largest difference of the chosen index over the rows in which the best action is clear."""
    runner_up, best = np.sort(probabilities, axis=-1)[:, -2:].T if probabilities.shape[1] > 1 else (0.0, 1.0)
    wrong = np.where(best - runner_up > TIE, np.abs(found - probabilities.argmax(axis=-1)), 0)
    row = int(np.argmax(wrong))
    return Difference(output=output, value=float(wrong[row]), where=f"at [{row}]")
