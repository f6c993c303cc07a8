"""MAPPO: PPO with a joint critic (Yu et al. 2022, arXiv 2103.01955).

A row holds a team. The actor sees an agent's own observation; the critic is a fully connected network over the
observations of all members, with a place for each of `team_capacity` (absent ones: zeros and a flag, see
`networks.joint`). V is computed once per team state and shared by its members. Each member has its own reward and the
group's, as in PPO (for the group reward of an ended member see `rewards/extrinsic.py`), so the advantage of member i is
R_i − V, GAE with a shared value; the loss is PPO's. The return of a member that ends while its team lives goes on along
the mean return of the members that live on (`posthumous_credit: value`: restarts from the team's next value). Parts of
all policy-gradient algorithms are in `policy_gradient.py`.

Different from the paper on purpose: details are those of ML-Agents' PPO (initialisation, one normaliser for actor and
critic, ratios per action column, the value loss without clip, no gradient clipping), and the value is not normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics, Params
from jaxrl.algorithms.parts import (
    Batch,
    Groups,
    Now,
    Parts,
    Seen,
    SharedCritic,
    applied,
    of_each_member,
    policy_terms,
)
from jaxrl.algorithms.policy_gradient import no_obs
from jaxrl.learning import losses
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.joint import JointValue
from jaxrl.networks.memory import of_all, start
from jaxrl.networks.models import Actor
from jaxrl.networks.places import actor_of
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_mappo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make MAPPO for one behavior.

    `learn` raises `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Make the policy of one agent, the value of its team, and the loss."""
    signals, shape = tuple(settings.reward_signals), settings.network_settings
    actor = actor_of(spec, shape, settings.places)
    critic = JointValue(spec, shape, signals, settings.hyperparameters.team_capacity)

    def init(key: jax.Array) -> tuple[Groups, jax.Array]:
        network_key, key = jax.random.split(key)
        actor_key, critic_key = jax.random.split(network_key)
        obs, first = no_obs(spec), start(shape.memory, (1, 1))
        of_critic = critic.init(critic_key, obs, jnp.ones((1, 1), bool), first)
        return {"actor": actor.init(actor_key, obs, first), "critic": of_critic}, key

    def estimates(params: Groups, seen: Seen, _: Any) -> tuple[jax.Array, None]:
        """Compute V of the team for each member, [..., A, R]."""
        value = applied(critic)(params["critic"], seen.obs, seen.present, seen.memory_of("critic"))
        return of_each_member(value, seen.present), None

    def loss(
        dist: ActionDistribution, value: jax.Array, _: jax.Array | None, batch: Batch, now: Now
    ) -> tuple[jax.Array, Metrics]:
        """Compute policy + 0.5 · value − β · entropy of a minibatch of team states [N, A, ...]."""
        policy_loss, entropy, metrics = policy_terms(dist, batch, spec, now.epsilon)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        return policy_loss + 0.5 * value_loss - now.beta * entropy, metrics | {"value_loss": value_loss}

    def critic_step(params: Groups, seen: Seen) -> jax.Array:
        return applied(critic, JointValue.step)(params, seen.obs, seen.present, seen.memory_of("critic"))[1]

    return Parts(
        spec=spec,
        settings=settings,
        init=init,
        actor=applied(actor),
        step=applied(actor, Actor.step),
        critic_step=critic_step,
        estimates=estimates,
        loss=loss,
        cooperative=False,
        team_rows=True,
        posthumous=settings.hyperparameters.posthumous_credit == "return",
        places=settings.places,
        memories={"actor": (), "critic": ()},
        shared=SharedCritic(shared_init, shared_judge, estimates),
    )


# One critic of several behaviors (`team.py`): each has its encoder and its places, the first all other parts as well


def critic_of(parts: Parts) -> JointValue:
    """Make the critic of a behavior that learns alone."""
    signals, capacity = tuple(parts.settings.reward_signals), parts.settings.hyperparameters.team_capacity
    return JointValue(parts.spec, parts.settings.network_settings, signals, capacity)


def shared_init(team: Mapping[str, Parts], name: str, key: jax.Array) -> Params:
    """Make the critic parameters that behavior `name` holds. The key is consumed."""
    first, *others = team
    seen = no_obs(team[name].spec), jnp.ones((1, 1), bool)
    if name != first:
        return critic_of(team[name]).init(key, *seen, method=JointValue.places)
    widths = [places_of(team[other]) for other in others]
    others, memory = jnp.zeros((1, sum(widths))), start(team[name].settings.network_settings.memory, (1, 1))
    return critic_of(team[name]).init(key, *seen, others, memory, method=JointValue.beside)


def places_of(parts: Parts) -> int:
    """Return the width of a behavior's places in the critic of its team."""
    seen = no_obs(parts.spec), jnp.ones((1, 1), bool)
    encode = partial(critic_of(parts).init_with_output, method=JointValue.places)
    return jax.eval_shape(lambda: encode(jax.random.key(0), *seen)[0]).shape[-1]


def shared_judge(
    team: Mapping[str, Parts], params: Mapping[str, Groups], seen: Mapping[str, Seen], _: Any
) -> tuple[jax.Array, None, Any]:
    """Compute V of the whole team for each member, [..., A, R] over the members of all behaviors; memory."""
    places = [
        applied(critic_of(parts), JointValue.places)(params[name]["critic"], seen[name].obs, seen[name].present)
        for name, parts in team.items()
    ]
    present = jnp.concatenate([seen[name].present for name in team], axis=-1)
    first = next(iter(team))
    judge = applied(critic_of(team[first]), JointValue.judge)
    memory = of_all((seen[name].memory_of("critic") for name in team), present.ndim - 1)
    value, new_memory = judge(params[first]["critic"], jnp.concatenate(places, axis=-1), present, memory)
    return of_each_member(value, present), None, new_memory
