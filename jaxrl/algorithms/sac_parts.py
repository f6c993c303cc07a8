"""What SAC is made of for one behavior, and what of it learns."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl.algorithms.hyperparameters import SACHyperparameters
from jaxrl.algorithms.interface import Storage, TrainState
from jaxrl.algorithms.off_policy import storage_of
from jaxrl.learning.cloning import Cloning
from jaxrl.networks.models import ActionValueNetwork, SquashedActor, ValueNetwork
from jaxrl.rollout.buffer.cells import Extras
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


class Parts(NamedTuple):
    """SAC for one behavior."""

    spec: BehaviorSpec
    settings: BehaviorSettings
    hyper: SACHyperparameters
    actor: SquashedActor
    value: ValueNetwork
    q: ActionValueNetwork
    storage: Storage
    cloning: Cloning | None = None


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """The networks."""
    shape, signals, hyper = settings.network_settings, tuple(settings.reward_signals), settings.hyperparameters
    assert isinstance(hyper, SACHyperparameters)
    actor, value = SquashedActor(spec, shape), ValueNetwork(spec, shape, signals)
    storage = storage_of(spec, hyper, shape.memory, memories_of(settings))
    return Parts(spec, settings, hyper, actor, value, ActionValueNetwork(spec, shape, signals), storage)


def memories_of(settings: BehaviorSettings) -> Extras:
    """Of the policy and of V, which remember from decision to decision; Q begins anew with each sequence."""
    memory = settings.network_settings.memory
    return () if memory is None else tuple((name, (memory.memory_size,)) for name in ("actor", "critic"))


def groups_of(state: TrainState) -> dict[str, Any]:
    """Parameters by optimizer. The target follows V and has none."""
    critic = {name: state.critic[name] for name in ("value", "q1", "q2")}
    return {"policy": state.policy.params, "critic": critic, "entropy": state.own["log_alpha"]}


def temperatures_of(spec: BehaviorSpec) -> dict[str, int]:
    """How many temperatures there are of each kind of action."""
    kinds = {"continuous": min(spec.action.continuous_size, 1), "discrete": len(spec.action.discrete_branches)}
    return {kind: count for kind, count in kinds.items() if count}
