"""COMA with absorbing states: the comparison of the MA-POCA paper (Cohen et al. 2021, arXiv 2111.05992).

After COMA (Foerster et al. 2018, arXiv 1705.08926): each member's advantage is the return less a counterfactual
baseline that sees everything but its own action. Only the critic differs from MA-POCA: losses, λ-returns and posthumous
credit are those of `counterfactual.py` and `policy_gradient.py`. The critic is fully connected, with a place for each
of `team_capacity` members. The place of an absent member holds an absorbing state, zeros and a flag (see
`networks.joint`), where MA-POCA's attention leaves the member out. Value and baseline are two networks of hidden_units
and num_layers, initialised as ML-Agents' PPO critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.counterfactual import parts_with
from jaxrl.algorithms.interface import Algorithm, Params
from jaxrl.algorithms.parts import Groups, Parts, Seen, SharedCritic, applied, of_each_member
from jaxrl.algorithms.policy_gradient import one_member
from jaxrl.networks import actions
from jaxrl.networks.joint import JointCritic
from jaxrl.networks.memory import both_of, of_all, of_both, start
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_coma(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make COMA for one behavior.

    `learn` raises `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    return policy_gradient.make(parts_of(spec, settings))


def parts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Parts:
    """Make networks, value and baselines, advantage and loss."""
    signals, capacity = tuple(settings.reward_signals), settings.hyperparameters.team_capacity
    critic = JointCritic(spec, settings.network_settings, signals, capacity)  # a place for each member
    return parts_with(critic, spec, settings, partial(SharedCritic, shared_init, shared_judge))


# One critic of several behaviors (`team.py`): each has encoders and a baseline network, the first the value network too


def critic_of(parts: Parts) -> JointCritic:
    """Make the critic of a behavior that learns alone."""
    signals, capacity = tuple(parts.settings.reward_signals), parts.settings.hyperparameters.team_capacity
    return JointCritic(parts.spec, parts.settings.network_settings, signals, capacity)


def shared_init(team: Mapping[str, Parts], name: str, key: jax.Array) -> Params:
    """Make the critic parameters that behavior `name` holds. The key is consumed."""
    names = list(team)
    place, widths = names.index(name), [places_of(parts) for parts in team.values()]
    left, right = (sum(width for width, _ in some) for some in (widths[:place], widths[place + 1 :]))
    others = [jnp.zeros((1, width)) for width in (left, right, sum(of_value for _, of_value in widths[1:]))]
    memory = start(team[name].settings.network_settings.memory, (1, 1, 2))
    inputs = one_member(team[name].spec), others, place == 0, memory
    return critic_of(team[name]).init(key, *inputs, method=JointCritic.beside)


def places_of(parts: Parts) -> tuple[int, int]:
    """Return the widths of a behavior's places in the two networks of its team, baseline and value."""
    encode = partial(critic_of(parts).init_with_output, method=JointCritic.members)
    members = jax.eval_shape(lambda: encode(jax.random.key(0), *one_member(parts.spec))[0])
    return members.places.shape[1] * members.places.shape[2], members.of_value.shape[-1]


def shared_judge(
    team: Mapping[str, Parts], params: Mapping[str, Groups], seen: Mapping[str, Seen], _: Any
) -> tuple[jax.Array, jax.Array, Any]:
    """Compute V of the whole team for each member, and b_i, [..., A, R] over the members of all behaviors; memory."""
    names, members = list(team), []
    for name, parts in team.items():
        encoding = actions.one_hot(seen[name].action, parts.spec.action)
        read = applied(critic_of(parts), JointCritic.members)
        members.append(read(params[name]["critic"], seen[name].obs, encoding, seen[name].present))
    places = [member.places.reshape(len(member.places), -1) for member in members]
    memories = [of_both(seen[name].memory_of("critic")) for name in names]
    none, judged = places[0][:, :0], []
    for i, name in enumerate(names):
        around = [jnp.concatenate([none, *some], axis=-1) for some in (places[:i], places[i + 1 :])]
        estimate = partial(applied(critic_of(team[name]), JointCritic.baseline), params[name]["critic"], members[i])
        judged.append(estimate(around, seen[name].present, memories[i][1]))
    baseline, of_baselines = (of_all(some, -2) for some in zip(*judged, strict=True))
    present = jnp.concatenate([seen[name].present for name in team], axis=-1)
    judge = applied(critic_of(team[names[0]]), lambda critic, *inputs: critic.value.judge(*inputs))
    places = jnp.concatenate([member.of_value for member in members], axis=-1)
    memory = of_all((of_value for of_value, _ in memories), present.ndim - 1)
    value, of_values = judge(params[names[0]]["critic"], places, present, memory)
    return of_each_member(value, present), baseline, both_of(of_values, of_baselines)
