"""A team of several behaviors: each acts for itself, one critic judges all (MA-POCA, arXiv 2111.05992).

Behaviors with one `team: NAME` in the file learn together. Each keeps its specs, policy, normaliser, connectors and
coefficients; rows hold its own arrays, and nothing of one kind is padded into another. What is of the whole team, is of
its members one kind after the other, in the order in which the kinds are named: A = Σ A_k.

    kinds    = {"Seer": make_poca(seer_spec, ...), "Runner": make_poca(runner_spec, ...)}
    together = make_team("lock", kinds, settings)          # raises SettingsError for what cannot learn together
    states   = {name: kind.init(key) for name, kind in together.kinds.items()}    # a key for each
    decision = together.kinds["Seer"].act(states["Seer"].policy, ...)        # acts, exports, remembers as ever
    states, store of each kind: `interface.store_rollout(together.kinds[name], ...)`, which counts its own decisions
    states, metrics = together.learn(states, rollouts)     # both by name

Rollouts of the kinds have the same T and B: row b of each is the same team, state t the same moment; each has an A_k.
`left`, `terminated`, `truncated` and `waiting` are said with the whole team in view: a member of one kind that ends
while a member of another lives has `left`. `mates_reward` has what mates of all kinds earned. A kind that is not there
has cells that are not `present`; what they hold reaches nobody.

Critic. Each kind's `TrainState.critic` has what reads its own members; the first kind's has all that is shared as well
(attention, hidden layers, values), with its optimizer and its learning rate. Adam works number by number, so that
splitting its state changes nothing. Any kind's TrainState is a checkpoint of its behavior; to learn on, all are needed.

Credit, returns and advantages are those of one row with all members: who ended is credited with what mates of every
kind were paid (`rewards/extrinsic.py`) and bootstraps from the team's next value. Advantages are normalised once over
all members of the team, as those of a team of one behavior: normalised by kind, a kind that hardly matters would learn
from noise as large as what the others learn from.

A minibatch is states of the team with about batch_size members of all kinds; the loss is the mean over the members of
each kind by their shares of those who acted, so that kinds of equal specs with tied parameters have the numbers of one
behavior with all members.
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
from jaxrl.algorithms.parts import Batch, Groups, Judged, Now, Parts, Seen, groups_of
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
"""What a key is folded with for the critic."""


class TeamAlgorithm(NamedTuple):
    """Pure functions, by behavior. `make_team` makes it; the module says how it is used.

    kinds:    the algorithm of each, in order: `init` makes its part of the critic, `learn` and `estimate` alone are
              refused.
    learn:    (states, stores) → (states, metrics), as `Algorithm.learn`; stores are rollouts.
    estimate: (states, rollouts) → metrics, as `Algorithm.estimate`.
    collect_size: decisions of the whole team from one update to the next.
    critic_step: as `Algorithm.critic_step`, of all kinds. None: the critic remembers nothing.
    """

    kinds: dict[str, Algorithm]
    learn: Callable[[States, Mapping[str, Rollout]], tuple[States, dict[str, Metrics]]]
    estimate: Callable[[States, Mapping[str, Rollout]], dict[str, Metrics]]
    collect_size: int
    critic_step: CriticStep | None = None


def make_team(
    name: str, algorithms: Mapping[str, Algorithm], settings: Mapping[str, BehaviorSettings]
) -> TeamAlgorithm:
    """The team called `name` of these behaviors, which each `algorithms[behavior]` was made for.

    Raises SettingsError for settings that differ in what a team has in common, and for algorithms that have no critic
    which several behaviors could share.
    """
    problems = [*differences(settings), *_not_judged(name, algorithms, settings)]
    if problems:
        raise SettingsError(problems)
    parts = {behavior: of.parts for behavior, of in algorithms.items()}
    kinds = {behavior: _kind(name, parts, behavior, of) for behavior, of in algorithms.items()}
    bound = {of: Kind(own, bind(own.spec, own.settings, actions.to_environment)) for of, own in parts.items()}

    remembers = all(of.critic_step is not None for of in algorithms.values())

    def clean(rollouts: Mapping[str, Rollout]) -> dict[str, Rollout]:
        return {of: masked(rollouts[of]) for of in kinds}

    return TeamAlgorithm(
        kinds=kinds,
        learn=lambda states, rollouts: learn(bound, states, clean(rollouts)),
        estimate=lambda states, rollouts: estimate(bound, states, clean(rollouts)),
        collect_size=next(iter(kinds.values())).collect_size,
        critic_step=partial(critic_step, parts) if remembers else None,
    )


def _not_judged(name: str, algorithms: Mapping[str, Algorithm], settings: Mapping[str, BehaviorSettings]):
    """One text for each behavior that no shared critic could judge."""
    for behavior, algorithm in algorithms.items():
        parts, again = algorithm.parts, algorithm.with_traced_settings
        replaced = isinstance(again, WithTracedSettings) and again.learn is not algorithm.learn
        if not isinstance(parts, Parts) or parts.shared is None:
            why = f"{settings[behavior].trainer_type} has no critic that several behaviors could share"
        elif not isinstance(parts.loss, Judged) or replaced:
            why = "its loss is its own, and does not take the estimates of another critic"
        else:
            continue
        advice = "remove the key, or train the whole team with poca, mappo or coma"
        yield f"behaviors.{behavior}.team: got {name}, but {why}: {advice}"


def _kind(name: str, parts: Mapping[str, Parts], behavior: str, algorithm: Algorithm) -> Algorithm:
    """The algorithm of one behavior, whose critic is its part of the team's."""
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
    """As `policy_gradient.learn`: values, baselines, returns and advantages, then all epochs and minibatches."""
    prepared, batches, metrics = prepare(kinds, states, rollouts)
    after, told = updating.update_together(kinds, prepared, batches, partial(losses_of, kinds))
    for name, kind in kinds.items():
        after[name], more = policy_gradient.after_update(kind.parts, kind.signals, after[name], rollouts[name])
        metrics[name] |= told[name] | more
    return after, metrics


