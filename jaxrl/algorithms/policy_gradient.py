"""Functions that all policy-gradient algorithms share: to initialise, act, and learn from a rollout.

An algorithm's own file gives its `Parts` (`parts.py`): networks, credit, baseline and loss. PPO and MAPPO are the case
in which the baseline is the value itself. `preparing.py` turns a rollout into a batch, `updating.py` learns from its
minibatches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.algorithms.interface import Algorithm, Decision, Metrics, PolicyState, SignalRewards, Storage, TrainState
from jaxrl.algorithms.parts import Parts, Seen
from jaxrl.algorithms.preparing import evaluated, prepare
from jaxrl.algorithms.updating import DRAWN, optimizer_of, update
from jaxrl.learning import losses
from jaxrl.learning.cloning import Cloning, Copied, bind_cloning
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import part
from jaxrl.networks.policy import actor_network
from jaxrl.rewards.signals import Signals, bind
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec

CLONING = "behavioral_cloning"
"""Key of the state of cloning in `TrainState.own`."""


NEWEST_ROLLOUT = Storage(
    init=lambda: (),
    add=lambda _, rollout: rollout,
    can_sample=lambda *_: True,  # a rollout is learned from at once or never
    sample=lambda rollout, _: rollout,
    kept=lambda _: (),
)
"""Storage of on-policy algorithms: the rollout that they learn from next."""


def make(parts: Parts) -> Algorithm:
    """Make the algorithm. Its parts get rollouts with zeros in every masked cell."""
    spec, settings = parts.spec, parts.settings
    memory, signals = settings.network_settings.memory, partial(bind, spec, settings, actions.to_environment)
    if not settings.network_settings.deterministic:  # deterministic algorithms only act and need no signals
        bound = signals()  # bound once and outside of all traces: a maker may read files
        signals = lambda: bound  # noqa: E731
    copied = Copied(parts.actor, actions.drawn, actions.from_environment)
    parts = parts._replace(cloning=bind_cloning(spec, settings, copied))
    return Algorithm(
        init=lambda key: init_state(parts, signals(), key),
        act=partial(act, parts),
        storage=NEWEST_ROLLOUT,
        learn=lambda state, rollout: learn(parts, signals(), state, masked(rollout)),
        estimate=lambda state, rollout: estimate(parts, state, masked(rollout)),
        collect_size=settings.hyperparameters.buffer_size,
        extras=(("log_prob", (spec.action.columns,)),),
        memories=tuple((name, (*axes, memory.memory_size)) for name, axes in parts.memories.items()) if memory else (),
        team_rows=parts.team_rows,
        score_action=partial(score_action, parts),
        critic_step=partial(critic_step, parts) if memory and parts.critic_step else None,
        noise=partial(actions.noise, spec=spec.action),
        policy=parts.network or actor_network(spec, settings.network_settings),
        copied=copied,
        signal_rewards=signal_rewards(settings, signals, cooperative=parts.cooperative),
        parts=parts,
        places=parts.places,
    )


def signal_rewards(
    settings: BehaviorSettings, signals: Callable[[], Signals], *, cooperative: bool
) -> SignalRewards | None:
    """Make `Algorithm.signal_rewards` of bound signals; None if there is only the environment's reward."""
    names = tuple(name for name in settings.reward_signals if name != "extrinsic")

    def told(state: TrainState, rollout: Rollout) -> dict[str, jax.Array]:
        return signals().told(state.signals, masked(rollout), cooperative=cooperative)

    return SignalRewards(names, told) if names else None


def no_obs(spec: BehaviorSpec) -> tuple[jax.Array, ...]:
    """Make the observations of one member of one team, all zero, with which networks are initialised."""
    return tuple(jnp.zeros((1, 1, *sensor.shape), sensor.dtype) for sensor in spec.observations)


def one_member(spec: BehaviorSpec) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    """Make observations, encoded action and presence of one member, with which the critic of a team is initialised."""
    encoding = jnp.zeros((1, 1, spec.action.continuous_size + spec.action.mask_size), jnp.float32)
    return no_obs(spec), encoding, jnp.ones((1, 1), bool)


