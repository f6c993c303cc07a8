"""MAPPO: PPO with a joint critic (Yu et al. 2022, arXiv 2103.01955).

A row holds a team. The actor sees an agent's own observation; the critic is a fully connected network over the
observations of all members, with a place for each of `team_capacity` (absent ones: zeros and a flag, see
`networks.joint`). V is computed once per team state and shared by its members. Each member has its own reward and the
group's, as in PPO (what an ended member gets of the group's: `rewards/extrinsic.py`), so the advantage of member i is
R_i − V, GAE with a shared value; the loss is PPO's, see `actor_critic.py`. A member that ends while its team lives
bootstraps from the team's next value.

Different from the paper on purpose: what ML-Agents' PPO does stays (initialisation, one normaliser for actor and
critic, ratios per action column, the value loss without clip, no gradient clipping), and the value is not normalised.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms import actor_critic, on_policy
from jaxrl.algorithms.actor_critic import Networks, Obs
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Params
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.joint import JointValue
from jaxrl.networks.memory import part, start
from jaxrl.networks.models import Actor
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_mappo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MAPPO for one behavior.

    `learn` raises `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    return actor_critic.make(make_networks(spec, settings), spec, settings, team_rows=True)


def make_networks(spec: BehaviorSpec, settings: BehaviorSettings) -> Networks:
    """The policy of one agent and the value of its team."""
    streams, capacity = tuple(settings.reward_signals), settings.hyperparameters.team_capacity
    actor = Actor(spec, settings.network_settings)
    critic = JointValue(spec, settings.network_settings, streams, capacity)
    act, estimate = on_policy.applied(actor), on_policy.applied(critic)
    first, one = start(settings.network_settings.memory, (1, 1)), jnp.ones((1, 1), bool)

    def init_two(key: jax.Array, obs: Obs) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key, obs, first), "critic": critic.init(critic_key, obs, one, first)}

    def both(params: Params, obs: Obs, present: jax.Array, memory: Any = ()) -> tuple[ActionDistribution, jax.Array]:
        value = estimate(params["critic"], obs, present, part(memory, "critic"))
        return act(params["actor"], obs, part(memory, "actor")), actor_critic.one_value_for_all(value, present)

    return Networks(
        init=init_two,
        distribution=act,
        step=on_policy.applied(actor, Actor.step),
        both=both,
        follow=lambda params, *team: on_policy.applied(critic, JointValue.step)(params, *team)[1],
    )
