"""What policy-gradient algorithms share, in the order in which it happens: acting, estimates, credit, minibatches.

An algorithm's own file gives its `Parts`: networks, credit, baseline and loss. PPO and MAPPO are the case in which the
baseline is the value itself. Functions raise AssertionError where shapes differ from those named, so that nothing
broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import (
    LARGEST_LOG_RATIO,
    Algorithm,
    Decision,
    Metrics,
    Params,
    PolicyState,
    SignalRewards,
    Storage,
    TrainState,
)
from jaxrl.learning import adam, losses, minibatches, returns, sequences
from jaxrl.learning.cloning import Cloning, Copied, bind_cloning
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.learning.trajectories import mean_over_trajectories
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import Sequences, part
from jaxrl.networks.policy import PolicyNetwork, actor_network
from jaxrl.rewards.signals import NO_SIGNALS, Signals, bind
from jaxrl.rollout.chunks import each_second, in_chunks, of_states
from jaxrl.rollout.rollout import EverySecond, Rollout, masked
from jaxrl.rollout.transitions import transitions
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec

ACTOR_CHUNK = 4096
"""Members per pass of the actor over a rollout."""

_DRAWN = 0x4C550000
"""What the key of an update is folded with for its losses: a large number, as `split` gives what small ones give."""

CLONING = "behavioral_cloning"
"""Its place in `TrainState.own`."""

Groups = dict[str, Params]
"""Parameters by group: those of "actor" and "critic" have places of their own in a TrainState."""


# What an algorithm says


class Seen(NamedTuple):
    """What critics may look at: states [..., A, *], of a rollout or, as a part of a `Batch`, of a minibatch."""

    obs: tuple[jax.Array, ...]  # normalised, 0 where absent
    action: Action
    present: jax.Array  # bool [..., A]
    memory: Any  # by network; () without memory

    def memory_of(self, network: str) -> Any:
        """That of one network."""
        return part(self.memory, network)


class Batch(NamedTuple):
    """States ready for minibatches; N = T·B of the rollout. Members that did not act are masked, not removed."""

    obs: tuple[jax.Array, ...]  # float32 [N, A, *shape], normalised, 0 where absent
    action_mask: jax.Array  # bool [N, A, M]
    action: Action  # [N, A, C], [N, A, D]
    log_prob: jax.Array  # float32 [N, A, C + D], of the policy that acted
    present: jax.Array  # bool [N, A]
    acted: jax.Array  # bool [N, A], trained on
    advantage: jax.Array  # float32 [N, A], normalised over the whole batch
    returns: jax.Array  # float32 [N, A, R], target of value and baseline
    baseline: jax.Array  # float32 [N, A, R], estimate before the update; [N, A, 0] where it is the value
    memory: Any = ()  # `Sequences` of the memories by network; then N, A above are N sequences of L states: N, L, A
    inputs: Any = ()  # by added loss, what it has asked for
    transitions: Any = ()  # what reward signals see that learn from minibatches; () without such

    @property
    def seen(self) -> Seen:
        """What critics look at."""
        return Seen(self.obs, self.action, self.present, self.memory)


class Now(NamedTuple):
    """What a loss knows beside parameters and minibatch."""

    learning_rate: jax.Array
    epsilon: jax.Array
    beta: jax.Array
    own: Any = ()  # the algorithm's part of the TrainState
    key: Any = None  # another one for each minibatch


Loss = Callable[[Groups, Batch, Now], tuple[jax.Array, Metrics]]
"""(parameters by group, minibatch, now) → (scalar to minimise, metrics)."""


@dataclass(frozen=True)  # and no tuple: JAX keeps what it has traced by weak references to functions
class Judged:
    """A loss of what a critic estimates, for which a team of several behaviors puts what its own critic does.

    estimates: as that of `Parts`.
    terms:     (parameters by group, minibatch, now, V, b) → scalar to minimise, metrics.
    """

    estimates: Callable[[Groups, Seen, Any], tuple[jax.Array, jax.Array | None]]
    terms: Callable[..., tuple[jax.Array, Metrics]]

    def __call__(self, params: Groups, batch: Batch, now: Now) -> tuple[jax.Array, Metrics]:
        """As any `Loss`."""
        return self.terms(params, batch, now, *self.estimates(params, batch.seen, now.own))


class SharedCritic(NamedTuple):
    """How behaviors of different specs have one critic (`team.py`). `team`: the `Parts` of all, by name, in order.

    init:      (team, name, key) → what behavior `name` keeps of the critic: of the first one also all that is shared,
               of the others what reads their own members. The key is consumed.
    estimates: (team, parameters by name and group, `Seen` by name, own of the first one) → V and b, each [..., A, R],
               whose A are the members of all, one behavior after the other. b None: the baseline is V.
    """

    init: Callable[[Mapping[str, Any], str, jax.Array], Params]
    estimates: Callable[..., tuple[jax.Array, jax.Array | None]]


class AddedLoss(NamedTuple):
    """A loss beside the algorithm's own, over the same minibatches.

    loss:   as any; `batch.inputs[name]` is what `inputs` gave.
    init:   (key) → parameters of its own, which are the group of its name; the key is consumed. None: it has none.
    inputs: (TrainState, Rollout) → what it needs of the rollout beside a `Batch`, a pytree of [T, B, A, ...].
    """

    loss: Loss
    init: Callable[[jax.Array], Params] | None = None
    inputs: Callable[[TrainState, Rollout], Any] = lambda state, rollout: ()


class Parts(NamedTuple):
    """A policy-gradient algorithm for one behavior: what its own file says of it.

    init:        (key) → fresh parameters, and a key for the rest; the key is consumed.
    actor:       (params["actor"], obs, memory or `Sequences` or ()) → distribution.
    step:        the same for one decision, with the memory after it.
    critic_step: (params["critic"], Seen) → the critic's memory after the decision. None: it remembers nothing.
    estimates:   (params, Seen, own) → V and b, each [..., A, R]. b None: the baseline is V.
    loss:        what is minimised, with all its coefficients.
    advantage:   (returns, V, b, Rollout) → [T, B, A, R].
    watch:       (own, Rollout) → own, the algorithm's part of the state, brought up to date before anything else.
    """

    spec: BehaviorSpec
    settings: BehaviorSettings
    init: Callable[[jax.Array], tuple[Groups, jax.Array]]
    actor: Callable[..., ActionDistribution]
    step: Callable[[Params, tuple[jax.Array, ...], Any], tuple[ActionDistribution, Any]]
    critic_step: Callable[[Params, Seen], Any] | None
    estimates: Callable[[Groups, Seen, Any], tuple[jax.Array, jax.Array | None]]
    loss: Loss
    cooperative: bool  # rewards of an agent's mates are its own
    team_rows: bool  # rows hold whole teams, or single agents
    memories: Mapping[str, tuple[int, ...]]  # by network that remembers: axes of a memory before that of its numbers
    chunk: int = 4096  # members per pass of the critic over a rollout
    advantage: Callable[..., jax.Array] = lambda returns, value, baseline, rollout: returns - baseline
    own: Mapping[str, Any] = {}  # the algorithm's part of a fresh state
    watch: Callable[[Any, Rollout], Any] = lambda own, rollout: own
    added: Mapping[str, AddedLoss] = {}
    network: PolicyNetwork | None = None  # what acts as a file has it; None: jaxrl's `Actor`
    optimizers: Mapping[str, optax.GradientTransformation] = {}  # by group; of the others `ADAM`
    cloning: Cloning | None = None  # beside all that; `make` binds it
    places: int | None = None  # of a team whose members have a policy each; None: they share one
    shared: SharedCritic | None = None  # None: it has no critic that other behaviors could share

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)  # an `Algorithm` that holds it is a static argument of programs; settings have no hash


def applied(module: nn.Module, method: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`module.apply` as (params, *inputs) → outputs; flax's own type also covers mutable collections, used nowhere."""
    return partial(module.apply, method=method)


