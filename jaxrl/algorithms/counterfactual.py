"""Common parts of MA-POCA (`poca.py`) and COMA (`coma.py`): all but the critic, which gives V and a baseline of each.

The advantage of member i is R − b_i, R the λ-return of V. Parts of all policy-gradient algorithms are in
`policy_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Metrics
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
from jaxrl.algorithms.policy_gradient import no_obs, one_member
from jaxrl.learning import losses
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.joint import JointCritic
from jaxrl.networks.memory import start
from jaxrl.networks.models import Actor, TeamCritic
from jaxrl.networks.places import actor_of
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec

MAX_TEAM = "max_team"
"""Key of the largest team size so far in `TrainState.own`, for critics that use it."""
NO_SIZE = np.float32(1.0)
"""Team size for critics that do not use it."""


def parts_with(
    critic: TeamCritic | JointCritic,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    shared: Callable[..., SharedCritic],
) -> Parts:
    """Make networks, value and baselines, advantage and loss, with this critic of the whole team."""
    shape = settings.network_settings
    actor = actor_of(spec, shape, settings.places)  # sees its agent's own observation alone

    def init(key: jax.Array) -> tuple[Groups, jax.Array]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        first, both = (start(shape.memory, (1, 1, *kinds)) for kinds in ((), (2,)))
        of_critic = critic.init(critic_key, *one_member(spec), jnp.ones((), jnp.float32), both)
        return {"actor": actor.init(actor_key, no_obs(spec), first), "critic": of_critic}, key

    def estimates(params: Groups, seen: Seen, own: Any) -> tuple[jax.Array, jax.Array]:
        """Compute V of the team for each member, and b_i of each, [..., A, R]."""
        team = seen.obs, actions.one_hot(seen.action, spec.action), seen.present
        size = own.get(MAX_TEAM, NO_SIZE)
        value, baseline = applied(critic)(params["critic"], *team, size, seen.memory_of("critic"))
        chex.assert_shape(baseline, (*seen.present.shape, None))
        return of_each_member(value, seen.present), baseline

    def loss(
        dist: ActionDistribution, value: jax.Array, baseline: jax.Array | None, batch: Batch, now: Now
    ) -> tuple[jax.Array, Metrics]:
        """Compute policy + 0.5 · (value + 0.5 · baseline) − β · entropy of a minibatch of team states [N, A, ...]."""
        assert baseline is not None
        policy_loss, entropy, metrics = policy_terms(dist, batch, spec, now.epsilon)
        value_loss = losses.squared_value_loss(value, batch.returns, batch.acted)
        baseline_loss = losses.value_loss(baseline, batch.baseline, batch.returns, batch.acted, now.epsilon)
        total = policy_loss + 0.5 * (value_loss + 0.5 * baseline_loss) - now.beta * entropy
        return total, metrics | {"value_loss": value_loss, "baseline_loss": baseline_loss}

    def critic_step(params: Groups, seen: Seen) -> jax.Array:
        team = seen.obs, actions.one_hot(seen.action, spec.action), seen.present
        step = applied(critic, type(critic).step)  # the memory does not depend on the team size: any will do
        return step(params, *team, NO_SIZE, seen.memory_of("critic"))[1]

    return Parts(
        spec=spec,
        settings=settings,
        init=init,
        actor=applied(actor),
        step=applied(actor, Actor.step),
        critic_step=critic_step,
        estimates=estimates,
        loss=loss,
        cooperative=True,
        team_rows=True,
        posthumous=settings.hyperparameters.posthumous_credit == "return",
        places=settings.places,
        memories={"actor": (), "critic": (2,)},
        chunk=1024,
        shared=shared(estimates=estimates),
    )
