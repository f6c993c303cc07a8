"""Curiosity (Pathak et al. 2017, arXiv 1705.05363): a reward for outcomes of actions that a model predicts badly.

An encoder e gives s = e(obs), s' = e(next obs). A forward model predicts ŝ' from s and the action a, an inverse model
predicts a from s and s', so that e encodes what is related to actions.

    r = ½ Σ_h (s' − ŝ')²,  at most 1 / strength; 0 before anything was learned
    loss = 10 (0.2 · mean r + 0.8 · mean I),  I = Σ_C (a − â)² + Σ_b −ln p_b(a_b)

Parity. Equal to ML-Agents 1.1.0: networks, reward, loss (no gradient is stopped: the encoder learns through s' as
well), one step for each minibatch of the policy, Adam at a constant rate, raw actions, ignored action masks; with
`normalize` observations are only clipped at ±5. The stream goes on past an end of the episode.
Different on purpose: a rollout does not hold the last observation of an episode that ended for good, so that its last
decision is paid nothing and is not learned from; the flag `learned` is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.learning.adam import ADAM
from jaxrl.learning.losses import masked_mean
from jaxrl.networks import actions, normalizer
from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.linear import Linear
from jaxrl.rewards.interface import Metrics, RewardSignal
from jaxrl.rewards.network import body_of, one_row, stepped
from jaxrl.rewards.normalized import normalized
from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.networks import NetworkSettings
from jaxrl.settings.rewards import CuriositySettings
from jaxrl.types import BehaviorSpec

UNITS = 256
"""Units of the hidden layer of both models."""
SCALE, FORWARD, INVERSE = 10.0, 0.2, 0.8
EPSILON = 1e-10


class CuriosityModels(nn.Module):
    """Encoder, forward and inverse model: (obs, next obs, flattened action [C + M, N]) -> (ŝ', s', prediction of a).

    All leading axes become one axis of columns: s [h, N]. The prediction of a has its numbers first, then the logits.
    """

    spec: BehaviorSpec
    settings: NetworkSettings

    def setup(self) -> None:
        self.encoder = body_of(self.spec, self.settings)
        plain = nn.initializers.xavier_uniform()
        self.forward_hidden = Linear(UNITS, fan_in_normal(1.0))
        self.forward_out = Linear(self.settings.hidden_units, plain)
        self.inverse_hidden = Linear(UNITS, fan_in_normal(1.0))
        if self.spec.action.continuous_size:
            self.continuous = Linear(self.spec.action.continuous_size, plain)
        if self.spec.action.discrete_branches:
            self.discrete = Linear(self.spec.action.mask_size, plain)

    def __call__(
        self, obs: tuple[jax.Array, ...], next_obs: tuple[jax.Array, ...], action: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        # One pass for both observations: one product of twice the rows is faster than two.
        both = self.encoder(tuple(jnp.concatenate(pair) for pair in zip(obs, next_obs, strict=True)), ())[0]
        here, there = jnp.split(_columns(both), 2, axis=1)
        return self._forward(jnp.concatenate([here, action])), there, self._inverse(jnp.concatenate([here, there]))

    def _forward(self, columns: jax.Array) -> jax.Array:
        return self.forward_out(nn.swish(self.forward_hidden(columns)))

    def _inverse(self, columns: jax.Array) -> jax.Array:
        x, spec = nn.swish(self.inverse_hidden(columns)), self.spec.action
        heads = [self.continuous(x)] if spec.continuous_size else []
        return jnp.concatenate(heads + ([self.discrete(x)] if spec.discrete_branches else []))


def _columns(x: jax.Array) -> jax.Array:
    """Transpose [..., F] to [F, N]; XLA cancels this against the last transpose of `on_columns`."""
    return x.reshape(-1, x.shape[-1]).T


def make_curiosity(spec: BehaviorSpec, settings: CuriositySettings) -> RewardSignal:
    """Make the signal for agents with this spec. Its state: the models, their optimizer, and whether they learned."""
    models = CuriosityModels(spec, settings.network_settings)
    apply_models: Callable[..., Any] = models.apply
    shown = normalizer.init_for(spec, settings.network_settings)

    def init(key: jax.Array) -> dict[str, Any]:
        obs, width = one_row(spec), spec.action.continuous_size + spec.action.mask_size
        params = models.init(key, obs, obs, jnp.zeros((width, 1)))
        return {"params": params, "optimizer": ADAM.init(params), "learned": jnp.zeros((), bool)}

    def modelled(params: Any, seen: Transitions) -> tuple[jax.Array, jax.Array]:
        """Compute ½ Σ_h (s' − ŝ')² and the inverse model's loss I, both [...]."""
        obs, later = (normalizer.normalize_all(shown, x) for x in (seen.obs, seen.next_obs))
        action = _columns(actions.one_hot(seen.action, spec.action))
        foreseen, there, predicted_action = apply_models(params, obs, later, action)
        errors = 0.5 * jnp.square(there - foreseen).sum(0), _inverse_loss(spec, predicted_action, action)
        forward, inverse = (x.reshape(seen.valid.shape) for x in errors)
        return forward, inverse

    def reward(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> jax.Array:
        strength = jnp.asarray(settings.strength, jnp.float32)
        most = jnp.where(strength > 0, 1.0 / jnp.where(strength > 0, strength, 1.0), jnp.inf)
        paid = jnp.minimum(modelled(state["params"], seen)[0], most)
        return jnp.where(state["learned"] & seen.seen, paid, 0.0)

    def gradient(state: dict[str, Any], seen: Transitions, _key: jax.Array) -> tuple[Any, Metrics]:
        known = seen.valid & seen.seen

        def loss(params: Any) -> tuple[jax.Array, Metrics]:
            forward, inverse = (masked_mean(x, known) for x in modelled(params, seen))
            metrics = {"forward_loss": forward, "inverse_loss": inverse}
            return SCALE * (FORWARD * forward + INVERSE * inverse), metrics

        return jax.grad(loss, has_aux=True)(state["params"])

    def apply(state: dict[str, Any], gradient: Any) -> dict[str, Any]:
        return {**stepped(state, gradient, settings.learning_rate), "learned": jnp.ones((), bool)}

    signal = RewardSignal(reward=reward, init=init, gradient=gradient, apply=apply, lasting=True)
    return normalized(signal) if settings.normalize_rewards else signal


def _inverse_loss(spec: BehaviorSpec, told: jax.Array, action: jax.Array) -> jax.Array:
    """Compute Σ_C (a − â)² + Σ_b −ln p_b(a_b), [N]; `told` is the prediction of the flattened `action`, [C + M, N]."""
    numbers = spec.action.continuous_size
    loss = jnp.square(action[:numbers] - told[:numbers]).sum(0)
    for i, size in enumerate(spec.action.discrete_branches):
        start = numbers + sum(spec.action.discrete_branches[:i])
        branch = slice(start, start + size)
        p = jax.nn.softmax(told[branch], axis=0)
        loss = loss - jnp.log((p * action[branch]).sum(0) + EPSILON)
    return loss
