"""Behavioral cloning (Pomerleau 1989): the policy imitates demonstrations, beside its other sources of learning.

    loss = mean over decisions and dimensions of (a − a_demo)²       a = μ + σ · noise, drawn anew; SAC: its tanh;
                                                                     `deterministic`: without noise
           + mean over decisions and branches of −ln π_b(a_demo)     with all choices allowed

with its own Adam over the policy, at the policy's learning rate times `strength`. The rate falls to 1e-10 over `steps`,
and cloning stops.

Parity. Equal to ML-Agents 1.1.0: loss, batches and epochs, the moment at which the rate changes (each update learns
with the rate that the previous update has set), memories that begin with zeros in each sequence, ignored action masks.
Different on purpose: the on-policy algorithms act with a third of the drawn number, and their policies are trained
towards three times the demonstrated action, so that they act like the demonstrations; ML-Agents trains them towards the
action itself, and they act with a third of it. Padding is not learned from. The last observations of episodes are left
out, and actions of Unity's recordings are moved to their observations, as in `rewards.gail`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.learning.adam import ADAM, descended
from jaxrl.learning.losses import masked_mean
from jaxrl.learning.picking import picker
from jaxrl.learning.schedules import LEARNING_RATE_MINIMUM, constant, linear
from jaxrl.masks import where
from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.memory import Sequences, start
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, ActionSpec, BehaviorSpec

if TYPE_CHECKING:
    from jaxrl.demonstrations import Demonstration

EPOCHS = 3
"""Epochs where `num_epoch` is not given. The trainer's own `num_epoch` is not used."""
_DRAWN = 0x434C0000
"""Number folded into the learner's key. It is large, because folding in small numbers gives the keys of `split`."""


class Copied(NamedTuple):
    """Functions through which a policy imitates.

    distribution: (params, normalised obs, `Sequences` or ()) → ActionDistribution.
    drawn:        (distribution, normal numbers [..., C]) → the continuous action drawn with these numbers, [..., C].
    wanted:       (the environment's action) → the action that the policy should draw.
    """

    distribution: Callable[..., ActionDistribution]
    drawn: Callable[[ActionDistribution, jax.Array], jax.Array]
    wanted: Callable[[Action], Action]


class Laid(NamedTuple):
    """Demonstrations in S sequences of L decisions, each of one episode; L = 1 without memory."""

    demonstration: Demonstration
    places: np.ndarray  # int32 [S, L], index of the decision; -1 for padding


class Rows(NamedTuple):
    """Decisions of a batch of sequences, [S, L, ...]."""

    obs: tuple[Any, ...]
    action: Action
    valid: Any  # bool [S, L], False for padding, where all arrays are 0


class Cloning(NamedTuple):
    """Functions of behavioral cloning, which changes the policy beside its learner. `kept` is the state of cloning.

    init:  (params of the policy) → kept, a part of `TrainState.own`.
    rate:  (kept, step int32 []) → learning rate of the update at this step, float32 []; at 1e-10 nothing is learned.
    learn: (kept, params, normaliser's states, step int32 [], key) → (kept, params, mean loss of the update). The key
           may be used further.
    step:  (params, Adam's state, normaliser's states, rate, sequences int32 [n], normal [n, L, C]) → (params, Adam's
           state, loss): one minibatch of `learn`.
    loss:  (params, normaliser's states, rows, normal [S, L, C]) → the loss of rows whose actions are as `wanted`.
    size:  decisions in the sequences of one `learn`, each counted as often as it is learned from.
    """

    init: Callable[[Any], dict[str, Any]]
    rate: Callable[[dict[str, Any], Any], jax.Array]
    learn: Callable[..., tuple[dict[str, Any], Any, jax.Array]]
    step: Callable[..., tuple[Any, Any, jax.Array]]
    loss: Callable[..., jax.Array]
    size: int


def bind_cloning(spec: BehaviorSpec, settings: BehaviorSettings, copied: Copied) -> Cloning | None:
    """Make the cloning that the section `behavioral_cloning` describes; None without that section.

    Raises DemonstrationError for demonstrations that do not fit the agents.
    """
    section = settings.behavioral_cloning
    if section is None:
        return None
    from jaxrl.demonstrations import decisions  # imports the protocol, which a machine of seeds may lack

    memory = settings.network_settings.memory
    length = 1 if memory is None else memory.sequence_length
    shown = decisions(section.demo_path, spec, "behavioral_cloning.demo_path", section.demo_actions)
    laid = in_sequences(shown, length)
    return make_cloning(spec, settings, copied, as_wanted(copied, laid), laid.places.shape)


