"""What an ML-Agents checkpoint of PPO or MA-POCA holds, by the names of its parameters: arrays in, arrays out.

    Policy                     the actor; with shared_critic the value heads too
    Optimizer:critic           the critic; with shared_critic the actor once more
    Optimizer:value_optimizer  Adam over both, PPO;  Optimizer:adam  of MA-POCA
    global_step                the trainer step

Adam's moments are kept by the numbers of parameters: the actor's come first, then those of a critic of its own, each in
the order of the module, which is that of the file. Arrays that are no parameters (statistics of the normaliser), and
second names, have no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.torch.weights import DUPLICATES, HEAD_PREFIX, TorchImportError, Weights
from jaxrl.torch.writing import Ordered

POLICY, CRITIC, GLOBAL_STEP = "Policy", "Optimizer:critic", "global_step"
OPTIMIZERS = {"ppo": "Optimizer:value_optimizer", "poca": "Optimizer:adam"}
"""By trainer type."""
_STEP = "_GlobalSteps__global_step"
_OF_SAC = ("Optimizer:q_network", "Optimizer:policy_optimizer")
_BUFFERS = ("normalization_steps", "running_mean", "running_variance")
_ADAM = {
    **{"weight_decay": 0, "amsgrad": False, "maximize": False, "foreach": None},
    **{"capturable": False, "differentiable": False, "fused": None},
}

Parameter = tuple[str, str]
"""("actor" or "critic", dotted name)."""


class Adam(NamedTuple):
    """Both moments of each parameter that has ever had a gradient."""

    count: int  # updates
    first: Mapping[Parameter, np.ndarray]
    second: Mapping[Parameter, np.ndarray]


class TorchCheckpoint(NamedTuple):
    """One behavior's learner, in ML-Agents' names."""

    trainer_type: str  # "ppo" or "poca"
    policy: Weights
    critic: Weights  # empty with shared_critic
    step: int
    adam: Adam
    others: tuple[str, ...]  # modules that are not read: of reward signals
    remarks: tuple[str, ...]  # what is not quite as it was


def parsed(contents: Any) -> TorchCheckpoint:
    """The checkpoint in what `read_torch_file` gives. Raises TorchImportError where it is none of PPO or MA-POCA."""
    if not isinstance(contents, dict) or POLICY not in contents or GLOBAL_STEP not in contents:
        found = ", ".join(map(str, contents)) if isinstance(contents, dict) else type(contents).__name__
        raise TorchImportError(f"holds {found or 'nothing'}, expected the modules {POLICY} and {GLOBAL_STEP}: it is "
                               "no checkpoint of ML-Agents 0.27 or later")  # fmt: skip
    if any(name in contents for name in _OF_SAC):
        raise TorchImportError("is a checkpoint of SAC, which jaxrl does not train yet; it takes those of ppo and poca")
    trainer_type = next((kind for kind, module in OPTIMIZERS.items() if module in contents), None)
    if trainer_type is None or CRITIC not in contents:
        raise TorchImportError(f"holds {', '.join(contents)}, but no {CRITIC} with {' or '.join(OPTIMIZERS.values())}")
    policy, critic = _arrays(contents, POLICY), _arrays(contents, CRITIC)
    if shares_critic(policy):
        critic = {}
    adam, remarks = _adam(contents[OPTIMIZERS[trainer_type]], parameters(policy, critic))
    known = (POLICY, CRITIC, GLOBAL_STEP, OPTIMIZERS[trainer_type])
    step = int(_arrays(contents, GLOBAL_STEP)[_STEP].reshape(-1)[0])
    others = tuple(name for name in contents if name not in known)
    return TorchCheckpoint(trainer_type, policy, critic, step, adam, others, remarks)


def composed(checkpoint: TorchCheckpoint, learning_rate: float) -> dict[str, Any]:
    """The inverse of `parsed`, for `write_torch_file`; weights are in the order of their modules."""
    policy, critic = _with_second_names(checkpoint.policy), _with_second_names(checkpoint.critic)
    numbered, adam = parameters(policy, critic), checkpoint.adam
    state = {
        number: {
            "step": np.asarray(adam.count, np.float32),
            "exp_avg": adam.first[parameter],
            "exp_avg_sq": adam.second[parameter],
        }
        for number, parameter in enumerate(numbered)
        if parameter in adam.first
    }
    group = {"lr": learning_rate, "betas": (0.9, 0.999), "eps": 1e-8, **_ADAM, "params": list(range(len(numbered)))}
    return {
        POLICY: policy,
        GLOBAL_STEP: Ordered({_STEP: np.asarray([checkpoint.step], np.int64)}),
        OPTIMIZERS[checkpoint.trainer_type]: {"state": state, "param_groups": [group]},
        CRITIC: critic or policy,
    }


def parameters(policy: Weights, critic: Weights) -> list[Parameter]:
    """All that the optimizer numbers, in its order. A critic that is empty shares the policy's network."""
    return [(part, name) for part, weights in (("actor", policy), ("critic", critic)) for name in _own(weights)]


def shares_critic(policy: Weights) -> bool:
    """Whether the policy's network has value heads."""
    return any(name.startswith(HEAD_PREFIX) for name in policy)


def _own(weights: Weights) -> list[str]:
    return [n for n in weights if not n.startswith(DUPLICATES) and n.rpartition(".")[2] not in _BUFFERS]


def _arrays(contents: Mapping[str, Any], module: str) -> dict[str, np.ndarray]:
    """The entries of one module. Raises TorchImportError where they are no arrays."""
    found = contents[module]
    if not isinstance(found, dict) or not all(isinstance(value, np.ndarray) for value in found.values()):
        raise TorchImportError(f"{module}: expected arrays by name")
    if module == GLOBAL_STEP and _STEP not in found:
        raise TorchImportError(f"{module}: expected an entry {_STEP}, found {', '.join(found)}")
    return found


def _adam(saved: Any, numbered: list[Parameter]) -> tuple[Adam, tuple[str, ...]]:
    """Moments by parameter. Those of a parameter that never had a gradient are not there."""
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(saved.get("state"), dict):
        raise TorchImportError("optimizer: expected one group of parameters and their state, as Adam has")
    numbers, state = groups[0].get("params", []), saved["state"]
    if len(numbers) != len(numbered):
        raise TorchImportError(
            f"optimizer: it has {len(numbers)} parameters, the networks of the file have {len(numbered)}: they are not "
            "of one training"
        )
    first, second, counts = {}, {}, {}
    for number, parameter in zip(numbers, numbered, strict=True):
        entry = state.get(number)
        if entry is not None:
            first[parameter], second[parameter] = entry["exp_avg"], entry["exp_avg_sq"]
            counts[parameter] = int(np.asarray(entry["step"]).reshape(-1)[0])
    count = max(counts.values(), default=0)
    late = [name for (_, name), own in counts.items() if own != count]
    remark = f"Adam has updated {', '.join(late)} less often than the {count} times of the others; they go on as those"
    return Adam(count, first, second), (remark,) if late else ()


def _with_second_names(weights: Weights) -> Ordered:
    """A module's state as PyTorch lists it: the processors of observations have two names."""
    named = Ordered()
    encoder = DUPLICATES.replace("processors.", "observation_encoder.processors.")
    processors = {name: x for name, x in weights.items() if name.startswith(encoder)}
    others = [name for name in weights if name.startswith("network_body.observation_encoder.")]
    for name, array in weights.items():
        named[name] = array
        if others and name == others[-1]:
            named.update({DUPLICATES + found.removeprefix(encoder): x for found, x in processors.items()})
    return named
