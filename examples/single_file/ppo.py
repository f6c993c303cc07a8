"""Proximal policy optimisation (PPO) in one file: to read, to teach with, and to copy.

    python examples/single_file/ppo.py

Environment and learner are one compiled program, and several seeds learn side by side. From equal parameters this file
learns what `jaxrl.make_ppo` learns: `tests/algorithms/test_single_file.py` compares them. jaxrl has more: actions of
any kind, images and other sensors, memory, several reward signals, schedules, members that pause, checkpoints, ONNX.

Equations
    λ-return       R_t = r_t + γ [(1 − λ) V(o_{t+1}) + λ R_{t+1}]     Sutton and Barto 2018, eq. 12.18
    advantage      A_t = R_t − V(o_t), which is GAE(γ, λ)             Schulman et al. 2016, arXiv 1506.02438, eq. 16
    ratio          ρ_t = π(a_t | o_t) / π_old(a_t | o_t)              Schulman et al. 2017, arXiv 1707.06347, eq. 6
    policy loss    L_π = −mean min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)      eq. 7
    value loss     L_V = mean (R − V)²
    loss           L = L_π + ½ L_V − β mean H(π)                      eq. 9

Every agent learns from what it receives itself, its own reward and its group's. An agent that terminates has no next
state: R_t = r_t. One that is truncated, by a time limit, would have gone on: R_t = r_t + γ V(last observation).

Letters: T decisions of each area before an update, E areas, A agents of an area, F numbers of an observation, M choices
of an action, N = T·E·A decisions of a rollout, S seeds.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

import jaxrl
from jaxrl.jax_envs.interface import Areas, advance_areas, start_areas

TINY = 1e-7  # keeps logarithms finite


class Settings(NamedTuple):
    """Hyperparameters."""

    hidden_units: int = 64
    num_layers: int = 2
    areas: int = 16  # E
    steps: int = 128  # T
    epochs: int = 4  # passes over a rollout
    minibatches: int = 12  # of each pass, a divisor of N
    learning_rate: float = 1e-3
    gamma: float = 0.99  # γ
    lambd: float = 0.95  # λ
    epsilon: float = 0.2  # ε, clip range of the ratio
    beta: float = 0.01  # β, weight of the entropy
    reward_scale: float = 0.1  # what is learned from is the reward times this


# Networks: the policy π(a | o) and the value V(o), with a body each


def scaled_normal(gain: float) -> Any:
    """Return the initializer that draws from a normal distribution with standard deviation gain / √inputs."""
    return nn.initializers.variance_scaling(gain * gain, "fan_in", "normal")


class Network(nn.Module):
    """Hidden layers and a linear head: [..., F] → [..., outputs]."""

    settings: Settings
    outputs: int
    head_init: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i in range(self.settings.num_layers):
            x = nn.swish(nn.Dense(self.settings.hidden_units, kernel_init=scaled_normal(1.0), name=f"layer_{i}")(x))
        return nn.Dense(self.outputs, kernel_init=self.head_init, name="head")(x)


def log_prob(probabilities: Array, action: Array) -> Array:
    """Return log π(a | o): [..., M], int32 [...] → [...]."""
    chosen = jnp.take_along_axis(probabilities, action[..., None], axis=-1)[..., 0]
    return jnp.log(chosen + TINY)


def entropy(probabilities: Array) -> Array:
    """Return H(π) = −Σ p log p: [..., M] → [...]."""
    return -jnp.sum(probabilities * jnp.log(probabilities + TINY), axis=-1)


class Learner(NamedTuple):
    """What stays the same in a run."""

    env: jaxrl.JaxEnv
    settings: Settings
    actor: Any  # the `Network` of π
    critic: Any  # the `Network` of V
    optimizer: optax.GradientTransformation

    def policy(self, params: Any, obs: Array, mask: Array) -> Array:
        """Return π(· | o): [..., F] and bool [..., M], True where allowed → [..., M]."""
        return nn.softmax(jnp.where(mask, self.actor.apply(params["actor"], obs), -1e8))

    def value(self, params: Any, obs: Array) -> Array:
        """Return V(o): [..., F] → [...]."""
        return self.critic.apply(params["critic"], obs)[..., 0]


def make_learner(env: jaxrl.JaxEnv, settings: Settings) -> Learner:
    """Bind networks and optimizer. Raise ValueError for actions other than one discrete branch."""
    action = env.spec.action
    if action.continuous_size or len(action.discrete_branches) != 1:
        raise ValueError(f"{env.name}: has the actions {action}, this file takes one discrete branch")
    actor = Network(settings, action.mask_size, scaled_normal(0.1))
    critic = Network(settings, 1, nn.initializers.xavier_uniform())
    return Learner(env, settings, actor, critic, optax.adam(settings.learning_rate))


# Rollout


class Rollout(NamedTuple):
    """T decisions of every agent, [T, E, A, ...]. Nothing is learned where an agent did not act."""

    obs: Array  # [T, E, A, F]
    action_mask: Array  # bool [T, E, A, M], True: allowed
    action: Array  # int32
    log_prob: Array  # of the policy that acted
    acted: Array  # bool
    reward: Array  # own and group reward
    terminated: Array  # bool, nothing follows
    truncated: Array  # bool, the agent was cut off
    next_obs: Array  # [T, E, A, F], what the agent saw next; what it saw last where it ended


class Run(NamedTuple):
    """One seed."""

    params: dict[str, Any]  # of "actor" and "critic"
    moments: Any  # of Adam
    areas: Areas
    view: jaxrl.TeamView
    earned: Array  # [E, A], reward of each agent in its episode so far
    key: Array


def observe(view: jaxrl.TeamView) -> Array:
    """Return all vector sensors of an agent as one vector, [E, A, F]."""
    return jnp.concatenate(view.obs, axis=-1)


def collect(learner: Learner, run: Run, key: Array) -> tuple[Run, Rollout, Array]:
    """Make T decisions in each area; return also what agents have earned so far, [T, E, A]. The key is consumed."""

    def decide(run: Run, key: Array) -> tuple[Run, tuple[Rollout, Array]]:
        obs, mask = observe(run.view), run.view.action_mask
        p = learner.policy(run.params, obs, mask)
        action = jax.random.categorical(key, jnp.log(p))
        sent = jaxrl.TeamActions(continuous=jnp.zeros((*action.shape, 0)), discrete=action[..., None])
        areas, (step, view) = advance_areas(learner.env, run.areas, sent, {})
        decision = Rollout(
            obs=obs,
            action_mask=mask,
            action=action,
            log_prob=log_prob(p, action),
            acted=run.view.alive,
            reward=step.reward + step.group_reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_obs=observe(step.view),
        )
        earned = run.earned + decision.reward
        left = jnp.where(step.terminated | step.truncated, 0.0, earned)
        return run._replace(areas=areas, view=view, earned=left), (decision, earned)

    run, (rollout, earned) = jax.lax.scan(decide, run, jax.random.split(key, learner.settings.steps))
    return run, rollout, earned


# Returns and advantages


def masked_mean(x: Array, mask: Array) -> Array:
    """Return the mean over the elements of x where the mask holds."""
    return jnp.where(mask, x, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def lambda_return(settings: Settings, rollout: Rollout, next_value: Array) -> Array:
    """Return R_t = r_t + γ [(1 − λ) V(o_{t+1}) + λ R_{t+1}], [T, E, A]; after the newest decisions R = V."""

    def step(next_return: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, value, terminated, truncated = now
        gamma = jnp.where(terminated, 0.0, settings.gamma)
        lambd = jnp.where(truncated, 0.0, settings.lambd)
        here = reward + gamma * ((1.0 - lambd) * value + lambd * next_return)
        return here, here

    steps = settings.reward_scale * rollout.reward, next_value, rollout.terminated, rollout.truncated
    return jax.lax.scan(step, next_value[-1], steps, reverse=True)[1]


def normalize(advantage: Array, mask: Array) -> Array:
    """Return (A − mean A) / std A over the decisions of a rollout."""
    centred = advantage - masked_mean(advantage, mask)
    return centred / (jnp.sqrt(masked_mean(jnp.square(centred), mask)) + 1e-10)


# Loss and update


class Batch(NamedTuple):
    """Decisions to learn from, [N, ...]."""

    rollout: Rollout
    returns: Array
    advantage: Array


def make_batch(learner: Learner, params: Any, rollout: Rollout) -> Batch:
    """Compute returns and advantages with the value as it is before the update; flatten [T, E, A] to [N]."""
    value, next_value = learner.value(params, rollout.obs), learner.value(params, rollout.next_obs)
    returns = lambda_return(learner.settings, rollout, next_value)
    batch = Batch(rollout, returns, normalize(returns - value, rollout.acted))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), batch)


def loss(params: Any, learner: Learner, batch: Batch) -> Array:
    """Return L_π + ½ L_V − β H of a minibatch."""
    settings, decided = learner.settings, batch.rollout
    mean = partial(masked_mean, mask=decided.acted)
    p = learner.policy(params, decided.obs, decided.action_mask)
    ratio = jnp.exp(log_prob(p, decided.action) - decided.log_prob)
    clipped = jnp.clip(ratio, 1.0 - settings.epsilon, 1.0 + settings.epsilon)
    policy_loss = -mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    value_loss = mean(jnp.square(batch.returns - learner.value(params, decided.obs)))
    return policy_loss + 0.5 * value_loss - settings.beta * mean(entropy(p))


def learn(learner: Learner, params: Any, moments: Any, rollout: Rollout, orders: Array) -> tuple[Any, Any]:
    """Update parameters and Adam's moments with a rollout; orders, int32 [updates, n], are minibatches of decisions."""
    batch = make_batch(learner, params, rollout)

    def minibatch(state: tuple[Any, Any], rows: Array) -> tuple[tuple[Any, Any], None]:
        params, moments = state
        gradient = jax.grad(loss)(params, learner, jax.tree.map(lambda x: x[rows], batch))
        change, moments = learner.optimizer.update(gradient, moments)
        return (optax.apply_updates(params, change), moments), None

    return jax.lax.scan(minibatch, (params, moments), orders)[0]


