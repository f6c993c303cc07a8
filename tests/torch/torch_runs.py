"""ML-Agents' checkpoints of the parity cases: what each would have looked like on disk."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.algorithms import make_settings
from jaxrl.settings import BehaviorSettings
from jaxrl.torch.checkpoint import Adam, TorchCheckpoint
from jaxrl.torch.learner import in_module_order
from jaxrl.torch.weights import CONSTANTS
from tests.parity.cases import Case, signals_of


def settings_of_case(case: Case, **changed: Any) -> BehaviorSettings:
    """The behavior that the case is of; `changed` are hyperparameters and the like."""
    network = dict(case.meta["network_settings"])
    network["normalize"] = any(".normalizer." in name for name in case.below("w/actor/"))
    given = {name: value for name, value in case.meta.get("hyperparameters", {}).items() if name != "shared_critic"}
    shared = {"shared_critic": True} if case.meta.get("shared_critic") else {}
    return make_settings(
        case.meta["algorithm"],
        network_settings=network,
        hyperparameters={**given, **shared, **changed},
        reward_signals={name: {} for name in _streams(case)},
    )


def checkpoint_of_case(case: Case, step: int = 5) -> TorchCheckpoint:
    """The case's weights, and an Adam whose moments are numbers of their own for each parameter."""
    action = case.spec.action
    memory = case.meta["network_settings"].get("memory") or {"memory_size": 0}
    constants = dict(zip(CONSTANTS, (
        [3.0], [float(not action.discrete_branches)], [action.continuous_size], [list(action.discrete_branches)],
        [action.continuous_size + action.mask_size], [memory["memory_size"]],
    ), strict=True))  # fmt: skip
    policy = {name: np.asarray(value, np.float32) for name, value in constants.items()} | case.below("w/actor/")
    streams = _streams(case)
    policy = {name: policy[name] for name in in_module_order(policy, streams)}
    seen = {name: x for name, x in policy.items() if ".normalizer." in name}  # equal in any training, not in the cases
    critic = case.below("w/critic/")
    critic |= {name: seen[name] for name in critic if name in seen}
    critic = {name: critic[name] for name in in_module_order(critic, streams)}
    more, own = {}, "critic"
    if case.meta["algorithm"] == "sac":
        own = "value"
        for part, prefix in (("q1", "q_network/q1_network."), ("q2", "q_network/q2_network."), ("target", "target/")):
            more[part] = case.below(f"w/{prefix}")
            more[part] |= {name: seen[name] for name in more[part] if name in seen}
    alphas = {name: x for name, x in case.below("w/log_ent_coef/").items() if len(x) and name in _kinds(case)}
    rng, first, second = np.random.default_rng(7), {}, {}
    moved = {"actor": policy, own: critic, **more, "entropy": alphas}
    for part, weights in moved.items():
        for name, array in weights.items() if part != "target" else ():
            if ".normalizer." not in name and name not in (*CONSTANTS, "network_body._current_max_agents"):
                first[part, name] = rng.normal(size=array.shape).astype(np.float32)
                second[part, name] = rng.uniform(0.5, 1.0, array.shape).astype(np.float32)
    return TorchCheckpoint(case.meta["algorithm"], policy, critic, step, Adam(11, first, second), (), (), more)


def _kinds(case: Case) -> list[str]:
    """Of actions: ML-Agents has a continuous temperature without continuous actions too, which nothing moves."""
    action = case.spec.action
    return ["continuous"] * bool(action.continuous_size) + ["discrete"] * bool(action.discrete_branches)


def _streams(case: Case) -> tuple[str, ...]:
    return signals_of(case.below("w/critic/")) or signals_of(case.below("w/actor/"))
