"""A small off-policy algorithm: Q-learning from a replay ring, one discrete branch, every agent on its own.

Not for use. It shows that the seams of an `Algorithm` carry a learner that keeps what it has seen, begins late, learns
often and has parameters of its own. Its target is r + γ max_a Q'(s', a), with Q' a moving average of Q (Mnih et al.
2015; the average as in Lillicrap et al. 2016); it acts by softmax(Q / temperature).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import Algorithm, Counts, Decision, Metrics, PolicyState, Storage, TrainState
from jaxrl.networks import normalizer
from jaxrl.rollout.rollout import Rollout
from jaxrl.rollout.transitions import flat, transitions
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec


class ReplaySettings(NamedTuple):
    """What the algorithm is bound to; counts in agent decisions."""

    ring: int = 4096  # transitions that are kept
    initial: int = 400  # before learning begins
    per_update: int = 8
    minibatches: int = 4  # of an update
    batch: int = 64
    gamma: float = 0.8
    learning_rate: float = 0.01
    tau: float = 0.05  # share of the new parameters in the target, per minibatch
    temperature: float = 0.5
    hidden: int = 16
    saved: bool = False  # as `Storage` has it


class Kept(NamedTuple):
    """Finished decisions, N of them."""

    obs: tuple[jax.Array, ...]  # [N, *shape]
    action: jax.Array  # int32 [N]
    reward: jax.Array  # float32 [N]
    discount: jax.Array  # float32 [N], 0 where nothing follows
    next_obs: tuple[jax.Array, ...]  # [N, *shape]


class Ring(NamedTuple):
    """The newest transitions."""

    kept: Kept
    count: jax.Array  # int32 [], given so far: number n stands in place n % N


class QNetwork(nn.Module):
    """Observations [..., *shape] → Q [..., M]."""

    actions: int
    hidden: int

    @nn.compact
    def __call__(self, obs: tuple[Any, ...], lead: int) -> jax.Array:
        """`lead`: how many axes of the observations are no part of them."""
        flat = [o.reshape(*o.shape[:lead], -1).astype(jnp.float32) for o in obs]
        return nn.Dense(self.actions)(nn.relu(nn.Dense(self.hidden)(jnp.concatenate(flat, axis=-1))))


def make_replay(spec: BehaviorSpec, settings: ReplaySettings) -> Algorithm:
    """The algorithm for one behavior."""
    network = QNetwork(spec.action.mask_size, settings.hidden)
    return Algorithm(
        init=partial(init, network, spec, settings),
        act=partial(act, network, settings),
        storage=Storage(
            init=partial(empty, spec, settings.ring),
            add=partial(add, settings.gamma),
            can_sample=partial(can_sample, settings),
            sample=partial(sample, settings),
            kept=lambda ring: ring,
            saved=settings.saved,
        ),
        learn=partial(learn, network, settings),
        estimate=partial(estimate, network),
        collect_size=settings.per_update,
        extras=(),
        memories=(),
        team_rows=False,
    )


def make_kept(spec: BehaviorSpec, settings: BehaviorSettings, *, saved: bool = True) -> Algorithm:
    """`trainer_type: replay_algorithm.py:make_kept`: small, and a checkpoint keeps its ring of buffer_size."""
    ring = settings.hyperparameters.buffer_size
    return make_replay(spec, ReplaySettings(ring, initial=40, per_update=16, batch=8, hidden=4, saved=saved))


make_forgotten = partial(make_kept, saved=False)


def init(network: QNetwork, spec: BehaviorSpec, settings: ReplaySettings, key: jax.Array) -> TrainState:
    """Fresh parameters; the target begins as their copy."""
    network_key, key = jax.random.split(key)
    params = network.init(network_key, tuple(jnp.zeros((1, *s.shape)) for s in spec.observations), 1)
    return TrainState(
        policy=PolicyState(params=params, normalizer=normalizer.init_all(spec, False)),
        critic={},
        optimizer=optax.adam(settings.learning_rate).init(params),
        own={"target": jax.tree.map(jnp.copy, params)},
        signals={},
        step=jnp.zeros((), jnp.int32),
        key=key,
    )


def act(
    network: QNetwork,
    settings: ReplaySettings,
    state: PolicyState,
    obs: tuple[Any, ...],
    action_mask: Any,
    carry: Any,
    key: jax.Array,
) -> Decision:
    """Draw from softmax(Q / temperature) among the allowed actions."""
    q = network.apply(state.params, obs, action_mask.ndim - 1)
    chosen = jax.random.categorical(key, jnp.where(action_mask, q / settings.temperature, -jnp.inf))
    action = Action(jnp.zeros((*chosen.shape, 0)), chosen[..., None].astype(jnp.int32))
    return Decision(action=action, sent=action, extras={}, carry=carry)


def empty(spec: BehaviorSpec, size: int) -> Ring:
    """No transition yet. Every array is one of its own, since the loops donate them."""

    def obs() -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros((size, *sensor.shape), sensor.dtype) for sensor in spec.observations)

    kept = Kept(obs(), jnp.zeros(size, jnp.int32), jnp.zeros(size), jnp.zeros(size), obs())
    return Ring(kept, jnp.zeros((), jnp.int32))


def add(gamma: float, ring: Ring, rollout: Rollout) -> Ring:
    """The finished decisions of a rollout take the places of the oldest, in the order of time."""
    size, finished = ring.kept.action.shape[0], rollout.acted.reshape(-1)
    number = jnp.cumsum(finished) - 1
    count = finished.sum(dtype=jnp.int32)
    newest = finished & (number >= count - size)  # of more than the ring holds
    place = jnp.where(newest, (ring.count + number) % size, size)  # beyond the end: not written
    found = flat(transitions(rollout))
    new = Kept(found.obs, found.action.discrete[..., 0], found.reward, gamma * found.discount, found.next_obs)
    kept = jax.tree.map(lambda into, x: into.at[place].set(x, mode="drop"), ring.kept, new)
    return Ring(kept, ring.count + count)


def can_sample(settings: ReplaySettings, _ring: Ring, counts: Counts) -> Any:
    """Enough has been seen at all, and since the last update."""
    return (counts.total >= settings.initial) & (counts.fresh >= settings.per_update)


def sample(settings: ReplaySettings, ring: Ring, key: jax.Array) -> Kept:
    """A minibatch, drawn with replacement from all that is kept."""
    held = jnp.minimum(ring.count, ring.kept.action.shape[0])
    drawn = jax.random.randint(key, (settings.batch,), 0, held)
    return jax.tree.map(lambda x: x[drawn], ring.kept)


def learn(network: QNetwork, settings: ReplaySettings, state: TrainState, ring: Ring) -> tuple[TrainState, Metrics]:
    """Some minibatches."""
    key, next_key = jax.random.split(state.key)
    optimizer = optax.adam(settings.learning_rate)

    def loss(params: Any, target: Any, batch: Kept) -> jax.Array:
        later = network.apply(target, batch.next_obs, 1).max(-1)
        q = jnp.take_along_axis(network.apply(params, batch.obs, 1), batch.action[:, None], axis=-1)[:, 0]
        return jnp.square(batch.reward + batch.discount * later - q).mean()

    def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, target, moments = carry
        batch = sample(settings, ring, key)
        error, gradient = jax.value_and_grad(loss)(params, target, batch)
        change, moments = optimizer.update(gradient, moments)
        params = optax.apply_updates(params, change)
        return (params, optax.incremental_update(params, target, settings.tau), moments), error

    begun = state.policy.params, state.own["target"], state.optimizer
    (params, target, moments), errors = jax.lax.scan(step, begun, jax.random.split(key, settings.minibatches))
    state = state.replace(
        policy=state.policy.replace(params=params), own={"target": target}, optimizer=moments, key=next_key
    )
    return state, {"value_loss": errors.mean()}


def estimate(network: QNetwork, state: TrainState, rollout: Rollout) -> Metrics:
    """Mean of max Q where somebody decided."""
    best = network.apply(state.policy.params, rollout.obs, 3).max(-1)
    mean = jnp.where(rollout.acted, best, 0.0).sum() / jnp.maximum(rollout.acted.sum(), 1)
    return {"value_estimate/extrinsic": mean}
