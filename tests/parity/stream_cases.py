"""Families g (streams) and j: PPO and SAC with several signals, each through its own functions and the update."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import make_settings, sac, sac_parts, updating
from jaxrl.algorithms.parts import loss_of
from jaxrl.learning import returns
from jaxrl.networks import normalizer
from jaxrl.networks.models import ValueNetwork
from jaxrl.rewards import gail, make_signal
from jaxrl.rewards.interface import RewardSignal
from jaxrl.rewards.signals import Signals
from jaxrl.rollout.transitions import Transitions
from tests.parity import sac_cases, signal_cases, update_cases
from tests.parity.cases import Case
from tests.parity.compare import GRADIENT_FLOOR, Comparison

NETWORKS = {"rnd": {"params": "rnd-pred/_encoder.", "target": "rnd-target/_encoder."}}


def run_streams(case: Case) -> Comparison:
    """Trajectories one after the other, then an update of the policy and one of every signal."""
    case = case._replace(meta={**case.meta, "shared_critic": False})
    comparison, signals = Comparison(), _Signals(case)
    settings, layouts = update_cases._settings(case), update_cases._layouts(case)
    state, _ = update_cases._state(case, layouts)
    states = state.policy.normalizer
    network: Any = ValueNetwork(case.spec, case.network, tuple(case.meta["streams"]))
    for trajectory in case.meta["trajectories"]:
        i = trajectory["i"]
        own = case._replace(arrays=case.below(f"t{i}/"))
        states = normalizer.update_all(states, own.observations("obs_"), None)
        found = _of_trajectory(own)
        value, after = (
            network.apply(state.critic, normalizer.normalize_all(states, obs)) for obs in (found.obs, found.next_obs)
        )
        advantages = []
        for k, name in enumerate(case.meta["streams"]):
            reward, meta = signals.paid(name, found), case.meta["signals"][name]
            ended = (own.arrays["flags"][0] > 0) & ~(own.arrays["flags"][1] > 0)
            bootstrap = jnp.zeros(()) if ended and name not in signals.lasting else after[-1, k]
            valid = jnp.ones(len(reward), bool)
            advantage = returns.gae(reward, value[:, k], bootstrap, meta["gamma"], case.meta["lambd"], valid, ~valid)
            advantages.append(advantage)
            told = {"value_estimates": value[:, k], "value_next": bootstrap, "rewards": reward}
            for what, ours in (told | {"returns": advantage + value[:, k], "advantages": advantage}).items():
                comparison.add_from(case.arrays, f"o{i}/{name}/{what}", ours)
        comparison.add_from(case.arrays, f"o{i}/advantages", jnp.stack(advantages).mean(0))
        signals.watch(found)
    state = state.replace(policy=state.policy.replace(normalizer=states))
    _update_policy(case, comparison, settings, layouts, state)
    told = signals.learn(signal_cases._seen(case), "r1/")
    for name in case.below("out/"):
        if name.startswith(tuple(signals.made)):
            comparison.add(f"out/{name}", told[name], case.arrays[f"out/{name}"])
    signals.compare(comparison, "w1/")
    return comparison


def _update_policy(case: Case, comparison: Comparison, settings: Any, layouts: Any, state: Any) -> None:
    both = np.stack([case.arrays[f"mb/returns/{name}"] for name in case.meta["streams"]], axis=-1)
    filled = case._replace(arrays={**case.arrays, "mb/returns": both[:, 0]})
    batch = update_cases._batch(filled, state.policy.normalizer)._replace(returns=jnp.asarray(both)[:, None])
    now = updating.coefficients(settings, state.step)._replace(own=state.own)
    parts = update_cases.algorithm_parts(case, settings)
    params = {"actor": state.policy.params, "critic": state.critic}
    gradient = jax.jit(jax.grad(partial(loss_of, parts), has_aux=True))(params, batch, now)[0]
    slopes = update_cases._exported(layouts, gradient)
    for name, theirs in case.below("g1/").items():
        comparison.add(f"g1/{name}", slopes[name], theirs, floor=GRADIENT_FLOOR)
    state, metrics = jax.jit(partial(updating.update, parts))(state, batch)
    for name in ("policy_loss", "value_loss", "learning_rate", "epsilon", "beta"):
        comparison.add_from(case.arrays, f"out/{name}", metrics[name])
    tiny = {f"g1/{name}": slope for name, slope in slopes.items()}
    known = case._replace(arrays={**tiny, **case.arrays})
    update_cases._compare_weights(known, comparison, layouts, state, 1)


def run_sac_signals(case: Case) -> Comparison:
    """Two rounds: storing, an update of the policy with rewards as they are then, one of the signals."""
    comparison, signals = Comparison(), _Signals(case, learned=False)
    settings = _sac_settings(case)
    parts = sac_parts.parts_of(case.spec, settings)
    start = jax.jit(partial(sac.init, parts, signals.bound))(jax.random.key(0))
    filled = case._replace(meta={"policy_step": 0, **case.meta})
    state, first = sac_cases._weights(filled, start, "w"), 0
    update = jax.jit(partial(sac.step, parts, lasting=signals.bound.lasting))
    for number, lengths in enumerate((t["length"] for t in of) for of in case.meta["rounds"]):
        place = f"o{number + 1}/"
        for length in lengths:
            rows = _replayed(case, np.arange(first, first + length))
            states = normalizer.update_all(state.policy.normalizer, rows.obs, None)
            state, first = state.replace(policy=state.policy.replace(normalizer=states)), first + length
            signals.watch(rows)
        for what in ("mean", "var", "steps") if "rnd" in signals.made else ():
            kept = signals.states["rnd"]["normalizer"][0]
            ours = {"mean": kept.mean, "var": kept.m2, "steps": kept.count}[what]
            name = f"{place}rnd_norm_{what}_before_update"
            comparison.add_from(case.arrays, name, ours)
        drawn = case.below(f"s{number + 1}/")
        rows = _replayed(case, drawn["index"])
        paid = {name: signals.paid(name, rows) for name in case.meta["streams"]}
        signals.watch(rows)
        for name, ours in paid.items():
            comparison.add_from(case.arrays, f"{place}rewards/{name}", ours)
        noise = drawn.get("noise", np.zeros((len(drawn["index"]), 0), np.float32))
        state, told = update(state, rows, jnp.stack(list(paid.values()), -1), jnp.asarray(noise))
        told |= signals.learn(_replayed(case, drawn["signal_index"]), "")
        for name in case.below(place):
            if name in told:
                comparison.add(f"{place}{name}", told[name], case.arrays[f"{place}{name}"])
            elif name.endswith("_entropy_coeff"):  # of what the agent does not have: it stays as it was
                kind = name.removesuffix("_entropy_coeff")
                same = case.arrays[f"w/log_ent_coef/{kind}"]
                theirs = np.nan_to_num(case.arrays[f"{place}{name}"])
                comparison.add(f"{place}{name}", np.exp(same).mean() if same.size else 0.0, theirs)
        sac_cases._compare_weights(case, comparison, state, number + 1)
        signals.compare(comparison, f"w{number + 1}/")
    return comparison


def _sac_settings(case: Case) -> Any:
    network = {k: v for k, v in case.meta["network_settings"].items() if v is not None}
    sections = {name: _section(case, name) for name in case.meta["streams"]}
    hyper = {**case.meta["hyperparameters"], "original_losses": True}
    return make_settings("sac", network_settings=network, hyperparameters=hyper, reward_signals=sections)


def _section(case: Case, name: str) -> dict[str, Any]:
    section = {k: v for k, v in case.meta["signals"][name].items() if v is not None}
    section["network_settings"] = {k: v for k, v in section["network_settings"].items() if v is not None}
    if name == "extrinsic":
        section = {k: section[k] for k in ("gamma", "strength")}
    return section | ({"demo_path": "unread"} if name == "gail" else {})


class _Signals:
    """The signals of a case with the weights of the original, and what becomes of them."""

    def __init__(self, case: Case, *, learned: bool = True) -> None:
        self.case, self.made, self.states = case, {}, {}
        sections = make_settings(
            "ppo", reward_signals={name: _section(case, name) for name in case.meta["streams"]}
        ).reward_signals
        all_of: dict[str, RewardSignal] = {}
        section: Any
        for name, section in sections.items():
            demo = signal_cases._demonstration(case) if name == "gail" else None
            made = gail.gail(case.spec, section, demo) if demo else make_signal(name, case.spec, section)
            all_of[name] = made
            if name != "extrinsic":
                self.made[name] = made
                self.states[name] = self._weights(name, made.init(jax.random.key(0)), learned)
        self.all, self.bound = all_of, Signals(all_of, sections)
        self.lasting = self.bound.lasting

    def of(self, name: str) -> Case:
        """The case as one of this signal alone."""
        section = self.case.meta["signals"][name]
        return self.case._replace(
            meta={**self.case.meta, "settings": section, "network_settings": section["network_settings"]}
        )

    def _weights(self, name: str, state: Any, learned: bool) -> Any:
        case = self.of(name)
        if name == "curiosity":
            return {**state, "params": signal_cases._models(case, "w/curiosity/"), "learned": jnp.array(learned)}
        if name == "gail":
            states = signal_cases._statistics(case, "w/gail/encoder.") or state["normalizer"]
            return {**state, "params": signal_cases._discriminator(case, "w/gail/"), "normalizer": states}
        bodies = {ours: signal_cases._body(case, f"w/{theirs}") for ours, theirs in NETWORKS[name].items()}
        states = signal_cases._statistics(case, f"w/{NETWORKS[name]['params']}") or state["normalizer"]
        return {**state, **bodies, "normalizer": states}

    def paid(self, name: str, found: Transitions) -> jax.Array:
        """Rewards times strength."""
        paid = self.bound.replayed({"extrinsic": (), **self.states}, found)[name]
        return self.case.meta["signals"][name]["strength"] * paid

    def watch(self, found: Transitions) -> None:
        """After each pass of the original's networks."""
        for name, made in self.made.items():
            self.states[name] = made.watch(self.states[name], found)

    def learn(self, found: Transitions, draws: str) -> dict[str, jax.Array]:
        """One step of each, and what is told of it under the original's names."""
        told: dict[str, jax.Array] = {}
        for name, made in self.made.items():
            assert made.gradient is not None
            key: Any = jax.random.key(0)
            if name == "gail":
                key = signal_cases._draws(self.of(name), draws)
                self.states[name] = signal_cases._with_experts(self.case, self.states[name], key)
            gradient, metrics = jax.jit(made.gradient)(self.states[name], found, key)
            self.states[name] = made.watch(made.apply(self.states[name], gradient), found)
            told |= {f"{name}_{metric}": x for metric, x in metrics.items()}
        return told

    def compare(self, comparison: Comparison, place: str) -> None:
        """Weights of all signals."""
        for name, state in self.states.items():
            case, ours = self.of(name), {}
            if name == "curiosity":
                ours = signal_cases._exported(case, state["params"])
                still = normalizer.init_all(case.spec, case.meta["network_settings"]["normalize"])
                ours |= signal_cases._exported_statistics(still, "_state_encoder.")  # which nothing moves
                ours = {f"curiosity/{k}": v for k, v in ours.items()}
            elif name == "gail":
                ours = signal_cases._discriminated(case, state["params"])
                ours |= signal_cases._exported_statistics(state["normalizer"], "encoder.")
                ours = {f"gail/{k}": v for k, v in ours.items()}
            else:
                for kept, prefix in NETWORKS[name].items():
                    ours |= signal_cases._names(case, state[kept], prefix)
                    ours |= signal_cases._exported_statistics(state["normalizer"], prefix)
            for leaf, array in ours.items():
                comparison.add_from(self.case.arrays, f"{place}{leaf}", array, floor=GRADIENT_FLOOR)


