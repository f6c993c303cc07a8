"""The outputs of an ONNX file for `actions`: sampled and most probable actions, as sent to the environment.

`Multinomial` adds up the probabilities of one branch from first to last, so that indices with p = 0 (a log-probability
of -inf) are never drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxrl.networks.actions import ENVIRONMENT_CLIP, FORBIDDEN
from jaxrl.networks.onnx_graph import INT64, OnnxGraph
from jaxrl.types import ActionSpec

SIGMA, PROBABILITIES = "sigma", "probabilities"
"""Names of inner values for checks: σ is a constant, float32 [C], or a tensor [batch, C]; the tensors
`probabilities/<branch>` are [batch, size]."""
_MOST_PROBABLE = "deterministic_continuous_actions"


def continuous_onnx(
    graph: OnnxGraph, mean: str, log_sigma: np.ndarray, finish: Callable[[str], str] | None = None
) -> None:
    """Add the outputs clip(a, -3, 3) / 3 of a = mean + sigma · noise. mean [batch, C], log_sigma [C].

    `finish` adds further nodes to a tensor [batch, C] before it is an output.
    """
    size = len(log_sigma)
    sigma = graph.constant(SIGMA, np.exp(log_sigma))
    graph.constant("environment_clip", np.array([ENVIRONMENT_CLIP]))
    noise = graph.add("RandomNormalLike", [mean], "noise", mean=0.0, scale=1.0)
    noise = graph.add("Mul", [noise, sigma], "noise/scaled")
    _to_environment(graph, graph.add("Add", [noise, mean], "sample"), "continuous_actions", size, finish)
    graph.constant_output("continuous_action_output_shape", np.array([size], np.float32))
    _to_environment(graph, mean, _MOST_PROBABLE, size, finish)


def squashed_onnx(
    graph: OnnxGraph, mean: str, log_sigma: str, size: int, finish: Callable[[str], str] | None = None
) -> None:
    """Add the outputs tanh(mean + sigma · noise). mean, log_sigma [batch, C], C = `size`; `finish` as above.

    The deterministic action is tanh(mean); in ML-Agents' files it is the mean itself, which is not squashed.
    """
    sigma = graph.add("Exp", [log_sigma], SIGMA)
    noise = graph.add("RandomNormalLike", [mean], "noise", mean=0.0, scale=1.0)
    noise = graph.add("Mul", [noise, sigma], "noise/scaled")
    for raw, output in ((graph.add("Add", [noise, mean], "sample"), "continuous_actions"), (mean, _MOST_PROBABLE)):
        if finish is None:
            graph.add("Tanh", [raw], output)
        else:
            graph.add("Identity", [finish(graph.add("Tanh", [raw], f"{output}/squashed"))], output)
        graph.output(output, size)
    graph.constant_output("continuous_action_output_shape", np.array([size], np.float32))


def discrete_onnx(graph: OnnxGraph, logits: list[str], action: ActionSpec) -> None:
    """Add the outputs of branches: an index sampled from softmax(logits · mask + (mask - 1) · 1e8), and the best one.

    logits: a tensor [batch, size] per branch. Reads the input `action_masks`, [batch, M].
    """
    branches = action.discrete_branches
    graph.constant("one", np.ones(1))
    graph.constant("forbidden", np.array([FORBIDDEN]))
    masked = [_masked_logits(graph, x, action, i) for i, x in enumerate(logits)]
    _columns(graph, [_sample(graph, x, i) for i, x in enumerate(masked)], "discrete_actions")
    graph.constant_output("discrete_action_output_shape", np.array([branches], np.float32))
    best = [graph.add("ArgMax", [x], f"best/{i}", axis=1, keepdims=1) for i, x in enumerate(masked)]
    _columns(graph, best, "deterministic_discrete_actions")


def _to_environment(graph: OnnxGraph, x: str, output: str, size: int, finish: Callable[[str], str] | None) -> None:
    clipped = graph.add("Clip", [x], f"{output}/clipped", min=-ENVIRONMENT_CLIP, max=ENVIRONMENT_CLIP)
    if finish is None:
        graph.add("Div", [clipped, "environment_clip"], output)
    else:
        graph.add("Identity", [finish(graph.add("Div", [clipped, "environment_clip"], f"{output}/squashed"))], output)
    graph.output(output, size)


def _masked_logits(graph: OnnxGraph, logits: str, action: ActionSpec, branch: int) -> str:
    """Add the masked logits of one branch, [batch, size], -1e8 where forbidden."""
    start = sum(action.discrete_branches[:branch])
    end = start + action.discrete_branches[branch]
    mask = graph.add("Slice", ["action_masks"], f"mask/{branch}", axes=[1], starts=[start], ends=[end])
    allowed = graph.add("Mul", [logits, mask], f"logits/{branch}/allowed")
    # (mask - 1) · 1e8, because engines dislike a constant on the left of a subtraction
    penalty = graph.add("Sub", [mask, "one"], f"mask/{branch}/minus_one")
    penalty = graph.add("Mul", [penalty, "forbidden"], f"mask/{branch}/penalty")
    return graph.add("Add", [allowed, penalty], f"logits/{branch}/masked")


def _sample(graph: OnnxGraph, logits: str, branch: int) -> str:
    """Add the sampled index of one branch, int64 [batch, 1].

    It draws by the log of the softmax, not by the logits: every engine knows this pattern of ML-Agents' own files.
    """
    probabilities = graph.add("Softmax", [logits], f"{PROBABILITIES}/{branch}", axis=1)
    logs = graph.add("Log", [probabilities], f"log_probabilities/{branch}")
    return graph.add("Multinomial", [logs], f"sample/{branch}", dtype=INT64, sample_size=1)


def _columns(graph: OnnxGraph, columns: list[str], output: str) -> None:
    """Declare the columns of all branches side by side as an output, int64 [batch, D]."""
    if len(columns) == 1:
        graph.add("Identity", columns, output)
    else:
        graph.add("Concat", columns, output, axis=1)
    graph.output(output, len(columns), integer=True)
