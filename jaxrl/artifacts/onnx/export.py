"""Write a policy as the ONNX file that Unity's ML-Agents package runs, and prove it before it gets its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from flax.traverse_util import flatten_dict

from jaxrl.artifacts import files
from jaxrl.artifacts.onnx.check import check_contract
from jaxrl.artifacts.onnx.graph import Connectors, build
from jaxrl.artifacts.onnx.operators import check_operators
from jaxrl.artifacts.onnx.parity import BATCHES, Moment, output_differences
from jaxrl.artifacts.onnx.session import RuntimeErrors
from jaxrl.compilation import quick_options
from jaxrl.connectors import chain as chains
from jaxrl.networks import normalizer as normalization
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.onnx_graph import ExportError
from jaxrl.networks.policy import PolicyNetwork
from jaxrl.types import Action, BehaviorSpec

__all__ = ["TOLERANCE", "ExportError", "check_contract", "export"]

TOLERANCE = 1e-4
"""Largest accepted absolute difference between the file and the policy (actions and probabilities are O(1))."""

MEMORY_STEPS = 3
"""Number of consecutive moments for which a file with memory is compared."""

MOST_NUMBERS = 1 << 20
"""Most numbers in the observations for which a file is compared: 49 colour images of 84 x 84."""

LARGE = 1e3
"""Observations beyond this make rounding a likely cause of a difference (without normalisation)."""


def export(
    path: Path,
    *,
    spec: BehaviorSpec,
    network: PolicyNetwork,
    actor_params: Mapping[str, Any],
    normalizer: normalization.States,
    sample_obs: tuple[np.ndarray, ...],
    sample_masks: np.ndarray,
    connectors: Connectors | None = None,
) -> float:
    """Write the policy to `path` and return the largest difference between the file and the Flax policy.

    The file is written beside its place, read back, checked against Unity's contract and run on the recorded
    observations; only then is it renamed to `path`. After a failure `path` is what it was before.

    Args:
      path: the .onnx file; its folder is created.
      spec: observations and actions of the behavior.
      network: the algorithm's `policy`, for observations and actions behind the connectors.
      actor_params: its variables; `network.left_out` are left out.
      normalizer: one state per observation, or None where it is not normalized.
      sample_obs: recorded observations before normalisation, their dtype [N, *shape] each, N >= 1. Keep N the same
        from one export to the next: JAX compiles the policy's operations anew for each N.
      sample_masks: bool or float [N, M], 1 where allowed; [N, 0] without discrete branches.
      connectors: connectors between environment and policy, all `exportable`, and their statistics.

    Raises:
      ExportError: a parameter that the graph does not know or lacks, or a file that fails a check or differs by more
        than `TOLERANCE`.
      UnsupportedObservationError: an observation of a kind without an encoder.
      files.ArtifactError: the file cannot be written.
      ValueError: no recorded rows.
    """
    if not len(sample_masks):
        raise ValueError("sample_obs and sample_masks hold no row; the parity check needs at least one")
    host = tuple(jax.device_get(state) for state in normalizer)
    if connectors is not None:
        connectors = connectors[0], jax.device_get(connectors[1])
    model = build(spec, network, _parameters(actor_params, network.left_out), host, connectors)
    asked = _Asked(network, actor_params, host, connectors)
    moments = _moments(asked, *_few(sample_obs, sample_masks))
    with files.writing(path) as file:
        file.write(model.SerializeToString(deterministic=True))
        file.flush()
        return _verify(path, Path(file.name), spec, moments)


def _parameters(actor_params: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the policy's arrays by path, on the host, without those whose path begins with one of `left_out`."""
    flat = flatten_dict(actor_params["params"], sep="/")
    return {name: np.asarray(jax.device_get(x)) for name, x in flat.items() if not name.startswith(left_out)}


class _Asked(NamedTuple):
    """A policy with its parameters, normalizer and connectors."""

    network: PolicyNetwork
    params: Mapping[str, Any]
    normalizer: normalization.States
    connectors: Connectors | None


