"""A learner of ours from ML-Agents' checkpoint, and back: networks, statistics, Adam, step and largest team."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import policy_gradient
from jaxrl.algorithms.interface import TrainState
from jaxrl.settings import LARGEST_STEP, BehaviorSettings
from jaxrl.torch import weights as torch_weights
from jaxrl.torch.checkpoint import Adam, TorchCheckpoint
from jaxrl.torch.weights import HEAD_PREFIX, MAX_TEAM, Layout, TorchImportError, Weights
from jaxrl.types import ActionSpec, BehaviorSpec

_VERSION = 3.0
"""Of the model's interface, which ML-Agents keeps with the weights."""
_FIRST = (
    *("version_number", "is_continuous_int_deprecated", "continuous_act_size_vector", "discrete_act_size_vector"),
    *("act_size_vector_deprecated", "memory_size_vector", "_current_max_agents", "log_sigma"),
    *("normalization_steps", "running_mean", "running_variance"),
    *("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight", "bias"),
)
"""Arrays of a module's own. Modules that have one of them have none of another group."""
_THEN = (
    *("network_body", "action_model", "value_heads"),
    *("observation_encoder", "processors", "rsa", "x_self_encoder"),
    *("obs_encoder", "obs_action_encoder", "self_attn", "linear_encoder", "_body_endoder", "lstm"),
    *("normalizer", "conv_layers", "dense", "sequential", "layers", "self_ent_encoder", "seq_layers", "hypernet"),
    *("fc_q", "fc_k", "fc_v", "fc_out"),
    *("_continuous_distribution", "mu", "_discrete_distribution", "branches"),
)
"""Modules; those that stand in one module stand here in the order of their creation."""
_RANK = {name: rank for rank, name in enumerate((*_FIRST, *_THEN))}


class Layouts(NamedTuple):
    """Of both networks; the critic's is None where they share one."""

    actor: Layout
    critic: Layout | None


def layouts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Layouts:
    """Where the networks of a behavior that PPO or MA-POCA trains lie in a checkpoint."""
    shape, streams = settings.network_settings, tuple(settings.reward_signals)
    if settings.trainer_type == "poca":
        return Layouts(torch_weights.actor_layout(spec, shape), torch_weights.team_critic_layout(spec, shape, streams))
    if getattr(settings.hyperparameters, "shared_critic", False):
        return Layouts(torch_weights.shared_layout(spec, shape, streams), None)
    return Layouts(torch_weights.actor_layout(spec, shape), torch_weights.value_layout(spec, shape, streams))


def learner_of(
    checkpoint: TorchCheckpoint, spec: BehaviorSpec, settings: BehaviorSettings, fresh: TrainState
) -> tuple[TrainState, list[str]]:
    """`fresh` with everything that the checkpoint holds; and what was left behind, in words.

    Value heads of reward signals that the settings do not name are left behind.

    Raises TorchImportError, naming entry and shape, where networks of these settings have other arrays.
    """
    layouts, remarks = layouts_of(spec, settings), list(checkpoint.remarks)
    policy, dropped = _without_heads(checkpoint.policy, settings)
    critic, of_critic = _without_heads(checkpoint.critic, settings)
    remarks += [f"value head {name}" for name in (*dropped, *of_critic)]
    actor = torch_weights.import_weights(policy, layouts.actor, spec)
    _require_normalizer(actor.normalizer, fresh.policy.normalizer)
    params: dict[str, Any] = {"actor": actor.params, "critic": {}}
    own = fresh.own
    if layouts.critic is not None:
        imported = torch_weights.import_weights(critic, layouts.critic, spec)
        params["critic"] = imported.params
        if imported.max_team is not None:
            own = {**own, "max_team": imported.max_team}
        if not _equal(imported.normalizer, actor.normalizer):
            remarks.append("the critic's own statistics of observations, which differ from the policy's: it now "
                           "sees what the policy sees")  # fmt: skip
    adam = checkpoint.adam
    state = fresh.replace(
        policy=fresh.policy.replace(params=params["actor"], normalizer=actor.normalizer),
        critic=params["critic"],
        optimizer=fresh.optimizer._replace(
            count=jnp.int32(adam.count),
            mu=_moments(adam.first, policy, critic, layouts),
            nu=_moments(adam.second, policy, critic, layouts),
        ),
        own=own,
        step=jnp.int32(min(checkpoint.step, LARGEST_STEP)),
    )
    return state, remarks


