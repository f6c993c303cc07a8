"""Converts a learner from ML-Agents' checkpoint, and back: networks, statistics, Adam, step and largest team."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import TrainState
from jaxrl.learning.schedules import LEARNING_RATE_MINIMUM, make_schedule
from jaxrl.settings import LARGEST_STEP, BehaviorSettings
from jaxrl.torch import weights as torch_weights
from jaxrl.torch.checkpoint import Adam, Parameter, TorchCheckpoint
from jaxrl.torch.weights import CONSTANTS, HEAD_PREFIX, MAX_TEAM, Layout, TorchImportError, Weights
from jaxrl.types import ActionSpec, BehaviorSpec

_VERSION = 3.0
"""Version of the model's interface, which ML-Agents keeps with the weights."""
_FIRST = (
    *CONSTANTS,
    *("_current_max_agents", "log_sigma"),
    *("normalization_steps", "running_mean", "running_variance"),
    *("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight", "bias"),
)
"""Arrays that a module holds directly. Modules with arrays of one group have none of another group."""
_THEN = (
    *("network_body", "action_model", "value_heads"),
    *("observation_encoder", "processors", "rsa", "x_self_encoder"),
    *("obs_encoder", "obs_action_encoder", "self_attn", "linear_encoder", "_body_endoder", "lstm"),
    *("normalizer", "conv_layers", "dense", "sequential", "layers", "self_ent_encoder", "seq_layers", "hypernet"),
    *("fc_q", "fc_k", "fc_v", "fc_out"),
    *("_continuous_distribution", "mu", "log_sigma", "_discrete_distribution", "branches"),
)
"""Modules; modules within one module stand here in the order of their creation."""
_RANKS_OF_ARRAYS = {name: rank for rank, name in enumerate(_FIRST)}
_RANKS = {name: rank for rank, name in enumerate(_THEN, len(_FIRST))}


Layouts = Mapping[str, Layout]
"""Layout of each network, by its name in `checkpoint.NETWORKS`; without a critic that shares the policy's network."""


def layouts_of(spec: BehaviorSpec, settings: BehaviorSettings) -> Layouts:
    """Return where the networks of a behavior that PPO, MA-POCA or SAC trains lie in a checkpoint."""
    shape, signals = settings.network_settings, tuple(settings.reward_signals)
    if settings.trainer_type == "sac":
        q, value = (
            make(spec, shape, signals) for make in (torch_weights.action_value_layout, torch_weights.value_layout)
        )
        return {"actor": torch_weights.squashed_layout(spec, shape), "q1": q, "q2": q, "value": value, "target": value}
    if getattr(settings.hyperparameters, "shared_critic", False):
        return {"actor": torch_weights.shared_layout(spec, shape, signals)}
    make = torch_weights.team_critic_layout if settings.trainer_type == "poca" else torch_weights.value_layout
    return {"actor": torch_weights.actor_layout(spec, shape), "critic": make(spec, shape, signals)}


def learner_of(
    checkpoint: TorchCheckpoint, spec: BehaviorSpec, settings: BehaviorSettings, fresh: TrainState
) -> tuple[TrainState, list[str]]:
    """Return `fresh` with the contents of the checkpoint, and remarks on contents that were left behind.

    Value heads of reward signals that the settings do not name are left behind.

    Raises TorchImportError, naming entry and shape, where networks of these settings have other arrays.
    """
    layouts, remarks = layouts_of(spec, settings), list(checkpoint.remarks)
    cut = {name: _without_heads(weights, settings) for name, weights in checkpoint.networks.items()}
    networks = {name: weights for name, (weights, _) in cut.items()}
    remarks += [f"value head {name}" for name in dict.fromkeys(gone for _, dropped in cut.values() for gone in dropped)]
    read = {
        name: torch_weights.import_weights(networks.get(name, {}), layout, spec) for name, layout in layouts.items()
    }
    actor = read.pop("actor")
    _require_normalizer(actor.normalizer, fresh.policy.normalizer)
    own, params = dict(fresh.own), {name: network.params for name, network in read.items()}
    if "critic" in read:
        if read["critic"].max_team is not None:
            own["max_team"] = read["critic"].max_team
        if not jax.tree.all(jax.tree.map(np.array_equal, read["critic"].normalizer, actor.normalizer)):
            remarks.append("the critic's own statistics of observations, which differ from the policy's: it now "
                           "sees what the policy sees")  # fmt: skip
    step = jnp.int32(min(checkpoint.step, LARGEST_STEP))
    if settings.trainer_type == "sac":
        begin = getattr(settings.hyperparameters, "init_entcoef", None)
        remarks.append(f"temperatures, which ML-Agents does not keep: they begin at init_entcoef, {begin}")
    state = fresh.replace(
        policy=fresh.policy.replace(params=actor.params, normalizer=actor.normalizer),
        critic=params if settings.trainer_type == "sac" else params.get("critic", {}),
        optimizer=_optimizer(checkpoint.adam, networks, layouts, fresh),
        own=own,
        step=step,
    )
    return state, remarks


