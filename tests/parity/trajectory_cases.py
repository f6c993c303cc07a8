"""Family d: estimates, rewards, returns and advantages of trajectories that are processed one after the other.

All trajectories of a case are padded with NaN to one length and one number of groupmates, so that one program serves
all, and so that the masks of normaliser, critic and returns are tried on the way.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.learning import returns
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import TeamCritic, ValueNetwork, update_max_team
from jaxrl.torch import weights as torch_weights
from jaxrl.types import Action
from tests.parity.cases import Case, check_supported, present_of, signals_of
from tests.parity.compare import Comparison

PER_TRAJECTORY = ("terminal", "value_next", "max_agents_after")
MATES_FIRST = "next_group_obs_"


class Carry(NamedTuple):
    """What goes on from one trajectory to the next."""

    normalizer: normalizer.States
    max_team: jax.Array | None


class Setting(NamedTuple):
    """What all trajectories of a case share."""

    case: Case
    network: TeamCritic | ValueNetwork
    params: dict[str, Any]


def run_trajectories(case: Case) -> Comparison:
    """Everything under o<i>/ of a trajectory case."""
    check_supported(case)
    comparison = Comparison()
    setting, carry = _load(case)
    poca = case.meta["algorithm"] == "poca"
    process = jax.jit(partial(_process_poca if poca else _process_ppo, setting))
    length = max(trajectory["length"] for trajectory in case.meta["trajectories"])
    mates = max((x.shape[1] for name, x in case.arrays.items() if name.endswith("/group_obs_0")), default=0)
    for trajectory in case.meta["trajectories"]:
        i, t = trajectory["i"], trajectory["length"]
        x = {name: _pad(name, array, length, mates) for name, array in case.below(f"t{i}/").items()}
        carry, padded = process(carry, x, jnp.arange(length) < t)
        ours = {name: array if name in PER_TRAJECTORY else array[:t] for name, array in padded.items()}
        for k, state in enumerate(carry.normalizer):
            if state is not None:
                ours |= {f"norm_{k}_mean": state.mean, f"norm_{k}_var": state.m2, f"norm_{k}_steps": state.count}
        for name, array in ours.items():
            comparison.add_from(case.arrays, f"o{i}/{name}", array)
    return comparison


def _load(case: Case) -> tuple[Setting, Carry]:
    weights = case.below("w/critic/")
    arguments = (case.spec, case.network, signals_of(weights))
    if case.meta["algorithm"] == "poca":
        network, layout = TeamCritic(*arguments), torch_weights.team_critic_layout(*arguments)
    else:
        network, layout = ValueNetwork(*arguments), torch_weights.value_layout(*arguments)
    imported = torch_weights.import_weights(weights, layout, case.spec)
    return Setting(case, network, imported.params), Carry(imported.normalizer, imported.max_team)


def _pad(name: str, array: np.ndarray, length: int, mates: int) -> np.ndarray:
    """[T, ...] and [T, K, ...] to [length, mates, ...], filled with NaN, or 0 where there is no NaN."""
    widths = [(0, 0)] * array.ndim
    if name.startswith(MATES_FIRST):
        widths[0] = (0, mates - array.shape[0])
    elif not name.startswith("next_") and name != "flags":
        widths[0] = (0, length - array.shape[0])
    if name.startswith("group") and name != "group_reward":
        widths[1] = (0, mates - array.shape[1])
    return np.pad(array, widths, constant_values=np.nan if array.dtype == np.float32 else 0)


def _process_ppo(setting: Setting, carry: Carry, x: dict[str, jax.Array], valid: jax.Array):
    case, network, params = setting
    padded = case._replace(arrays=x)
    own = padded.observations("obs_")
    states = normalizer.update_all(carry.normalizer, own, valid)
    value = network.apply(params, normalizer.normalize_all(states, own))[:, 0]
    after = normalizer.normalize_all(states, padded.observations("next_obs_"))
    terminal = (x["flags"][0] > 0) & ~(x["flags"][1] > 0)
    bootstrap = jnp.where(terminal, 0.0, network.apply(params, after)[0])
    reward = case.meta["reward_strength"] * (x["reward"] + x["group_reward"])
    advantage = returns.gae(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"], valid, ~valid)
    return carry._replace(normalizer=states), {
        "terminal": terminal,
        "value_estimates": value,
        "value_next": bootstrap,
        "total_reward": reward,
        "returns": advantage + value,
        "advantages": advantage,
    }


def _process_poca(setting: Setting, carry: Carry, x: dict[str, jax.Array], valid: jax.Array):
    case, network, params = setting
    padded = case._replace(arrays=x)
    states = normalizer.update_all(carry.normalizer, padded.observations("obs_"), valid)
    obs, action, present = padded.team("")
    largest = update_max_team(carry.max_team, present)
    encoding = actions.one_hot(Action(*action), case.spec.action)
    value, baseline = network.apply(params, normalizer.normalize_all(states, obs), encoding, present, largest)
    value, baseline = value[:, 0], baseline[:, 0, 0]
    bootstrap, largest = _team_bootstrap(setting, padded, states, largest)
    last = valid.sum() - 1
    mates_done = jnp.all((x["groupmate_done"][last] > 0) | ~present[last, 1:])
    terminal = (x["flags"][0] > 0) & mates_done & ~(x["flags"][2] > 0)
    bootstrap = jnp.where(terminal, 0.0, bootstrap)
    mates_reward = jnp.sum(jnp.where(present[:, 1:], x["groupmate_reward"], 0.0), axis=1)
    reward = case.meta["reward_strength"] * (x["reward"] + mates_reward + x["group_reward"])
    target = returns.lambda_return(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"], valid, ~valid)
    return Carry(states, largest), {
        "terminal": terminal,
        "value_estimates": value,
        "baseline_estimates": baseline,
        "value_next": bootstrap,
        "max_agents_after": largest,
        "total_reward": reward,
        "returns": target,
        "advantages": target - baseline,
    }


def _team_bootstrap(
    setting: Setting, padded: Case, states: normalizer.States, largest: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Value of the state after the last step, and the running maximum after that call."""
    own, mates = padded.observations("next_obs_"), padded.observations(MATES_FIRST)
    obs = tuple(jnp.concatenate([o[None], m])[None] for o, m in zip(own, mates, strict=True))
    present = present_of(obs[0])
    largest = update_max_team(largest, present)
    obs = normalizer.normalize_all(states, obs)
    value = setting.network.apply(setting.params, obs, present, largest, method="value_only")
    return value[0, 0], largest
