"""Contents of an ML-Agents checkpoint of PPO, MA-POCA or SAC, by the names of its parameters: arrays in, arrays out.

    Policy                     the actor; with shared_critic the value heads too
    Optimizer:critic           the critic; with shared_critic the actor once more
    Optimizer:value_optimizer  Adam over both, PPO;  Optimizer:adam  of MA-POCA
    global_step                the trainer step

    SAC: Optimizer:q_network (both Q), :value_network, :target_network and three Adams: :policy_optimizer,
    :value_optimizer over both Q and V, :entropy_optimizer over the temperatures, which themselves are not in the file

An Adam's moments are kept by the numbers of parameters: network by network (`OPTIMIZERS`), each in the order of the
module, which is that of the file. Arrays that are no parameters (statistics of the normaliser), and second names, have
no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.torch.weights import DUPLICATES, HEAD_PREFIX, TorchImportError, Weights
from jaxrl.torch.writing import Ordered

POLICY, CRITIC, GLOBAL_STEP = "Policy", "Optimizer:critic", "global_step"
_TWO = {"actor": (POLICY, ""), "critic": (CRITIC, "")}
NETWORKS = {
    "sac": {
        "actor": (POLICY, ""),
        "q1": ("Optimizer:q_network", "q1_network."),
        "q2": ("Optimizer:q_network", "q2_network."),
        "value": ("Optimizer:value_network", ""),
        "target": ("Optimizer:target_network", ""),
    },
    "ppo": _TWO,
    "poca": _TWO,
}
"""Module that holds each network, and prefix of its names there, by trainer type."""
OPTIMIZERS = {
    "sac": {
        "Optimizer:policy_optimizer": ("actor",),
        "Optimizer:value_optimizer": ("q1", "q2", "value"),
        "Optimizer:entropy_optimizer": ("entropy",),
    },
    "ppo": {"Optimizer:value_optimizer": ("actor", "critic")},
    "poca": {"Optimizer:adam": ("actor", "critic")},
}
"""Networks that each Adam moves, in the order in which it numbers their parameters, by trainer type. PPO's stands
after SAC's, which has one with an equal name."""
TEMPERATURES = ("discrete", "continuous")
"""Parameters of "entropy". Both are there for all action spaces; one without actions has no moments."""
_STEP = "_GlobalSteps__global_step"
_BUFFERS = ("normalization_steps", "running_mean", "running_variance")
_ADAM = {
    **{"weight_decay": 0, "amsgrad": False, "maximize": False, "foreach": None},
    **{"capturable": False, "differentiable": False, "fused": None},
}

Parameter = tuple[str, str]
"""(network or "entropy", dotted name)."""


class Adam(NamedTuple):
    """Both moments of each parameter that has ever had a gradient."""

    count: int  # updates
    first: Mapping[Parameter, np.ndarray]
    second: Mapping[Parameter, np.ndarray]


class TorchCheckpoint(NamedTuple):
    """Learner of a behavior, in ML-Agents' names."""

    trainer_type: str  # "ppo", "poca" or "sac"
    policy: Weights
    critic: Weights  # empty with shared_critic; V of SAC
    step: int
    adam: Adam
    others: tuple[str, ...]  # modules that are not read, of reward signals
    remarks: tuple[str, ...]  # deviations from the file
    more: Mapping[str, Weights] = {}  # "q1", "q2" and "target" of SAC

    @property
    def networks(self) -> dict[str, Weights]:
        """Networks by the names of `NETWORKS`; without a critic that shares the policy's network."""
        critic = {"value" if self.trainer_type == "sac" else "critic": self.critic} if self.critic else {}
        return {"actor": self.policy, **critic, **self.more}


def parsed(contents: Any) -> TorchCheckpoint:
    """Return the checkpoint in the result of `read_torch_file`. Raises TorchImportError if it is none of `NETWORKS`."""
    if not isinstance(contents, dict) or POLICY not in contents or GLOBAL_STEP not in contents:
        entries = ", ".join(map(str, contents)) if isinstance(contents, dict) else type(contents).__name__
        raise TorchImportError(f"holds {entries or 'nothing'}, expected the modules {POLICY} and {GLOBAL_STEP}: it is "
                               "no checkpoint of ML-Agents 0.27 or later")  # fmt: skip
    wanted = {kind: {*OPTIMIZERS[kind], *(module for module, _ in NETWORKS[kind].values())} for kind in NETWORKS}
    trainer_type = next((kind for kind, modules in wanted.items() if modules <= set(contents)), None)
    if trainer_type is None:
        missing = " or ".join(f"{', '.join(sorted(wanted[kind] - {POLICY}))} ({kind})" for kind in wanted)
        raise TorchImportError(f"holds {', '.join(contents)}, but no {missing}")
    networks = {
        network: {n.removeprefix(prefix): x for n, x in _arrays(contents, module).items() if n.startswith(prefix)}
        for network, (module, prefix) in NETWORKS[trainer_type].items()
    }
    if shares_critic(networks["actor"]):
        networks["critic"] = {}
    policy, critic = networks.pop("actor"), networks.pop("value" if trainer_type == "sac" else "critic")
    step = int(_arrays(contents, GLOBAL_STEP)[_STEP].reshape(-1)[0])
    others = tuple(name for name in contents if name not in {GLOBAL_STEP, *wanted[trainer_type]})
    checkpoint = TorchCheckpoint(trainer_type, policy, critic, step, Adam(0, {}, {}), others, (), networks)
    adam, remarks = _adams(contents, checkpoint)
    return checkpoint._replace(adam=adam, remarks=remarks)


