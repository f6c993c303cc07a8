"""A user's own reward signal: `reward_signals: {NAME: {type: my_file.py:make_x}}`.

    def make_x(spec, settings):                                    # the policy's spec; gamma, strength, ...
        def reward(state, transitions, *, cooperative):            # [T, B, A]
            return transitions.obs[0][..., 0]
        return jaxrl.RewardSignal(reward=reward)                   # init and learn, where it learns something

It is called like jaxrl's own signals. Its results are checked while it is traced, so that an error is one sentence.
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
    """Make the signal of the stream `name`; its functions raise OwnCodeError for errors in the user's functions.

    Raises OwnCodeError if it cannot be made.
    """
    where = f"reward_signals.{name}: "
    address = settings.type or name
    say = f"{where}{address}"
    signal = _called(say, load(Kind.REWARD_SIGNAL, address, where=where), spec, settings)
    if not isinstance(signal, RewardSignal):
        raise OwnCodeError(f"{say} returns a {type(signal).__name__}, expected a jaxrl.RewardSignal")

    def init(key: jax.Array) -> Any:
        return jax.tree.map(jnp.asarray, _called(f"{say}: init", signal.init, key))

    def reward(state: Any, seen: Any, *, cooperative: bool) -> jax.Array:
        rewards = _called(f"{say}: reward", signal.reward, state, seen, cooperative=cooperative)
        valid = seen.acted if signal.of_rollout else seen.valid
        shape, wanted = jnp.shape(rewards), valid.shape
        if shape != wanted:
            raise OwnCodeError(f"{say}: reward gives {shape}, expected (T, B, A) = {wanted}")
        return jnp.where(valid, jnp.asarray(rewards, jnp.float32), 0.0)

    def learn(state: Any, seen: Any, key: jax.Array) -> tuple[Any, Metrics]:
        result = _called(f"{say}: learn", signal.learn, state, seen, key)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise OwnCodeError(f"{say}: learn gives no pair (state, metrics)")
        new_state, metrics = jax.tree.map(jnp.asarray, result[0]), result[1]
        if _form(new_state) != _form(state):
            raise OwnCodeError(f"{say}: learn gives a state of the form {_form(new_state)}, it was {_form(state)}")
        for metric, value in metrics.items():
            if jnp.shape(value) != ():
                raise OwnCodeError(f"{say}: learn: metric {metric} has the shape {jnp.shape(value)}, expected a scalar")
        return new_state, {metric: jnp.asarray(value, jnp.float32) for metric, value in metrics.items()}

    named = {name: partial(_called, f"{say}: {name}", getattr(signal, name)) for name in ("gradient", "apply", "watch")}
    checked = signal._replace(reward=reward, init=init, learn=learn)
    if signal.watch is not unmoved:
        checked = checked._replace(watch=named["watch"])
    return checked if signal.gradient is None else checked._replace(gradient=named["gradient"], apply=named["apply"])


def _called(say: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    with calling(say):
        return function(*arguments, **named)


def _form(state: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", state)