def of_each_member(value: jax.Array, present: jax.Array) -> jax.Array:
    """V of a team [..., R] as that of each member, [..., A, R], which it is with memory already."""
    if value.ndim > present.ndim:
        return value
    chex.assert_shape(value, (*present.shape[:-1], None))
    return jnp.broadcast_to(value[..., None, :], (*present.shape, value.shape[-1]))


def policy_terms(
    dist: ActionDistribution, batch: Batch, spec: BehaviorSpec, epsilon: jax.Array
) -> tuple[jax.Array, jax.Array, Metrics]:
    """The clipped policy loss of a minibatch and the entropy, means over who acted; and what is told of both."""
    log_prob = actions.log_prob(dist, batch.action, batch.action_mask, spec.action)
    entropy = losses.masked_mean(actions.entropy(dist, batch.action_mask, spec.action), batch.acted)
    policy_loss = losses.clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, batch.acted, epsilon)
    largest = jnp.max(jnp.where(batch.acted[..., None], jnp.abs(log_prob - batch.log_prob), 0.0), initial=0.0)
    return policy_loss, entropy, {"policy_loss": policy_loss, "entropy": entropy, LARGEST_LOG_RATIO: largest}


# The algorithm of these parts


NEWEST_ROLLOUT = Storage(
    init=lambda: (),
    add=lambda _, rollout: rollout,
    can_sample=lambda *_: True,  # with what is not learned from at once nothing could be done later
    sample=lambda rollout, _: rollout,
    kept=lambda _: (),
)
"""What on-policy algorithms keep between two updates: nothing but what they learn from next."""


