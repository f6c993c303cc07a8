"""The epochs and minibatches of an update, of one behavior or of several that learn together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import LARGEST_LOG_RATIO, Metrics, TrainState
from jaxrl.algorithms.parts import Batch, Groups, Now, Parts, groups_of, loss_of
from jaxrl.learning import adam, minibatches
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.rewards.signals import NO_SIGNALS, Signals
from jaxrl.settings import BehaviorSettings

DRAWN = 0x4C550000
"""Number folded into the key of an update for its losses. It is large: small numbers give the keys of `split`."""


def scheduled(direction: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Make the transformation -learning_rate · `direction`, with the settings' learning rate at the state's step."""

    def update(updates: Any, state: Any, params: Any = None, **now: Any) -> Any:
        found, state = direction.update(updates, state, params)
        return jax.tree.map(lambda d: -now["learning_rate"] * d, found), state

    return optax.GradientTransformationExtraArgs(direction.init, update)


ADAM = scheduled(adam.ADAM)
"""ML-Agents' Adam at the settings' learning rate."""


def optimizer_of(parts: Parts) -> optax.GradientTransformationExtraArgs:
    """Make the optimizer of all groups: one `ADAM`, or the transformation of each if the algorithm defines any."""
    if not parts.optimizers:
        return ADAM
    names = ("actor", "critic", *(name for name, loss in parts.added.items() if loss.init is not None))
    unknown = [name for name in parts.optimizers if name not in names]
    if unknown:
        raise ValueError(f"optimizers: there is no group {unknown[0]}, expected one of {', '.join(names)}")
    return optax.partition({name: parts.optimizers.get(name, ADAM) for name in names}, {name: name for name in names})


class Kind(NamedTuple):
    """A behavior that learns alone or as one of several in a team."""

    parts: Parts
    signals: Signals


Losses = Callable[[dict[str, Groups], dict[str, Batch], dict[str, Now]], dict[str, tuple[jax.Array, Metrics]]]
"""(parameters, minibatch, now) → (scalar to minimise, metrics), all by behavior."""


def update(parts: Parts, state: TrainState, batch: Batch, signals: Signals = NO_SIGNALS) -> tuple[TrainState, Metrics]:
    """Run all epochs and minibatches of an update, also for signals that learn from minibatches.

    Coefficients are those of the state's step. A minibatch is the states that hold about batch_size members that acted,
    see `learning.minibatches.run`.
    """

    def loss(params: dict[str, Groups], chunk: dict[str, Batch], now: dict[str, Now]):
        return {"": loss_of(parts, params[""], chunk[""], now[""])}

    states, metrics = update_together({"": Kind(parts, signals)}, {"": state}, {"": batch}, loss)
    return states[""], metrics[""]


