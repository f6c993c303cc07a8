"""A team of several behaviors: each acts by itself, one critic judges all (MA-POCA, arXiv 2111.05992).

Behaviors with the same `team: NAME` in the file learn together. Each has its specs, policy, normaliser, connectors and
coefficients, and rows of its own arrays, without padding. Arrays of the whole team have the members of the behaviors
("kinds") one after the other, in the order of the kinds: A = Σ A_k.

    kinds    = {"Seer": make_poca(seer_spec, ...), "Runner": make_poca(runner_spec, ...)}
    together = make_team("lock", kinds, settings)          # raises SettingsError for what cannot learn together
    states   = {name: kind.init(key) for name, kind in together.kinds.items()}    # a key for each
    decision = together.kinds["Seer"].act(states["Seer"].policy, ...)        # acts and exports as one that learns alone
    states, store of each kind: `interface.store_rollout(together.kinds[name], ...)`, which counts its own decisions
    states, metrics = together.learn(states, rollouts)     # both by name

Rollouts of the kinds have the same T and B: row b of each is the same team, state t the same moment; each has an A_k.
`left`, `terminated`, `truncated` and `waiting` are those of the whole team: a member that ends while a member of
another kind lives has `left`. `mates_reward` has the rewards of mates of all kinds. The cells of an absent kind are not
`present`, and their contents are never read.

Critic. Each kind's `TrainState.critic` has the parameters that read its own members; the first kind's also has the
shared ones (attention, hidden layers, values), with its optimizer and its learning rate. Adam works number by number,
so that splitting its state changes nothing. Any kind's TrainState is a checkpoint of its behavior; to continue
learning, all are needed.

Credit, returns and advantages are those of one row with all members: a member that ended is credited with the rewards
of mates of every kind (`rewards/extrinsic.py`) and bootstraps from the team's next value. Advantages are normalised
once over all members of the team, as in a team of one behavior: normalised by kind, a kind with little influence would
learn from noise as large as the advantages of the others.

A minibatch is states of the team with about batch_size members of all kinds. The loss is the mean over the members of
each kind, weighted by its share of the members that acted, so that kinds of equal specs with tied parameters have the
numbers of one behavior with all members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms import policy_gradient, preparing, updating
from jaxrl.algorithms.interface import (
    Algorithm,
    CriticStep,
    Decision,
    Metrics,
    PolicyState,
    TrainState,
    WithTracedSettings,
)
from jaxrl.algorithms.parts import Batch, Groups, Now, Parts, Seen, groups_of
from jaxrl.algorithms.preparing import by_stream
from jaxrl.algorithms.updating import Kind
from jaxrl.networks import actions, normalizer
from jaxrl.rewards import extrinsic
from jaxrl.rewards.signals import bind
from jaxrl.rollout.chunks import of_states
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.rollout.transitions import transitions
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.teams import differences

States = dict[str, TrainState]
_CRITIC = 0x54430000
"""Number folded into a key for the critic."""


class TeamAlgorithm(NamedTuple):
    """Pure functions over values by behavior, made by `make_team`. The module's docstring shows their use.

    kinds:    the algorithm of each behavior, in order. `init` makes its part of the critic, and `learn` and `estimate`
              raise.
    learn:    (states, stores) → (states, metrics), as `Algorithm.learn`; stores are rollouts.
    estimate: (states, rollouts) → metrics, as `Algorithm.estimate`.
    collect_size: decisions of the whole team from one update to the next.
    critic_step: as `Algorithm.critic_step`, of all kinds. None: the critic has no memory.
    """

    kinds: dict[str, Algorithm]
    learn: Callable[[States, Mapping[str, Rollout]], tuple[States, dict[str, Metrics]]]
    estimate: Callable[[States, Mapping[str, Rollout]], dict[str, Metrics]]
    collect_size: int
    critic_step: CriticStep | None = None


def make_team(
    name: str, algorithms: Mapping[str, Algorithm], settings: Mapping[str, BehaviorSettings]
) -> TeamAlgorithm:
    """Make the team called `name` of the behaviors of `algorithms` and `settings`.

    Raises SettingsError if settings differ that a team has in common, and for algorithms without a critic that several
    behaviors could share.
    """
    problems = [*differences(settings), *_not_judged(name, algorithms, settings)]
    if problems:
        raise SettingsError(problems)
    parts = {behavior: algorithm.parts for behavior, algorithm in algorithms.items()}
    kinds = {behavior: _kind(name, parts, behavior, algorithm) for behavior, algorithm in algorithms.items()}
    bound = {behavior: Kind(x, bind(x.spec, x.settings, actions.to_environment)) for behavior, x in parts.items()}

    remembers = all(algorithm.critic_step is not None for algorithm in algorithms.values())

    def clean(rollouts: Mapping[str, Rollout]) -> dict[str, Rollout]:
        return {behavior: masked(rollouts[behavior]) for behavior in kinds}

    return TeamAlgorithm(
        kinds=kinds,
        learn=lambda states, rollouts: learn(bound, states, clean(rollouts)),
        estimate=lambda states, rollouts: estimate(bound, states, clean(rollouts)),
        collect_size=next(iter(kinds.values())).collect_size,
        critic_step=partial(critic_step, parts) if remembers else None,
    )


def _not_judged(name: str, algorithms: Mapping[str, Algorithm], settings: Mapping[str, BehaviorSettings]):
    """Yield an error text for each behavior that a shared critic cannot judge."""
    for behavior, algorithm in algorithms.items():
        parts, again = algorithm.parts, algorithm.with_traced_settings
        replaced = isinstance(again, WithTracedSettings) and again.learn is not algorithm.learn
        if not isinstance(parts, Parts) or parts.shared is None:
            why = f"{settings[behavior].trainer_type} has no critic that several behaviors could share"
        elif parts.estimates is not parts.shared.estimates:
            why = "its estimates of value and baseline are its own, and a team has those of one critic"
        elif replaced:
            why = "it learns in a way of its own, without the critic of a team"
        else:
            continue
        advice = "remove the key, or train the whole team with poca, mappo or coma"
        yield f"behaviors.{behavior}.team: got {name}, but {why}: {advice}"


def _kind(name: str, parts: Mapping[str, Parts], behavior: str, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm of one behavior with its part of the team's critic."""
    shared, first = parts[next(iter(parts))].shared, algorithm.init
    assert shared is not None

    def init(key: jax.Array) -> TrainState:
        state = first(key)
        critic = shared.init(parts, behavior, jax.random.fold_in(key, _CRITIC))
        groups = groups_of(parts[behavior], state) | {"critic": critic}
        return state.replace(critic=critic, optimizer=updating.optimizer_of(parts[behavior]).init(groups))

    def refused(*_: Any) -> Any:
        raise ValueError(f"{behavior} learns with its team {name}: call `learn` and `estimate` of the TeamAlgorithm")

    return algorithm._replace(init=init, learn=refused, estimate=refused, with_traced_settings=None, critic_step=None)


