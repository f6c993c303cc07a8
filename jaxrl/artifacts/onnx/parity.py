"""Compares the exported file with the policy: ONNX Runtime against Flax on recorded observations.

Deterministic outputs alone would miss a wrong number that changes no argmax here, so the probabilities of every branch
and the standard deviation of the noise are read from inside the graph and compared as well. So is the memory.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from jaxrl.artifacts.onnx.session import Outputs, open_session, run
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.actions_onnx import PROBABILITIES, SIGMA
from jaxrl.networks.memory_onnx import AFTER, BEFORE
from jaxrl.types import ActionSpec, BehaviorSpec

BATCHES = (1, 3, 7)
"""Batch sizes that are compared besides all rows: Unity's batch has the agents that ask in a tick."""
BRIGHTEST = 255.0
"""Largest value of images in whole numbers."""
TIE = 1e-5
"""Probability gap of the two best actions below which either may come out as the best one."""


class Moment(NamedTuple):
    """Observations of N agents at one moment, and the policy's answer."""

    obs: tuple[np.ndarray, ...]  # raw, their dtype [N, *shape] each; images in whole numbers are given as 0 to 1
    masks: np.ndarray  # bool or float [N, M], 1 where allowed
    dist: ActionDistribution
    sent: np.ndarray  # float32 [N, C], the mean as the environment gets it
    before: np.ndarray | None = None  # float32 [N, m], their memory
    after: np.ndarray | None = None  # float32 [N, m], their memory afterwards


class Difference(NamedTuple):
    """Largest absolute difference of one output; NaN where a side gave NaN."""

    output: str
    value: float
    where: str


def output_differences(model: onnx.ModelProto, spec: BehaviorSpec, moments: list[Moment]) -> list[Difference]:
    """Compare the file with the policy; return one entry per output and question.

    With memory the moments follow each other and the file goes on with what it remembers itself, so that errors may
    grow as they would in a game. The first one is also asked in smaller batches, and with all actions allowed.

    Args:
      model: the file as it was read back.
      spec: observations and actions.
      moments: the policy's answers, at least one.
    """
    session, names = _opened(model, spec.action)
    first, memory, differences = moments[0], moments[0].before, []
    for number, moment in enumerate(moments):
        outputs = run(session, names, _feed(moment, spec.action, memory))
        when = f", step {number + 1}" if len(moments) > 1 else ""
        differences += _compared(model, outputs, moment, spec.action, when)
        memory = outputs[AFTER][:, 0] if AFTER in names else None
    free = first._replace(masks=np.ones_like(first.masks))
    asked = [(_rows(first, size), f", batch of {size}") for size in BATCHES if size < len(first.masks)]
    for moment, when in [*asked, (free, ", all allowed")] if spec.action.discrete_branches else asked:
        outputs = run(session, names, _feed(moment, spec.action, moment.before))
        differences += _compared(model, outputs, moment, spec.action, when)
    return differences


def _opened(model: onnx.ModelProto, action: ActionSpec) -> tuple[onnxruntime.InferenceSession, list[str]]:
    """Open a copy of the model in which inner tensors are outputs too. Return also the names of compared outputs."""
    inner = [f"{PROBABILITIES}/{i}" for i in range(len(action.discrete_branches))]
    sizes = list(action.discrete_branches)
    if any(SIGMA in node.output for node in model.graph.node):  # of a policy that is surer here than there
        inner, sizes = [*inner, SIGMA], [*sizes, action.continuous_size]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name, size in zip(inner, sizes, strict=True):
        probe.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, size]))
    names = [node.name for node in model.graph.output if node.name.startswith("deterministic_") or node.name == AFTER]
    return open_session(probe.SerializeToString()), [*inner, *names]


def _feed(moment: Moment, action: ActionSpec, memory: np.ndarray | None) -> dict[str, np.ndarray]:
    feed = {
        f"obs_{i}": np.asarray(x, np.float32) / np.float32(BRIGHTEST if x.dtype == np.uint8 else 1)
        for i, x in enumerate(moment.obs)
    }
    if action.discrete_branches:
        feed["action_masks"] = np.asarray(moment.masks, np.float32)
    if memory is not None:
        feed[BEFORE] = np.asarray(memory, np.float32)[:, None]
    return feed


def _rows(moment: Moment, size: int) -> Moment:
    """Return the moment of the first agents alone. The deviation of the noise may have a row per agent."""
    dist = moment.dist._replace(mean=moment.dist.mean[:size], logits=moment.dist.logits[:size])
    if dist.log_sigma.ndim > 1:
        dist = dist._replace(log_sigma=dist.log_sigma[:size])
    before, after = (None if x is None else x[:size] for x in (moment.before, moment.after))
    obs = tuple(x[:size] for x in moment.obs)
    return Moment(obs, moment.masks[:size], dist, moment.sent[:size], before, after)


def _compared(
    model: onnx.ModelProto, outputs: Outputs, moment: Moment, action: ActionSpec, when: str
) -> list[Difference]:
    differences = _continuous(model, outputs, moment) if action.continuous_size else []
    differences += _discrete(outputs, moment.dist, moment.masks, action) if action.discrete_branches else []
    if moment.after is not None:
        differences.append(_largest(AFTER, outputs[AFTER][:, 0], moment.after))
    return [difference._replace(where=difference.where + when) for difference in differences]


def _continuous(model: onnx.ModelProto, outputs: Outputs, expected: Moment) -> list[Difference]:
    constant = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == SIGMA)
    sigma = outputs[SIGMA] if SIGMA in outputs else next(constant)
    name = "deterministic_continuous_actions"
    return [
        _largest(name, outputs[name], expected.sent),
        _largest("continuous_actions (standard deviation of the noise)", sigma, np.exp(expected.dist.log_sigma)),
    ]


def _discrete(outputs: Outputs, dist: ActionDistribution, masks: np.ndarray, action: ActionSpec) -> list[Difference]:
    differences = []
    allowed = np.where(np.asarray(masks, bool), np.asarray(dist.logits, np.float64), -actions.FORBIDDEN)
    ends = np.cumsum(action.discrete_branches)
    for i, logits in enumerate(np.split(allowed, ends[:-1], axis=-1)):
        # numpy, because JAX would compile each of these small steps at the first export
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        name = f"discrete_actions (probabilities of branch {i})"
        differences.append(_largest(name, outputs[f"{PROBABILITIES}/{i}"], p))
        name = "deterministic_discrete_actions"
        differences.append(_disagreement(f"{name} (branch {i})", outputs[name][:, i], p))
    return differences


def _largest(output: str, found: np.ndarray, expected: np.ndarray | jax.Array) -> Difference:
    gap = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    index = np.unravel_index(np.argmax(gap), gap.shape)  # NaN counts as the largest
    return Difference(output=output, value=float(gap[index]), where=f"at {[int(i) for i in index]}")


def _disagreement(output: str, found: np.ndarray, probabilities: np.ndarray) -> Difference:
    """Return the largest difference of the chosen index over the rows in which the best action is clear."""
    runner_up, best = np.sort(probabilities, axis=-1)[:, -2:].T if probabilities.shape[1] > 1 else (0.0, 1.0)
    wrong = np.where(best - runner_up > TIE, np.abs(found - probabilities.argmax(axis=-1)), 0)
    row = int(np.argmax(wrong))
    return Difference(output=output, value=float(wrong[row]), where=f"at [{row}]")