def estimate(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: dict[str, Rollout]
) -> dict[str, Metrics]:
    """Means of values, baselines and entropy, over the members of each behavior."""
    metrics = evaluated(kinds, states, rollouts, whole(rollouts))[-1]
    for name, kind in kinds.items():
        metrics[name]["entropy"] = policy_gradient.entropy_of(kind.parts, states[name], rollouts[name])
    return metrics


def prepare(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: dict[str, Rollout]
) -> tuple[States, dict[str, Batch], dict[str, Metrics]]:
    """As `preparing.prepare`, of rollouts [T, B, A_k] by behavior: batches [T·B, A_k]."""
    first, team = next(iter(kinds.values())), whole(rollouts)
    moves = preparing.moves_of(team)
    observed = partial(preparing.observe, moves=moves)
    found = {name: observed(kind.parts, states[name], rollouts[name]) for name, kind in kinds.items()}
    group_reward = of_kinds(extrinsic.group_reward(team), rollouts)
    rollouts = {name: rollout._replace(group_reward=group_reward[name]) for name, (_, rollout) in found.items()}
    states = {name: state.replace(own=kinds[name].parts.watch(state.own, team)) for name, (state, _) in found.items()}
    obs, value, baseline, metrics = evaluated(kinds, states, rollouts, team)
    paid, after = {}, {}
    for name, kind in kinds.items():
        own, state = rollouts[name], states[name]
        paid[name] = kind.signals.rewards(state.signals, own, cooperative=kind.parts.cooperative)
        after[name] = state.replace(signals=kind.signals.watch(state.signals, own))
    of_all = {signal: _beside(paid[name][signal] for name in kinds) for signal in first.signals.bound}
    streams = {"lasting": first.signals.lasting, "shared": first.signals.shared, "posthumous": first.parts.posthumous}
    target = preparing.stream_returns(team, value, first.parts.settings, of_all, **streams)
    against = value if baseline is None else baseline
    advantage = first.parts.advantage(target, value, against, team)
    normalized = preparing.mean_advantage(advantage, target, team)
    cut = partial(of_kinds, rollouts=rollouts)
    returns, own, scaled = cut(target), cut(value[..., :0] if baseline is None else baseline), cut(normalized)
    batches = {
        name: preparing.make_batch(
            rollouts[name],
            obs[name],
            returns[name],
            advantage=scaled[name],
            baseline=own[name],
            length=preparing.length_of(kind.parts),
            moves=moves,
            inputs={each: one.inputs(after[name], rollouts[name]) for each, one in kind.parts.added.items()} or (),
            seen=transitions(rollouts[name]) if kind.signals.in_minibatches else (),
        )
        for name, kind in kinds.items()
    }
    return after, batches, metrics


