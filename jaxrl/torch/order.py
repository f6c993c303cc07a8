"""The order in which ML-Agents' networks register what they are made of.

PyTorch's optimizer knows parameters by their number alone, and numbers them in this order: of each module first its own
arrays, then the modules inside, as they were created. A file that ML-Agents wrote has its entries in this order, so
that only who writes one needs to know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
