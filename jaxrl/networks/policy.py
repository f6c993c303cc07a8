"""The network that acts, `Algorithm.policy`: its module, and its form in a file for a game."""

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
    """A network that acts. Hashable, so that programs compiled for it are reused."""

    module: Any
    """A flax module: `step(obs, memory)` → (ActionDistribution, new memory); obs are normalised."""
    write: Callable[[OnnxGraph, Any, States, tuple[str, ...] | None, Callable[[str], str] | None], None]
    """(graph, module, normaliser, tensors of observations or None for the file's inputs, function that adds nodes to
    an action or None): adds all outputs of the file but those of version and memory size."""
    sent: Callable[[ActionDistribution], Action]
    """(distribution) → the environment's deterministic action, [N, C]; branches are compared by their logits."""
    memory: MemorySettings | None = None
    left_out: tuple[str, ...] = ()
    """Beginnings of the paths of parameters that acting does not need."""

    @property
    def in_file(self) -> Any:
        """Module that a file computes: in float32, whatever its `compute_dtype`."""
        settings = getattr(self.module, "settings", None)
        if not isinstance(settings, NetworkSettings) or settings.compute_dtype == "float32":
            return self.module
        return self.module.clone(settings=settings.model_copy(update={"compute_dtype": "float32"}))


def actor_network(spec: BehaviorSpec, settings: NetworkSettings) -> PolicyNetwork:
    """Make the policy network of jaxrl's `Actor`, alone or with value heads on its body."""
    return PolicyNetwork(Actor(spec, settings), write_actor, mean_sent, settings.memory, ("values/",))


def squashed_network(spec: BehaviorSpec, settings: NetworkSettings) -> PolicyNetwork:
    """Make the policy network of SAC's `SquashedActor`."""
    return PolicyNetwork(SquashedActor(spec, settings), write_actor, squashed_sent, settings.memory)


def mean_sent(dist: ActionDistribution) -> Action:
    """Return the mean, clipped and scaled for the environment."""
    return actions.to_environment(Action(dist.mean, jnp.zeros((*dist.mean.shape[:-1], 0), jnp.int32)))


def squashed_sent(dist: ActionDistribution) -> Action:
    """Return the squashed mean."""
    return Action(jnp.tanh(dist.mean), jnp.zeros((*dist.mean.shape[:-1], 0), jnp.int32))


def write_actor(
    graph: OnnxGraph,
    actor: Actor | SquashedActor,
    normalizer: States,
    seen: tuple[str, ...] | None,
    finish: Callable[[str], str] | None,
) -> None:
    """Add `Actor` or `SquashedActor` to a graph."""
    action, memory = actor.spec.action, actor.settings.memory
    features, new_memory = body_onnx(graph, actor.spec, actor.settings, normalizer, seen), ""
    if action.discrete_branches:
        graph.input("action_masks", action.mask_size)
    if memory is not None:
        graph.input(BEFORE, 1, memory.memory_size)
        features, new_memory = memory_onnx(graph, features, memory)
    if action.continuous_size and isinstance(actor, SquashedActor):
        squashed_onnx(graph, *squashed_onnx_heads(graph, features), action.continuous_size, finish)
    elif action.continuous_size:
        continuous_onnx(graph, *mean_onnx(graph, features), finish)
    if action.discrete_branches:
        discrete_onnx(graph, logits_onnx(graph, features, action.discrete_branches), action)
    if memory is not None:
        memory_output_onnx(graph, new_memory, memory.memory_size)
