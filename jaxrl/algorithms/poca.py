"""MA-POCA: multi-agent posthumous credit assignment (Cohen et al. 2021, arXiv 2111.05992).

A team shares one reward. The critic looks at all living members by attention: V(all observations) is the team's value,
b_i (own observation, the others' observations and actions) is member i's counterfactual baseline. The target is the
λ-return of V, the advantage R − b_i. The return of a member that ends while its team lives goes on along the team's,
so it is credited for what the team earns after its death; absent members are masked, there are no absorbing states.

Parity. Equal to ML-Agents 1.1.0: networks and their initialisation, both losses and their weights (0.5 · (value +
0.5 · baseline)), the value loss that is a plain squared error (the original's clip compares with the return itself and
never acts), the clipped baseline loss, log-probability ratios per action column, advantages normalised once per
update, Adam, schedules, the running maximum of the team size.
Different on purpose: (1) the return of a member that ended goes on along the λ-return of the members that live on
(`posthumous_credit: return`). With `value` it restarts from their value, as in the original, which adds the dead's own
last observation and, when it ends alone, shows its mates one decision late. (2) A row stores a team once and V is
computed once per team state. (3) All rows are taken together when buffer_size is exceeded; the original waits for
time_horizon. (4) A minibatch is batch_size // A states, so it holds fewer agent steps when members are dead.

Streams that each member earns for itself (curiosity and its like, whose reward is not the team's): every member's
return R_i is a target of the same V, which so learns the mean over members; b_i learns R_i alone, from what i sees and
what the others see and do, so that R_i − b_i is what i found beyond what was expected of it, and no action of i's own
moves b_i. Where a return is bootstrapped, by λ or at a cut, a member is credited with what the team finds on average.
The original does the same, and warns. What a member earns for itself ends with it; with `posthumous_credit: value` its
return restarts from V there as well.

Networks and loss stand in `counterfactual.py`, for COMA has them too; what all policy-gradient algorithms do, in
`policy_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.counterfactual import MAX_TEAM, parts_with
from jaxrl.algorithms.interface import Algorithm, Params
from jaxrl.algorithms.parts import Groups, Parts, Seen, SharedCritic, applied, of_each_member
from jaxrl.algorithms.policy_gradient import one_member
from jaxrl.networks import actions
from jaxrl.networks.memory import of_all, start
from jaxrl.networks.models import TeamCritic, update_max_team
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MA-POCA for one behavior."""
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Networks, value and baselines, advantage and loss."""
    critic = TeamCritic(spec, settings.network_settings, tuple(settings.reward_signals))  # sees the whole team
    return parts_with(critic, spec, settings, SharedCritic(shared_init, shared_judge))._replace(
        own={MAX_TEAM: np.float32(1.0)},
        watch=lambda own, rollout: {**own, MAX_TEAM: update_max_team(own[MAX_TEAM], rollout.present)},
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
    (value, baseline), after = judge(params[first]["critic"], o, oa, present, own[MAX_TEAM], memory)
    return of_each_member(value, present), baseline, after
