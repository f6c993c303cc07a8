"""Soft actor-critic (SAC) in one file: to read, to teach with, and to copy.

    python examples/single_file/sac.py

Environment and learner are one compiled program, and several seeds learn side by side. From equal parameters this file
learns what `jaxrl.make_sac` learns: `tests/algorithms/test_single_file.py` compares them. jaxrl has more: discrete and
hybrid actions, images and other sensors, normalised observations, memory, several reward signals, checkpoints, ONNX.

Equations (Haarnoja et al. 2018, arXiv 1801.01290, with a value network; α as in arXiv 1812.05905)
    policy         a = tanh(u), u ~ N(μ(s), σ(s)²), log π(a | s) = log N(u) − Σ log(1 − tanh² u)      appendix C
    Q loss         L_Q = ½ mean (Q_k(s, a) − (r + γ V̄(s')))², k = 1, 2                                eq. 7, 8
    value loss     L_V = ½ mean (V(s) − (min_k Q_k(s, ã) − α log π(ã | s)))², ã ~ π(· | s)            eq. 5
    policy loss    L_π = mean (α log π(ã | s) − Q_1(s, ã)), through ã alone                           eq. 12
    temperature    L_α = −mean α (log π(ã | s) + H̄), H̄ = −C                                           1812.05905, eq. 18
    target         V̄ ← τ V + (1 − τ) V̄ after every step                                               algorithm 1

The policy climbs Q_1 and not the smaller of the two, as in ML-Agents. All losses are taken before any parameter moves.
A transition that terminates has no V̄(s'); one that a time limit cuts off has that of the last observation.

Letters: T decisions of each area between two turns of updates, E areas with one agent each, F numbers of an
observation, C dimensions of an action, n transitions of a minibatch, S seeds.
"""

from __future__ import annotations

import math
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
    steps: int = 8  # T
    updates: int = 16  # of each turn
    batch_size: int = 128  # n
    replay_size: int = 50_000  # transitions
    learning_rate: float = 1e-3
    gamma: float = 0.99  # γ
    tau: float = 0.005  # τ, share of the new value in the target
    initial_alpha: float = 0.5  # α at the beginning
    reward_scale: float = 1.0  # what is learned from is the reward times this


# Networks: the policy, the value and its target, and two action values


def scaled_normal(gain: float) -> Any:
    """Return the initializer that draws from a normal distribution with standard deviation gain / √inputs."""
    return nn.initializers.variance_scaling(gain * gain, "fan_in", "normal")


class Network(nn.Module):
    """Hidden layers and a linear head: [..., inputs] → [..., outputs]."""

    settings: Settings
    outputs: int
    head_init: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i in range(self.settings.num_layers):
            x = nn.swish(nn.Dense(self.settings.hidden_units, kernel_init=scaled_normal(1.0), name=f"layer_{i}")(x))
        return nn.Dense(self.outputs, kernel_init=self.head_init, name="head")(x)


class Learner(NamedTuple):
    """What stays the same in a run."""

    env: jaxrl.JaxEnv
    settings: Settings
    actor: Any  # a `Network`: μ and log σ
    critic: Any  # a `Network` with one output: V, Q_1 and Q_2
    optimizer: optax.GradientTransformation

    def draw(self, actor: Any, obs: Array, normal: Array) -> tuple[Array, Array]:
        """Return an action and its log-probability, [..., C] and [...], from standard normal numbers [..., C]."""
        mean, log_sigma = jnp.split(self.actor.apply(actor, obs), 2, axis=-1)
        sigma = jnp.exp(jnp.clip(log_sigma, -20.0, 2.0))
        u = mean + sigma * normal
        gaussian = -jnp.square(u - mean) / (2.0 * jnp.square(sigma) + TINY) - jnp.log(sigma + TINY)
        squashing = 2.0 * (math.log(2.0) - u - nn.softplus(-2.0 * u))  # log(1 − tanh² u), for large |u| as well
        return jnp.tanh(u), (gaussian - 0.5 * math.log(2.0 * math.pi) - squashing).sum(-1)

    def value(self, params: Any, obs: Array) -> Array:
        """Return V(s), [...]."""
        return self.critic.apply(params, obs)[..., 0]

    def q(self, params: Any, obs: Array, action: Array) -> Array:
        """Return Q(s, a), [...]."""
        return self.critic.apply(params, jnp.concatenate([obs, action], axis=-1))[..., 0]