def checkpoint_of(state: TrainState, step: int, spec: BehaviorSpec, settings: BehaviorSettings) -> TorchCheckpoint:
    """Invert `learner_of`. Arrays are copies on the host. Raises TorchImportError for other networks."""
    layouts, signals = layouts_of(spec, settings), tuple(settings.reward_signals)
    statistics = torch_weights.export_normalizer(jax.device_get(state.policy.normalizer))
    memory = settings.network_settings.memory
    constants = _constants(spec.action, memory.memory_size if memory else 0)
    sac = settings.trainer_type == "sac"
    trees = {"actor": state.policy.params, **(state.critic if sac else {"critic": state.critic})}
    largest = {}
    if "max_team" in state.own:  # ML-Agents begins with a whole 1, which the first larger team replaces
        size = state.own["max_team"]
        largest = {MAX_TEAM: np.asarray(size, np.int64 if float(size) == 1.0 else np.float32)}
    beside = {"actor": constants, "critic": largest}
    networks = {
        name: _ordered(
            {**beside.get(name, {}), **statistics, **torch_weights.export_arrays(trees[name], layout)}, signals
        )
        for name, layout in layouts.items()
    }
    policy, critic = networks.pop("actor"), networks.pop("value" if sac else "critic", {})
    moments = _by_network(state.optimizer) if sac else (state.optimizer.mu, state.optimizer.nu)
    first, second = (_by_parameter(trees, layouts) for trees in moments)
    seen = [parameter for parameter, moment in second.items() if moment.any() or first[parameter].any()]
    count = int(state.optimizer["policy"].count if sac else state.optimizer.count)
    adam = Adam(count, {p: first[p] for p in seen}, {p: second[p] for p in seen})
    return TorchCheckpoint(settings.trainer_type, policy, critic, step, adam, (), (), networks)


def learning_rate_of(state: TrainState, settings: BehaviorSettings) -> float:
    """Return the learning rate of the schedule at the state's step."""
    hyper: Any = settings.hyperparameters
    schedule = make_schedule(
        hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_MINIMUM, settings.max_steps
    )
    return float(schedule(state.step))


def _optimizer(adam: Adam, networks: Mapping[str, Weights], layouts: Layouts, fresh: TrainState) -> Any:
    """Return Adam's state, or SAC's three, in the form of that of `fresh`."""
    count, trees = jnp.int32(adam.count), []
    for moments in (adam.first, adam.second):
        tree = _moments(moments, networks, layouts)
        if "log_alpha" in fresh.own:
            critics = {name: tree[name] for name in ("value", "q1", "q2")}
            alpha = _of_temperatures(moments, fresh.own["log_alpha"])
            tree = {"policy": tree["actor"], "critic": critics, "entropy": alpha}
        else:
            tree = {"actor": {}, "critic": {}} | tree
        trees.append(tree)
    first, second = trees
    if "log_alpha" not in fresh.own:
        return fresh.optimizer._replace(count=count, mu=first, nu=second)
    return {name: old._replace(count=count, mu=first[name], nu=second[name]) for name, old in fresh.optimizer.items()}