def make_cloning(
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    copied: Copied,
    rows_at: Callable[[jax.Array], Rows],
    shape: tuple[int, ...],
) -> Cloning:
    """Make the cloning of S sequences of L decisions. `shape` is (S, L), `rows_at` as made by `as_wanted`."""
    section, hyper = settings.behavioral_cloning, settings.hyperparameters
    assert section is not None
    count, length = shape
    size, turns = _batches(count, length, section.batch_size or hyper.batch_size, section.samples_per_update)
    epochs = section.num_epoch or EPOCHS
    base = hyper.learning_rate * section.strength
    schedule = linear(base, LEARNING_RATE_MINIMUM, section.steps) if section.steps else constant(base)

    def init(params: Any) -> dict[str, Any]:
        return {"optimizer": ADAM.init(params), "rate": jnp.asarray(base, jnp.float32)}

    def loss(params: Any, states: Any, batch: Rows, normal: jax.Array) -> jax.Array:
        memory = settings.network_settings.memory
        obs = normalizer.normalize_all(states, batch.obs)
        if memory is None:
            n = batch.valid.size
            obs, batch, normal = jax.tree.map(lambda x: x.reshape(n, *x.shape[2:]), (obs, batch, normal))
            along: Any = ()
        else:
            begin = jnp.zeros_like(batch.valid).at[:, 0].set(True)
            along = Sequences(start(memory, batch.valid.shape), begin, batch.valid)
        dist = copied.distribution(params, obs, along)
        if settings.network_settings.deterministic:
            normal = jnp.zeros_like(normal)  # the action is the mean
        return _loss(spec.action, dist, copied.drawn(dist, normal), batch)

    def step(params: Any, moments: Any, states: Any, rate: Any, chosen: jax.Array, normal: jax.Array) -> Any:
        mean_loss, gradient = jax.value_and_grad(loss)(params, states, rows_at(chosen), normal)
        return *descended(params, gradient, moments, rate), mean_loss

    def rate(kept: dict[str, Any], step: Any) -> jax.Array:
        # Once the stored rate is at the minimum, the schedule decides, because `steps` may have been raised since. The
        # first update takes the rate of the settings: runs that share a program and a first state may differ in it.
        set_before = jnp.where(kept["rate"] > LEARNING_RATE_MINIMUM, kept["rate"], schedule(step))
        return jnp.where(kept["optimizer"].count == 0, base, set_before)

    def turn(kept: dict[str, Any], pace: jax.Array, params: Any, states: Any, key: jax.Array) -> Any:
        def minibatch(carry: Any, drawn: Any) -> Any:
            chosen, at = drawn
            normal = jax.random.normal(at, (size, length, spec.action.continuous_size))
            params, moments = carry
            params, moments, losses = step(params, moments, states, pace, chosen, normal)
            return (params, moments), losses

        shuffled, noise = jax.random.split(key)
        order = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(shuffled, epochs))
        order = order[:, : turns * size].reshape(epochs * turns, size)
        (params, moments), losses = jax.lax.scan(
            minibatch, (params, kept["optimizer"]), (order, jax.random.split(noise, len(order)))
        )
        return moments, params, losses.mean()

    def learn(kept: dict[str, Any], params: Any, states: Any, step: jax.Array, key: jax.Array) -> Any:
        pace = rate(kept, step)
        moments, params, mean_loss = jax.lax.cond(
            pace > LEARNING_RATE_MINIMUM,
            lambda: turn(kept, pace, params, states, jax.random.fold_in(key, _DRAWN)),
            lambda: (kept["optimizer"], params, jnp.zeros(())),
        )
        return {"optimizer": moments, "rate": schedule(step)}, params, mean_loss

    return Cloning(init, rate, learn, step, loss, epochs * turns * size * length)


def in_sequences(demonstration: Demonstration, length: int, among: np.ndarray | None = None) -> Laid:
    """Cut the demonstration into sequences of `length` decisions, none across the end of an episode.

    among: bool [n], decisions of the episodes to take; None takes all.
    """
    ends = np.flatnonzero(demonstration.done | demonstration.last) + 1
    chosen = np.arange(len(demonstration.done), dtype=np.int32)
    if length == 1:
        return Laid(demonstration, (chosen if among is None else chosen[among])[:, None])
    pieces = [piece for piece in np.split(chosen, ends) if len(piece) and (among is None or among[piece[0]])]
    filled = [np.append(piece, np.full(-len(piece) % length, -1, np.int32)) for piece in pieces]
    return Laid(demonstration, np.concatenate(filled).reshape(-1, length))


def as_wanted(copied: Copied, laid: Laid) -> Callable[[jax.Array], Rows]:
    """Make the function (sequences int32 [n]) → their decisions, with actions as the policy should draw them."""
    pick, places = picker((laid.demonstration.obs, laid.demonstration.action)), jnp.asarray(laid.places)

    def rows_at(chosen: jax.Array) -> Rows:
        at = places[chosen]
        valid = at >= 0
        obs, action = jax.tree.map(lambda x: where(valid, x, 0), pick(jnp.maximum(at, 0)))
        return Rows(obs, copied.wanted(action), valid)

    return rows_at


def _batches(count: int, length: int, batch_size: int, samples: int) -> tuple[int, int]:
    """Return the sequences of a batch and the batches of an epoch, as ML-Agents counts both; at least one of each."""
    size = max(min(batch_size, count * length) // length, 1)
    turns = count * length // size
    if samples // size > 0:
        turns = min(turns, samples // size)
    return size, max(turns // length, 1)


def _loss(spec: ActionSpec, dist: ActionDistribution, drawn: jax.Array, batch: Rows) -> jax.Array:
    total = jnp.zeros(())
    if spec.continuous_size:
        total += masked_mean(jnp.square(drawn - batch.action.continuous).mean(-1), batch.valid)
    if spec.discrete_branches:
        allowed = jnp.ones((*batch.valid.shape, spec.mask_size), bool)
        rows = []
        for i, p in enumerate(actions.probabilities(dist, allowed, spec)):
            log_probs = jax.nn.log_softmax(jnp.log(p + actions.EPSILON))
            index = batch.action.discrete[..., i, None].astype(jnp.int32)
            rows.append(-jnp.take_along_axis(log_probs, index, axis=-1)[..., 0])
        total += masked_mean(jnp.stack(rows, axis=-1).mean(-1), batch.valid)
    return total
