"""Whether two ONNX files of one policy give the same actions: jaxrl's and the one that ML-Agents wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from jaxrl.artifacts.onnx.session import DTYPES, RuntimeErrors, open_session, run
from jaxrl.networks.memory_onnx import AFTER, BEFORE
from jaxrl.types import BehaviorSpec

_COMPARED = ("deterministic_continuous_actions", "deterministic_discrete_actions", AFTER)
_DISCRETE = "deterministic_discrete_actions"


class Agreement(NamedTuple):
    """How two files answer the same observations."""

    difference: float  # largest, of continuous actions and of what is remembered
    same_choices: float  # share of the rows in which all branches choose the same


def agreement(
    ours: Path, theirs: Path, spec: BehaviorSpec, obs: tuple[np.ndarray, ...], memory: np.ndarray | None
) -> Agreement | None:
    """Both files on the same N observations, all actions allowed; None where the other has no outputs to compare.

    Args:
      obs: float32 [N, *shape] each.
      memory: float32 [N, m], what is remembered; None without memory.
    """
    feed = {f"obs_{i}": x for i, x in enumerate(obs)}
    feed["action_masks"] = np.ones((len(obs[0]), spec.action.mask_size), np.float32)
    if memory is not None:
        feed[BEFORE] = memory[:, None]
    try:
        answers = [_answers(open_session(str(path)), feed) for path in (ours, theirs)]
    except RuntimeErrors:
        return None  # of an old version of ML-Agents, which ONNX Runtime cannot run
    names = set(answers[0]) & set(answers[1])
    if not names:
        return None
    gaps = [np.abs(answers[0][name] - answers[1][name]).max() for name in names if name != _DISCRETE]
    same = np.ones(1)
    if _DISCRETE in names:
        same = (answers[0][_DISCRETE] == answers[1][_DISCRETE]).all(axis=-1)
    return Agreement(float(max(gaps, default=0.0)), float(np.mean(same)))


def _answers(session: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [node.name for node in session.get_outputs() if node.name in _COMPARED]
    given = {node.name: feed[node.name].astype(DTYPES[node.type]) for node in session.get_inputs()}
    return {name: np.asarray(x, np.float64) for name, x in run(session, names, given).items()} if names else {}
