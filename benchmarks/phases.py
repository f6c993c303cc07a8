"""The two halves of an algorithm's `learn`, for benchmarks that time them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxrl.algorithms import actor_critic, batches, mappo, on_policy, poca, ppo
from jaxrl.networks.models import Actor, TeamCritic
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


class Phases(NamedTuple):
    """What `learn` of PPO, MAPPO or MA-POCA goes through."""

    prepare: Callable[..., Any]  # (state, rollout) → (state, batch, metrics)
    update: Callable[..., Any]  # (state, batch) → (state, metrics)


def phases_of(trainer: str, spec: BehaviorSpec, settings: BehaviorSettings) -> Phases:
    """The phases with the networks that the algorithm builds."""
    if trainer != "poca":
        networks = {"ppo": ppo, "mappo": mappo}[trainer].make_networks(spec, settings)
        loss = partial(actor_critic.loss, networks, spec)
        return Phases(
            partial(actor_critic.prepare, networks, spec, settings), partial(on_policy.update, loss, settings)
        )
    network = settings.network_settings
    critic = TeamCritic(spec, network, tuple(settings.reward_signals))
    bound = poca.Bound(Actor(spec, network), critic, spec, settings)

    def update(state: Any, batch: batches.Batch) -> Any:
        return on_policy.update(partial(poca.loss, bound, max_team=state.own["max_team"]), settings, state, batch)

    return Phases(partial(poca.prepare, bound), update)
