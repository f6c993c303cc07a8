"""SAC (Haarnoja et al. 2018, arXiv 1801.01290, 1812.05905), continuous, discrete (Christodoulou 2019) and hybrid.

Every agent learns by itself, from single transitions (s, a, r, γ, s') of a replay. With p = π(·|s), a ~ π drawn anew,
α a temperature for all continuous dimensions together (α_c) and one for each branch (α_b), per reward signal:

    Q₁, Q₂ → r + γ V̄(s')                                            V̄ ← τ V + (1 - τ) V̄ after every step
    V      → min(Q₁, Q₂)(s, a) - α_c log π(a|s)                     continuous
             min over Q of mean_b Σ p Q - mean_b α_b Σ p log p      with branches
             min over Q of mean_b Σ p Q                             hybrid (`backup_entropy: true`: less both entropies)
    π      ↓ α_c log π(a|s) - Q₁(s, a)                              gradient through a alone
             Σ_b Σ (α_b p log p - p Q₁)                             with branches; hybrid: + α_c log π(a|s), Q₁ twice
    α      ↓ -α (log π + target): target entropies -C, and of a branch 0.2 log(number of choices that the mask allows)

The networks, sums over branches and acting are in `sac_parts.py`, the replay and the number of updates in
`off_policy.py`.

Squared errors are halved; all losses are computed before any parameter moves. One Adam each for π, for both Q and V,
for the temperatures.

Parity. Equal to ML-Agents 1.1.0: networks, losses, targets and the order of the steps; only Q₁ in the policy's loss;
interrupted episodes bootstrap from their last observation; rewards are computed anew for each minibatch; the number of
updates (`steps_per_update`); with hybrid actions the Q of branches counts twice for the policy, which learns faster.
Different on purpose, unless `original_losses: true`: masked rows do not count in the losses of Q and V; with hybrid
actions entropy is no part of V (below), and with `backup_entropy: true` the entropy of the continuous action has the
sign of the equation above; the target entropy of a branch follows the mask of each state (with one allowed choice the
target for all choices cannot be reached, and the temperature grows without end). Always different: temperatures are
part of a checkpoint (ML-Agents loses them), and the temperature of a branch of one choice is constant; the
deterministic action of a file for a game is the squashed mean (ML-Agents does not squash it); the replay holds the
newest `buffer_size` decisions (ML-Agents drops a fifth at once when it is full).

Hybrid actions and the entropy in V. If a branch can end the episode, V with entropy rewards going on: by α_b H in each
decision, so that going on is preferred for every α_b. With the Q of branches counted twice the policy prefers it more
than its target entropy allows; α_b grows to reach that entropy, V grows with it, and both outweigh the reward (0.82 of
1 at 8,000 decisions, 0.5 from 16,000 on, α_b from 0.3 to 23: `stop` in benchmarks/sac_tasks.py). Without entropy in V
the value of going on is bounded by rewards, and the target entropy is reached at a finite α_b.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm, Metrics, PolicyState, TrainState
from jaxrl.algorithms.off_policy import collect_size, turn
from jaxrl.algorithms.parts import applied
from jaxrl.algorithms.policy_gradient import CLONING, signal_rewards, with_clones
from jaxrl.algorithms.sac_parts import (
    Parts,
    Soft,
    act,
    backs_up_entropy,
    critic_step,
    estimate,
    expected_q,
    groups_of,
    memories_of,
    parts_of,
    soft_of,
    taken_q,
    target_entropies,
    temperatures_of,
    watch,
)
from jaxrl.learning import replay as replays
from jaxrl.learning.adam import ADAM, descended
from jaxrl.learning.cloning import Copied, bind_cloning
from jaxrl.learning.losses import masked_mean
from jaxrl.learning.schedules import LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.networks import actions, normalizer, squashed
from jaxrl.networks.memory import Sequences, start
from jaxrl.networks.models import ValueNetwork
from jaxrl.networks.policy import squashed_network
from jaxrl.networks.shapes import as_row
from jaxrl.rewards.signals import Signals, bind_off_policy, same
from jaxrl.rollout.rollout import masked
from jaxrl.rollout.transitions import Transitions
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


@connected
def make_sac(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make SAC for one behavior. Raises SettingsError for a signal that looks at whole rollouts."""
    parts, signals = parts_of(spec, settings), bind_off_policy(spec, settings)
    copied = Copied(applied(parts.actor), lambda dist, normal: squashed.drawn(dist, normal)[0], same)
    parts = parts._replace(cloning=bind_cloning(spec, settings, copied))
    hyper, memory = parts.hyper, settings.network_settings.memory
    return Algorithm(
        init=partial(init, parts, signals),
        act=partial(act, parts),
        storage=parts.storage,
        learn=partial(learn, parts, signals),
        estimate=lambda state, rollout: estimate(parts, state, masked(rollout)),
        collect_size=collect_size(hyper, memory),
        extras=(),
        memories=memories_of(settings),
        team_rows=False,
        score_action=lambda state, obs, mask, carry, action: (action, {}),  # the environment's action is stored
        noise=partial(actions.noise, spec=spec.action),
        critic_step=None if memory is None else partial(critic_step, parts),
        policy=squashed_network(spec, settings.network_settings),
        watch=partial(watch, parts, signals),
        copied=copied,
        signal_rewards=signal_rewards(settings, lambda: signals, cooperative=False),
    )


