"""A reward signal of one's own: `reward_signals: {NAME: {type: my_file.py:make_x}}`.

    def make_x(spec, settings):                                    # what the policy sees and does; gamma, strength, ...
        def reward(state, transitions, *, cooperative):            # [T, B, A]
            return transitions.obs[0][..., 0]
        return jaxrl.RewardSignal(reward=reward)                   # init and learn, where it learns something

It is called like one of jaxrl's; what it gives is checked while it is traced, so that a mistake is one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.own_code import OwnCodeError, calling
from jaxrl.plugins import Kind, load
from jaxrl.rewards.interface import Metrics, RewardSignal, unmoved
from jaxrl.settings.rewards import OwnSignalSettings
from jaxrl.types import BehaviorSpec


def make_own(name: str, spec: BehaviorSpec, settings: OwnSignalSettings) -> RewardSignal:
    """The signal of the stream `name`, whose functions raise OwnCodeError for whatever is wrong in them.

    Raises OwnCodeError if it cannot be made.
    """
    where = f"reward_signals.{name}: "
    address = settings.type or name
    say = f"{where}{address}"
    made = _called(say, load(Kind.REWARD_SIGNAL, address, where=where), spec, settings)
    if not isinstance(made, RewardSignal):
        raise OwnCodeError(f"{say} returns a {type(made).__name__}, expected a jaxrl.RewardSignal")

    def init(key: jax.Array) -> Any:
        return jax.tree.map(jnp.asarray, _called(f"{say}: init", made.init, key))

    def reward(state: Any, seen: Any, *, cooperative: bool) -> jax.Array:
        found = _called(f"{say}: reward", made.reward, state, seen, cooperative=cooperative)
        valid = seen.acted if made.of_rollout else seen.valid
        shape, wanted = jnp.shape(found), valid.shape
        if shape != wanted:
            raise OwnCodeError(f"{say}: reward gives {shape}, expected (T, B, A) = {wanted}")
        return jnp.where(valid, jnp.asarray(found, jnp.float32), 0.0)

    def learn(state: Any, seen: Any, key: jax.Array) -> tuple[Any, Metrics]:
        found = _called(f"{say}: learn", made.learn, state, seen, key)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise OwnCodeError(f"{say}: learn gives no pair (state, metrics)")
        after, metrics = jax.tree.map(jnp.asarray, found[0]), found[1]
        if _form(after) != _form(state):
            raise OwnCodeError(f"{say}: learn gives a state of the form {_form(after)}, it was {_form(state)}")
        for metric, value in metrics.items():
            if jnp.shape(value) != ():
                raise OwnCodeError(f"{say}: learn: metric {metric} has the shape {jnp.shape(value)}, expected a scalar")
        return after, {metric: jnp.asarray(value, jnp.float32) for metric, value in metrics.items()}

    named = {name: partial(_called, f"{say}: {name}", getattr(made, name)) for name in ("gradient", "apply", "watch")}
    checked = made._replace(reward=reward, init=init, learn=learn)
    if made.watch is not unmoved:
        checked = checked._replace(watch=named["watch"])
    return checked if made.gradient is None else checked._replace(gradient=named["gradient"], apply=named["apply"])


def _called(say: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    with calling(say):
        return function(*arguments, **named)


def _form(state: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", state)