# Loop: collect, update, repeat


def begin(learner: Learner, key: Array) -> Run:
    """Return a seed with fresh parameters, at the start of an episode in each area. The key is consumed."""
    actor_key, critic_key, areas_key, key = jax.random.split(key, 4)
    areas, view = start_areas(learner.env, areas_key, learner.settings.areas, {})
    obs = observe(view)
    params = {"actor": learner.actor.init(actor_key, obs), "critic": learner.critic.init(critic_key, obs)}
    return Run(params, learner.optimizer.init(params), areas, view, jnp.zeros(view.alive.shape), key)


def train(learner: Learner, run: Run, updates: int) -> tuple[Run, Array]:
    """Collect and update some times; return also the mean return of the agents that ended."""

    def update(run: Run, _: None) -> tuple[Run, tuple[Array, Array]]:
        act_key, order_key, key = jax.random.split(run.key, 3)
        run, rollout, earned = collect(learner, run, act_key)
        keys = jax.random.split(order_key, learner.settings.epochs)
        orders = jax.vmap(lambda key: jax.random.permutation(key, rollout.reward.size))(keys)
        orders = orders.reshape(-1, rollout.reward.size // learner.settings.minibatches)
        params, moments = learn(learner, run.params, run.moments, rollout, orders)
        return run._replace(params=params, moments=moments, key=key), (earned, rollout.terminated | rollout.truncated)

    run, (earned, ended) = jax.lax.scan(update, run, length=updates)
    return run, masked_mean(earned, ended)


def main(environment: str = "jax:simple_spread", seeds: int = 4, rounds: int = 10, updates: int = 12) -> None:
    """Train several seeds side by side and print their mean returns."""
    learner = make_learner(jaxrl.make_environment(environment), Settings())
    step = jax.jit(jax.vmap(partial(train, learner, updates=updates)))
    runs = jax.vmap(partial(begin, learner))(jax.random.split(jax.random.key(0), seeds))
    for number in range(1, rounds + 1):
        runs, returns = step(runs)
        print(f"{number * updates:4} updates, returns of {seeds} seeds:", *(f"{x:7.2f}" for x in returns))


if __name__ == "__main__":
    main()