def make_learner(env: jaxrl.JaxEnv, settings: Settings) -> Learner:
    """Bind networks and optimizer. Raise ValueError for discrete actions, and for areas of several agents."""
    action, agents = env.spec.action, env.members * env.teams
    if action.discrete_branches or agents != 1:
        raise ValueError(f"{env.name}: {agents} agents in an area, {action}; expected one, with continuous actions")
    actor = Network(settings, 2 * action.continuous_size, scaled_normal(0.2))
    critic = Network(settings, 1, nn.initializers.xavier_uniform())
    return Learner(env, settings, actor, critic, optax.adam(settings.learning_rate))


# Replay


class Transition(NamedTuple):
    """What an agent did and what came of it, [..., *]."""

    obs: Array  # [..., F]
    action: Array  # [..., C]
    reward: Array
    terminated: Array  # bool, nothing follows
    next_obs: Array  # [..., F], what the agent saw next; what it saw last where it ended


class Replay(NamedTuple):
    """The newest transitions; number i stands in place i modulo the size."""

    kept: Transition  # [size, ...]
    count: Array  # int32 [], of all that have come


def add(replay: Replay, new: Transition) -> Replay:
    """Put transitions [N, ...] in place of the oldest."""
    places = (replay.count + jnp.arange(len(new.reward))) % len(replay.kept.reward)
    return Replay(jax.tree.map(lambda x, y: x.at[places].set(y), replay.kept, new), replay.count + len(new.reward))


def sample(replay: Replay, key: Array, size: int) -> Transition:
    """Draw transitions [n, ...] with replacement. The key is consumed."""
    rows = jax.random.randint(key, (size,), 0, jnp.minimum(replay.count, len(replay.kept.reward)))
    return jax.tree.map(lambda x: x[rows], replay.kept)


# Losses and update


class State(NamedTuple):
    """What an update changes."""

    params: dict[str, Any]  # of "actor", "value", "q1" and "q2", and "log_alpha"
    target: Any  # parameters of V̄
    moments: Any  # of Adam


def init(learner: Learner, key: Array) -> State:
    """Return fresh parameters; the target is a copy of V. The key is consumed."""
    keys, spec = jax.random.split(key, 4), learner.env.spec
    obs = jnp.zeros(sum(sensor.shape[0] for sensor in spec.observations))
    both = jnp.zeros(len(obs) + spec.action.continuous_size)
    params = {"actor": learner.actor.init(keys[0], obs), "value": learner.critic.init(keys[1], obs)}
    params |= {"q1": learner.critic.init(keys[2], both), "q2": learner.critic.init(keys[3], both)}
    params["log_alpha"] = jnp.log(learner.settings.initial_alpha)
    return State(params, params["value"], learner.optimizer.init(params))


def loss(params: Any, learner: Learner, target: Any, batch: Transition, normal: Array) -> Array:
    """Return L_Q of both, L_V, L_π and L_α together; each moves its own parameters alone."""
    settings, still = learner.settings, jax.lax.stop_gradient
    follows = jnp.where(batch.terminated, 0.0, learner.value(target, batch.next_obs))
    backup = settings.reward_scale * batch.reward + settings.gamma * follows
    q_loss = sum(0.5 * jnp.square(backup - learner.q(params[k], batch.obs, batch.action)).mean() for k in ("q1", "q2"))

    alpha = jnp.exp(params["log_alpha"])
    action, log_prob = learner.draw(params["actor"], batch.obs, normal)
    q1, q2 = (learner.q(still(params[k]), batch.obs, action) for k in ("q1", "q2"))
    worth = still(jnp.minimum(q1, q2) - alpha * log_prob)
    value_loss = 0.5 * jnp.square(learner.value(params["value"], batch.obs) - worth).mean()
    policy_loss = (still(alpha) * log_prob - q1).mean()
    target_entropy = -action.shape[-1]
    alpha_loss = -(alpha * still(log_prob + target_entropy)).mean()
    return q_loss + value_loss + policy_loss + alpha_loss


def learn(learner: Learner, state: State, batch: Transition, normal: Array) -> State:
    """Make one step with a minibatch [n, ...]; normal, [n, C], are the standard normal numbers that ã is made of."""
    gradient = jax.grad(loss)(state.params, learner, state.target, batch, normal)
    change, moments = learner.optimizer.update(gradient, state.moments)
    params: Any = optax.apply_updates(state.params, change)
    return State(params, optax.incremental_update(params["value"], state.target, learner.settings.tau), moments)


