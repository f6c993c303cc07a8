"""COMA with absorbing states: the comparison of the MA-POCA paper (Cohen et al. 2021, arXiv 2111.05992).

After COMA (Foerster et al. 2018, arXiv 1705.08926): each member's advantage is the return less a counterfactual
baseline that sees everything but its own action. Losses, λ-returns, posthumous credit and all else are MA-POCA's, see
`poca.py` and `policy_gradient.py`; the critic alone differs. It is fully connected, with a place for each of
`team_capacity` members; members that are not there stand in their place as an absorbing state, zeros and a flag (see
`networks.joint`), where MA-POCA's attention leaves them out. Value and baseline are two networks of hidden_units and
num_layers, initialised as ML-Agents' PPO critic.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics
from jaxrl.algorithms.policy_gradient import Batch, Groups, Judged, Now, Parts, Seen, applied, no_obs, policy_terms
from jaxrl.learning import losses
from jaxrl.networks import actions
from jaxrl.networks.joint import JointCritic
from jaxrl.networks.memory import start
from jaxrl.networks.models import Actor
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

NO_SIZE = np.float32(1.0)
"""The largest team, which the critic does not look at: flags tell who is there."""


@connected
def make_coma(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """COMA for one behavior.

    `learn` raises `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Networks, value and baselines, advantage and loss."""
    signals, shape = tuple(settings.reward_signals), settings.network_settings
    actor = Actor(spec, shape)  # sees its agent's own observation alone
    critic = JointCritic(spec, shape, signals, settings.hyperparameters.team_capacity)  # a place for each member

    def init(key: jax.Array) -> tuple[Groups, jax.Array]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        obs, present = no_obs(spec), jnp.ones((1, 1), bool)
        encoding = jnp.zeros((1, 1, spec.action.continuous_size + spec.action.mask_size), jnp.float32)
        first, both = (start(shape.memory, (1, 1, *kinds)) for kinds in ((), (2,)))
        of_critic = critic.init(critic_key, obs, encoding, present, NO_SIZE, both)
        return {"actor": actor.init(actor_key, obs, first), "critic": of_critic}, key

    def estimates(params: Groups, seen: Seen, _: Any) -> tuple[jax.Array, jax.Array]:
        """V of the team, as that of each member, and b_i of each, [..., A, R]."""
        team = seen.obs, actions.one_hot(seen.action, spec.action), seen.present
        value, baseline = applied(critic)(params["critic"], *team, NO_SIZE, seen.memory_of("critic"))
        chex.assert_shape(baseline, (*seen.present.shape, None))
        return policy_gradient.of_each_member(value, seen.present), baseline

    def terms(
        params: Groups, batch: Batch, now: Now, value: jax.Array, baseline: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """policy + 0.5 · (value + 0.5 · baseline) − β · entropy over a minibatch of team states [N, A, ...]."""
        dist = applied(actor)(params["actor"], batch.obs, batch.seen.memory_of("actor"))
        policy_loss, entropy, metrics = policy_terms(dist, batch, spec, now.epsilon)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, now.epsilon)
        total = policy_loss + 0.5 * (value_loss + 0.5 * baseline_loss) - now.beta * entropy
        return total, metrics | {"value_loss": value_loss, "baseline_loss": baseline_loss}

    def critic_step(params: Groups, seen: Seen) -> jax.Array:
        team = seen.obs, actions.one_hot(seen.action, spec.action), seen.present
        step = applied(critic, JointCritic.step)
        return step(params, *team, NO_SIZE, seen.memory_of("critic"))[1]

    return Parts(
        spec=spec,
        settings=settings,
        init=init,
        actor=applied(actor),
        step=applied(actor, Actor.step),
        critic_step=critic_step,
        estimates=estimates,
        advantage=lambda returns, value, baseline, rollout: returns - baseline,
        loss=Judged(estimates, terms),
        cooperative=True,
        team_rows=True,
        memories={"actor": (), "critic": (2,)},
        chunk=1024,
    )
