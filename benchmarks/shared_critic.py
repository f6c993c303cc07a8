"""The team critic with shared projections against the same critic computed agent by agent: equal outputs, time of both.

    taskset -c 0 python benchmarks/shared_critic.py            # one core
    taskset -c 0 python benchmarks/shared_critic.py --repeats 25

Both are MA-POCA's critic (`jaxrl.networks.models.TeamCritic`) with the same parameters. `naive` does what ML-Agents
does for a minibatch of agent rows: for each agent it embeds, projects and attends over the observations of the whole
team (value), then over its own observation and the observation-actions of the others (baseline). `shared` embeds and
projects each entity once per team. A call is a forward and a backward pass over 1,024 agent steps (1,536 with 3
agents) of 18 observations and 5 discrete actions, 2 layers. Times are CPU time, medians of alternated calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.models import TeamCritic
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

HEADS = 4
OBSERVATIONS, ACTIONS = 18, 5
SPEC = BehaviorSpec((ObservationSpec("vector", (OBSERVATIONS,)),), ActionSpec(0, (ACTIONS,)))


class Shape(NamedTuple):
    """The part of the network settings that the critic reads."""

    hidden_units: int
    num_layers: int = 2
    vis_encode_type: str = "simple"
    body_type: None = None
    goal_conditioning_type: str = "hyper"
    compute_dtype: str = "float32"
    memory: None = None


class Inputs(NamedTuple):
    """A minibatch of team states."""

    obs: jax.Array  # float32 [N, A, 18]
    action: jax.Array  # float32 [N, A, 5]
    present: jax.Array  # bool [N, A]
    max_team: jax.Array  # float32 []


Critic = Callable[[Any, Inputs], tuple[jax.Array, jax.Array]]
"""(parameters, inputs) → value and baseline of each agent, [N, A]."""


def shared(critic: TeamCritic, params: Any, x: Inputs) -> tuple[jax.Array, jax.Array]:
    """Value and baseline [N, A] of each agent, from one pass over the teams."""
    out: Any = critic.apply(params, (x.obs,), x.action, x.present, x.max_team)
    value, baseline = out
    return jnp.broadcast_to(value, x.present.shape), baseline[..., 0]


def naive(params: Any, x: Inputs) -> tuple[jax.Array, jax.Array]:
    """The same, every agent for itself: N·A sets of A entities for the values, as many for the baselines."""
    p, (n, members) = params["params"], x.present.shape
    rows = n * members
    own = jnp.tile(jnp.eye(members, dtype=bool), (n, 1))  # [N·A, A], the agent's own place
    present, obs, action = (jnp.repeat(part, members, axis=0) for part in (x.present, x.obs, x.action))
    obs = jnp.where(present[..., None], obs, 0.0)
    o = embed(p["embed_obs"], obs)
    value = head(p, attend(p["attention"], o, present), present, x.max_team)
    mine = embed(p["embed_obs"], jnp.sum(jnp.where(own[..., None], obs, 0.0), axis=1))
    oa = embed(p["embed_obs_action"], jnp.concatenate([obs, jnp.where(present[..., None], action, 0.0)], axis=-1))
    entities = jnp.where(own[..., None], mine[:, None], oa)
    baseline = head(p, attend(p["attention"], entities, present), present, x.max_team)
    assert value.shape == (rows, 1)
    return value.reshape(n, members), baseline.reshape(n, members)


def embed(p: Any, x: jax.Array) -> jax.Array:
    """swish(x W + b)."""
    return jax.nn.swish(linear(p, x))


def attend(p: Any, entities: jax.Array, present: jax.Array) -> jax.Array:
    """Residual self-attention of sets [N, E, h] and the mean over their present entities -> [N, h]."""
    n, count, h = entities.shape
    x = layer_norm(entities)
    q, k, v = (part.reshape(n, count, HEADS, h // HEADS) for part in jnp.split(linear(p["qkv"], x), 3, axis=-1))
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / h**0.5
    weights = jax.nn.softmax(jnp.where(present[:, None, None], scores, -1e6), axis=-1)
    out = jnp.einsum("nhqk,nkhd->nqhd", weights, v).reshape(n * count, h) @ p["out_kernel"] + p["out_bias"]
    pooled = jnp.where(present[..., None], layer_norm(out.reshape(n, count, h) + x), 0.0)
    return pooled.sum(1) / (present.sum(1, keepdims=True) + 1e-7)


def head(p: Any, pooled: jax.Array, present: jax.Array, max_team: jax.Array) -> jax.Array:
    """Body, team size and value head: [N, h] -> [N, 1]."""
    x = pooled
    for name in sorted(p["body"]):
        x = embed(p["body"][name], x)
    size = 2.0 * present.sum(1, keepdims=True) / max_team - 1.0
    return linear(p["values"], jnp.concatenate([x, size], axis=-1))


def linear(p: Any, x: jax.Array) -> jax.Array:
    """x W + b with all leading axes as one, which XLA computes fastest."""
    out = x.reshape(-1, x.shape[-1]) @ p["kernel"] + p["bias"]
    return out.reshape(*x.shape[:-1], -1)


def layer_norm(x: jax.Array) -> jax.Array:
    """Without learned scale."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def score(function: Critic, params: Any, x: Inputs) -> Any:
    """A number that depends on all outputs of present agents, and these outputs."""
    value, baseline = (jnp.where(x.present, out, 0.0) for out in function(params, x))
    return jnp.sum(jnp.square(value - 1.0)) + jnp.sum(jnp.square(baseline + 1.0)), (value, baseline)