def evaluated(
    kinds: Mapping[str, Kind], states: Mapping[str, TrainState], rollouts: Mapping[str, Rollout], team: Rollout
) -> tuple[dict[str, tuple[jax.Array, ...]], jax.Array, jax.Array | None, dict[str, Metrics]]:
    """Normalised observations by behavior, V and b of the whole team [T, B, A, R], and means of both by behavior."""
    obs = {name: normalizer.normalize_all(states[name].policy.normalizer, of.obs) for name, of in rollouts.items()}
    params = {name: groups_of(kind.parts, states[name]) for name, kind in kinds.items()}
    seen = {name: Seen(obs[name], of.action, of.present, of.carry) for name, of in rollouts.items()}
    judge = partial(_judged, kinds, params, own=states[next(iter(kinds))].own)
    first = next(iter(kinds.values())).parts
    settings = first.settings  # whose order of signals is that of the estimates
    value, baseline = of_states(judge, (seen,), team, first.chunk, team.present.shape[-1])
    metrics: dict[str, Metrics] = {name: {} for name in kinds}
    for tag, found in (("value_estimate", value), ("baseline_estimate", baseline)):
        for name, own in of_kinds(found, rollouts).items() if found is not None else ():
            metrics[name] |= by_stream(tag, own, rollouts[name], settings)
    return obs, value, baseline, metrics


def losses_of(
    kinds: Mapping[str, Kind], params: dict[str, Groups], chunk: dict[str, Batch], now: dict[str, Now]
) -> dict[str, tuple[jax.Array, Metrics]]:
    """The loss of each behavior over its own members, of what the team's critic estimates."""
    chunk = {name: chunk[name] for name in kinds}  # what JAX gives back is in the order of the alphabet
    seen = {name: batch.seen for name, batch in chunk.items()}
    value, baseline = _judged(kinds, params, seen, own=now[next(iter(kinds))].own)
    values, baselines = of_kinds(value, chunk), None if baseline is None else of_kinds(baseline, chunk)
    found = {}
    for name, kind in kinds.items():
        assert isinstance(kind.parts.loss, Judged)
        against = None if baselines is None else baselines[name]
        found[name] = kind.parts.loss.terms(params[name], chunk[name], now[name], values[name], against)
    return found


def _judged(
    kinds: Mapping[str, Kind], params: Mapping[str, Groups], seen: Mapping[str, Seen], *, own: Any
) -> tuple[jax.Array, jax.Array | None]:
    """V and b of the whole team, [..., A, R]."""
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
    """The memory of each kind after a decision of the team, that of its critic too; arguments in order."""
    seen, params = {}, {}
    for name, policy, shown, there, made in zip(parts, policies, obs, present, decided, strict=True):
        seen[name] = Seen(normalizer.normalize_all(policy.normalizer, shown), made.action, there, made.carry)
        params[name] = {"critic": policy.critic}
    first = next(iter(parts.values()))
    assert first.shared is not None
    after = of_kinds(first.shared.judge(parts, params, seen, first.own)[-1], seen)
    return [{**made.carry, "critic": after[name]} for name, made in zip(parts, decided, strict=True)]


def whole(rollouts: Mapping[str, Rollout]) -> Rollout:
    """The rows with the members of all kinds, [T, B, A]: who is there, what was earned and how it ended.

    `rollouts` in order. Nothing of what was seen or done, which each kind has for itself: those fields are empty.
    """
    own = ("obs", "carry", "action_mask", "action", "extras", "between")
    fields = [field for field in Rollout._fields if field not in own]  # in order: a set's is another in every process
    beside = {field: _beside(getattr(of, field) for of in rollouts.values()) for field in fields}
    between = next(iter(rollouts.values())).between
    return Rollout(obs=(), carry=(), action_mask=(), action=(), extras={}, between=between, **beside)  # pyright: ignore


def of_kinds(x: jax.Array, rollouts: Mapping[str, Any]) -> dict[str, jax.Array]:
    """What is of the whole team, [..., A] or [..., A, R], by kind; `rollouts` (or batches), in order, say how many."""
    axis, found, first = next(iter(rollouts.values())).present.ndim - 1, {}, 0
    for name, of in rollouts.items():
        found[name] = jax.lax.slice_in_dim(x, first, first := first + of.present.shape[-1], axis=axis)
    return found


def _beside(arrays: Any) -> jax.Array:
    return jnp.concatenate(list(arrays), axis=-1)