def composed(checkpoint: TorchCheckpoint, learning_rate: float) -> dict[str, Any]:
    """Invert `parsed`, for `write_torch_file`; weights are in the order of their modules."""
    named = {name: _with_second_names(weights) for name, weights in checkpoint.networks.items()}
    modules: dict[str, Any] = {}
    for network, (module, prefix) in NETWORKS[checkpoint.trainer_type].items():
        weights = named.get(network, named["actor"])
        joined = {f"{prefix}{name}": x for name, x in weights.items()} if prefix else weights
        modules[module] = Ordered({**modules.get(module, {}), **joined}) if prefix else weights
    adams = {}
    for module, parts in OPTIMIZERS[checkpoint.trainer_type].items():
        numbered = parameters(checkpoint, parts)
        group = {"lr": learning_rate, "betas": (0.9, 0.999), "eps": 1e-8, **_ADAM, "params": list(range(len(numbered)))}
        adams[module] = {"state": _moments(checkpoint.adam, numbered), "param_groups": [group]}
    policy = modules.pop(POLICY)
    step = Ordered({_STEP: np.asarray([checkpoint.step], np.int64)})
    then = {**modules, **adams} if checkpoint.trainer_type == "sac" else {**adams, **modules}
    return {POLICY: policy, GLOBAL_STEP: step, **then}


def _moments(adam: Adam, numbered: list[Parameter]) -> dict[int, dict[str, np.ndarray]]:
    return {
        number: {
            "step": np.asarray(adam.count, np.float32),
            "exp_avg": adam.first[parameter],
            "exp_avg_sq": adam.second[parameter],
        }
        for number, parameter in enumerate(numbered)
        if parameter in adam.first
    }


def parameters(checkpoint: TorchCheckpoint, parts: tuple[str, ...]) -> list[Parameter]:
    """Return parameters in the order in which an optimizer of some networks numbers them; a shared critic has none."""
    of_parts = {**{name: _own(weights) for name, weights in checkpoint.networks.items()}, "entropy": TEMPERATURES}
    return [(part, name) for part in parts for name in of_parts.get(part, ())]


def shares_critic(policy: Weights) -> bool:
    """Return whether the policy's network has value heads."""
    return any(name.startswith(HEAD_PREFIX) for name in policy)


def _own(weights: Weights) -> list[str]:
    return [n for n in weights if not n.startswith(DUPLICATES) and n.rpartition(".")[2] not in _BUFFERS]


def _arrays(contents: Mapping[str, Any], module: str) -> dict[str, np.ndarray]:
    """Return the entries of one module. Raises TorchImportError where they are no arrays."""
    entries = contents[module]
    if not isinstance(entries, dict) or not all(isinstance(value, np.ndarray) for value in entries.values()):
        raise TorchImportError(f"{module}: expected arrays by name")
    if module == GLOBAL_STEP and _STEP not in entries:
        raise TorchImportError(f"{module}: expected an entry {_STEP}, found {', '.join(entries)}")
    return entries


def _adams(contents: Mapping[str, Any], checkpoint: TorchCheckpoint) -> tuple[Adam, tuple[str, ...]]:
    """Return moments by parameter, without parameters that never had a gradient."""
    first, second, counts = {}, {}, {}
    for module, parts in OPTIMIZERS[checkpoint.trainer_type].items():
        saved, numbered = contents[module], parameters(checkpoint, parts)
        groups = saved.get("param_groups") if isinstance(saved, dict) else None
        if not isinstance(groups, list) or len(groups) != 1 or not isinstance(saved.get("state"), dict):
            raise TorchImportError("optimizer: expected one group of parameters and their state, as Adam has")
        numbers, state = groups[0].get("params", []), saved["state"]
        if len(numbers) != len(numbered):
            raise TorchImportError(
                f"optimizer: it has {len(numbers)} parameters, the networks of the file have {len(numbered)}: they are "
                "not of one training"
            )
        for number, parameter in zip(numbers, numbered, strict=True):
            entry = state.get(number)
            if entry is not None:
                first[parameter], second[parameter] = entry["exp_avg"], entry["exp_avg_sq"]
                counts[parameter] = int(np.asarray(entry["step"]).reshape(-1)[0])
    count = max(counts.values(), default=0)
    late = [name for (_, name), updates in counts.items() if updates != count]
    remark = f"Adam has updated {', '.join(late)} less often than the {count} times of the others; they go on as those"
    return Adam(count, first, second), (remark,) if late else ()


def _with_second_names(weights: Weights) -> Ordered:
    """Return a module's state as PyTorch lists it: the processors of observations have two names."""
    named = Ordered()
    encoder = DUPLICATES.replace("processors.", "observation_encoder.processors.")
    processors = {name: x for name, x in weights.items() if name.startswith(encoder)}
    others = [name for name in weights if name.startswith("network_body.observation_encoder.")]
    for name, array in weights.items():
        named[name] = array
        if others and name == others[-1]:
            named.update({DUPLICATES + name.removeprefix(encoder): x for name, x in processors.items()})
    return named
