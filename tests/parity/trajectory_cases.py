"""Family d: estimates, rewards, returns and advantages of trajectories that are processed one after the other."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.artifacts import torch_import
from jaxrl.learning import returns
from jaxrl.networks import actions, normalizer
from jaxrl.networks.models import TeamCritic, ValueNetwork, update_max_team
from jaxrl.types import Action
from tests.parity.cases import Case, check_supported, present_of
from tests.parity.compare import Comparison


class Critic(NamedTuple):
    """The critic and what carries over from one trajectory to the next."""

    network: TeamCritic | ValueNetwork
    params: dict
    normalizer: normalizer.States
    max_team: jnp.ndarray


def run_trajectories(case: Case) -> Comparison:
    """Everything under o<i>/ of a trajectory case."""
    check_supported(case)
    comparison = Comparison()
    critic = _load(case)
    process = _process_poca if case.meta["algorithm"] == "poca" else _process_ppo
    for trajectory in case.meta["trajectories"]:
        i = trajectory["i"]
        states = normalizer.update_all(critic.normalizer, case.observations(f"t{i}/obs_"), None)
        critic, ours = process(case, critic._replace(normalizer=states), f"t{i}/")
        for k, state in enumerate(states):
            if state is not None:
                ours |= {f"norm_{k}_mean": state.mean, f"norm_{k}_var": state.m2, f"norm_{k}_steps": state.count}
        for name, array in ours.items():
            comparison.add(f"o{i}/{name}", array, case.arrays[f"o{i}/{name}"])
    return comparison


def _load(case: Case) -> Critic:
    weights = case.below("w/critic/")
    streams = torch_import.streams_of(weights)
    arguments = (case.spec, case.network, streams)
    if case.meta["algorithm"] == "poca":
        network, layout = TeamCritic(*arguments), torch_import.team_critic_layout(*arguments)
    else:
        network, layout = ValueNetwork(*arguments), torch_import.value_layout(*arguments)
    imported = torch_import.import_weights(weights, layout, case.spec)
    return Critic(network, imported.params, imported.normalizer, imported.max_team)


def _process_ppo(case: Case, critic: Critic, prefix: str) -> tuple[Critic, dict]:
    x = case.below(prefix)
    obs = normalizer.normalize_all(critic.normalizer, case.observations(f"{prefix}obs_"))
    after = normalizer.normalize_all(critic.normalizer, case.observations(f"{prefix}next_obs_"))
    value = critic.network.apply(critic.params, obs)[:, 0]
    bootstrap = critic.network.apply(critic.params, after)[0]
    done, interrupted = x["flags"].astype(bool)
    terminal = done and not interrupted
    bootstrap = jnp.where(terminal, 0.0, bootstrap)
    reward = case.meta["reward_strength"] * jnp.asarray(x["reward"] + x["group_reward"])
    advantage = returns.gae(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"])
    return critic, {
        "terminal": terminal,
        "value_estimates": value,
        "value_next": bootstrap,
        "total_reward": reward,
        "returns": advantage + value,
        "advantages": advantage,
    }


def _process_poca(case: Case, critic: Critic, prefix: str) -> tuple[Critic, dict]:
    x = case.below(prefix)
    obs, action, present = case.team(prefix)
    obs = normalizer.normalize_all(critic.normalizer, obs)
    largest = update_max_team(critic.max_team, present)
    encoding = actions.one_hot(Action(*action), case.spec.action)
    value, baseline = critic.network.apply(critic.params, obs, encoding, present, largest)
    value, baseline = value[:, 0], baseline[:, 0, 0]
    bootstrap, largest = _team_bootstrap(case, critic._replace(max_team=largest), prefix)
    done, _, interrupted = x["flags"].astype(bool)
    mates_done = bool((x["groupmate_done"][-1].astype(bool) | ~present[-1, 1:]).all())
    terminal = done and mates_done and not interrupted
    bootstrap = jnp.where(terminal, 0.0, bootstrap)
    mates_reward = jnp.sum(jnp.where(present[:, 1:], x["groupmate_reward"], 0.0), axis=1)
    reward = case.meta["reward_strength"] * (x["reward"] + mates_reward + x["group_reward"])
    target = returns.lambda_return(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"])
    return critic._replace(max_team=largest), {
        "terminal": terminal,
        "value_estimates": value,
        "baseline_estimates": baseline,
        "value_next": bootstrap,
        "max_agents_after": largest,
        "total_reward": reward,
        "returns": target,
        "advantages": target - baseline,
    }


def _team_bootstrap(case: Case, critic: Critic, prefix: str) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Value of the state after the last step, and the running maximum after that call."""
    own, mates = case.observations(f"{prefix}next_obs_"), case.observations(f"{prefix}next_group_obs_")
    obs = tuple(jnp.concatenate([o[None], m])[None] for o, m in zip(own, mates, strict=True))
    present = present_of(obs[0])
    largest = update_max_team(critic.max_team, present)
    obs = normalizer.normalize_all(critic.normalizer, obs)
    value = critic.network.apply(critic.params, obs, present, largest, method="value_only")
    return value[0, 0], largest
