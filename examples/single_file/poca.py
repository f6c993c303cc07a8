"""MA-POCA, multi-agent posthumous credit assignment, in one file: to read, to teach with, and to copy.

    python examples/single_file/poca.py

Environment and learner are one compiled program, and several seeds learn side by side. From equal parameters this file
learns what `jaxrl.make_poca` learns: `tests/algorithms/test_single_file.py` compares them. jaxrl has more: actions of
any kind, images and other sensors, memory, several reward signals, schedules, members that pause, checkpoints, ONNX.

Equations (Cohen et al. 2021, arXiv 2111.05992, and docs/ma-poca.md); i, j are members, P those that are present
    entities       u_i = swish(W [o_i]), w_i = swish(W' [o_i, a_i])
    value          V = φ(f({u_j : j ∈ P})), f a residual self-attention and the mean over its outputs
    baseline       b_i = φ(f({u_i} ∪ {w_j : j ∈ P, j ≠ i})), which does not see what i itself did
    reward         r_i = Σ_j own_j + group_i; a member that ends is paid what its team is paid in that step
    λ-return       R_{t,i} = r_{t,i} + γ [(1 − λ) V_{t+1} + λ R_{t+1,i}]
    of the dead    R_{t,i} = r_{t,i} + γ [(1 − λ) V_{t+1} + λ mean_j R_{t+1,j}], j the members that live on
    advantage      A_i = R_i − b_i
    policy loss    L_π = −mean min(ρ A, clip(ρ, 1 − ε, 1 + ε) A), ρ = π(a | o) / π_old(a | o)   as in ppo.py
    value loss     L_V = mean (R − V)²
    baseline loss  L_b = mean max((R − b)², (R − b_old − clip(b − b_old, −ε, ε))²)
    loss           L = L_π + ½ (L_V + ½ L_b) − β mean H(π)

Letters: T decisions of each area before an update, E areas with a team of A members each, F numbers of an observation,
M choices of an action, N = T·E states of teams in a rollout, h hidden units, S seeds.
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

TINY, HEADS = 1e-7, 4  # what keeps logarithms finite; of the attention
normal = partial(nn.initializers.variance_scaling, mode="fan_in", distribution="normal")  # (variance · inputs)


class Settings(NamedTuple):
    """Hyperparameters."""

    hidden_units: int = 32
    num_layers: int = 2
    areas: int = 16  # E
    steps: int = 64  # T
    epochs: int = 3  # passes over a rollout
    minibatches: int = 8  # of each pass, a divisor of T·E
    learning_rate: float = 2e-3
    gamma: float = 0.99  # γ
    lambd: float = 0.95  # λ
    epsilon: float = 0.2  # ε, clip range of ratio and baseline
    beta: float = 0.01  # β, weight of the entropy
    reward_scale: float = 1.0  # what is learned from is the reward times this
    posthumous_credit: str = "return"  # the dead follow their team's λ-return; "value": V_{t+1} alone, as in ML-Agents


class Network(nn.Module):
    """Hidden layers and a linear head: [..., F] → [..., outputs]."""

    settings: Settings
    outputs: int
    variance: float
    head_init: Any

    @nn.compact
    def __call__(self, x: Array, joined: Array | None = None) -> Array:
        for i in range(self.settings.num_layers):
            x = nn.swish(nn.Dense(self.settings.hidden_units, kernel_init=normal(self.variance), name=f"layer_{i}")(x))
        x = x if joined is None else jnp.concatenate([x, joined], axis=-1)
        return nn.Dense(self.outputs, kernel_init=self.head_init, name="head")(x)


class Attention(nn.Module):
    """Residual self-attention and the mean over its outputs: entities [..., A, h], present bool [..., A] → [..., h]."""

    @nn.compact
    def __call__(self, entities: Array, present: Array) -> Array:
        h, init = entities.shape[-1], nn.initializers.normal((0.125 / entities.shape[-1]) ** 0.5)
        norm = nn.LayerNorm(epsilon=1e-5, use_bias=False, use_scale=False, use_fast_variance=False)
        x = norm(entities)
        q, k, v = jnp.split(nn.Dense(3 * h, kernel_init=init, name="qkv")(x), 3, axis=-1)
        q, k, v = (y.reshape(*y.shape[:-1], HEADS, h // HEADS) for y in (q, k, v))
        scores = jnp.einsum("...jnd,...lnd->...njl", q, k) / h**0.5
        weights = nn.softmax(jnp.where(present[..., None, None, :], scores, -1e6))
        attended = jnp.einsum("...njl,...lnd->...jnd", weights, v).reshape(x.shape)
        x = norm(x + nn.Dense(h, kernel_init=init, name="out")(attended))
        return jnp.where(present[..., None], x, 0.0).sum(-2) / (present.sum(-1, keepdims=True) + TINY)


class TeamCritic(nn.Module):
    """V [...] and b [..., A]: obs [..., A, F], one-hot actions [..., A, M], present bool [..., A]."""

    settings: Settings

    @nn.compact
    def __call__(self, obs: Array, action: Array, present: Array) -> tuple[Array, Array]:
        h, members = self.settings.hidden_units, obs.shape[-2]
        embed = partial(nn.Dense, h, kernel_init=nn.initializers.normal((0.125 / h) ** 0.5))
        u = nn.swish(embed(name="embed_obs")(obs))[..., None, :, :]
        w = nn.swish(embed(name="embed_obs_action")(jnp.concatenate([obs, action], axis=-1)))[..., None, :, :]
        of_baselines = jnp.where(jnp.eye(members, dtype=bool)[..., None], u, w)  # [..., A sets, A entities, h]
        sets = jnp.concatenate([u, of_baselines], axis=-3)  # the first set is that of the value
        pooled = Attention(name="attention")(sets, present[..., None, :])
        size = jnp.broadcast_to(2.0 * present.sum(-1)[..., None, None] / members - 1.0, (*pooled.shape[:-1], 1))
        body = Network(self.settings, 1, 0.125 / h, nn.initializers.xavier_uniform(), name="body")
        value, baseline = jnp.split(body(pooled, size)[..., 0], [1], axis=-1)
        return value[..., 0], baseline


def log_prob(probabilities: Array, action: Array) -> Array:
    """Return log π(a | o): [..., M], int32 [...] → [...]."""
    return jnp.log(jnp.take_along_axis(probabilities, action[..., None], axis=-1)[..., 0] + TINY)


class Learner(NamedTuple):
    """What stays the same in a run."""

    env: jaxrl.JaxEnv
    settings: Settings
    actor: Any  # a `Network`
    critic: Any  # the `TeamCritic`
    optimizer: optax.GradientTransformation

    def policy(self, params: Any, obs: Array, mask: Array) -> Array:
        """Return π(· | o): [..., F] and bool [..., M], True where allowed → [..., M]."""
        return nn.softmax(jnp.where(mask, self.actor.apply(params["actor"], obs), -1e8))

    def judge(self, params: Any, obs: Array, action: Array, present: Array) -> tuple[Array, Array]:
        """Return V [...] and b [..., A] of teams; action is int32 [..., A]."""
        return self.critic.apply(params["critic"], obs, nn.one_hot(action, self.actor.outputs), present)


def make_learner(env: jaxrl.JaxEnv, settings: Settings) -> Learner:
    """Bind networks and optimizer. Raise ValueError for actions other than one discrete branch, and several teams."""
    if env.spec.action.continuous_size or len(env.spec.action.discrete_branches) != 1 or env.teams != 1:
        raise ValueError(f"{env.name}: {env.teams} teams, {env.spec.action}; expected one team, one discrete branch")
    actor = Network(settings, env.spec.action.mask_size, 1.0, normal(0.01))
    return Learner(env, settings, actor, TeamCritic(settings), optax.adam(settings.learning_rate))


class Rollout(NamedTuple):
    """T decisions of every team, [T, E, A, ...]. Nothing is learned where a member did not act."""

    obs: Array  # [T, E, A, F]
    action_mask: Array  # bool [T, E, A, M], True: allowed
    action: Array  # int32
    log_prob: Array  # of the policy that acted
    acted: Array  # bool, which here is: present
    reward: Array  # the member's own
    group_reward: Array
    terminated: Array  # bool, the member has ended
    truncated: Array  # bool, the member was cut off
    over: Array  # bool [T, E, 1], the episode of the team is over
    next_obs: Array  # [T, E, A, F], the next state of the team; the last one where it is over
    next_present: Array  # bool


class Run(NamedTuple):
    """One seed."""

    params: dict[str, Any]  # of "actor" and "critic"
    moments: Any  # of Adam
    areas: Areas
    view: jaxrl.TeamView
    earned: Array  # [E, 1], reward of each team in its episode so far
    key: Array


def collect(learner: Learner, run: Run, key: Array) -> tuple[Run, Rollout, Array]:
    """Make T decisions in each area; return also what teams have earned so far, [T, E, 1]. The key is consumed."""

    def decide(run: Run, key: Array) -> tuple[Run, tuple[Rollout, Array]]:
        view, obs = run.view, jnp.concatenate(run.view.obs, axis=-1)
        p = learner.policy(run.params, obs, view.action_mask)
        action = jax.random.categorical(key, jnp.log(p))
        sent = jaxrl.TeamActions(continuous=jnp.zeros((*action.shape, 0)), discrete=action[..., None])
        areas, (step, new_view) = advance_areas(learner.env, run.areas, sent, {})
        over = step.over[:, None]
        paid = step.reward, step.group_reward, step.terminated, step.truncated, over
        after = jnp.concatenate(step.view.obs, axis=-1), jnp.where(over, step.truncated, step.view.alive)
        decision = Rollout(obs, view.action_mask, action, log_prob(p, action), view.alive, *paid, *after)
        earned = run.earned + rewards(decision)[1]
        return run._replace(areas=areas, view=new_view, earned=jnp.where(over, 0.0, earned)), (decision, earned)

    run, (rollout, earned) = jax.lax.scan(decide, run, jax.random.split(key, learner.settings.steps))
    return run, rollout, earned


def masked_mean(x: Array, mask: Array, axis: int | None = None) -> Array:
    """Return the mean over the elements of x where the mask holds."""
    return jnp.where(mask, x, 0.0).sum(axis) / jnp.maximum(mask.sum(axis), 1)


def rewards(rollout: Rollout) -> tuple[Array, Array]:
    """Return what members are paid, r [..., A], and what their team is paid in that step, [..., 1]."""
    own, group = (jnp.where(rollout.acted, x, 0.0) for x in (rollout.reward, rollout.group_reward))
    own, highest, lowest = own.sum(-1, keepdims=True), group.max(-1, keepdims=True), group.min(-1, keepdims=True)
    team = own + jnp.where(highest >= -lowest, highest, lowest)  # the group reward of largest magnitude
    return jnp.where(rollout.terminated | rollout.truncated, team, own + group), team


def lambda_return(settings: Settings, rollout: Rollout, next_value: Array) -> Array:
    """Return R, [T, E, A], from V of the team's next states, [T, E, 1]; after the newest decisions R = V."""

    def step(following: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        next_return, next_mean = following
        reward, value, acted, terminated, truncated, over = now
        dead = (terminated | truncated) & ~over
        gamma = jnp.where(terminated & over, 0.0, settings.gamma)
        lambd = jnp.where((truncated & over) | (dead & (settings.posthumous_credit == "value")), 0.0, settings.lambd)
        here = reward + gamma * ((1.0 - lambd) * value + lambd * jnp.where(dead, next_mean, next_return))
        return (here, masked_mean(here, acted, axis=-1)[..., None]), here

    newest = jnp.broadcast_to(next_value[-1], rollout.acted.shape[1:]), next_value[-1]
    reward = settings.reward_scale * rewards(rollout)[0]
    steps = reward, next_value, rollout.acted, rollout.terminated, rollout.truncated, rollout.over
    return jax.lax.scan(step, newest, steps, reverse=True)[1]


def make_batch(learner: Learner, params: Any, rollout: Rollout) -> tuple[Rollout, Array, Array, Array]:
    """Return decisions, λ-returns, baselines of the critic before the update and normalised advantages, [N, A, ...]."""
    _, baseline = learner.judge(params, rollout.obs, rollout.action, rollout.acted)
    next_value, _ = learner.judge(params, rollout.next_obs, rollout.action, rollout.next_present)
    returns = lambda_return(learner.settings, rollout, next_value[..., None])
    advantage = returns - baseline
    advantage -= masked_mean(advantage, rollout.acted)
    advantage /= jnp.sqrt(masked_mean(jnp.square(advantage), rollout.acted)) + 1e-10
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rollout, returns, baseline, advantage))