def _by_network(optimizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return both moments of SAC's three optimizers as a tree of each network, and "entropy"."""
    both = [{name: getattr(state, moment) for name, state in optimizer.items()} for moment in ("mu", "nu")]
    return [{"actor": tree["policy"], **tree["critic"], "entropy": tree["entropy"]} for tree in both]


def _of_temperatures(moments: Mapping[Parameter, np.ndarray], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return moments of the temperatures. Raises TorchImportError unless they match the actions."""
    tree = {}
    for kind, alpha in like.items():
        tree[kind] = jnp.asarray(moments.get(("entropy", kind), np.zeros(alpha.shape)), jnp.float32)
        if tree[kind].shape != alpha.shape:
            raise TorchImportError(
                f"Optimizer:entropy_optimizer: {tree[kind].size} {kind} temperatures, the actions have {alpha.size}"
            )
    return tree


def _without_heads(weights: Weights, settings: BehaviorSettings) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return `weights` without value heads of signals that are not trained with, and those signals."""
    wanted = tuple(f"{HEAD_PREFIX}{name}." for name in settings.reward_signals)
    weights_left = {n: x for n, x in weights.items() if not n.startswith(HEAD_PREFIX) or n.startswith(wanted)}
    gone = {name.removeprefix(HEAD_PREFIX).rpartition(".")[0] for name in weights if name not in weights_left}
    return weights_left, sorted(gone)


def _require_normalizer(found: Any, wanted: Any) -> None:
    for i, (own, fresh) in enumerate(zip(found, wanted, strict=True)):
        if (own is None) != (fresh is None):
            has, given = ("no", True) if own is None else ("such", False)
            raise TorchImportError(
                f"network_settings.normalize: got {given}, but the checkpoint holds {has} statistics of observation "
                f"{i}: write {not given}"
            )


def _moments(
    moments: Mapping[Parameter, np.ndarray], networks: Mapping[str, Weights], layouts: Layouts
) -> dict[str, Any]:
    """Return one of Adam's moments as a tree of each network; zero for parameters that never had a gradient."""
    trees = {}
    for part, layout in layouts.items():
        names = [name for entry in layout for name in entry.names]
        arrays = {name: moments.get((part, name), np.zeros_like(networks[part][name])) for name in names}
        trees[part] = torch_weights.import_arrays(arrays, layout)
    return trees


def _by_parameter(moments: Mapping[str, Any], layouts: Layouts) -> dict[Parameter, np.ndarray]:
    arrays_by_parameter = {("entropy", kind): np.array(x, np.float32) for kind, x in moments.get("entropy", {}).items()}
    for part, layout in layouts.items():
        if part in moments:  # the target has none
            arrays = torch_weights.export_arrays(moments[part], layout)
            arrays_by_parameter |= {(part, name): np.array(array) for name, array in arrays.items()}
    return arrays_by_parameter


def _ordered(weights: Weights, signals: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {name: np.array(weights[name], order="C") for name in in_module_order(weights, signals)}


def _constants(action: ActionSpec, memory: int) -> dict[str, np.ndarray]:
    """Return the arrays in which ML-Agents keeps the spec among the actor's weights."""
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


def in_module_order(names: Iterable[str], signals: Sequence[str]) -> list[str]:
    """Sort dotted names of one network's arrays as PyTorch lists them. `signals`: names of the value heads, in order.

    Raises KeyError for a name that no network of ML-Agents has.
    """
    heads = {name: rank for rank, name in enumerate(signals)}

    def rank(name: str) -> list[int]:
        parts = name.split(".")
        result = []
        for i, part in enumerate(parts):
            if i and parts[i - 1] == "value_heads" and part != "value_heads":
                result.append(heads[part])
            else:
                ranks = _RANKS_OF_ARRAYS if i == len(parts) - 1 else _RANKS
                result.append(int(part) if part.isdigit() else ranks[part])
        return result

    return sorted(names, key=rank)