def learn(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: dict[str, Rollout]
) -> tuple[States, dict[str, Metrics]]:
    """Run one update of all behaviors, as `policy_gradient.learn` does for one."""
    prepared, batches, metrics = prepare(kinds, states, rollouts)
    updated, of_update = updating.update_together(kinds, prepared, batches, partial(losses_of, kinds))
    for name, kind in kinds.items():
        updated[name], more = policy_gradient.after_update(kind.parts, kind.signals, updated[name], rollouts[name])
        metrics[name] |= of_update[name] | more
    return updated, metrics


def estimate(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: dict[str, Rollout]
) -> dict[str, Metrics]:
    """Compute the means of values, baselines and entropy over the members of each behavior."""
    metrics = evaluated(kinds, states, rollouts, whole(rollouts))[-1]
    for name, kind in kinds.items():
        metrics[name]["entropy"] = policy_gradient.entropy_of(kind.parts, states[name], rollouts[name])
    return metrics


def prepare(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: dict[str, Rollout]
) -> tuple[States, dict[str, Batch], dict[str, Metrics]]:
    """Make batches [T·B, A_k] from rollouts [T, B, A_k] by behavior, as `preparing.prepare` does for one."""
    first, team = next(iter(kinds.values())), whole(rollouts)
    moves = preparing.moves_of(team)
    observed = partial(preparing.observe, moves=moves)
    pairs = {name: observed(kind.parts, states[name], rollouts[name]) for name, kind in kinds.items()}
    group_reward = of_kinds(extrinsic.group_reward(team), rollouts)
    rollouts = {name: rollout._replace(group_reward=group_reward[name]) for name, (_, rollout) in pairs.items()}
    states = {name: state.replace(own=kinds[name].parts.watch(state.own, team)) for name, (state, _) in pairs.items()}
    obs, value, baseline, metrics = evaluated(kinds, states, rollouts, team)
    paid, new_states = {}, {}
    for name, kind in kinds.items():
        own, state = rollouts[name], states[name]
        paid[name] = kind.signals.rewards(state.signals, own, cooperative=kind.parts.cooperative)
        new_states[name] = state.replace(signals=kind.signals.watch(state.signals, own))
    of_all = {signal: _beside(paid[name][signal] for name in kinds) for signal in first.signals.bound}
    streams = {"lasting": first.signals.lasting, "shared": first.signals.shared, "posthumous": first.parts.posthumous}
    target = preparing.stream_returns(team, value, first.parts.settings, of_all, **streams)
    against = value if baseline is None else baseline
    advantage = first.parts.advantage(target, value, against, team)
    normalized = preparing.mean_advantage(advantage, target, team)
    cut = partial(of_kinds, rollouts=rollouts)
    returns, baselines, scaled = cut(target), cut(value[..., :0] if baseline is None else baseline), cut(normalized)
    batches = {
        name: preparing.make_batch(
            rollouts[name],
            obs[name],
            returns[name],
            advantage=scaled[name],
            baseline=baselines[name],
            length=preparing.length_of(kind.parts),
            moves=moves,
            inputs={key: loss.inputs(new_states[name], rollouts[name]) for key, loss in kind.parts.added.items()} or (),
            seen=transitions(rollouts[name]) if kind.signals.in_minibatches else (),
        )
        for name, kind in kinds.items()
    }
    return new_states, batches, metrics