def init(parts: Parts, signals: Signals, key: jax.Array) -> TrainState:
    """Make the state of a fresh learner; the target begins as a copy of V. The key is consumed."""
    spec, (network_key, key) = parts.spec, jax.random.split(key)
    obs = tuple(jnp.zeros((1, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    first = start(parts.settings.network_settings.memory, (1,))
    inputs = (obs, jnp.zeros((1, spec.action.continuous_size)), first)
    keys = jax.random.split(network_key, 4)
    value = parts.value.init(keys[1], obs, first)
    critic = {
        "value": value,
        "target": jax.tree.map(jnp.copy, value),
        "q1": parts.q.init(keys[2], *inputs),
        "q2": parts.q.init(keys[3], *inputs),
    }
    state = TrainState(
        policy=PolicyState(
            params=parts.actor.init(keys[0], obs, first),
            normalizer=normalizer.init_for(spec, parts.settings.network_settings),
        ),
        critic=critic,
        optimizer={},
        own={
            "log_alpha": {
                kind: jnp.full(count, jnp.log(parts.hyper.init_entcoef), jnp.float32)
                for kind, count in temperatures_of(spec).items()
            },
            "fresh": jnp.zeros((), jnp.int32),  # decisions since the last round, without those before buffer_init_steps
            "owed": jnp.zeros(()),  # fraction of an update that is due: less than one
            "signals_owed": jnp.zeros(()),
        },
        signals=signals.init(key),
        step=jnp.zeros((), jnp.int32),
        key=key,
    )
    state = state.replace(optimizer={name: ADAM.init(group) for name, group in groups_of(state).items()})
    if parts.cloning is not None:
        state = state.replace(own={**state.own, CLONING: parts.cloning.init(state.policy.params)})
    of_update, of_signals = jax.eval_shape(partial(_example, parts, signals), state, key)
    of_update, of_signals = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (of_update, of_signals))
    return state.replace(own={**state.own, "told": of_update, "signals_told": of_signals})


def learn(parts: Parts, signals: Signals, state: TrainState, store: Any) -> tuple[TrainState, Metrics]:
    """Run the updates that are due since the last round, then those of the reward signals."""
    hyper, own, draw = parts.hyper, state.own, partial(parts.storage.sample, store)
    key, next_key = jax.random.split(state.key)
    fresh = own["fresh"].astype(jnp.float32)
    owed, key_of = own["owed"] + fresh / hyper.steps_per_update, partial(jax.random.fold_in, key)
    state, owed, metrics = turn(partial(one_update, parts, signals), state, owed, own["told"], draw, key_of)
    state = state.replace(own={**state.own, "fresh": jnp.zeros_like(own["fresh"]), "owed": owed, "told": metrics})
    state = state.replace(key=next_key)
    if all(not jax.tree.leaves(kept) for kept in state.signals.values()):
        return state, metrics
    owed = own["signals_owed"] + fresh / hyper.reward_signal_steps_per_update
    learned, owed, of_signals = turn(
        signals.learn_replayed, state.signals, owed, own["signals_told"], draw, lambda number: key_of(-1 - number)
    )
    state = state.replace(signals=learned, own={**state.own, "signals_owed": owed, "signals_told": of_signals})
    return state, metrics | of_signals


def one_update(
    parts: Parts, signals: Signals, state: TrainState, batch: Transitions, key: jax.Array
) -> tuple[TrainState, Metrics]:
    """Run one update from a minibatch [n], with rewards by the signals' current states. The key is consumed."""
    settings = parts.settings.reward_signals
    paid = signals.replayed(state.signals, batch)
    rewards = jnp.stack([paid[name] * signal.strength for name, signal in settings.items()], axis=-1)
    normal = jax.random.normal(key, (*batch.valid.shape, parts.spec.action.continuous_size))
    state, metrics = step(parts, state, batch, rewards, normal, lasting=signals.lasting)
    if parts.cloning is not None:
        state, of_cloning = with_clones(parts.cloning, state, key)
        metrics |= of_cloning
    return state, metrics


def step(
    parts: Parts,
    state: TrainState,
    batch: Transitions,
    rewards: jax.Array,
    normal: jax.Array,
    *,
    lasting: Collection[str] = (),
) -> tuple[TrainState, Metrics]:
    """Take one gradient step of all networks: transitions [n], rewards [n, R] with strength, Gaussian noise [n, C].

    `lasting` streams go on where an episode ends, from V of the state before if the next observation is unknown.
    """
    obs, later = (normalizer.normalize_all(state.policy.normalizer, x) for x in (batch.obs, batch.next_obs))
    settings = parts.settings.reward_signals
    gammas = jnp.stack([jnp.asarray(signal.gamma, jnp.float32) for signal in settings.values()])
    memory = memories_along(parts, state, batch, obs)
    follows = applied(parts.value)(state.critic["target"], later, memory.target)  # [n, R]
    goes_on = (batch.discount * batch.seen)[..., None] * follows
    if lasting:
        here = applied(parts.value)(state.critic["target"], obs, memory.value)
        always = jnp.array([name in lasting for name in settings])
        goes_on = jnp.where(always, jnp.where(batch.seen[..., None], follows, here), goes_on)
    backup = rewards + as_row(gammas, follows) * goes_on
    loss = partial(_losses, parts, batch, obs, memory, backup, normal)
    gradients, metrics = jax.grad(loss, has_aux=True)(groups_of(state))
    hyper = parts.hyper
    schedule = make_schedule(
        hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, parts.settings.max_steps
    )
    rate, moved, moments = schedule(state.step), {}, {}
    for name, group in groups_of(state).items():
        moved[name], moments[name] = descended(group, gradients[name], state.optimizer[name], rate)
    target = optax.incremental_update(moved["critic"]["value"], state.critic["target"], hyper.tau)
    state = state.replace(
        policy=state.policy.replace(params=moved["policy"]),
        critic={**moved["critic"], "target": target},
        optimizer=moments,
        own={**state.own, "log_alpha": moved["entropy"]},
    )
    coefficients = {f"{kind}_entropy_coeff": jnp.exp(x).mean() for kind, x in moved["entropy"].items()}
    return state, metrics | coefficients | {"learning_rate": rate}


class Memories(NamedTuple):
    """Memories of each network along a minibatch of sequences; () without memory."""

    actor: Any = ()
    value: Any = ()
    q: Any = ()
    target: Any = ()


def memories_along(parts: Parts, state: TrainState, batch: Transitions, obs: tuple[jax.Array, ...]) -> Memories:
    """Make the memories: policy and V begin with the stored ones, Q with zeros, the target with V's after one state."""
    if parts.settings.network_settings.memory is None:
        return Memories()
    everywhere = jnp.ones_like(batch.valid)  # invalid states only pad the end of a sequence
    stored, along = batch.carry, partial(Sequences, begin=batch.begin, moves=everywhere)
    after = applied(parts.value, ValueNetwork.step)(state.critic["value"], obs, stored["critic"])[1]
    none = jnp.zeros_like(stored["critic"])
    return Memories(along(stored["actor"]), along(stored["critic"]), along(none), along(after))


def _losses(
    parts: Parts,
    batch: Transitions,
    obs: tuple[jax.Array, ...],
    memory: Memories,
    backup: jax.Array,
    normal: jax.Array,
    groups: dict[str, Any],
) -> tuple[jax.Array, Metrics]:
    """Compute the sum of all losses, each of which has gradients for its own parameters alone, and their metrics."""
    spec, original = parts.spec.action, parts.hyper.original_losses
    critic, still = groups["critic"], jax.lax.stop_gradient
    counts = jnp.ones_like(batch.valid)
    if parts.hyper.burn_in:
        counts = replays.behind(batch.begin, parts.hyper.burn_in)
    valid = batch.valid & counts
    mean = partial(masked_mean, mask=counts if original else valid)
    alpha = {kind: jnp.exp(x) for kind, x in groups["entropy"].items()}
    fixed = still(alpha)

    dist = applied(parts.actor)(groups["policy"], obs, memory.actor)
    action, log_prob = squashed.drawn(dist, normal)
    soft = soft_of(dist, log_prob.sum(-1), batch.action_mask, parts)
    qs = [applied(parts.q)(critic[name], obs, batch.action.continuous, memory.q) for name in ("q1", "q2")]
    q_losses = [0.5 * mean(jnp.square(backup - taken_q(q, batch.action, parts)).mean(-1)) for q in qs]

    drawn = [applied(parts.q)(still(critic[name]), obs, action, memory.q) for name in ("q1", "q2")]  # [n, R, K]
    worth = jnp.minimum(*(expected_q(q, soft, parts).mean(-1) for q in drawn))  # [n, R]
    if backs_up_entropy(parts):
        worth -= _entropy_cost(parts, soft, fixed)[..., None]
    value = applied(parts.value)(critic["value"], obs, memory.value)
    value_loss = 0.5 * mean(jnp.square(value - still(worth)).mean(-1))

    policy_loss = masked_mean(_policy_cost(parts, soft, drawn[0].mean(-2), fixed), valid)
    entropy_loss = _temperature_loss(parts, jax.tree.map(still, soft), batch.action_mask, alpha, valid)
    metrics = {
        "q1_loss": q_losses[0],
        "q2_loss": q_losses[1],
        "value_loss": value_loss,
        "policy_loss": policy_loss,
        "entropy": masked_mean(actions.entropy(dist, batch.action_mask, spec), valid),
    } | {f"value/{name}": masked_mean(value[..., i], valid) for i, name in enumerate(parts.value.signals)}
    return sum(q_losses) + value_loss + policy_loss + entropy_loss, metrics


def _entropy_cost(parts: Parts, soft: Soft, alpha: dict[str, jax.Array]) -> jax.Array:
    """Compute the entropy terms that the target of V subtracts, α log π, [n]."""
    spec, cost = parts.spec.action, jnp.zeros_like(soft.log_prob)
    if spec.continuous_size:
        wrong = parts.hyper.original_losses and spec.discrete_branches
        cost += (-1.0 if wrong else 1.0) * alpha["continuous"][0] * soft.log_prob
    if spec.discrete_branches:
        cost += (as_row(alpha["discrete"], soft.negentropy) * soft.negentropy).mean(-1)
    return cost


def _policy_cost(parts: Parts, soft: Soft, q: jax.Array, alpha: dict[str, jax.Array]) -> jax.Array:
    """Compute the policy's loss of each state, [n]; q [n, K] is Q₁ of the drawn action, a mean over reward signals."""
    spec, cost = parts.spec.action, jnp.zeros_like(soft.log_prob)
    if spec.continuous_size:
        cost += alpha["continuous"][0] * soft.log_prob
    if not spec.discrete_branches:
        return cost - q[..., 0]
    expected = expected_q(q[..., None, :], soft, parts)[..., 0, :].sum(-1)
    cost += (as_row(alpha["discrete"], soft.negentropy) * soft.negentropy).sum(-1)
    return cost - (2.0 if spec.continuous_size else 1.0) * expected


def _temperature_loss(
    parts: Parts, soft: Soft, mask: jax.Array, alpha: dict[str, jax.Array], valid: jax.Array
) -> jax.Array:
    """Compute the loss that moves each temperature until the policy has its target entropy."""
    spec, loss = parts.spec.action, jnp.zeros(())
    if spec.continuous_size:
        loss -= masked_mean(alpha["continuous"][0] * (soft.log_prob - spec.continuous_size), valid)
    if spec.discrete_branches:
        targets = target_entropies(mask, parts)
        # The entropy of a single choice is rounding below its target 0: the temperature would grow without end.
        gap = jnp.where(targets > 0.0, soft.negentropy + targets, 0.0)
        loss -= masked_mean((as_row(alpha["discrete"], gap) * gap).mean(-1), valid)
    return loss


def _example(parts: Parts, signals: Signals, state: TrainState, key: jax.Array) -> tuple[Metrics, Metrics]:
    """Return the metrics of an update and of one of the signals, to be traced for their names and shapes."""
    batch = parts.storage.sample(parts.storage.init(), key)
    return one_update(parts, signals, state, batch, key)[1], signals.learn_replayed(state.signals, batch, key)[1]
