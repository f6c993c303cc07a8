"""What a reward signal is: pure functions over a state of its own, bound to a behavior and its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.rewards import RewardSignalSettings
from jaxrl.types import BehaviorSpec

Metrics = dict[str, jax.Array]


def nothing(_key: jax.Array) -> tuple[()]:
    """The state of a signal that learns nothing."""
    return ()


def as_it_is(state: Any, _seen: Transitions, _key: jax.Array) -> tuple[Any, Metrics]:
    """What a signal learns that learns nothing."""
    return state, {}


def unmoved(state: Any, _seen: Any) -> Any:
    """The state of a signal that follows nothing, or descends along nothing."""
    return state


class RewardSignal(NamedTuple):
    """One reward signal (axis R). Its state holds parameters and an optimizer of its own; () where it learns nothing.

    reward: (state, Transitions, *, cooperative) → float32 [...], before `strength`; what it says of a decision that is
            not `valid` is not looked at. `cooperative`: rewards of a member's mates are its own (MA-POCA, COMA).
    init:   (key) → state, a pytree of arrays; the key is consumed.
    learn:  (state, Transitions, key) → (state of the same form, scalars by name); once per update, after the policy has
            learned; the key is consumed.
    of_rollout: both are given the `Rollout` [T, B, A] instead: whole rows, with what mates and teams were paid. There
            is none of what a replay holds, which takes `replayed` in the place of `reward`.
    gradient: (state, Transitions of a minibatch [N, ...], key) → (a pytree of arrays, scalars by name), means over what
            is `valid`: a minibatch may come in parts, over which both are averaged. It is then what `apply` gets:
    apply:  (state, gradient) → state. So a signal learns from every minibatch that the policy learns from.
    watch:  (state, Transitions) → state, with whatever is paid, after it was.
    as_sent: it sees actions as the environment has them, not the policy's raw ones.
    lasting: the stream goes on where an episode ends, with the value of the state in which that was decided.
    shared: it pays for what the whole team does, as the environment does: with `posthumous_credit: return` the stream
            of a member that ended goes on along its team. Of other signals, what a member earns ends with it.
    replayed: (state, Transitions) → float32 [...], of a signal that is `of_rollout`. None: it is of no use to who
            learns from a replay.

    All are traced by JAX, in both loops, and must be pure. Observations are what the policy sees, not normalised.
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
"""(what the policy sees and does, the signal's section of the file) → the signal."""
