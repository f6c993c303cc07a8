"""A reward signal: pure functions over its own state, bound to a behavior and its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.rewards import RewardSignalSettings
from jaxrl.types import BehaviorSpec

Metrics = dict[str, jax.Array]


def nothing(_key: jax.Array) -> tuple[()]:
    """Return the state of a signal that learns nothing."""
    return ()


def as_it_is(state: Any, _seen: Transitions, _key: jax.Array) -> tuple[Any, Metrics]:
    """Return the state unchanged, as `learn` of a signal that learns nothing."""
    return state, {}


def unmoved(state: Any, _seen: Any) -> Any:
    """Return the state unchanged, as `watch` or `apply` of a signal without either."""
    return state


class RewardSignal(NamedTuple):
    """Reward signal (axis R). Its state holds its parameters and its optimizer; () where it learns nothing.

    reward: (state, Transitions, *, cooperative) → float32 [...], before `strength`; rewards of decisions that are not
            `valid` are ignored. `cooperative`: rewards of a member's mates count as its own (MA-POCA, COMA).
    init:   (key) → state, a pytree of arrays; the key is consumed.
    learn:  (state, Transitions, key) → (state of the same form, scalars by name); called once per update, after the
            policy has learned; the key is consumed.
    of_rollout: `reward` and `learn` get the `Rollout` [T, B, A] instead: whole rows, with the rewards of mates and
            teams. A replay holds no rollouts: there `replayed` is called in place of `reward`.
    gradient: (state, Transitions of a minibatch [N, ...], key) → (a pytree of arrays, scalars by name), means over the
            `valid` decisions: a minibatch may come in parts, over which both are averaged.
    apply:  (state, gradient) → state. With both, a signal learns from every minibatch that the policy learns from.
    watch:  (state, Transitions) → state; called with all decisions after `reward` has paid for them.
    as_sent: the signal sees actions as the environment has them, not the policy's raw ones.
    lasting: the stream goes on where an episode ends, with the value of the episode's last decision.
    shared: the signal pays for acts of the whole team, as the environment does: with `posthumous_credit: return` the
            stream of a member that ended goes on along its team. In other streams a member's rewards end with it.
    replayed: (state, Transitions) → float32 [...], for a signal that is `of_rollout`. None: algorithms that learn from
            a replay refuse the signal.

    All are traced by JAX, in both loops, and must be pure. Observations are as the policy gets them, not normalised.
    """

    reward: Callable[..., jax.Array]
    init: Callable[[jax.Array], Any] = nothing
    learn: Callable[[Any, Any, jax.Array], tuple[Any, Metrics]] = as_it_is
    of_rollout: bool = False
    replayed: Callable[[Any, Transitions], jax.Array] | None = None
    gradient: Callable[[Any, Transitions, jax.Array], tuple[Any, Metrics]] | None = None
    apply: Callable[[Any, Any], Any] = unmoved
    watch: Callable[[Any, Transitions], Any] = unmoved
    as_sent: bool = False
    lasting: bool = False
    shared: bool = False


MakeSignal = Callable[[BehaviorSpec, RewardSignalSettings], RewardSignal]
"""(spec of the policy, the signal's section of the file) → the signal."""
