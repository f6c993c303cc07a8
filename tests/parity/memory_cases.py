"""Families b and d with memory: networks along sequences, and trajectories one after the other."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.learning import returns
from jaxrl.networks import actions, normalizer
from jaxrl.networks.memory import Sequences
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork, update_max_team
from jaxrl.torch import weights as torch_weights
from tests.parity.cases import Case, check_memory, check_supported, present_of, signals_of
from tests.parity.compare import Comparison
from tests.parity.forward_cases import add_distribution, add_streams


def stored_memory(present: jax.Array, first: np.ndarray) -> jax.Array:
    """[N, L, A, m] for `present` [N, L, A]: `first` [N, m] is member 0's memory before each sequence; else zeros."""
    return jnp.zeros((*present.shape, first.shape[-1])).at[:, 0, 0].set(first)


def run_memory_forward(case: Case) -> Comparison:
    """Everything under out/ of a forward case: outputs along whole sequences, and the memory after them."""
    check_supported(case)
    comparison = Comparison()
    actor, imported = _actor(case)
    obs = _sequences(case, normalizer.normalize_all(imported.normalizer, case.observations("in/obs_")))
    memory = _own_memory(case, "in/actor_memory")
    dist, after = jax.jit(partial(actor.apply, method="step"))(imported.params, obs, memory)
    encoding = jax.jit(partial(actor.apply, method="encode"))(imported.params, obs, memory)
    comparison.add("out/actor_encoding", _rows(encoding), case.arrays["out/actor_encoding"])
    comparison.add("out/actor_memory", after[None], case.arrays["out/actor_memory"])
    add_distribution(case, comparison, dist._replace(mean=_rows(dist.mean), logits=_rows(dist.logits)))
    if case.meta["algorithm"] == "poca":
        _team_critic(case, comparison)
    elif isinstance(actor, SharedActorCritic):
        value = jax.jit(partial(actor.apply, method="value"))(imported.params, obs, memory)
        add_streams(case, comparison, "out/value", _rows(value), actor.signals)
    else:
        critic, imported = _critic(case)
        arguments = (imported.params, obs, _own_memory(case, "in/value_memory"))
        value, after = jax.jit(partial(critic.apply, method="step"))(*arguments)
        add_streams(case, comparison, "out/value", _rows(value), critic.signals)
        comparison.add("out/value_memory", after[None], case.arrays["out/value_memory"])
    return comparison


def _actor(case: Case) -> tuple[Any, torch_weights.Imported]:
    weights = case.below("w/actor/")
    arguments = (case.spec, case.network)
    if case.meta["shared_critic"]:
        arguments = (*arguments, signals_of(weights))
        network, layout = SharedActorCritic(*arguments), torch_weights.shared_layout(*arguments)
    else:
        network, layout = Actor(*arguments), torch_weights.actor_layout(*arguments)
    return network, torch_weights.import_weights(weights, layout, case.spec)


def _critic(case: Case) -> tuple[Any, torch_weights.Imported]:
    weights = case.below("w/critic/")
    arguments = (case.spec, case.network, signals_of(weights))
    if case.meta["algorithm"] == "poca":
        network, layout = TeamCritic(*arguments), torch_weights.team_critic_layout(*arguments)
    else:
        network, layout = ValueNetwork(*arguments), torch_weights.value_layout(*arguments)
    return network, torch_weights.import_weights(weights, layout, case.spec)


def _sequences(case: Case, arrays: Any) -> Any:
    """[sequences * L, ...] -> [sequences, L, ...]."""
    shape = case.meta["n_sequences"], case.meta["sequence_length"]
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), arrays)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _own_memory(case: Case, name: str) -> Sequences:
    """One agent per sequence, whose memory before it is given."""
    alone = jnp.ones((case.meta["n_sequences"], case.meta["sequence_length"], 1), bool)
    stored = stored_memory(alone, case.arrays[name][0])
    return jax.tree.map(lambda x: x[:, :, 0], Sequences(stored, ~alone, alone))


