"""The network that acts: its module, and how a file for a game holds it. `Algorithm.policy` names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.actions_onnx import continuous_onnx, discrete_onnx, squashed_onnx
from jaxrl.networks.body import body_onnx
from jaxrl.networks.heads import logits_onnx, mean_onnx, squashed_onnx_heads
from jaxrl.networks.memory_onnx import BEFORE, memory_onnx, memory_output_onnx
from jaxrl.networks.models import Actor, SquashedActor
from jaxrl.networks.normalizer import States
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.types import Action, BehaviorSpec


@dataclass(frozen=True)
class PolicyNetwork:
    """Hashable, so that what is compiled for it is kept."""

    module: Any
    """A flax module: `step(obs, memory)` → (ActionDistribution, memory after it); obs are normalised."""
    write: Callable[[OnnxGraph, Any, States, tuple[str, ...] | None, Callable[[str], str] | None], None]
    """(graph, module, normaliser, tensors of what it sees or None: the file's inputs, what comes after an action or
    None) → the file's outputs but those that tell its version and memory."""
    sent: Callable[[ActionDistribution], Action]
    """What the environment gets where nothing is left to chance, [N, C]; branches are compared by their logits."""
    memory: MemorySettings | None = None
    left_out: tuple[str, ...] = ()
    """Parameters by the beginning of their path that acting does not need."""

    @property
    def in_file(self) -> Any:
        """The module as a file computes it: in float32, whatever its `compute_dtype`."""
        settings = getattr(self.module, "settings", None)
        if not isinstance(settings, NetworkSettings) or settings.compute_dtype == "float32":
            return self.module
        return self.module.clone(settings=settings.model_copy(update={"compute_dtype": "float32"}))


def actor_network(spec: BehaviorSpec, settings: NetworkSettings) -> PolicyNetwork:
    """jaxrl's own `Actor`, alone or with value heads on its body."""
    return PolicyNetwork(Actor(spec, settings), write_actor, mean_sent, settings.memory, ("values/",))


def squashed_network(spec: BehaviorSpec, settings: NetworkSettings) -> PolicyNetwork:
    """`SquashedActor`, of SAC."""
    return PolicyNetwork(SquashedActor(spec, settings), write_actor, squashed_sent, settings.memory)


def mean_sent(dist: ActionDistribution) -> Action:
    """The mean, clipped and scaled as the environment gets it."""
    return actions.to_environment(Action(dist.mean, jnp.zeros((*dist.mean.shape[:-1], 0), jnp.int32)))


def squashed_sent(dist: ActionDistribution) -> Action:
    """The squashed mean."""
    return Action(jnp.tanh(dist.mean), jnp.zeros((*dist.mean.shape[:-1], 0), jnp.int32))


def write_actor(
    graph: OnnxGraph,
    actor: Actor | SquashedActor,
    normalizer: States,
    seen: tuple[str, ...] | None,
    finish: Callable[[str], str] | None,
) -> None:
    """`Actor` or `SquashedActor` in a file."""
    action, memory = actor.spec.action, actor.settings.memory
    features, after = body_onnx(graph, actor.spec, actor.settings, normalizer, seen), ""
    if action.discrete_branches:
        graph.input("action_masks", action.mask_size)
    if memory is not None:
        graph.input(BEFORE, 1, memory.memory_size)
        features, after = memory_onnx(graph, features, memory)
    if action.continuous_size and isinstance(actor, SquashedActor):
        squashed_onnx(graph, *squashed_onnx_heads(graph, features), action.continuous_size, finish)
    elif action.continuous_size:
        continuous_onnx(graph, *mean_onnx(graph, features), finish)
    if action.discrete_branches:
        discrete_onnx(graph, logits_onnx(graph, features, action.discrete_branches), action)
    if memory is not None:
        memory_output_onnx(graph, after, memory.memory_size)
