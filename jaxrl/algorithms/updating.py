"""The epochs and minibatches of an update, of one behavior or of several that learn together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.interface import LARGEST_LOG_RATIO, Metrics, TrainState
from jaxrl.algorithms.parts import Batch, Groups, Now, Parts, groups_of
from jaxrl.learning import adam, minibatches
from jaxrl.learning.schedules import BETA_MINIMUM, EPSILON_MINIMUM, LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.rewards.signals import NO_SIGNALS, Signals
from jaxrl.settings import BehaviorSettings

DRAWN = 0x4C550000
"""What the key of an update is folded with for its losses: a large number, as `split` gives what small ones give."""


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
    drawn = {name: jax.random.fold_in(key, DRAWN + i) for name, i in places.items()}

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
    told = {name: _of_place(i, metrics) for name, i in places.items()}
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


def _of_place(place: int, metrics: Metrics) -> Metrics:
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