def _team_critic(case: Case, comparison: Comparison) -> None:
    """The numbered calls, each from the same memory; the running maximum carries over from one to the next."""
    critic, imported = _critic(case)
    whole = jax.jit(partial(critic.apply, method="step"))
    obs, action, present = case.team("in/")
    obs = _shown(imported.normalizer, obs)
    encoding, largest = actions.one_hot(action, case.spec.action), imported.max_team
    first = (case.arrays["in/value_memory"][0], case.arrays["in/baseline_memory"][0])
    for call in sorted({m[1] for m in (re.match(r"out/(\d+_(value|baseline)\w*)/", n) for n in case.arrays) if m}):
        members = present.at[:, 1:].set(False) if call.endswith("_alone") else present
        after = f"out/{call}_max_agents_after"
        largest = case.arrays[after] if call.endswith("_larger_max") else update_max_team(largest, members)
        teams, here, of_actions = _sequences(case, (obs, members, encoding))
        stored = jnp.stack([stored_memory(here, memory) for memory in first], axis=-2)
        memory = Sequences(stored, jnp.zeros_like(here), jnp.ones_like(here))
        both, carry = whole(imported.params, teams, of_actions, here, jnp.float32(largest), memory)
        which = 0 if "_value" in call else 1
        add_streams(case, comparison, f"out/{call}", _rows(both[which][:, :, 0]), critic.signals)
        comparison.add(f"out/{call}_memory", carry[None, :, 0, which], case.arrays[f"out/{call}_memory"])
        comparison.add(after, largest, case.arrays[after])


def _shown(states: normalizer.States, obs: Any) -> Any:
    """Normalised, and 0 where a mate is absent."""
    return tuple(map(jnp.nan_to_num, normalizer.normalize_all(states, obs)))


class _State(NamedTuple):
    """What goes on from one trajectory to the next: the critic's one memory, which all agents share there."""

    normalizer: normalizer.States
    memory: Any  # [m] (PPO), or value and baseline [2, m]
    max_team: jax.Array | None


def run_memory_trajectories(case: Case) -> Comparison:
    """Everything under o<i>/ of a trajectory case: our pure functions give the numbers of the shared memory as well."""
    check_supported(case)
    check_memory(case)
    comparison = Comparison()
    critic, imported = _critic(case)
    poca, size = case.meta["algorithm"] == "poca", case.network.memory.memory_size
    state = _State(imported.normalizer, jnp.zeros((2, size) if poca else (size,)), imported.max_team)
    process = _poca_trajectory if poca else _ppo_trajectory
    for trajectory in case.meta["trajectories"]:
        i = trajectory["i"]
        x = case._replace(arrays=case.below(f"t{i}/"))
        states = normalizer.update_all(state.normalizer, x.observations("obs_"), None)
        state, ours = process(case, critic, imported.params, state._replace(normalizer=states), x)
        for k, moments in enumerate(states):
            if moments is not None:
                ours |= {f"norm_{k}_mean": moments.mean, f"norm_{k}_var": moments.m2, f"norm_{k}_steps": moments.count}
        for name, array in ours.items():
            comparison.add_from(case.arrays, f"o{i}/{name}", array)
    return comparison