def init_state(parts: Parts, signals: Signals, key: jax.Array) -> TrainState:
    """Make the state of a fresh learner. The key is consumed."""
    params, key = parts.init(key)
    added = {
        name: loss.init(jax.random.fold_in(jax.random.fold_in(key, DRAWN), i))
        for i, (name, loss) in enumerate(parts.added.items())
        if loss.init is not None
    }
    cloned = {} if parts.cloning is None else {CLONING: parts.cloning.init(params["actor"])}
    return TrainState(
        policy=PolicyState(
            params=params["actor"],
            normalizer=normalizer.init_for(parts.spec, parts.settings.network_settings),
        ),
        critic=params["critic"],
        optimizer=optimizer_of(parts).init(params | added),
        own={**jax.tree.map(jnp.array, dict(parts.own)), **added, **cloned},
        signals=signals.init(key),
        step=jnp.zeros((), jnp.int32),
        key=key,
    )


def act(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], action_mask: jax.Array, carry: Any, key: jax.Array
) -> Decision:
    """Choose an action for every member, with its log-probabilities per column.

    key: consumed, or what `actions.noise` drew from it; obs: [..., A, *shape]; action_mask: bool [..., A, M].
    """
    spec = parts.spec
    chex.assert_axis_dimension(action_mask, -1, spec.action.mask_size)
    chex.assert_shape(obs, [(*action_mask.shape[:-1], *sensor.shape) for sensor in spec.observations])
    dist, new_memory = parts.step(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    if parts.settings.network_settings.deterministic:
        action = actions.mode(dist, action_mask, spec.action)
    else:
        action = actions.sample(key, dist, action_mask, spec.action)
    log_prob = actions.log_prob(dist, action, action_mask, spec.action)
    carry = {**carry, "actor": new_memory} if carry else ()
    return Decision(action=action, sent=actions.to_environment(action), extras={"log_prob": log_prob}, carry=carry)


def score_action(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], action_mask: jax.Array, carry: Any, action: Action
) -> tuple[Action, dict[str, jax.Array]]:
    """Return the raw action and its log-probabilities for an action that this policy did not choose.

    obs: [..., A, *shape]; action_mask: bool [..., A, M]; action, as the environment has it: [..., A, C], [..., A, D].
    """
    raw = actions.from_environment(action)
    dist = parts.actor(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    return raw, {"log_prob": actions.log_prob(dist, raw, action_mask, parts.spec.action)}


def critic_step(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], present: jax.Array, decision: Decision
) -> dict[str, Any]:
    """Return the memories after a decision, including the critic's."""
    shown = normalizer.normalize_all(state.normalizer, obs)
    assert parts.critic_step is not None
    new_memory = parts.critic_step(state.critic, Seen(shown, decision.action, present, decision.carry))
    return {**decision.carry, "critic": new_memory}


def learn(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """Run one update: values, baselines, returns and advantages, then all epochs and minibatches."""
    state, batch, of_values = prepare(parts, signals, state, rollout)
    state, metrics = update(parts, state, batch, signals)
    state, more_metrics = after_update(parts, signals, state, rollout)
    return state, of_values | metrics | more_metrics


def after_update(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """Run the learning that follows the policy's: cloning, and reward signals from the whole rollout."""
    metrics: Metrics = {}
    if parts.cloning is not None:
        state, metrics = with_clones(parts.cloning, state, state.key)
    learned, of_signals = signals.learn(state.signals, rollout, state.key)
    return state.replace(signals=learned), metrics | of_signals


def with_clones(cloning: Cloning, state: TrainState, key: jax.Array) -> tuple[TrainState, Metrics]:
    """Run one update of cloning. The key may be used further."""
    policy = state.policy
    new_cloning, params, loss = cloning.learn(state.own[CLONING], policy.params, policy.normalizer, state.step, key)
    state = state.replace(policy=policy.replace(params=params), own={**state.own, CLONING: new_cloning})
    return state, {"pretraining_loss": loss}


def estimate(parts: Parts, state: TrainState, rollout: Rollout) -> Metrics:
    """Compute the means of values, baselines and entropy."""
    entropy = entropy_of(parts, state, rollout)
    return evaluated(parts, state, rollout)[-1] | {"entropy": entropy}


def entropy_of(parts: Parts, state: TrainState, rollout: Rollout) -> jax.Array:
    """Compute the mean entropy of the decisions of a rollout, float32 []."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    dist = parts.actor(state.policy.params, obs, part(rollout.carry, "actor"))
    return losses.masked_mean(actions.entropy(dist, rollout.action_mask, parts.spec.action), rollout.acted)