def update_together(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], batches: Mapping[str, Batch], losses_of: Losses
) -> tuple[dict[str, TrainState], dict[str, Metrics]]:
    """Run `update` for behaviors whose members share states: a minibatch is states of all of them.

    The loss is the mean over all members: the behaviors' losses, each a mean over its members, weighted by their shares
    of the members that acted. Metrics are means over the members of their behavior. Each behavior has its coefficients
    and its optimizer; sizes, number of epochs and the key are those of the first.
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
    drawn = {name: jax.random.fold_in(key, DRAWN + i) for name, i in places.items()}

    def loss(params: dict[str, Groups], chunk: dict[str, Batch], number: jax.Array) -> tuple[jax.Array, Metrics]:
        at = {name: x._replace(key=jax.random.fold_in(drawn[name], number)) for name, x in now.items()}
        shares, sums, metrics = _shares(chunk), {}, {}
        for name, (total, terms) in losses_of(params, chunk, at).items():
            for added in kinds[name].parts.added.values():
                more, more_terms = added.loss(params[name], chunk[name], at[name])
                total, terms = total + more, terms | more_terms
            sums[name] = total
            metrics |= _placed(places[name], terms, shares[name] if several else None)
        return over_all(sums, chunk), metrics

    def gradient(carry: Any, chunk: dict[str, Batch]) -> tuple[Any, Metrics]:
        params, _, number, of_signals = carry
        policies, metrics = jax.grad(loss, has_aux=True)(params, chunk, number)
        moved, shares = {}, _shares(chunk)
        for name, kind in kinds.items():
            at = jax.random.fold_in(drawn[name], number)
            moved[name], signal_metrics = kind.signals.gradients(of_signals[name], chunk[name].transitions, at)
            metrics |= _placed(places[name], signal_metrics, shares[name] if several else None)
        return (policies, moved), metrics

    def apply(carry: Any, gradient: Any) -> Any:
        (params, moments, number, of_signals), (policies, moved) = carry, gradient
        updated, learned = {}, {}
        for name, kind in kinds.items():
            inputs = policies[name], moments[name], params[name]
            change, new_moments = optimizers[name].update(*inputs, learning_rate=now[name].learning_rate)
            updated[name] = cast(Groups, optax.apply_updates(params[name], change)), new_moments
            learned[name] = kind.signals.apply(of_signals[name], moved[name])
        return *({name: pair[i] for name, pair in updated.items()} for i in range(2)), number + 1, learned

    carry = (
        {name: groups_of(kind.parts, states[name]) for name, kind in kinds.items()},
        {name: state.optimizer for name, state in states.items()},
        jnp.int32(0),
        {name: {x: states[name].signals[x] for x in kind.signals.in_minibatches} for name, kind in kinds.items()},
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
    of_behavior = {name: _of_place(i, metrics) for name, i in places.items()}
    for name, x in now.items():
        of_behavior[name] |= {field: getattr(x, field) for field in ("learning_rate", "epsilon", "beta")}
    new_states = {}
    for name in kinds:
        new_states[name] = _after(states[name].replace(key=keys[name][1]), params[name], moments[name], learned[name])
    return new_states, of_behavior


def _after(state: TrainState, params: Groups, moments: Any, learned: Mapping[str, Any]) -> TrainState:
    """Return the state with the new parameters, optimizer state and signals of an update."""
    added = {name: group for name, group in params.items() if name not in ("actor", "critic")}
    return state.replace(
        policy=state.policy.replace(params=params["actor"]),
        critic=params["critic"],
        own={**state.own, **added},
        optimizer=moments,
        signals={**state.signals, **learned} if learned else state.signals,
    )


def over_all(means: Mapping[str, jax.Array], chunk: Mapping[str, Batch]) -> jax.Array:
    """Compute the mean over all members that acted from the behaviors' means; return that of a lone behavior."""
    if len(means) == 1:
        return next(iter(means.values()))
    shares = _shares(chunk)
    return jnp.stack([mean * shares[name] for name, mean in means.items()]).sum()


_SHARE = "share"


def _shares(chunk: Mapping[str, Batch]) -> dict[str, jax.Array]:
    """Compute each behavior's share of the members that acted in a minibatch."""
    counts = {name: batch.acted.sum(dtype=jnp.float32) for name, batch in chunk.items()}
    total = jnp.maximum(sum(counts.values()), 1.0)
    return {name: count / total for name, count in counts.items()}


def _placed(place: int, metrics: Metrics, share: jax.Array | None) -> Metrics:
    """Prefix one behavior's metrics by its place; weight means by its share, which is added to them."""
    if share is None:
        return {f"{place}/{name}": x for name, x in metrics.items()}
    means = {name: x if name == LARGEST_LOG_RATIO else share * x for name, x in metrics.items()}
    return {f"{place}/{name}": x for name, x in (means | {_SHARE: share}).items()}


def _of_place(place: int, metrics: Metrics) -> Metrics:
    """Undo `_placed`: return the means over the behavior's own members."""
    placed = {name.split("/", 1)[1]: x for name, x in metrics.items() if name.startswith(f"{place}/")}
    share = placed.pop(_SHARE, None)
    if share is None:
        return placed
    share = jnp.maximum(share, 1e-12)
    return {name: x if name == LARGEST_LOG_RATIO else x / share for name, x in placed.items()}


def coefficients(settings: BehaviorSettings, step: jax.Array) -> Now:
    """Compute learning rate, epsilon and beta at a trainer step; traced, so that their decay never recompiles."""
    chex.assert_rank(step, 0)
    hyper, last = settings.hyperparameters, settings.max_steps
    return Now(
        make_schedule(hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, last)(step),
        make_schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_MINIMUM, last)(step),
        make_schedule(hyper.beta_schedule, hyper.beta, BETA_MINIMUM, last)(step),
    )