def evaluated(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: Mapping[str, Rollout], team: Rollout
) -> tuple[dict[str, tuple[jax.Array, ...]], jax.Array, jax.Array | None, dict[str, Metrics]]:
    """Compute normalised observations by behavior, V and b of the team [T, B, A, R], and means of both by behavior."""
    obs = {name: normalizer.normalize_all(states[name].policy.normalizer, x.obs) for name, x in rollouts.items()}
    params = {name: groups_of(kind.parts, states[name]) for name, kind in kinds.items()}
    seen = {name: Seen(obs[name], x.action, x.present, x.carry) for name, x in rollouts.items()}
    judge = partial(_judged, kinds, params, own=states[next(iter(kinds))].own)
    first = next(iter(kinds.values())).parts
    settings = first.settings  # their order of signals is that of the estimates
    value, baseline = of_states(judge, (seen,), team, first.chunk, team.present.shape[-1])
    metrics: dict[str, Metrics] = {name: {} for name in kinds}
    for tag, of_team in (("value_estimate", value), ("baseline_estimate", baseline)):
        for name, estimate in of_kinds(of_team, rollouts).items() if of_team is not None else ():
            metrics[name] |= by_stream(tag, estimate, rollouts[name], settings)
    return obs, value, baseline, metrics


def losses_of(
    kinds: Mapping[str, Kind], params: dict[str, Groups], chunk: dict[str, Batch], now: dict[str, Now]
) -> dict[str, tuple[jax.Array, Metrics]]:
    """Compute the loss of each behavior over its own members, with the estimates of the team's critic."""
    chunk = {name: chunk[name] for name in kinds}  # JAX returns dicts in alphabetical order
    seen = {name: batch.seen for name, batch in chunk.items()}
    value, baseline = _judged(kinds, params, seen, own=now[next(iter(kinds))].own)
    values, baselines = of_kinds(value, chunk), None if baseline is None else of_kinds(baseline, chunk)
    losses = {}
    for name, kind in kinds.items():
        dist = kind.parts.actor(params[name]["actor"], seen[name].obs, seen[name].memory_of("actor"))
        own_baseline = None if baselines is None else baselines[name]
        losses[name] = kind.parts.loss(dist, values[name], own_baseline, chunk[name], now[name])
    return losses


def _judged(
    kinds: Mapping[str, Kind], params: Mapping[str, Groups], seen: Mapping[str, Seen], *, own: Any
) -> tuple[jax.Array, jax.Array | None]:
    """Compute V and b of the whole team, [..., A, R]."""
    parts = {name: kind.parts for name, kind in kinds.items()}
    shared = next(iter(parts.values())).shared
    assert shared is not None
    return shared.judge(parts, params, seen, own)[:2]


def critic_step(
    parts: Mapping[str, Parts],
    policies: Sequence[PolicyState],
    obs: Sequence[tuple[jax.Array, ...]],
    present: Sequence[jax.Array],
    decided: Sequence[Decision],
) -> list[dict[str, Any]]:
    """Return the memories of each kind after a decision of the team, including the critic's; all in order of kinds."""
    seen, params = {}, {}
    for name, policy, shown, there, decision in zip(parts, policies, obs, present, decided, strict=True):
        seen[name] = Seen(normalizer.normalize_all(policy.normalizer, shown), decision.action, there, decision.carry)
        params[name] = {"critic": policy.critic}
    first = next(iter(parts.values()))
    assert first.shared is not None
    new_memory = of_kinds(first.shared.judge(parts, params, seen, first.own)[-1], seen)
    return [{**decision.carry, "critic": new_memory[name]} for name, decision in zip(parts, decided, strict=True)]


def whole(rollouts: Mapping[str, Rollout]) -> Rollout:
    """Make the rollout with the members of all kinds, [T, B, A]: presence, rewards and ends. `rollouts` in order.

    The fields of observations, actions and memories are empty: they differ between kinds.
    """
    by_kind = ("obs", "carry", "action_mask", "action", "extras", "between")
    fields = [field for field in Rollout._fields if field not in by_kind]  # a list: sets differ in order by process
    beside = {field: _beside(getattr(rollout, field) for rollout in rollouts.values()) for field in fields}
    between = next(iter(rollouts.values())).between
    return Rollout(obs=(), carry=(), action_mask=(), action=(), extras={}, between=between, **beside)  # pyright: ignore


def of_kinds(x: jax.Array, rollouts: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Split an array of the team, [..., A] or [..., A, R], by kind; `rollouts` (or batches), in order, give A_k."""
    axis, slices, first = next(iter(rollouts.values())).present.ndim - 1, {}, 0
    for name, rollout in rollouts.items():
        slices[name] = jax.lax.slice_in_dim(x, first, first := first + rollout.present.shape[-1], axis=axis)
    return slices


def _beside(arrays: Any) -> jax.Array:
    return jnp.concatenate(list(arrays), axis=-1)