# Loop: collect, update, repeat


class Run(NamedTuple):
    """One seed."""

    state: State
    replay: Replay
    areas: Areas
    view: jaxrl.TeamView
    earned: Array  # [E], reward of each agent in its episode so far
    key: Array


def observe(view: jaxrl.TeamView) -> Array:
    """Return all vector sensors of the one agent of each area as one vector, [E, F]."""
    return jnp.concatenate(view.obs, axis=-1)[:, 0]


def collect(learner: Learner, run: Run, key: Array) -> tuple[Run, Array, Array]:
    """Make and keep T decisions in each area; return also returns so far and ends, [T, E]. The key is consumed."""
    size = learner.env.spec.action.continuous_size

    def decide(run: Run, key: Array) -> tuple[Run, tuple[Transition, Array, Array]]:
        obs = observe(run.view)
        action, _ = learner.draw(run.state.params["actor"], obs, jax.random.normal(key, (len(obs), size)))
        sent = jaxrl.TeamActions(continuous=action[:, None], discrete=jnp.zeros((len(obs), 1, 0), jnp.int32))
        areas, (step, view) = advance_areas(learner.env, run.areas, sent, {})
        reward, terminated = (step.reward + step.group_reward)[:, 0], step.terminated[:, 0]
        transition = Transition(obs, action, reward, terminated, observe(step.view))
        earned = run.earned + reward
        run = run._replace(areas=areas, view=view, earned=jnp.where(step.over, 0.0, earned))
        return run, (transition, earned, step.over)

    run, (new, earned, over) = jax.lax.scan(decide, run, jax.random.split(key, learner.settings.steps))
    new = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), new)
    return run._replace(replay=add(run.replay, new)), earned, over


def begin(learner: Learner, key: Array) -> Run:
    """Return a seed with fresh parameters and an empty replay, at the start of an episode. The key is consumed."""
    init_key, areas_key, key = jax.random.split(key, 3)
    areas, view = start_areas(learner.env, areas_key, learner.settings.areas, {})
    obs, room = observe(view), learner.settings.replay_size
    action, number = jnp.zeros(learner.env.spec.action.continuous_size), jnp.zeros(())
    empty = Transition(obs[0], action, number, number > 0.0, obs[0])
    kept = jax.tree.map(lambda x: jnp.zeros((room, *x.shape), x.dtype), empty)
    return Run(init(learner, init_key), Replay(kept, jnp.int32(0)), areas, view, jnp.zeros(len(obs)), key)


def train(learner: Learner, run: Run, turns: int) -> tuple[Run, Array]:
    """Collect and update some times; return also the mean return of the episodes that ended."""
    size = learner.settings.batch_size, learner.env.spec.action.continuous_size

    def turn(run: Run, _: None) -> tuple[Run, tuple[Array, Array]]:
        act_key, learn_key, key = jax.random.split(run.key, 3)
        run, earned, over = collect(learner, run, act_key)

        def update(state: State, key: Array) -> tuple[State, None]:
            batch_key, normal_key = jax.random.split(key)
            batch = sample(run.replay, batch_key, learner.settings.batch_size)
            return learn(learner, state, batch, jax.random.normal(normal_key, size)), None

        state, _ = jax.lax.scan(update, run.state, jax.random.split(learn_key, learner.settings.updates))
        return run._replace(state=state, key=key), (earned, over)

    run, (earned, over) = jax.lax.scan(turn, run, length=turns)
    return run, jnp.where(over, earned, 0.0).sum() / jnp.maximum(over.sum(), 1)


def main(environment: str = "jax:ball3d", seeds: int = 4, rounds: int = 10, turns: int = 40) -> None:
    """Train several seeds side by side and print their mean returns."""
    learner = make_learner(jaxrl.make_environment(environment, episode_limit=200), Settings())
    step = jax.jit(jax.vmap(partial(train, learner, turns=turns)))
    runs = jax.vmap(partial(begin, learner))(jax.random.split(jax.random.key(0), seeds))
    for number in range(1, rounds + 1):
        runs, returns = step(runs)
        print(f"{number * turns:4} turns of updates, returns of {seeds} seeds:", *(f"{x:7.2f}" for x in returns))


if __name__ == "__main__":
    main()