def _few(obs: tuple[np.ndarray, ...], masks: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return as many of the first rows as hold `MOST_NUMBERS`: a convolution needs many times its images' memory."""
    rows = max(MOST_NUMBERS // sum(math.prod(x.shape[1:]) for x in obs), max(BATCHES) + 1)
    return tuple(x[:rows] for x in obs), masks[:rows]


def _moments(asked: _Asked, obs: tuple[np.ndarray, ...], masks: np.ndarray) -> list[Moment]:
    """Compute the policy's answers to the recorded observations: once, or with memory for some consecutive moments.

    Each moment shows every agent what its neighbour saw before; what they remember at first is drawn.
    """
    memory, lead = asked.network.memory, len(masks)
    if memory is None:
        dist, _, sent = _answer(asked, obs, ())
        return [Moment(obs, masks, dist, sent)]
    before = np.random.default_rng(0).uniform(-1.0, 1.0, (lead, memory.memory_size)).astype(np.float32)
    moments = []
    for number in range(MEMORY_STEPS):
        shown = tuple(np.roll(x, number, axis=0) for x in obs)
        dist, after, sent = _answer(asked, shown, before)
        moments.append(Moment(shown, np.roll(masks, number, axis=0), dist, sent, before, after))
        before = after
    return moments


def _answer(asked: _Asked, obs: tuple[np.ndarray, ...], carry: Any) -> tuple[ActionDistribution, Any, np.ndarray]:
    """Run the policy alone, on the host: its distribution, new memory, and the mean as the environment gets it [N, C].

    Full float32 also on an accelerator.
    """
    seen = obs
    if asked.connectors is not None:
        chain, lead = asked.connectors[0], obs[0].shape[:1]
        seen = tuple(jnp.asarray(x) for x in obs)
        seen = chains.shown(chain, chains.start(*asked.connectors, lead), seen, lead)
    with jax.default_matmul_precision("highest"):
        program = _program(None if any(x.ndim == 4 for x in obs) else jax.default_backend())
        dist, after, mean = jax.device_get(program(asked.network, asked.params, asked.normalizer, seen, carry))
    sent = mean if asked.connectors is None else chains.sent_exported(asked.connectors[0], mean)
    return dist, after, np.asarray(sent.continuous)


@cache
def _program(quick: str | None) -> Callable[..., tuple[ActionDistribution, Any, Action]]:
    """Make `_step` one program instead of 25 operations; `quick`: compile quickly for it, where nothing convolves."""
    return jax.jit(_step, static_argnums=0, compiler_options=None if quick is None else quick_options(quick))


def _step(network: PolicyNetwork, params: Any, normalizer: normalization.States, obs: Any, carry: Any) -> Any:
    dist, after = network.in_file.apply(params, normalization.normalize_all(normalizer, obs), carry, method="step")
    return dist, after, network.sent(dist)


def _verify(path: Path, temporary: Path, spec: BehaviorSpec, moments: list[Moment]) -> float:
    """Return the largest difference of the file as it lies on disk. Raises ExportError naming what is wrong with it."""
    model = onnx.load(temporary)
    problems = check_operators(model) + check_contract(temporary, spec)
    if problems:
        raise ExportError(f"{path} was not written, Unity could not use it: {'; '.join(problems)}")
    try:
        differences = output_differences(model, spec, moments)
    except RuntimeErrors as error:
        raise ExportError(f"{path} was not written, ONNX Runtime cannot run it: {error}") from error
    for difference in differences:
        if not difference.value <= TOLERANCE:  # also true for NaN
            advice = _advice(difference.value, moments[0].obs)
            raise ExportError(
                f"{path} was not written: output {difference.output} differs from the policy by "
                f"{difference.value:.3g} {difference.where}, allowed is {TOLERANCE:g}. {advice}"
            )
    return max(difference.value for difference in differences)


def _advice(difference: float, obs: tuple[np.ndarray, ...]) -> str:
    """Say what the user can do about a difference that is too large."""
    largest = max(float(np.abs(x).max()) for x in obs)
    if not np.isfinite(difference):
        return f"The policy's parameters or observations (up to {largest:g}) are not finite: training diverged."
    if largest > LARGE:
        return f"Observations reach {largest:g}, where float32 gets coarse: set network_settings.normalize to true."
    return "This is a bug in jaxrl, please report it with this text."