def loss(params: Any, learner: Learner, batch: tuple[Rollout, Array, Array, Array]) -> Array:
    """Return L_π + ½ (L_V + ½ L_b) − β H of a minibatch."""
    decided, returns, old_baseline, advantage = batch
    epsilon, mean = learner.settings.epsilon, partial(masked_mean, mask=decided.acted)
    p = learner.policy(params, decided.obs, decided.action_mask)
    ratio = jnp.exp(log_prob(p, decided.action) - decided.log_prob)
    policy_loss = -mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon) * advantage))
    value, baseline = learner.judge(params, decided.obs, decided.action, decided.acted)
    value_loss = mean(jnp.square(returns - value[..., None]))
    clipped = old_baseline + jnp.clip(baseline - old_baseline, -epsilon, epsilon)
    baseline_loss = mean(jnp.maximum(jnp.square(returns - baseline), jnp.square(returns - clipped)))
    entropy = mean(-jnp.sum(p * jnp.log(p + TINY), axis=-1))
    return policy_loss + 0.5 * (value_loss + 0.5 * baseline_loss) - learner.settings.beta * entropy


def learn(learner: Learner, params: Any, moments: Any, rollout: Rollout, orders: Array) -> tuple[Any, Any]:
    """Move parameters and Adam's moments with a rollout; orders, int32 [updates, n], are minibatches of its states."""
    batch = make_batch(learner, params, rollout)

    def minibatch(state: tuple[Any, Any], rows: Array) -> tuple[tuple[Any, Any], None]:
        params, moments = state
        gradient = jax.grad(loss)(params, learner, jax.tree.map(lambda x: x[rows], batch))
        change, moments = learner.optimizer.update(gradient, moments)
        return (optax.apply_updates(params, change), moments), None

    return jax.lax.scan(minibatch, (params, moments), orders)[0]


