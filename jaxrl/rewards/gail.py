"""Generative adversarial imitation (Ho and Ermon 2016, arXiv 1606.03476): a reward for acting like demonstrations.

A discriminator D tells the demonstrations' decisions (→ 1) from the policy's (→ 0) by their observations, and with
`use_actions` also by the action and by whether the episode ended with it.

    r = −ln(1 − D (1 − 1e-7))
    loss = −mean[ln(D(expert) + 1e-7) + ln(1 − D(policy) + 1e-7)] + λ · mean (‖∇D(x)‖ − 1)² [+ β (KL − 0.5)]

x is a random mixture of a decision of each, element by element (Gulrajani et al. 2017, arXiv 1704.00028). λ is
`gradient_penalty`, 10 as in that paper, whose critic has no bounds. D is a probability: with slope 1 it goes from 0 to
1 over a distance of 1, and states nearer to each other are paid nearly alike, unless λ is 1 or less.

The reward is never below 0. An agent that stays among demonstrated states therefore earns more than one that finishes,
and never learns to finish a task that ends at its goal. ln D is never above 0 and rewards finishing. `reward_form`
(beyond ML-Agents): "positive" as above, "negative" ln D, "logit" ln D − ln(1 − D), which is 0 where D = ½ (Fu et al.
2018, arXiv 1710.11248; Kostrikov et al. 2019, arXiv 1809.02925).

With `use_vail` (Peng et al. 2019, arXiv 1810.00821) D reads 128 noisy numbers μ + σ · noise of its last layer, and

    KL = mean −Σ (1 + ln σ² − ½ μ_expert² − ½ μ_policy² − σ²),   β ← max(0, β + 0.0005 (KL − 0.5))  first of all.

Parity. Equal to ML-Agents 1.1.0: networks, reward, loss, one step for each minibatch of the policy with as many of the
demonstrations' decisions, drawn with replacement; Adam at a constant rate; the penalty is on the gradient by the first
observation alone, and for an image or entities it has one norm per pixel or feature (`whole_penalty: true`: one norm
per decision, of all inputs of D). Different on purpose: actions are compared as the environment has them, while
ML-Agents compares the policy's raw actions, three times as large; an interruption is no end on either side; masked rows
do not count; the statistics of `normalize` are those of all demonstrations from the beginning; the last observations of
episodes, which ML-Agents takes for decisions, are left out; in Unity's recordings each action belongs to its
observation, while ML-Agents compares the action of the decision before (`demo_actions: as_recorded`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.demonstrations import Demonstration, decisions
from jaxrl.learning.adam import ADAM
from jaxrl.learning.losses import masked_mean
from jaxrl.learning.picking import picker
from jaxrl.networks import actions, normalizer
from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.linear import Linear, on_columns
from jaxrl.rewards.interface import Metrics, RewardSignal
from jaxrl.rewards.network import body_of, one_row, stepped
from jaxrl.rollout.transitions import Transitions
from jaxrl.settings.rewards import GAILSettings
from jaxrl.types import Action, BehaviorSpec

EPSILON = 1e-7
CODE, INFORMATION, BETA_STEP = 128, 0.5, 5e-4
"""Constants of VAIL: numbers that D reads, bound of their information in nats, and the step of β."""


class Decisions(NamedTuple):
    """Inputs of D, float32."""

    obs: tuple[jax.Array, ...]  # [n, *shape], not normalised
    action: jax.Array  # [n, C + M], as the environment has it; its branches one-hot
    end: jax.Array  # [n, 1], 1 where the episode ended for good


class Draws(NamedTuple):
    """Random numbers of one step of n decisions."""

    expert: jax.Array  # int32 [n], index of the demonstrations' decision
    between: Decisions  # uniform numbers, the policy's weight in each element of x
    noise: tuple[jax.Array, ...] | tuple[()]  # for VAIL, normal [n, 128] for policy, expert, x


class Discriminator(nn.Module):
    """(observations, action, end, VAIL's noise or None) -> D [n], and VAIL's μ and σ, () without."""

    spec: BehaviorSpec
    settings: GAILSettings

    def setup(self) -> None:
        self.encoder = body_of(self.spec, self.settings.network_settings)
        self.estimate = Linear(1, nn.initializers.variance_scaling(0.04, "fan_avg", "uniform"))
        if self.settings.use_vail:
            self.code = Linear(CODE, fan_in_normal(0.1))
            self.sigma = self.param("sigma", nn.initializers.ones, (CODE,))

    def __call__(self, x: Decisions, noise: jax.Array | None = None) -> tuple[jax.Array, Any]:
        encoding = self.encoder.encode(x.obs)
        if self.settings.use_actions:
            inputs = (part.astype(encoding.dtype) for part in (x.action, x.end))
            encoding = jnp.concatenate([encoding, *inputs], axis=-1)
        (features, _), code = self.encoder.remember(self.encoder.hidden(encoding), ()), ()
        if self.settings.use_vail:
            features = on_columns(self.code, features, from_columns=True)
            code = features, self.sigma
            if noise is not None:
                features = features + noise * self.sigma
        return nn.sigmoid(on_columns(self.estimate, features, from_columns=True)[..., 0]), code


def make_gail(spec: BehaviorSpec, settings: GAILSettings) -> RewardSignal:
    """Make the signal for agents with this spec. Raises DemonstrationError for demonstrations that do not fit it."""
    path, key = settings.demo_path, "reward_signals.gail.demo_path"
    return gail(spec, settings, decisions(path, spec, key, settings.demo_actions, settings.use_actions))


def gail(spec: BehaviorSpec, settings: GAILSettings, demonstration: Demonstration) -> RewardSignal:
    """Make the signal for these demonstrations. Its `gradient` also takes `Draws` in place of a key."""
    apply_network: Callable[..., Any] = Discriminator(spec, settings).apply
    over = demonstration.done & ~demonstration.interrupted
    pick = picker((demonstration.obs, demonstration.action, over))
    known = normalizer.init_for(spec, settings.network_settings)
    known = normalizer.update_in_parts(known, demonstration.obs)

    def experts(places: jax.Array) -> Decisions:
        return _decisions(spec, *pick(places))

    def init(key: jax.Array) -> dict[str, Any]:
        row = experts(jnp.zeros(1, jnp.int32))
        params = Discriminator(spec, settings).init(key, row._replace(obs=one_row(spec)))
        state = {"params": params, "optimizer": ADAM.init(params), "normalizer": jax.tree.map(jnp.array, known)}
        return state | ({"beta": jnp.zeros(())} if settings.use_vail else {})

    def judged(params: Any, state: Any, x: Decisions, noise: jax.Array | None = None) -> tuple[jax.Array, Any]:
        shown = normalizer.normalize_all(state["normalizer"], x.obs)
        return apply_network(params, x._replace(obs=shown), noise)

    def reward(state: dict[str, Any], seen: Transitions, *, cooperative: bool) -> jax.Array:
        x, shape = _of_policy(spec, seen), seen.valid.shape
        return paid(judged(state["params"], state, x)[0], settings.reward_form).reshape(shape)

    def draw(key: jax.Array, n: int) -> Draws:
        keys = jax.random.split(key, 3)
        shapes = jax.eval_shape(experts, jax.ShapeDtypeStruct((n,), jnp.int32))
        flat, tree = jax.tree.flatten(shapes)
        mix = [jax.random.uniform(k, x.shape) for k, x in zip(jax.random.split(keys[1], len(flat)), flat, strict=True)]
        noise = jax.random.normal(keys[2], (3, n, CODE)) if settings.use_vail else ()
        return Draws(jax.random.randint(keys[0], (n,), 0, len(over)), tree.unflatten(mix), tuple(noise))

    def penalty(params: Any, state: dict[str, Any], x: Decisions, noise: jax.Array | None, valid: jax.Array) -> Any:
        slope = jax.grad(lambda x: judged(params, state, x, noise)[0].sum())(x)
        if settings.whole_penalty:
            squares = sum(jnp.square(g).reshape(len(valid), -1).sum(-1) for g in jax.tree.leaves(slope))
        else:
            squares = jnp.square(slope.obs[0]).sum(1)
        off = jnp.square(jnp.sqrt(squares + EPSILON) - 1.0)
        return settings.gradient_penalty * masked_mean(off.reshape(len(valid), -1).mean(-1), valid)

    def gradient(state: dict[str, Any], seen: Transitions, key: Any) -> tuple[Any, Metrics]:
        policy, valid = _of_policy(spec, seen), seen.valid.reshape(-1)
        drawn = key if isinstance(key, Draws) else draw(key, len(valid))
        expert = experts(drawn.expert)
        between = jax.tree.map(lambda p, e, share: share * p + (1.0 - share) * e, policy, expert, drawn.between)
        noise = drawn.noise or (None, None, None)

        def loss(params: Any) -> tuple[jax.Array, tuple[Any, Metrics]]:
            (of_policy, code), (of_expert, experts_code) = (
                judged(params, state, x, part) for x, part in ((policy, noise[0]), (expert, noise[1]))
            )
            objective = jnp.log(of_expert + EPSILON).mean() + masked_mean(jnp.log(1.0 - of_policy + EPSILON), valid)
            far = penalty(params, state, between, noise[2], valid)
            metrics = {"policy_estimate": masked_mean(of_policy, valid), "expert_estimate": of_expert.mean()}
            metrics |= {"loss": -objective, "grad_mag_loss": far}
            if not settings.use_vail:
                return far - objective, ((), metrics)
            kl = _information(code, experts_code, valid)
            beta = jax.lax.stop_gradient(jnp.maximum(0.0, state["beta"] + BETA_STEP * (kl - INFORMATION)))
            return far - objective + beta * (kl - INFORMATION), (beta, metrics | {"kl_loss": kl, "beta": beta})

        slope, (beta, told) = jax.grad(loss, has_aux=True)(state["params"])
        return (slope, beta), told

    def apply(state: dict[str, Any], gradient: Any) -> dict[str, Any]:
        slope, beta = gradient
        return stepped(state, slope, settings.learning_rate) | ({"beta": beta} if settings.use_vail else {})

    return RewardSignal(reward=reward, init=init, gradient=gradient, apply=apply, as_sent=True)


def paid(estimate: jax.Array, form: str) -> jax.Array:
    """Compute the reward r for the estimate D [...], by `reward_form`."""
    unlike = jnp.log(1.0 - estimate * (1.0 - EPSILON))
    if form == "positive":
        return -unlike
    alike = jnp.log(EPSILON + estimate * (1.0 - EPSILON))
    return alike if form == "negative" else alike - unlike


def _of_policy(spec: BehaviorSpec, seen: Transitions) -> Decisions:
    """Return the policy's decisions of all members as rows [n]."""
    n, lead = seen.valid.size, seen.valid.ndim
    flat = jax.tree.map(lambda x: x.reshape(n, *x.shape[lead:]), (seen.obs, seen.action, seen.discount == 0.0))
    return _decisions(spec, *flat)


def _decisions(spec: BehaviorSpec, obs: tuple[Any, ...], action: Action, over: Any) -> Decisions:
    numbers = tuple(jnp.asarray(x, jnp.float32) / (255.0 if x.dtype == jnp.uint8 else 1.0) for x in obs)
    return Decisions(numbers, actions.one_hot(action, spec.action), jnp.asarray(over, jnp.float32)[:, None])


def _information(of_policy: Any, of_expert: Any, valid: jax.Array) -> jax.Array:
    """Compute the KL, a scalar: the terms of experts and policy are each averaged over the valid rows."""
    (policy, sigma), (expert, _) = of_policy, of_expert
    variance = jnp.square(sigma)
    halves = 0.5 * (jnp.square(expert).sum(-1).mean() + masked_mean(jnp.square(policy).sum(-1), valid))
    return halves - jnp.sum(1.0 + jnp.log(variance) - variance)
