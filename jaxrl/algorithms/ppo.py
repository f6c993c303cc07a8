"""PPO (Schulman et al. 2017, arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).

Every agent learns by itself: a row holds one agent (A = 1), which is credited only for rewards until its end. The loss
is policy + 0.5 · value − β · entropy, the advantage R − V, which is GAE. In contrast, `poca.py` subtracts a
counterfactual baseline instead of V, and in `mappo.py` V sees the whole team. `policy_gradient.py` has their common
parts.

Parity. Equal to ML-Agents 1.1.0: networks and initialisation, separate critic or shared body (`shared_critic`), the
value loss that is a plain squared error (ML-Agents' clip compares with the return itself and never acts),
log-probability ratios per action column, advantages normalised once per update, Adam, schedules, group rewards added
to the agent's own.
Different on purpose: all rows are taken together when buffer_size is exceeded, ML-Agents waits for time_horizon;
with `shared_critic` the normaliser is updated once per observation, ML-Agents counts each twice.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics
from jaxrl.algorithms.parts import Batch, Forward, Groups, Now, OneBody, Parts, Seen, applied, policy_terms
from jaxrl.algorithms.policy_gradient import make, no_obs
from jaxrl.learning import losses
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import start
from jaxrl.networks.models import Actor, SharedActorCritic, ValueNetwork
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_ppo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make PPO for one behavior."""
    return make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Make networks, value and loss: two bodies, or one with `shared_critic`."""
    signals, shape = tuple(settings.reward_signals), settings.network_settings
    shared = settings.hyperparameters.shared_critic
    policy = SharedActorCritic(spec, shape, signals) if shared else Actor(spec, shape)
    critic = ValueNetwork(spec, shape, signals)
    first = start(shape.memory, (1, 1))

    def init(key: jax.Array) -> tuple[Groups, jax.Array]:
        network_key, key = jax.random.split(key)
        if shared:
            return {"actor": policy.init(network_key, no_obs(spec), first), "critic": {}}, key
        actor_key, critic_key = jax.random.split(network_key)
        actor, of_critic = policy.init(actor_key, no_obs(spec), first), critic.init(critic_key, no_obs(spec), first)
        return {"actor": actor, "critic": of_critic}, key

    actor = applied(policy, SharedActorCritic.distribution if shared else None)

    def one_pass(params: Groups, seen: Seen) -> Forward:
        return *applied(policy)(params["actor"], seen.obs, seen.memory_of("actor")), None

    def estimates(params: Groups, seen: Seen, _: Any) -> tuple[jax.Array, None]:
        """Compute V of an agent's own observation, [..., A, R]."""
        if shared:
            return one_pass(params, seen)[1], None
        return applied(critic)(params["critic"], seen.obs, seen.memory_of("critic")), None

    def loss(
        dist: ActionDistribution, value: jax.Array, _: jax.Array | None, batch: Batch, now: Now
    ) -> tuple[jax.Array, Metrics]:
        """Compute policy + 0.5 · value − β · entropy of a minibatch [N, A, ...], with memory [N, L, A, ...]."""
        policy_loss, entropy, metrics = policy_terms(dist, batch, spec, now.epsilon)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        return policy_loss + 0.5 * value_loss - now.beta * entropy, metrics | {"value_loss": value_loss}

    def critic_step(params: Groups, seen: Seen) -> jax.Array:
        return applied(critic, ValueNetwork.step)(params, seen.obs, seen.memory_of("critic"))[1]

    return Parts(
        spec=spec,
        settings=settings,
        init=init,
        actor=actor,
        step=applied(policy, type(policy).step),
        critic_step=None if shared else critic_step,
        estimates=estimates,
        loss=loss,
        cooperative=False,
        team_rows=False,
        memories={"actor": ()} if shared else {"actor": (), "critic": ()},
        one_body=OneBody(actor, estimates, one_pass) if shared else None,
    )