def _of_trajectory(own: Case) -> Transitions:
    """The decisions of a trajectory [T], the last of which is followed by what comes after it."""
    x, obs = own.arrays, own.observations("obs_")
    later = tuple(jnp.concatenate([o[1:], n[None]]) for o, n in zip(obs, own.observations("next_obs_"), strict=True))
    done = np.zeros(len(x["reward"]), np.float32)
    done[-1] = x["flags"][0]
    action, mask = own.action("", "")
    return _found(obs, later, action, mask, x["reward"] + x["group_reward"], done)


def _replayed(case: Case, rows: np.ndarray) -> Transitions:
    part = case._replace(arrays={name: x[rows] for name, x in case.below("replay/").items()})
    x = part.arrays
    action, mask = part.action("", "action_mask")
    reward = x["environment_rewards"] + x["group_reward"]
    return _found(part.observations("obs_"), part.observations("next_obs_"), action, mask, reward, x["done"])


def _found(obs: Any, later: Any, action: Any, mask: Any, reward: np.ndarray, done: np.ndarray) -> Transitions:
    everywhere = jnp.ones(len(reward), bool)
    return Transitions(
        obs=obs,
        carry=(),
        begin=~everywhere,
        action_mask=mask,
        action=action,
        extras={},
        reward=jnp.asarray(reward),
        discount=jnp.asarray(1.0 - done),
        next_obs=later,
        seen=everywhere,
        valid=everywhere,
    )
