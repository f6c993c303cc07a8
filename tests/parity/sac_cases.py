"""Family f: SAC's networks, and its updates with the noise given, through the algorithm's own step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import make_settings, sac, sac_parts
from jaxrl.algorithms.interface import TrainState
from jaxrl.algorithms.parts import applied
from jaxrl.networks import actions, normalizer, squashed
from jaxrl.rewards.signals import bind_off_policy
from jaxrl.rollout.transitions import Transitions
from jaxrl.torch import weights as torch_weights
from jaxrl.torch.layout import Layout
from tests.parity.cases import Case
from tests.parity.compare import Comparison

NETWORKS = {"critic": "value", "target": "target", "q_network/q1_network.": "q1", "q_network/q2_network.": "q2"}
"""Where the original keeps each critic, and what it is called here."""


def run_sac(case: Case) -> Comparison:
    """What the networks say before the first update, weights after one and three, statistics of all three."""
    comparison, settings = Comparison(), _settings(case)
    parts = sac_parts.parts_of(case.spec, settings)
    start = jax.jit(partial(sac.init, parts, bind_off_policy(case.spec, settings)))(jax.random.key(0))
    state = _weights(case, start, "w")
    batch = _batch(case)
    _forward(case, comparison, parts, state, batch)
    update, told = jax.jit(partial(sac.step, parts)), []
    for count in (1, 2, 3):
        noise = case.arrays.get("mb/noise", np.zeros((3, case.meta["batch"], 0)))[count - 1]
        state, metrics = update(state, batch, batch.reward[..., None], jnp.asarray(_shaped(case, noise)))
        told.append(metrics)
        if case.below(f"w{count}/"):
            _compare_weights(case, comparison, state, count)
    for name in (name for name in case.below("out/") if name in told[0]):
        comparison.add(f"out/{name}", jnp.stack([one[name] for one in told]), case.arrays[f"out/{name}"])
    for kind in {"continuous", "discrete"} - set(state.own["log_alpha"]):  # there it stays as it is, or is no number
        theirs = case.arrays.get(f"out/{kind}_entropy_coeff")
        if theirs is not None:
            same = np.full(3, np.exp(case.arrays[f"w/log_ent_coef/{kind}"].mean() if kind == "continuous" else 0.0))
            comparison.add(f"out/{kind}_entropy_coeff", np.where(np.isnan(theirs), 0.0, same), np.nan_to_num(theirs))
    return comparison


def _settings(case: Case) -> Any:
    network = {k: v for k, v in case.meta["network_settings"].items() if v is not None}
    return make_settings(
        "sac",
        network_settings=network,
        hyperparameters={**case.meta["hyperparameters"], "original_losses": True},
        reward_signals={"extrinsic": {"gamma": case.meta["gamma"]}},
        max_steps=case.meta["max_steps"],
    )


def _shaped(case: Case, x: np.ndarray) -> np.ndarray:
    """Rows [B, ...], as sequences [N, L, ...] with memory."""
    if case.network.memory is None:
        return x
    length = case.meta["sequence_length"]
    return x.reshape(len(x) // length, length, *x.shape[1:])


def _batch(case: Case) -> Transitions:
    action, mask = case.action("mb/", "mb/action_mask")
    x = case.below("mb/")
    rows = len(x["rewards"])
    flat = Transitions(
        obs=case.observations("mb/obs_"),
        carry=(),
        begin=jnp.zeros(rows, bool),
        action_mask=mask,
        action=action,
        extras={},
        reward=jnp.asarray(x["rewards"]),
        discount=jnp.asarray(1 - x["done"]),
        next_obs=case.observations("mb/next_obs_"),
        seen=jnp.ones(rows, bool),
        valid=jnp.asarray(x["masks"] > 0),
    )
    batch = jax.tree.map(lambda leaf: jnp.asarray(_shaped(case, np.asarray(leaf))), flat)
    if case.network.memory is None:
        return batch
    first = (np.arange(case.meta["sequence_length"]) == 0)[None, :, None]
    stored = {"actor": x["memory"], "critic": x["critic_memory"]}
    return batch._replace(carry={name: jnp.asarray(memory[:, None] * first) for name, memory in stored.items()})


def _layouts(case: Case) -> dict[str, Layout]:
    """By the name of the original."""
    streams = tuple(case.meta.get("streams", ("extrinsic",)))
    value = torch_weights.value_layout(case.spec, case.network, streams)
    q = torch_weights.action_value_layout(case.spec, case.network, streams)
    of_critics = {name: q if "q_network" in name else value for name in NETWORKS}
    return {"actor": torch_weights.squashed_layout(case.spec, case.network), **of_critics}


def _prefix(network: str) -> str:
    return network if network.endswith(".") else f"{network}/"


def _weights(case: Case, state: TrainState, when: str) -> TrainState:
    """The state with the weights of the original."""
    read = {
        name: torch_weights.import_weights(case.below(f"{when}/{_prefix(name)}"), layout, case.spec)
        for name, layout in _layouts(case).items()
    }
    own = {k: jnp.asarray(case.arrays[f"{when}/log_ent_coef/{k}"]) for k in state.own["log_alpha"]}
    return state.replace(
        policy=state.policy.replace(params=read["actor"].params, normalizer=read["actor"].normalizer),
        critic={ours: read[name].params for name, ours in NETWORKS.items()},
        own={**state.own, "log_alpha": own},
        step=jnp.int32(case.meta["policy_step"]),
    )


def _compare_weights(case: Case, comparison: Comparison, state: TrainState, count: int) -> None:
    layouts, normalizers = _layouts(case), torch_weights.export_normalizer(state.policy.normalizer)
    trees = {"actor": state.policy.params, **{name: state.critic[ours] for name, ours in NETWORKS.items()}}
    for name, tree in trees.items():
        for leaf, array in {**torch_weights.export_arrays(tree, layouts[name]), **normalizers}.items():
            comparison.add_from(case.arrays, f"w{count}/{_prefix(name)}{leaf}", array)
    for kind in ("continuous", "discrete"):
        place = f"w{count}/log_ent_coef/{kind}"
        ours = state.own["log_alpha"].get(kind, case.arrays[f"w/log_ent_coef/{kind}"])
        comparison.add_from(case.arrays, place, ours)


def _forward(case: Case, comparison: Comparison, parts: sac_parts.Parts, state: TrainState, batch: Transitions) -> None:
    spec = case.spec.action
    obs = normalizer.normalize_all(state.policy.normalizer, batch.obs)
    memory = sac.memories_along(parts, state, batch, obs)
    dist = applied(parts.actor)(state.policy.params, obs, memory.actor)
    seen = partial(_before_copying, case, batch)
    ours: dict[str, Any] = {"value": applied(parts.value)(state.critic["value"], seen("critic"), memory.value)[..., 0]}
    for name in ("q1", "q2"):
        q_obs = seen(f"q_network/{name}_network.")
        q = applied(parts.q)(state.critic[name], q_obs, batch.action.continuous, memory.q)[..., 0, :]
        ours[name] = q if spec.discrete_branches else q[..., 0]
    if spec.continuous_size:
        action, log_prob = squashed.drawn(dist, jnp.asarray(_shaped(case, case.arrays["mb/noise"][0])))
        ours |= {"mu": dist.mean, "sigma": jnp.exp(dist.log_sigma), "sampled_action": action}
        ours["sampled_log_prob"] = log_prob
    for i, p in enumerate(actions.probabilities(dist, batch.action_mask, spec)):
        ours[f"all_log_probs_{i}"] = jnp.log(p + actions.EPSILON)
    for name, array in ours.items():
        theirs = case.arrays[f"out/{name}"]
        comparison.add(f"out/{name}", np.asarray(array).reshape(theirs.shape), theirs)


def _before_copying(case: Case, batch: Transitions, network: str) -> tuple[jax.Array, ...]:
    """Observations by the network's own normaliser: an update gives it the policy's first; here is one."""
    read = torch_weights.import_weights(case.below(f"w/{_prefix(network)}"), _layouts(case)[network], case.spec)
    return normalizer.normalize_all(read.normalizer, batch.obs)
