"""How SAC acts, what it looks at of a rollout before it learns, and what it estimates of one."""

from __future__ import annotations

from functools import partial
from typing import Any

import chex
import jax

from jaxrl.algorithms.interface import Decision, Metrics, PolicyState, TrainState
from jaxrl.algorithms.off_policy import counted
from jaxrl.algorithms.parts import applied
from jaxrl.algorithms.preparing import ACTOR_CHUNK, by_stream
from jaxrl.algorithms.sac_parts import Parts
from jaxrl.learning.losses import masked_mean
from jaxrl.networks import actions, normalizer, squashed
from jaxrl.networks.memory import part
from jaxrl.networks.models import SquashedActor, ValueNetwork
from jaxrl.rewards.signals import Signals
from jaxrl.rollout.chunks import in_chunks
from jaxrl.rollout.rollout import Rollout


def act(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], action_mask: jax.Array, carry: Any, key: jax.Array
) -> Decision:
    """Choose an action for every member: obs [..., A, *shape], action_mask bool [..., A, M]. The key is consumed."""
    spec = parts.spec.action
    chex.assert_axis_dimension(action_mask, -1, spec.mask_size)
    seen = normalizer.normalize_all(state.normalizer, obs)
    dist, after = applied(parts.actor, SquashedActor.step)(state.params, seen, part(carry, "actor"))
    if parts.settings.network_settings.deterministic:
        action = squashed.mode(dist, action_mask, spec)
    else:
        action = squashed.sample(key, dist, action_mask, spec)
    return Decision(action=action, sent=action, extras={}, carry={**carry, "actor": after} if carry else ())


def critic_step(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], present: jax.Array, decision: Decision
) -> dict[str, Any]:
    """The memory after a decision, that of V too."""
    seen, step = normalizer.normalize_all(state.normalizer, obs), applied(parts.value, ValueNetwork.step)
    return {**decision.carry, "critic": step(state.critic["value"], seen, decision.carry["critic"])[1]}


def watch(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> TrainState:
    """Normaliser and signals follow what agents decide on, and decisions are counted that pay for updates."""
    after = normalizer.update_all(state.policy.normalizer, rollout.obs, rollout.acted)
    state = counted(parts.hyper, state, rollout)
    return state.replace(policy=state.policy.replace(normalizer=after), signals=signals.watch(state.signals, rollout))


def estimate(parts: Parts, state: TrainState, rollout: Rollout) -> Metrics:
    """Means of V and of the entropy."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    memory = partial(part, rollout.carry)
    value = in_chunks(partial(applied(parts.value), state.critic["value"]), (obs, memory("critic")), ACTOR_CHUNK)
    dist = applied(parts.actor)(state.policy.params, obs, memory("actor"))
    entropy = actions.entropy(dist, rollout.action_mask, parts.spec.action)
    return by_stream("value", value, rollout, parts.settings) | {"entropy": masked_mean(entropy, rollout.acted)}
