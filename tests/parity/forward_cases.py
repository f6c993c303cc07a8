"""Family b: actor, value network and team critic forward."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp

from jaxrl.networks import actions, normalizer
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork, update_max_team
from jaxrl.torch import weights as torch_weights
from jaxrl.types import Action, ActionSpec
from tests.parity.cases import Case, check_supported, signals_of
from tests.parity.compare import Comparison


def run_forward(case: Case) -> Comparison:
    """Everything under out/ of a forward case."""
    check_supported(case)
    comparison = Comparison()
    dist = _actor(case, comparison)
    add_distribution(case, comparison, dist)
    if case.meta["algorithm"] == "poca":
        _team_critic(case, comparison)
    elif not case.meta["shared_critic"]:
        _value_network(case, comparison)
    return comparison


def _actor(case: Case, comparison: Comparison) -> ActionDistribution:
    """The distribution; with `shared_critic` the values of the shared body are compared on the way."""
    weights = case.below("w/actor/")
    streams = signals_of(weights)
    if case.meta["shared_critic"]:
        network = SharedActorCritic(case.spec, case.network, streams)
        layout = torch_weights.shared_layout(case.spec, case.network, streams)
    else:
        network = Actor(case.spec, case.network)
        layout = torch_weights.actor_layout(case.spec, case.network)
    imported = torch_weights.import_weights(weights, layout, case.spec)
    obs = normalizer.normalize_all(imported.normalizer, case.observations("in/obs_"))
    encoding = jax.jit(partial(network.apply, method="encode"))(imported.params, obs)
    comparison.add("out/actor_encoding", encoding, case.arrays["out/actor_encoding"])
    if not case.meta["shared_critic"]:
        return jax.jit(network.apply)(imported.params, obs)
    dist, value = jax.jit(network.apply)(imported.params, obs)
    add_streams(case, comparison, "out/value", value, streams)
    return dist


def _value_network(case: Case, comparison: Comparison) -> None:
    weights = case.below("w/critic/")
    streams = signals_of(weights)
    layout = torch_weights.value_layout(case.spec, case.network, streams)
    imported = torch_weights.import_weights(weights, layout, case.spec)
    obs = normalizer.normalize_all(imported.normalizer, case.observations("in/obs_"))
    value = jax.jit(ValueNetwork(case.spec, case.network, streams).apply)(imported.params, obs)
    add_streams(case, comparison, "out/value", value, streams)


def add_distribution(case: Case, comparison: Comparison, dist: ActionDistribution) -> None:
    """Compare all that the fixture holds about the distribution and the given action."""
    action, mask = case.action("in/", "in/action_mask")
    ours = jax.jit(partial(_distribution_arrays, case.spec.action))(dist, action, mask)
    for name, array in ours.items():
        comparison.add(f"out/{name}", array, case.arrays[f"out/{name}"])


def _distribution_arrays(
    spec: ActionSpec, dist: ActionDistribution, action: Action, mask: jax.Array
) -> dict[str, jax.Array]:
    """Everything the fixture holds about the distribution and the given action."""
    c = spec.continuous_size
    log_prob = actions.log_prob(dist, action, mask, spec)
    ours = {
        "log_probs_flat": log_prob,
        "entropy": actions.entropy(dist, mask, spec),
    }
    if c:
        alone = dist._replace(logits=dist.logits[..., :0])
        ours |= {
            "mu": dist.mean,
            "log_sigma": jnp.tile(dist.log_sigma, (len(dist.mean), 1)),
            "env_action_of_given": actions.to_environment(action).continuous,
            "entropy_cont": actions.entropy(alone, mask[..., :0], ActionSpec(c, ()))[..., None],
            "log_prob_cont": log_prob[..., :c],
        }
    if spec.discrete_branches:
        ours |= {"deterministic_disc": actions.mode(dist, mask, spec).discrete, "log_prob_disc": log_prob[..., c:]}
        ours |= _branches(dist, mask, spec)
    return ours


def _branches(dist: ActionDistribution, mask: jax.Array, spec: ActionSpec) -> dict[str, jax.Array]:
    """Arrays of single branches, each computed by our functions under a spec that has this branch only."""
    logits, probabilities = actions.masked_logits(dist, mask, spec), actions.probabilities(dist, mask, spec)
    ours, entropies, start = {}, [], 0
    for i, size in enumerate(spec.discrete_branches):
        part = slice(start, start + size)
        alone = ActionDistribution(dist.mean[..., :0], dist.log_sigma[:0], dist.logits[..., part])
        branch, allowed = ActionSpec(0, (size,)), mask[..., part]
        every = [
            actions.log_prob(alone, _choose(alone, j), allowed, branch) for j in range(size)
        ]  # fmt: skip
        ours[f"masked_logits_{i}"], ours[f"probs_{i}"] = logits[i], probabilities[i]
        ours[f"all_log_probs_{i}"] = jnp.concatenate(every, axis=-1)
        entropies.append(actions.entropy(alone, allowed, branch))
        start += size
    return ours | {"entropy_disc": jnp.stack(entropies, axis=-1)}


def _choose(dist: ActionDistribution, index: int) -> Action:
    lead = dist.logits.shape[:-1]
    return Action(jnp.zeros((*lead, 0)), jnp.full((*lead, 1), index, jnp.int32))


def _team_critic(case: Case, comparison: Comparison) -> None:
    """The numbered calls in their order; the running maximum carries over from one to the next."""
    weights = case.below("w/critic/")
    streams = signals_of(weights)
    layout = torch_weights.team_critic_layout(case.spec, case.network, streams)
    imported = torch_weights.import_weights(weights, layout, case.spec)
    critic = TeamCritic(case.spec, case.network, streams)
    whole, value_only = jax.jit(critic.apply), jax.jit(partial(critic.apply, method="value_only"))
    obs, action, present = case.team("in/")
    obs = normalizer.normalize_all(imported.normalizer, obs)
    encoding = actions.one_hot(action, case.spec.action)
    largest = imported.max_team
    for call in sorted({m[1] for m in (re.match(r"out/(\d+_(value|baseline)\w*)/", n) for n in case.arrays) if m}):
        members = present.at[:, 1:].set(False) if call.endswith("_alone") else present
        after = f"out/{call}_max_agents_after"
        largest = case.arrays[after] if call.endswith("_larger_max") else update_max_team(largest, members)
        value, baseline = whole(imported.params, obs, encoding, members, jnp.float32(largest))
        if "_value" in call:
            alone = value_only(imported.params, obs, members, jnp.float32(largest))
            add_streams(case, comparison, f"out/{call}", alone, streams)
            comparison.add(f"{call} in one pass", value, alone)
        else:
            add_streams(case, comparison, f"out/{call}", baseline[:, 0], streams)
        comparison.add(after, largest, case.arrays[after])


def add_streams(case: Case, comparison: Comparison, prefix: str, values: jax.Array, streams: tuple[str, ...]) -> None:
    """Compare values [..., R], a column for each reward signal."""
    for i, stream in enumerate(streams):
        comparison.add(f"{prefix}/{stream}", values[..., i], case.arrays[f"{prefix}/{stream}"])