def _walk(step: Any, inputs: Any, memory: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
    """Outputs of a network step by step along [T, ...], the memory before each step, and the one after the last."""

    def at(memory: jax.Array, now: Any) -> tuple[jax.Array, Any]:
        out, after = step(*now, memory)
        return after, (out, memory)

    after, (out, before) = jax.lax.scan(at, memory, inputs)
    return out, before, after


def _padding(case: Case, length: int, before: jax.Array, returned: jax.Array) -> dict[str, jax.Array]:
    """What the original's buffer gets: memory at the start of each step's sequence, loss mask and padded returns."""
    sequence = case.meta["network_settings"]["memory"]["sequence_length"]
    steps = jnp.arange(-(-length // sequence) * sequence)
    return {
        "critic_memory": jnp.where((steps < length)[:, None], before[steps // sequence * sequence], 0.0),
        "masks": steps < length,
        "padded_returns": jnp.where(steps < length, returned[jnp.minimum(steps, length - 1)], 0.0),
    }


def _ppo_trajectory(case: Case, critic: Any, params: Any, state: _State, x: Case) -> tuple[_State, dict[str, Any]]:
    step = partial(critic.apply, params, method="step")
    obs, following = (
        normalizer.normalize_all(state.normalizer, x.observations(name)) for name in ("obs_", "next_obs_")
    )
    value, before, after = _walk(lambda obs, memory: step(obs, memory), (obs,), state.memory)
    value, flags = value[:, 0], x.arrays["flags"]
    terminal = (flags[0] > 0) & ~(flags[1] > 0)
    bootstrap = jnp.where(terminal, 0.0, step(following, after)[0][0])
    reward = case.meta["reward_strength"] * jnp.asarray(x.arrays["reward"] + x.arrays["group_reward"])
    advantage = returns.gae(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"])
    ours = {
        "terminal": terminal,
        "value_estimates": value,
        "value_next": bootstrap,
        "total_reward": reward,
        "returns": advantage + value,
        "advantages": advantage,
    }
    ours |= _padding(case, len(value), before, advantage + value)
    return state._replace(memory=jnp.where(terminal, 0.0, after)), ours


def _poca_trajectory(case: Case, critic: Any, params: Any, state: _State, x: Case) -> tuple[_State, dict[str, Any]]:
    obs, action, present = x.team("")
    obs = _shown(state.normalizer, obs)
    largest = update_max_team(state.max_team, present)
    encoding = actions.one_hot(action, case.spec.action)

    def step(obs: Any, encoding: jax.Array, present: jax.Array, memory: jax.Array, largest: jax.Array) -> Any:
        members = jnp.zeros((*present.shape, *memory.shape)).at[0].set(memory)
        (value, baseline), after = critic.apply(params, obs, encoding, present, largest, members, method="step")
        return (value[0, 0], baseline[0, 0]), after[0]

    def walk(*now: Any) -> Any:
        return step(*now, largest)

    (value, baseline), before, after = _walk(walk, (obs, encoding, present), state.memory)
    own, mates = x.observations("next_obs_"), x.observations("next_group_obs_")
    following = tuple(jnp.concatenate([o[None], m]) for o, m in zip(own, mates, strict=True))
    there = present_of(following[0][None])[0]
    following = _shown(state.normalizer, following)
    later = update_max_team(largest, there)
    nothing = jnp.zeros((len(there), encoding.shape[-1]))
    (bootstrap, _), _ = step(following, nothing, there, after, later)
    flags = x.arrays["flags"]
    mates_done = np.all((x.arrays["groupmate_done"][-1] > 0) | ~np.asarray(present)[-1, 1:])
    terminal = (flags[0] > 0) & mates_done & ~(flags[2] > 0)
    bootstrap = jnp.where(terminal, 0.0, bootstrap)
    mates_reward = jnp.sum(jnp.where(present[:, 1:], x.arrays["groupmate_reward"], 0.0), axis=1)
    reward = case.meta["reward_strength"] * (x.arrays["reward"] + mates_reward + x.arrays["group_reward"])
    target = returns.lambda_return(reward, value, bootstrap, case.meta["gamma"], case.meta["lambd"])
    ours = {
        "terminal": terminal,
        "value_estimates": value,
        "baseline_estimates": baseline,
        "value_next": bootstrap,
        "max_agents_after": later,
        "total_reward": reward,
        "returns": target,
        "advantages": target - baseline,
    }
    ours |= _padding(case, len(value), before[:, 0], target)
    ours["baseline_memory"] = _padding(case, len(value), before[:, 1], target)["critic_memory"]
    # The value after the last step has only been looked at: memory goes on from what is after the steps themselves.
    return _State(state.normalizer, after, later), ours
