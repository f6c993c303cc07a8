"""Reward signals that can be computed by hand, named in tests as `tests.rewards.own_signals:make_...`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from pydantic import Field

import jaxrl

PLACE = "tests.rewards.own_signals"
MADE: list[Any] = []
"""Settings that `make_guess` was given."""
KEYS: list[Any] = []
"""Keys that `make_keys` was given, as numbers: by `init`, then by `learn`."""


class GuessSettings(jaxrl.OwnSignalSettings):
    """One more key."""

    learning_rate: float = Field(default=0.5, ge=0, description="step size of the predictor")


def make_first(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """The first number that is seen: without a state."""

    def reward(state: Any, seen: Any, *, cooperative: bool) -> jax.Array:
        assert state == ()
        return seen.obs[0][..., 0] + (10.0 if cooperative else 0.0)

    return jaxrl.RewardSignal(reward=reward)


@jaxrl.reward_signal(settings=GuessSettings)
def make_guess(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """The squared error of a linear guess at the sum of what the first sensor shows; one step of gradient descent."""
    MADE.append(settings)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"weight": jnp.zeros(spec.observations[0].shape), "steps": jnp.zeros((), jnp.int32)}

    def errors(weight: jax.Array, seen: Any) -> jax.Array:
        x = seen.obs[0]
        return jnp.square(x @ weight - x.sum(-1))

    def reward(state: Any, seen: Any, *, cooperative: bool) -> jax.Array:
        return errors(state["weight"], seen)

    def learn(state: Any, seen: Any, key: jax.Array) -> Any:
        def loss(weight: jax.Array) -> jax.Array:
            return jnp.where(seen.valid, errors(weight, seen), 0.0).sum() / seen.valid.sum()

        value, gradient = jax.value_and_grad(loss)(state["weight"])
        after = {"weight": state["weight"] - settings.learning_rate * gradient, "steps": state["steps"] + 1}
        return after, {"loss": value, "steps": after["steps"]}

    return jaxrl.RewardSignal(reward=reward, init=init, learn=learn)


def make_keys(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """Notes the keys that it is given."""

    def init(key: jax.Array) -> tuple[()]:
        KEYS.append(jax.random.key_data(key).tolist())
        return ()

    def learn(state: Any, seen: Any, key: jax.Array) -> Any:
        return init(key), {}

    return jaxrl.RewardSignal(reward=lambda state, seen, cooperative: seen.reward, init=init, learn=learn)


def make_paid(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """What the environment pays an agent and its group, once more."""
    return jaxrl.RewardSignal(reward=lambda state, seen, cooperative: seen.reward)


def make_flat(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """A reward of the wrong shape."""
    return jaxrl.RewardSignal(reward=lambda state, seen, cooperative: seen.reward.sum(-1))


def make_growing(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """A state that becomes another."""
    return jaxrl.RewardSignal(
        reward=lambda state, seen, cooperative: seen.reward,
        init=lambda key: jnp.zeros(2),
        learn=lambda state, seen, key: (jnp.zeros(3), {}),
    )


def make_vector_metric(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """A metric that is no number."""
    return jaxrl.RewardSignal(
        reward=lambda state, seen, cooperative: seen.reward,
        learn=lambda state, seen, key: (state, {"loss": jnp.zeros(2)}),
    )


def make_raises(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """It cannot be made."""
    raise ValueError("out of luck")


def make_nothing(spec: Any, settings: Any) -> None:
    """No signal."""


not_callable = 3


def make_home(spec: Any, settings: Any) -> jaxrl.RewardSignal:
    """The first number that is seen: 1 for who stands at home."""
    return jaxrl.RewardSignal(reward=lambda state, seen, cooperative: seen.obs[0][..., 0])
