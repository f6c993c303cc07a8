"""PPO (Schulman et al. 2017, arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).

Every agent is on its own: a row holds one agent (A = 1), which is credited only for what it lives to see. The loss is
policy + 0.5 · value − β · entropy, the advantage R − V, which is GAE; both stand in `actor_critic.py`. Beside it,
`poca.py` subtracts a counterfactual baseline instead of V, and `mappo.py` lets V see the whole team.

Parity. Equal to ML-Agents 1.1.0: networks and initialisation, separate critic or shared body (`shared_critic`), the
value loss that is a plain squared error (the original's clip compares with the return itself and never acts),
log-probability ratios per action column, advantages normalised once per update, Adam, schedules, group rewards added
to the agent's own.
Different on purpose: all rows are taken together when buffer_size is exceeded, the original waits for time_horizon;
with `shared_critic` the normaliser is updated once per observation, the original counts each twice.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.algorithms import actor_critic, on_policy
from jaxrl.algorithms.actor_critic import Networks, Obs
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Params
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import part, start
from jaxrl.networks.models import Actor, SharedActorCritic, ValueNetwork
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_ppo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """PPO for one behavior."""
    return actor_critic.make(make_networks(spec, settings), spec, settings, team_rows=False)


def make_networks(spec: BehaviorSpec, settings: BehaviorSettings) -> Networks:
    """Two bodies, or one with `shared_critic`. Who is present does not matter: each agent has its own value."""
    streams, shape = tuple(settings.reward_signals), settings.network_settings
    first = start(shape.memory, (1, 1))
    if settings.hyperparameters.shared_critic:
        shared = SharedActorCritic(spec, shape, streams)
        return Networks(
            init=lambda key, obs: {"actor": shared.init(key, obs, first), "critic": {}},
            distribution=on_policy.applied(shared, SharedActorCritic.distribution),
            step=on_policy.applied(shared, SharedActorCritic.step),
            both=lambda params, obs, _, memory=(): on_policy.applied(shared)(
                params["actor"], obs, part(memory, "actor")
            ),
            follow=None,
        )
    actor, critic = Actor(spec, shape), ValueNetwork(spec, shape, streams)
    act, estimate = on_policy.applied(actor), on_policy.applied(critic)

    def init_two(key: jax.Array, obs: Obs) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key, obs, first), "critic": critic.init(critic_key, obs, first)}

    def both(params: Params, obs: Obs, _: jax.Array, memory: Any = ()) -> tuple[ActionDistribution, jax.Array]:
        dist = act(params["actor"], obs, part(memory, "actor"))
        return dist, estimate(params["critic"], obs, part(memory, "critic"))

    return Networks(
        init=init_two,
        distribution=act,
        step=on_policy.applied(actor, Actor.step),
        both=both,
        follow=lambda params, obs, _, memory: on_policy.applied(critic, ValueNetwork.step)(params, obs, memory)[1],
    )