def begin(learner: Learner, key: Array) -> Run:
    """Return a seed with fresh parameters, at the start of an episode in each area. The key is consumed."""
    actor_key, critic_key, areas_key, key = jax.random.split(key, 4)
    areas, view = start_areas(learner.env, areas_key, learner.settings.areas, {})
    obs, team = jnp.concatenate(view.obs, axis=-1), (view.action_mask, view.alive)
    params = {"actor": learner.actor.init(actor_key, obs), "critic": learner.critic.init(critic_key, obs, *team)}
    return Run(params, learner.optimizer.init(params), areas, view, jnp.zeros((len(obs), 1)), key)


def train(learner: Learner, run: Run, updates: int) -> tuple[Run, Array]:
    """Collect and update some times; return also the mean return of the teams that ended."""

    def update(run: Run, _: None) -> tuple[Run, tuple[Array, Array]]:
        act_key, order_key, key = jax.random.split(run.key, 3)
        run, rollout, earned = collect(learner, run, act_key)
        keys = jax.random.split(order_key, learner.settings.epochs)
        orders = jax.vmap(lambda key: jax.random.permutation(key, rollout.over.size))(keys)  # [epochs, N]
        orders = orders.reshape(-1, rollout.over.size // learner.settings.minibatches)
        params, moments = learn(learner, run.params, run.moments, rollout, orders)
        return run._replace(params=params, moments=moments, key=key), (earned, rollout.over)

    run, (earned, ended) = jax.lax.scan(update, run, length=updates)
    return run, masked_mean(earned, ended)


def main(environment: str = "jax:dungeon_escape", seeds: int = 4, rounds: int = 6, updates: int = 12) -> None:
    """Train several seeds side by side and print their mean returns."""
    learner = make_learner(jaxrl.make_environment(environment), Settings())
    step = jax.jit(jax.vmap(partial(train, learner, updates=updates)))
    runs = jax.vmap(partial(begin, learner))(jax.random.split(jax.random.key(0), seeds))
    for number in range(1, rounds + 1):
        runs, returns = step(runs)
        print(f"{number * updates:4} updates, returns of {seeds} seeds:", *(f"{x:7.2f}" for x in returns))


if __name__ == "__main__":
    main()
