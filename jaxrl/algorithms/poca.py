"""MA-POCA: multi-agent posthumous credit assignment (Cohen et al. 2021, arXiv 2111.05992).

A team shares one reward. The critic looks at all living members by attention: V(all observations) is the team's value,
b_i (own observation, the others' observations and actions) is member i's counterfactual baseline. The target is the
λ-return of V, the advantage R − b_i. The return of a member that ends while its team lives goes on along the team's, so
that rewards of the team after its death are credited to it; absent members are masked, there are no absorbing states.

Parity. Equal to ML-Agents 1.1.0: networks and their initialisation, both losses and their weights (0.5 · (value +
0.5 · baseline)), the value loss that is a plain squared error (ML-Agents' clip compares with the return itself and
never acts), the clipped baseline loss, log-probability ratios per action column, advantages normalised once per
update, Adam, schedules, the running maximum of the team size.
Different on purpose: (1) the return of a member that ended goes on along the λ-return of the members that live on
(`posthumous_credit: return`). With `value` it restarts from their value, as in ML-Agents, which adds the dead member's
own last observation and, if it ends alone, shows its mates one decision late. (2) A row stores a team once and V is
computed once per team state. (3) All rows are taken together when buffer_size is exceeded; ML-Agents waits for
time_horizon. (4) A minibatch is batch_size // A states, so it holds fewer agent steps when members are dead.

Streams of each member's own rewards (such as curiosity): every member's return R_i is a target of the same V, which
therefore learns the mean over members. b_i learns R_i alone, from the observations of all members and the actions of
the others. R_i − b_i is thus the surplus over the expected reward of member i, and its own action does not change b_i.
Where a return is bootstrapped, by λ or at a cut, a member is credited with the team's average. ML-Agents does the same,
and warns. A member's own stream ends with it; with `posthumous_credit: value` it restarts from V there as well.

Networks and loss are in `counterfactual.py`, which COMA shares; parts of all policy-gradient algorithms are in
`policy_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
    """Make MA-POCA for one behavior."""
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Make networks, value and baselines, advantage and loss."""
    critic = TeamCritic(spec, settings.network_settings, tuple(settings.reward_signals))  # sees the whole team
    return parts_with(critic, spec, settings, partial(SharedCritic, shared_init, shared_judge))._replace(
        own={MAX_TEAM: np.float32(1.0)},
        watch=lambda own, rollout: {**own, MAX_TEAM: update_max_team(own[MAX_TEAM], rollout.present)},
    )


# One critic of several behaviors (`team.py`): each has its encoder and embeddings, the first all other parts as well


def critic_of(parts: Parts) -> TeamCritic:
    """Make the critic of a behavior that learns alone."""
    return TeamCritic(parts.spec, parts.settings.network_settings, tuple(parts.settings.reward_signals))


def shared_init(team: Mapping[str, Parts], name: str, key: jax.Array) -> Params:
    """Make the critic parameters that behavior `name` holds. The key is consumed."""
    critic, seen = critic_of(team[name]), one_member(team[name].spec)
    if name == next(iter(team)):
        both = start(team[name].settings.network_settings.memory, (1, 1, 2))
        return critic.init(key, *seen, jnp.ones((), jnp.float32), both)
    return critic.init(key, *seen, method=TeamCritic.embed)


def shared_judge(
    team: Mapping[str, Parts], params: Mapping[str, Groups], seen: Mapping[str, Seen], own: Any
) -> tuple[jax.Array, jax.Array, Any]:
    """Compute V of the whole team for each member, and b_i, [..., A, R] over the members of all behaviors; memory."""
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
    (value, baseline), new_memory = judge(params[first]["critic"], o, oa, present, own[MAX_TEAM], memory)
    return of_each_member(value, present), baseline, new_memory