def make(parts: Parts) -> Algorithm:
    """The algorithm. Rollouts reach its parts with zeros in every cell that their masks leave out."""
    spec, settings = parts.spec, parts.settings
    memory, signals = settings.network_settings.memory, partial(bind, spec, settings, actions.to_environment)
    if not settings.network_settings.deterministic:  # who leaves nothing to chance is there to be looked at
        bound = signals()  # once: a maker may read files, and outside of all traces
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
    """`Algorithm.signal_rewards` of what `bind` gives."""
    names = tuple(name for name in settings.reward_signals if name != "extrinsic")

    def told(state: TrainState, rollout: Rollout) -> dict[str, jax.Array]:
        return signals().told(state.signals, masked(rollout), cooperative=cooperative)

    return SignalRewards(names, told) if names else None


def no_obs(spec: BehaviorSpec) -> tuple[jax.Array, ...]:
    """Observations of one member of one team, all zero: what networks are initialised with."""
    return tuple(jnp.zeros((1, 1, *sensor.shape), sensor.dtype) for sensor in spec.observations)


def init_state(parts: Parts, signals: Signals, key: jax.Array) -> TrainState:
    """A fresh learner. The key is consumed."""
    params, key = parts.init(key)
    added = {
        name: one.init(jax.random.fold_in(jax.random.fold_in(key, _DRAWN), i))
        for i, (name, one) in enumerate(parts.added.items())
        if one.init is not None
    }
    cloned = {} if parts.cloning is None else {CLONING: parts.cloning.init(params["actor"])}
    return TrainState(
        policy=PolicyState(
            params=params["actor"],
            normalizer=normalizer.init_all(parts.spec, parts.settings.network_settings.normalize),
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
    """Choose an action for every member and note its log-probabilities per column.

    key: consumed, or what `actions.noise` drew from it; obs: [..., A, *shape]; action_mask: bool [..., A, M].
    """
    spec = parts.spec
    chex.assert_axis_dimension(action_mask, -1, spec.action.mask_size)
    chex.assert_shape(obs, [(*action_mask.shape[:-1], *sensor.shape) for sensor in spec.observations])
    dist, after = parts.step(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    if parts.settings.network_settings.deterministic:
        action = actions.mode(dist, action_mask, spec.action)
    else:
        action = actions.sample(key, dist, action_mask, spec.action)
    log_prob = actions.log_prob(dist, action, action_mask, spec.action)
    carry = {**carry, "actor": after} if carry else ()
    return Decision(action=action, sent=actions.to_environment(action), extras={"log_prob": log_prob}, carry=carry)


def score_action(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], action_mask: jax.Array, carry: Any, action: Action
) -> tuple[Action, dict[str, jax.Array]]:
    """An action that somebody else took, as if this policy had drawn it: raw, with its log-probabilities.

    obs: [..., A, *shape]; action_mask: bool [..., A, M]; action, as the environment has it: [..., A, C], [..., A, D].
    """
    raw = actions.from_environment(action)
    dist = parts.actor(state.params, normalizer.normalize_all(state.normalizer, obs), part(carry, "actor"))
    return raw, {"log_prob": actions.log_prob(dist, raw, action_mask, parts.spec.action)}


def critic_step(
    parts: Parts, state: PolicyState, obs: tuple[jax.Array, ...], present: jax.Array, decision: Decision
) -> dict[str, Any]:
    """The memory after a decision, that of the critic too."""
    shown = normalizer.normalize_all(state.normalizer, obs)
    assert parts.critic_step is not None
    after = parts.critic_step(state.critic, Seen(shown, decision.action, present, decision.carry))
    return {**decision.carry, "critic": after}


def learn(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """One update: values, baselines, returns and advantages, then all epochs and minibatches."""
    state, batch, of_values = prepare(parts, signals, state, rollout)
    state, metrics = update(parts, state, batch, signals)
    state, told = after_update(parts, signals, state, rollout)
    return state, of_values | metrics | told


def after_update(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Metrics]:
    """What learns once the policy has: clones, and reward signals from the whole rollout."""
    metrics: Metrics = {}
    if parts.cloning is not None:
        state, metrics = with_clones(parts.cloning, state, state.key)
    learned, of_signals = signals.learn(state.signals, rollout, state.key)
    return state.replace(signals=learned), metrics | of_signals


def with_clones(cloning: Cloning, state: TrainState, key: jax.Array) -> tuple[TrainState, Metrics]:
    """The policy after a turn of cloning. The key may be used further."""
    policy = state.policy
    kept, params, loss = cloning.learn(state.own[CLONING], policy.params, policy.normalizer, state.step, key)
    state = state.replace(policy=policy.replace(params=params), own={**state.own, CLONING: kept})
    return state, {"pretraining_loss": loss}


def estimate(parts: Parts, state: TrainState, rollout: Rollout) -> Metrics:
    """Means of values, baselines and entropy."""
    entropy = entropy_of(parts, state, rollout)
    return evaluated(parts, state, rollout)[-1] | {"entropy": entropy}


def entropy_of(parts: Parts, state: TrainState, rollout: Rollout) -> jax.Array:
    """Mean entropy of the decisions of a rollout, float32 []."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    dist = parts.actor(state.policy.params, obs, part(rollout.carry, "actor"))
    return losses.masked_mean(actions.entropy(dist, rollout.action_mask, parts.spec.action), rollout.acted)


# From a rollout to what minibatches are cut from


def prepare(parts: Parts, signals: Signals, state: TrainState, rollout: Rollout) -> tuple[TrainState, Batch, Metrics]:
    """A rollout [T, B, A], flattened to states [T·B, A]: V, b, the λ-return R of V, the advantage."""
    memory = parts.settings.network_settings.memory
    state, rollout = observe(parts, state, rollout)
    state = state.replace(own=parts.watch(state.own, rollout))
    obs, value, baseline, metrics = evaluated(parts, state, rollout)
    paid = signals.rewards(state.signals, rollout, cooperative=parts.cooperative)
    state = state.replace(signals=signals.watch(state.signals, rollout))
    target = stream_returns(rollout, value, parts.settings, paid, lasting=signals.lasting)
    batch = make_batch(
        rollout,
        obs,
        target,
        advantage=parts.advantage(target, value, value if baseline is None else baseline, rollout),
        baseline=value[..., :0] if baseline is None else baseline,
        length=None if memory is None else memory.sequence_length,
        inputs={name: one.inputs(state, rollout) for name, one in parts.added.items()} or (),
        seen=transitions(rollout) if signals.in_minibatches else (),
    )
    return state, batch, metrics


def observe(parts: Parts, state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout]:
    """Bring the normaliser up to date, before values are estimated (as ML-Agents).

    The log-probabilities of the rollout move along: they become those that the policy which acted gives to the same
    actions when it sees what is trained on. Otherwise the first update of a run would take the change of its input for
    a change of the policy. For decisions that an older policy has made, the same difference is added. With memory it
    goes along the sequences of `make_batch`, for it is made of what is seen.
    """
    spec, memory = parts.spec, parts.settings.network_settings.memory
    chex.assert_rank(rollout.acted, 3)
    chex.assert_shape(rollout.obs, [(*rollout.acted.shape, *sensor.shape) for sensor in spec.observations])
    chex.assert_shape(rollout.extras["log_prob"], (*rollout.acted.shape, spec.action.columns))
    before = state.policy.normalizer
    after = normalizer.update_all(before, rollout.obs, rollout.acted)
    state = state.replace(policy=state.policy.replace(normalizer=after))
    if all(states is None for states in before):
        return state, rollout

    def change(obs: tuple[jax.Array, ...], mask: jax.Array, action: Action, memory: Any) -> jax.Array:
        seen = (normalizer.normalize_all(states, obs) for states in (after, before))
        new, old = (parts.actor(state.policy.params, x, memory) for x in seen)
        given = (action, mask, spec.action)
        return actions.log_prob(new, *given) - actions.log_prob(old, *given)

    def of_one(*sequence: Any) -> jax.Array:  # [L, A, ...]
        return change(*jax.tree.map(lambda x: x[None], sequence))[0]

    inputs = (rollout.obs, rollout.action_mask, rollout.action)
    if memory is None:
        moved = in_chunks(change, (*inputs, ()), ACTOR_CHUNK)
    else:
        along = _along(rollout)
        counts = along.moves | rollout.acted
        pieces = sequences.cut((*inputs, part(along, "actor")), counts, memory.sequence_length)
        moved = sequences.joined(in_chunks(of_one, pieces, ACTOR_CHUNK), counts)
    log_prob = rollout.extras["log_prob"] + jnp.where(rollout.acted[..., None], moved, 0.0)
    return state, rollout._replace(extras={**rollout.extras, "log_prob": log_prob})


def _along(rollout: Rollout) -> Sequences:
    """The memories of all networks, for them to go along the rollout [T, B, A]."""
    return Sequences(rollout.carry, rollout.begin, rollout.present & ~rollout.waiting)


def evaluated(
    parts: Parts, state: TrainState, rollout: Rollout
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array | None, Metrics]:
    """Normalised observations, V and b [T, B, A, R], and the means of both over trajectories, per reward signal."""
    obs = normalizer.normalize_all(state.policy.normalizer, rollout.obs)
    params, seen = groups_of(parts, state), Seen(obs, rollout.action, rollout.present, rollout.carry)
    value, baseline = of_states(lambda *at: parts.estimates(params, Seen(*at), state.own), seen, rollout, parts.chunk)
    metrics = by_stream("value_estimate", value, rollout, parts.settings)
    if baseline is not None:
        metrics |= by_stream("baseline_estimate", baseline, rollout, parts.settings)
    return obs, value, baseline, metrics


def by_stream(name: str, estimate: jax.Array, rollout: Rollout, settings: BehaviorSettings) -> Metrics:
    """Mean over trajectories of an estimate [T, B, A, R], one metric `<name>/<signal>` per reward signal.

    As in ML-Agents a short trajectory counts like a long one. What an update cuts off an open one counts as one.
    """
    signals, acted = settings.reward_signals, rollout.acted
    chex.assert_shape(estimate, (*acted.shape, len(signals)))
    last = rollout.terminated | rollout.truncated | rollout.left | rollout.cut
    means = (mean_over_trajectories(estimate[..., i], acted, last) for i in range(len(signals)))
    return {f"{name}/{signal}": mean for signal, mean in zip(signals, means, strict=True)}


def stream_returns(
    rollout: Rollout,
    value: jax.Array,
    settings: BehaviorSettings,
    paid: Mapping[str, jax.Array],
    *,
    lasting: Collection[str] = (),
) -> jax.Array:
    """λ-returns of every reward signal, R_t = r_t + γ_t [(1 − λ_t) V_{t+1} + λ_t R_{t+1}].

    γ_t = 0 where nothing follows (terminated). λ_t = 0 where the return restarts from the value of the next state:
    time_horizon reached, interrupted (the next state of the row is the true last observation), or ended while the team
    lives (the next state of the team: posthumous credit). GAE is this return minus V.

    Args:
      rollout: arrays [T, B, A].
      value: float32 [T, B, A, R], V of each state.
      settings: gamma and strength of each signal, lambd.
      paid: what each signal pays, [T, B, A] before strength.
      lasting: streams that do not end with an episode. A rollout does not hold what is seen last of an episode that
        ends for good, and V of the state before it stands for V of that one.

    Returns:
      float32 [T, B, A, R], 0 where the member did not act.
    """
    endings = (rollout.terminated, rollout.truncated, rollout.left, rollout.cut)
    chex.assert_rank(rollout.acted, 3)
    chex.assert_equal_shape([rollout.acted, rollout.waiting, *endings])
    chex.assert_shape(value, (*rollout.acted.shape, len(settings.reward_signals)))
    restart = rollout.truncated | rollout.left | rollout.cut
    lambd = jnp.where(restart, 0.0, settings.hyperparameters.lambd)
    found = []
    for i, (name, signal) in enumerate(settings.reward_signals.items()):
        reward = paid[name] * signal.strength
        if name in lasting:
            reward = reward + jnp.where(rollout.terminated & rollout.acted, signal.gamma * value[..., i], 0.0)
        found.append(
            returns.lambda_return(
                reward,
                value[..., i],
                jnp.zeros_like(value[0, ..., i]),
                jnp.where(rollout.terminated, 0.0, signal.gamma),
                lambd,
                acted=rollout.acted,
                waiting=rollout.waiting,
            )
        )
    return jnp.stack(found, axis=-1)


def make_batch(
    rollout: Rollout,
    obs: tuple[jax.Array, ...],
    returns: jax.Array,
    *,
    advantage: jax.Array,
    baseline: jax.Array,
    length: int | None = None,
    inputs: Any = (),
    seen: Any = (),
    normalized: jax.Array | None = None,
) -> Batch:
    """States ready for minibatches: everything [T, B, A, ...] becomes [T·B, A, ...], without states `between`.

    With memory it becomes sequences [N, L, A, ...], L = min(`length`, T), see `sequences.cut`.

    The advantage [T, B, A, R] is averaged over the reward signals, then normalised over all that acted; `normalized`
    [T, B, A] is what it is where that was done already, with members who are not in this rollout.
    """
    chex.assert_equal_shape([advantage, returns])
    if normalized is None:
        normalized = losses.normalize_advantages(advantage.mean(-1), rollout.acted)
    batch = Batch(
        obs=obs,
        action_mask=rollout.action_mask,
        action=rollout.action,
        log_prob=rollout.extras["log_prob"],
        present=rollout.present,
        acted=rollout.acted,
        advantage=normalized,
        returns=returns,
        baseline=baseline,
        memory=() if length is None else _along(rollout),
        inputs=inputs,
        transitions=seen,
    )
    chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 3)
    if length is not None:
        return sequences.cut(batch, batch.memory.moves | batch.acted, length)
    if isinstance(rollout.between, EverySecond):  # half as much to shuffle and to pick from
        batch = each_second(batch, 0)
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), batch)


# Epochs and minibatches


def scheduled(direction: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`direction` times the settings' learning rate at the state's step, downhill."""

    def update(updates: Any, state: Any, params: Any = None, **now: Any) -> Any:
        found, state = direction.update(updates, state, params)
        return jax.tree.map(lambda d: -now["learning_rate"] * d, found), state

    return optax.GradientTransformationExtraArgs(direction.init, update)


ADAM = scheduled(adam.ADAM)
"""ML-Agents' Adam at the settings' learning rate."""


def optimizer_of(parts: Parts) -> optax.GradientTransformationExtraArgs:
    """Of all groups together: one `ADAM`, or the transformation of each where the algorithm brings any."""
    if not parts.optimizers:
        return ADAM
    names = ("actor", "critic", *(name for name, one in parts.added.items() if one.init is not None))
    unknown = [name for name in parts.optimizers if name not in names]
    if unknown:
        raise ValueError(f"optimizers: there is no group {unknown[0]}, expected one of {', '.join(names)}")
    return optax.partition({name: parts.optimizers.get(name, ADAM) for name in names}, {name: name for name in names})


def groups_of(parts: Parts, state: TrainState) -> Groups:
    """All parameters that learn."""
    added = {name: state.own[name] for name, one in parts.added.items() if one.init is not None}
    return {"actor": state.policy.params, "critic": state.critic, **added}


class Kind(NamedTuple):
    """A behavior that learns: alone, or as one of several in a team."""

    parts: Parts
    signals: Signals


Losses = Callable[[dict[str, Groups], dict[str, Batch], dict[str, Now]], dict[str, tuple[jax.Array, Metrics]]]
"""As `Loss`, of each of several behaviors."""


def update(parts: Parts, state: TrainState, batch: Batch, signals: Signals = NO_SIGNALS) -> tuple[TrainState, Metrics]:
    """All epochs and minibatches of one update, coefficients at the state's step; signals that learn so move along.

    A minibatch is as many states as hold about batch_size members that acted, see `learning.minibatches.run`.
    """

    def loss(params: dict[str, Groups], chunk: dict[str, Batch], now: dict[str, Now]):
        return {"": parts.loss(params[""], chunk[""], now[""])}

    states, metrics = update_together({"": Kind(parts, signals)}, {"": state}, {"": batch}, loss)
    return states[""], metrics[""]


def update_together(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], batches: Mapping[str, Batch], losses_of: Losses
) -> tuple[dict[str, TrainState], dict[str, Metrics]]:
    """As `update`, of behaviors whose members stand in the same states: a minibatch is states of all of them.

    The loss is the sum of theirs, each a mean over its own members, by their shares of the members that acted: the mean
    over all. So are metrics: a mean over the members of their behavior, however they are spread over minibatches. Each
    behavior has coefficients and optimizer of its own; sizes, number of epochs and the key are the first one's.
    """
    for batch in batches.values():
        chex.assert_equal_shape_prefix(jax.tree.leaves(batch), 2)
    first, several = next(iter(kinds)), len(kinds) > 1
    hyper, places = kinds[first].parts.settings.hyperparameters, {name: i for i, name in enumerate(kinds)}
    optimizers = {name: optimizer_of(kind.parts) for name, kind in kinds.items()}
    now = {
        name: coefficients(kind.parts.settings, states[name].step)._replace(own=states[name].own)
        for name, kind in kinds.items()
    }
    keys = {name: jax.random.split(state.key) for name, state in states.items()}
    key = keys[first][0]
    drawn = {name: jax.random.fold_in(key, _DRAWN + i) for name, i in places.items()}

    def loss(params: dict[str, Groups], chunk: dict[str, Batch], number: jax.Array) -> tuple[jax.Array, Metrics]:
        at = {name: of._replace(key=jax.random.fold_in(drawn[name], number)) for name, of in now.items()}
        shares, sums, metrics = _shares(chunk), {}, {}
        for name, (own, found) in losses_of(params, chunk, at).items():
            for added in kinds[name].parts.added.values():
                more, told = added.loss(params[name], chunk[name], at[name])
                own, found = own + more, found | told
            sums[name] = own
            metrics |= _placed(places[name], found, shares[name] if several else None)
        return over_all(sums, chunk), metrics

    def gradient(carry: Any, chunk: dict[str, Batch]) -> tuple[Any, Metrics]:
        params, _, number, of_signals = carry
        policies, metrics = jax.grad(loss, has_aux=True)(params, chunk, number)
        moved, shares = {}, _shares(chunk)
        for name, kind in kinds.items():
            at = jax.random.fold_in(drawn[name], number)
            moved[name], told = kind.signals.gradients(of_signals[name], chunk[name].transitions, at)
            metrics |= _placed(places[name], told, shares[name] if several else None)
        return (policies, moved), metrics

    def apply(carry: Any, gradient: Any) -> Any:
        (params, moments, number, of_signals), (policies, moved) = carry, gradient
        after, learned = {}, {}
        for name, kind in kinds.items():
            given = policies[name], moments[name], params[name]
            change, kept = optimizers[name].update(*given, learning_rate=now[name].learning_rate)
            after[name] = cast(Groups, optax.apply_updates(params[name], change)), kept
            learned[name] = kind.signals.apply(of_signals[name], moved[name])
        return *({name: of[i] for name, of in after.items()} for i in range(2)), number + 1, learned

    carry = (
        {name: groups_of(kind.parts, states[name]) for name, kind in kinds.items()},
        {name: state.optimizer for name, state in states.items()},
        jnp.int32(0),
        {name: {one: states[name].signals[one] for one in kind.signals.in_minibatches} for name, kind in kinds.items()},
    )
    acted = [batch.acted.reshape(len(batch.acted), -1) for batch in batches.values()]
    (params, moments, _, learned), metrics = minibatches.run(
        gradient,
        apply,
        carry,
        dict(batches),
        jnp.concatenate(acted, axis=-1) if several else acted[0],
        key,
        size=hyper.batch_size,
        epochs=hyper.num_epoch,
        magnitudes=[f"{i}/policy_loss" for i in places.values()],
        largest=[f"{i}/{LARGEST_LOG_RATIO}" for i in places.values()],
    )
    told = {name: _of_place(i, metrics, several=several) for name, i in places.items()}
    for name, of in now.items():
        told[name] |= {each: getattr(of, each) for each in ("learning_rate", "epsilon", "beta")}
    after = {}
    for name in kinds:
        after[name] = _after(states[name].replace(key=keys[name][1]), params[name], moments[name], learned[name])
    return after, told


def _after(state: TrainState, params: Groups, moments: Any, learned: Mapping[str, Any]) -> TrainState:
    """The state with what one update has made of it."""
    own = {name: of for name, of in params.items() if name not in ("actor", "critic")}
    return state.replace(
        policy=state.policy.replace(params=params["actor"]),
        critic=params["critic"],
        own={**state.own, **own},
        optimizer=moments,
        signals={**state.signals, **learned} if learned else state.signals,
    )


def over_all(means: Mapping[str, jax.Array], chunk: Mapping[str, Batch]) -> jax.Array:
    """The mean over all members that acted of what is a mean over those of each behavior; of one behavior as it is."""
    if len(means) == 1:
        return next(iter(means.values()))
    shares = _shares(chunk)
    return jnp.stack([mean * shares[name] for name, mean in means.items()]).sum()


_SHARE = "share"


def _shares(chunk: Mapping[str, Batch]) -> dict[str, jax.Array]:
    """Of each behavior, its share of the members that acted in a minibatch."""
    counts = {name: batch.acted.sum(dtype=jnp.float32) for name, batch in chunk.items()}
    total = jnp.maximum(sum(counts.values()), 1.0)
    return {name: count / total for name, count in counts.items()}


def _placed(place: int, metrics: Metrics, share: jax.Array | None) -> Metrics:
    """Metrics of one of several behaviors, by names of its own; means by its share, which is told beside them."""
    if share is None:
        return {f"{place}/{name}": x for name, x in metrics.items()}
    means = {name: x if name == LARGEST_LOG_RATIO else share * x for name, x in metrics.items()}
    return {f"{place}/{name}": x for name, x in (means | {_SHARE: share}).items()}


def _of_place(place: int, metrics: Metrics, *, several: bool) -> Metrics:
    """What `_placed` has put away: means over the behavior's own members."""
    found = {name.split("/", 1)[1]: x for name, x in metrics.items() if name.startswith(f"{place}/")}
    share = found.pop(_SHARE, None)
    if share is None:
        return found
    share = jnp.maximum(share, 1e-12)
    return {name: x if name == LARGEST_LOG_RATIO else x / share for name, x in found.items()}


def coefficients(settings: BehaviorSettings, step: jax.Array) -> Now:
    """Learning rate, epsilon and beta at a trainer step; traced, so that their decay never recompiles."""
    chex.assert_rank(step, 0)
    hyper, last = settings.hyperparameters, settings.max_steps
    return Now(
        make_schedule(hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, last)(step),
        make_schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_MINIMUM, last)(step),
        make_schedule(hyper.beta_schedule, hyper.beta, BETA_MINIMUM, last)(step),
    )