def inputs(teams: int, members: int) -> Inputs:
    """Random teams of which one member in six is absent."""
    rng = np.random.default_rng(members)
    present = rng.random((teams, members)) < 5 / 6
    present[:, 0] = True
    return Inputs(
        obs=jnp.asarray(rng.normal(size=(teams, members, OBSERVATIONS)), jnp.float32),
        action=jnp.asarray(np.eye(ACTIONS, dtype=np.float32)[rng.integers(0, ACTIONS, (teams, members))]),
        present=jnp.asarray(present),
        max_team=jnp.float32(members),
    )


def alternated(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median CPU seconds of both, called in turn after one call each."""
    spent: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(-2, 2 * repeats):
        begun = time.process_time()
        jax.block_until_ready((first, second)[turn % 2]())
        if turn >= 0:
            spent[turn % 2].append(time.process_time() - begun)
    return statistics.median(spent[0]), statistics.median(spent[1])


def compare(hidden: int, members: int, repeats: int) -> tuple[float, float]:
    """CPU seconds of naive and shared, after checking that outputs and gradients agree."""
    critic = TeamCritic(SPEC, Shape(hidden), ("extrinsic",))
    x = inputs(-(-1024 // members) if members != 3 else 512, members)
    params = jax.jit(critic.init)(jax.random.key(0), (x.obs,), x.action, x.present, x.max_team)
    functions: tuple[Critic, Critic] = (naive, partial(shared, critic))
    graded = [jax.jit(jax.grad(partial(score, function), has_aux=True)) for function in functions]
    slow, fast = (function(params, x) for function in graded)
    for a, b in zip(jax.tree.leaves(slow), jax.tree.leaves(fast), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.abs(a).max()))
    return alternated(partial(graded[0], params, x), partial(graded[1], params, x), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print("units  team  naive ms  shared ms  ratio")
    for hidden in (64, 256):
        for members in (3, 8):
            slow, fast = compare(hidden, members, options.repeats)
            print(f"{hidden:5}  {members:4}  {slow * 1e3:8.2f}  {fast * 1e3:9.2f}  {slow / fast:5.2f}", flush=True)


if __name__ == "__main__":
    main()