def checkpoint_of(state: TrainState, step: int, spec: BehaviorSpec, settings: BehaviorSettings) -> TorchCheckpoint:
    """The inverse of `learner_of`. Arrays are copies on the host. Raises TorchImportError for other networks."""
    layouts, streams = layouts_of(spec, settings), tuple(settings.reward_signals)
    statistics = torch_weights.export_normalizer(jax.device_get(state.policy.normalizer))
    memory = settings.network_settings.memory
    constants = _constants(spec.action, memory.memory_size if memory else 0)
    arrays = torch_weights.export_arrays(state.policy.params, layouts.actor)
    policy = _ordered({**constants, **statistics, **arrays}, streams)
    critic: Weights = {}
    if layouts.critic is not None:
        largest = {MAX_TEAM: _largest_team(state.own["max_team"])} if "max_team" in state.own else {}
        arrays = torch_weights.export_arrays(state.critic, layouts.critic)
        critic = _ordered({**largest, **statistics, **arrays}, streams)
    first, second = (_by_parameter(moments, layouts) for moments in (state.optimizer.mu, state.optimizer.nu))
    seen = [parameter for parameter, moment in second.items() if moment.any() or first[parameter].any()]
    adam = Adam(int(state.optimizer.count), {p: first[p] for p in seen}, {p: second[p] for p in seen})
    return TorchCheckpoint(settings.trainer_type, policy, critic, step, adam, (), ())


def learning_rate_of(state: TrainState, settings: BehaviorSettings) -> float:
    """At the state's step, as a schedule has it."""
    return float(policy_gradient.coefficients(settings, state.step).learning_rate)


def _without_heads(weights: Weights, settings: BehaviorSettings) -> tuple[dict[str, np.ndarray], list[str]]:
    """`weights` without value heads of signals that are not trained with, and those signals."""
    wanted = tuple(f"{HEAD_PREFIX}{name}." for name in settings.reward_signals)
    kept = {n: x for n, x in weights.items() if not n.startswith(HEAD_PREFIX) or n.startswith(wanted)}
    gone = {name.removeprefix(HEAD_PREFIX).rpartition(".")[0] for name in weights if name not in kept}
    return kept, sorted(gone)


def _require_normalizer(found: Any, wanted: Any) -> None:
    for i, (own, fresh) in enumerate(zip(found, wanted, strict=True)):
        if (own is None) != (fresh is None):
            has, given = ("no", True) if own is None else ("such", False)
            raise TorchImportError(
                f"network_settings.normalize: got {given}, but the checkpoint holds {has} statistics of observation "
                f"{i}: write {not given}"
            )


def _equal(found: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _moments(moments: Mapping[Any, np.ndarray], policy: Weights, critic: Weights, layouts: Layouts) -> dict[str, Any]:
    """One of Adam's moments as trees {"actor", "critic"}; zero for parameters that never had a gradient."""
    trees: dict[str, Any] = {"actor": {}, "critic": {}}
    for part, weights, layout in (("actor", policy, layouts.actor), ("critic", critic, layouts.critic)):
        if layout is not None:
            names = [name for entry in layout for name in entry.names]
            arrays = {name: moments.get((part, name), np.zeros_like(weights[name])) for name in names}
            trees[part] = torch_weights.import_arrays(arrays, layout)
    return trees


def _by_parameter(moments: Mapping[str, Any], layouts: Layouts) -> dict[tuple[str, str], np.ndarray]:
    found = {}
    for part, layout in (("actor", layouts.actor), ("critic", layouts.critic)):
        if layout is not None:
            arrays = torch_weights.export_arrays(moments[part], layout)
            found |= {(part, name): np.array(array) for name, array in arrays.items()}
    return found


def _ordered(weights: Weights, streams: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {name: np.array(weights[name], order="C") for name in in_module_order(weights, streams)}


def _largest_team(value: Any) -> np.ndarray:
    """ML-Agents begins with a whole 1, which the first larger team replaces."""
    return np.asarray(value, np.int64 if float(value) == 1.0 else np.float32)


def _constants(action: ActionSpec, memory: int) -> dict[str, np.ndarray]:
    """What ML-Agents keeps of the spec among the actor's weights."""
    continuous, branches = action.continuous_size, action.discrete_branches
    values = {
        "version_number": [_VERSION],
        "is_continuous_int_deprecated": [continuous > 0 and not branches],
        "continuous_act_size_vector": [continuous],
        "discrete_act_size_vector": [branches],
        "act_size_vector_deprecated": [continuous + sum(branches)],
        "memory_size_vector": [memory],
    }
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def in_module_order(names: Iterable[str], streams: Sequence[str]) -> list[str]:
    """Dotted names of one network's arrays as PyTorch lists them. `streams`: the value heads' names, in their order.

    Raises KeyError for a name that no network of ML-Agents has.
    """
    heads = {name: rank for rank, name in enumerate(streams)}

    def rank(name: str) -> list[int]:
        parts = name.split(".")
        found = []
        for i, part in enumerate(parts):
            if i and parts[i - 1] == "value_heads" and part != "value_heads":
                found.append(heads[part])
            else:
                found.append(int(part) if part.isdigit() else _RANK[part])
        return found

    return sorted(names, key=rank)
