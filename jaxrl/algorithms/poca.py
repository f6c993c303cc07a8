"""MA-POCA: multi-agent posthumous credit assignment (Cohen et al. 2021, arXiv 2111.05992).

A team shares one reward. The critic looks at all living members by attention: V(all observations) is the team's value,
b_i (own observation, the others' observations and actions) is member i's counterfactual baseline. The target is the
λ-return of V, the advantage R − b_i. A member that ends while its team lives bootstraps from the team's next value, so
it is credited for what the team earns after its death; absent members are masked, there are no absorbing states.

Parity. Equal to ML-Agents 1.1.0: networks and their initialisation, both losses and their weights (0.5 · (value +
0.5 · baseline)), the value loss that is a plain squared error (the original's clip compares with the return itself and
never acts), the clipped baseline loss, log-probability ratios per action column, advantages normalised once per
update, Adam, schedules, the running maximum of the team size.
Different on purpose: (1) a member that ended bootstraps from the survivors; the original adds its own last observation
and, when it ends alone, shows its mates one decision late. (2) A row stores a team once and V is computed once per team
state. (3) All rows are taken together when buffer_size is exceeded; the original waits for time_horizon. (4) A
minibatch is batch_size // A states, so it holds fewer agent steps when members are dead.

Streams that each member earns for itself (curiosity and its like, whose reward is not the team's): every member's
return R_i is a target of the same V, which so learns the mean over members; b_i learns R_i alone, from what i sees and
what the others see and do, so that R_i − b_i is what i found beyond what was expected of it, and no action of i's own
moves b_i. Where a return is bootstrapped, by λ, at a cut or after its end, a member is credited with what the team
finds on average. The original does the same, and warns.

What all policy-gradient algorithms do, stands in `policy_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics, Params
from jaxrl.algorithms.parts import (
    Batch,
    Groups,
    Judged,
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
from jaxrl.networks.memory import of_all, start
from jaxrl.networks.models import Actor, TeamCritic, update_max_team
from jaxrl.networks.places import actor_of
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MA-POCA for one behavior."""
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Networks, value and baselines, advantage and loss."""
    signals, shape = tuple(settings.reward_signals), settings.network_settings
    actor = actor_of(spec, shape, settings.places)  # sees its agent's own observation alone
    critic = TeamCritic(spec, shape, signals)  # sees the whole team

    def init(key: jax.Array) -> tuple[Groups, jax.Array]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        first, both = (start(shape.memory, (1, 1, *kinds)) for kinds in ((), (2,)))
        of_critic = critic.init(critic_key, *one_member(spec), jnp.ones((), jnp.float32), both)
        return {"actor": actor.init(actor_key, no_obs(spec), first), "critic": of_critic}, key

    def estimates(params: Groups, seen: Seen, own: Any) -> tuple[jax.Array, jax.Array]:
        """V of the team, as that of each member, and b_i of each, [..., A, R]."""
        team = seen.obs, actions.one_hot(seen.action, spec.action), seen.present
        value, baseline = applied(critic)(params["critic"], *team, own["max_team"], seen.memory_of("critic"))
        chex.assert_shape(baseline, (*seen.present.shape, None))
        return of_each_member(value, seen.present), baseline

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
        # The size of the team joins after the memory, so that any will do.
        step = applied(critic, TeamCritic.step)
        return step(params, *team, np.float32(1.0), seen.memory_of("critic"))[1]

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
        places=settings.places,
        memories={"actor": (), "critic": (2,)},
        chunk=1024,
        own={"max_team": np.float32(1.0)},  # the largest team seen so far
        watch=lambda own, rollout: {**own, "max_team": update_max_team(own["max_team"], rollout.present)},
        shared=SharedCritic(shared_init, shared_judge),
    )


# One critic of several behaviors (`team.py`): each has its encoder and embeddings, the first one all else as well


def critic_of(parts: Parts) -> TeamCritic:
    """The critic of a behavior that is on its own."""
    return TeamCritic(parts.spec, parts.settings.network_settings, tuple(parts.settings.reward_signals))


def shared_init(team: Mapping[str, Parts], name: str, key: jax.Array) -> Params:
    """What one behavior keeps of the critic. The key is consumed."""
    critic, seen = critic_of(team[name]), one_member(team[name].spec)
    if name == next(iter(team)):
        both = start(team[name].settings.network_settings.memory, (1, 1, 2))
        return critic.init(key, *seen, jnp.ones((), jnp.float32), both)
    return critic.init(key, *seen, method=TeamCritic.embed)


def shared_judge(
    team: Mapping[str, Parts], params: Mapping[str, Groups], seen: Mapping[str, Seen], own: Any
) -> tuple[jax.Array, jax.Array, Any]:
    """V of the whole team, as that of each member, b_i of each, [..., A, R], A being the members of all; memory."""
    members = []
    for name, parts in team.items():
        encoding = actions.one_hot(seen[name].action, parts.spec.action)
        embed = applied(critic_of(parts), TeamCritic.embed)
        members.append(embed(params[name]["critic"], seen[name].obs, encoding, seen[name].present))
    o, oa = (jnp.concatenate(of_kinds, axis=1) for of_kinds in zip(*members, strict=True))
    present = jnp.concatenate([seen[name].present for name in team], axis=-1)
    first = next(iter(team))
    judge = applied(critic_of(team[first]), TeamCritic.judge)
    memory = of_all((seen[name].memory_of("critic") for name in team), present.ndim - 1)
    (value, baseline), after = judge(params[first]["critic"], o, oa, present, own["max_team"], memory)
    return of_each_member(value, present), baseline, after
