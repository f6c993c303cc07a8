"""Policies, observations and runs for the tests of the ONNX export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime

from jaxrl.artifacts.onnx import session as onnx_session
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import start
from jaxrl.networks.policy import PolicyNetwork, actor_network
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

SETTINGS = NetworkSettings(hidden_units=16, num_layers=2)
ACTIONS = {
    "discrete": ActionSpec(0, (4,)),
    "branches": ActionSpec(0, (3, 2, 5)),
    "continuous": ActionSpec(3, ()),
    "hybrid": ActionSpec(2, (3, 2)),
}
ROWS = 7  # everywhere the same, so that JAX compiles each small operation once


def make_spec(action: ActionSpec, sizes: tuple[int, ...] = (4, 3)) -> BehaviorSpec:
    return BehaviorSpec(tuple(ObservationSpec(f"sensor {i}", (size,)) for i, size in enumerate(sizes)), action)


def make_obs(spec: BehaviorSpec, rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Numbers about 1, or images in bytes."""
    rng = np.random.default_rng(seed)
    return tuple(
        rng.integers(256, size=(rows, *o.shape), dtype=np.uint8)
        if o.dtype == "uint8"
        else (3.0 * rng.normal(size=(rows, *o.shape)) + 1.0).astype(np.float32)
        for o in spec.observations
    )


def make_masks(spec: BehaviorSpec, rows: int = ROWS, seed: int = 0) -> np.ndarray:
    """Half of the actions allowed, the last one of each branch always."""
    masks = np.random.default_rng(seed).random((rows, spec.action.mask_size)) < 0.5
    masks[:, np.cumsum(spec.action.discrete_branches, dtype=int) - 1] = True
    return masks


def make_policy(
    spec: BehaviorSpec,
    *,
    normalize: bool = True,
    settings: NetworkSettings = SETTINGS,
    spread: float = 0.3,
    make_network: Callable[..., PolicyNetwork] = actor_network,
) -> dict:
    """Arguments of `export` with weights large enough that every term shows in the outputs."""
    obs, network = make_obs(spec), make_network(spec, settings)
    params = network.module.init(jax.random.key(0), obs, start(settings.memory, (ROWS,)))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda p: np.asarray(p) + spread * rng.normal(size=p.shape).astype(np.float32), params)
    states = normalizer.update_all(normalizer.init_all(spec, normalize), obs, None)
    return {
        "spec": spec,
        "network": network,
        "actor_params": params,
        "normalizer": states,
        "sample_obs": obs,
        "sample_masks": make_masks(spec),
    }


def policy_mode(policy: dict, obs: tuple[np.ndarray, ...], masks: np.ndarray) -> Action:
    """What the Flax policy would send to the environment, deterministically."""
    return actions.to_environment(actions.mode(distribution(policy, obs), masks, policy["spec"].action))


def distribution(policy: dict, obs: tuple[np.ndarray, ...]) -> actions.ActionDistribution:
    with jax.default_matmul_precision("highest"):
        shown = normalizer.normalize_all(policy["normalizer"], obs)
        return policy["network"].module.apply(policy["actor_params"], shown)


def run(
    path: Path, obs: tuple[np.ndarray, ...], masks: np.ndarray, memory: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """All outputs of a file, sampling seeded; images in bytes are given as 0 to 1, as Unity does."""
    onnxruntime.set_seed(7)
    session = onnx_session.open_session(str(path))
    feed = {f"obs_{i}": x if x.dtype == np.float32 else x / np.float32(255) for i, x in enumerate(obs)}
    if masks.shape[1]:
        feed["action_masks"] = masks.astype(np.float32)
    if memory is not None:
        feed["recurrent_in"] = memory
    return dict(onnx_session.run(session, [node.name for node in session.get_outputs()], feed))


def without_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    kept = [output for output in model.graph.output if output.name != name]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model
