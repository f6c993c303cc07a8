"""Run the updates that follow a rollout, and log them. The letters are those of `iteration.py`.

Each behavior learns separately, or with its team; non-finite numbers of one seed only stop that seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl import mesh
from jaxrl.algorithms.interface import Algorithm, Counts, Metrics, TrainState, replays, store_rollout
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.artifacts.metrics.statistics import tag_of
from jaxrl.jax_envs.interface import TeamView
from jaxrl.masks import select
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.compiled import connectors
from jaxrl.training.compiled.collect import from_before, still_open
from jaxrl.training.compiled.plan import Learner
from jaxrl.training.compiled.play import Made, Play, Transitions, remembered
from jaxrl.training.compiled.recent_returns import counted as with_recent
from jaxrl.training.compiled.recent_returns import newest
from jaxrl.training.compiled.stacking import Moments, figures, first_fault, moments, stack, stack_team, teams_over
from jaxrl.training.compiled.state import IterationLog, JittedState
from jaxrl.training.signal_rewards import episode_sums, paid_by_decision

EVERY_SEED = "every seed"
"""Name of the axis over which learners are mapped side by side."""

METRIC, PARAMETERS = 2, 3
"""Kinds of `fault_of` beside those of `stacking.first_fault`."""

States = dict[str, JittedState]

Logs = dict[str, IterationLog]

Learners = Mapping[str, Learner]
"""Learners of behaviors that learn together: of a team, or a single one."""


def learned(
    learners: Learners,
    team: TeamAlgorithm | None,
    states: States,
    met: Mapping[str, Met],
    steps: Mapping[str, Transitions],
    complete: Array | None = None,
) -> tuple[States, Logs]:
    """Run the updates that follow `steps` [S, T, ...], of learners as returned by `connected`.

    `complete`: bool [S], seeds whose steps are a whole rollout; other seeds wait. None: all seeds.
    """
    inputs = {
        name: Given(
            values=states[name].values,
            train=met[name].train,
            store=states[name].store,
            fresh=states[name].fresh,
            frozen=states[name].frozen if complete is None else states[name].frozen | ~complete,
            steps=steps[name],
            made=met[name].play.made,
            last=(met[name].last, remembered(met[name].play)),
            iteration=states[name].iteration,
            last_step=states[name].last_step,
            paid=states[name].paid,
        )
        for name in learners
    }
    learn, first = partial(_learn, learners, team), next(iter(learners.values()))
    results = jax.vmap(learn, axis_name=EVERY_SEED)(inputs) if _at_once(first.algorithm) else jax.lax.map(learn, inputs)
    sizes = {name: learner.env for name, learner in learners.items()}
    over = jax.vmap(partial(teams_over, sizes))(dict(steps))
    new_states, logs = {}, {}
    for name, learner in learners.items():
        (train, store, fresh, log, paid), state, chain = results[name], states[name], learner.algorithm.connectors
        frozen = state.frozen | (log.fault[:, 0] >= 0)  # connectors' statistics of a frozen seed do not change either
        before = connectors.with_statistics(chain, (), state.train.policy)
        train = connectors.statistics_of(chain, train, before, frozen)
        last = jax.vmap(partial(newest, learner.newest))(steps[name], over) if learner.newest else ()
        play = met[name].play
        still = jax.vmap(still_open)(play.made, steps[name])
        if complete is not None:
            last = jax.tree.map(lambda x: select(complete, x, jnp.zeros_like(x)), last)
            still = jax.tree.map(partial(select, complete), still, play.made)
        play = play._replace(made=still)
        state = state.replace(train=train, store=store, fresh=fresh, play=play, frozen=frozen, newest=last, paid=paid)
        recent = with_recent(state.recent, log.episodes)
        new_states[name] = state.replace(iteration=state.iteration + 1, recent=recent)
        logs[name] = log
    return new_states, logs


class Met(NamedTuple):
    """Train state, play and last view of one behavior after its steps, as its connectors return them."""

    train: TrainState
    play: Play
    last: TeamView  # after the last step, as policies will see it


def unpassed(learners: Learners, of: Mapping[str, Given | JittedState]) -> Array:
    """Return whether any of the learners has not passed its last trainer step yet; a team goes on together."""
    last = {name: learner.max_steps if learner.alone else of[name].last_step for name, learner in learners.items()}
    return _any(of[name].train.step <= step for name, step in last.items())


class Given(NamedTuple):
    """Inputs of one seed's update of one behavior; fields as in `JittedState`."""

    values: dict[str, Array]
    train: TrainState
    store: Any
    fresh: Array
    frozen: Array  # also True if its rollout is not complete
    steps: Transitions  # [T, E, A, ...]
    made: Made  # decisions that were pending before the steps
    last: tuple[TeamView, Any]  # view and memory after the steps
    iteration: Array
    last_step: Any
    paid: Any


Learnt = tuple[TrainState, Any, Array, IterationLog, Any]
"""Result of an update: train, store, fresh, log, paid."""


def _learn(learners: Learners, team: TeamAlgorithm | None, given: Mapping[str, Given]) -> dict[str, Learnt]:
    """Update one seed if the algorithm is ready for it; a team if it is for one of its behaviors.

    Once the seed has passed max_steps, with all behaviors of its team, nothing is stored any more, as the host loop
    ends there. If a number is not finite, the seed and its team stay as before this iteration, whose log then only has
    the fault. The returned `paid` is that after the steps.
    """
    given = {name: given[name]._replace(steps=from_before(given[name].made, given[name].steps)) for name in learners}
    algorithms = {name: of_values(learner, given[name].values) for name, learner in learners.items()}
    rollouts = _stacked(learners, given)
    frozen = _any(of.frozen for of in given.values())
    seen = {name: first_fault(of.steps, of.last[0]) for name, of in given.items()}
    active, sighted = ~frozen & unpassed(learners, given), ~_any(fault[0] >= 0 for fault in seen.values())
    told, counted, stores, fresh, ready = {}, {}, {}, {}, []
    for name, of in given.items():
        algorithm = algorithms[name]
        told[name] = _paid(algorithm, of.train, rollouts[name], of.paid)
        counted[name], stores[name] = store_rollout(algorithm, of.train, of.store, rollouts[name], active & sighted)
        fresh[name] = of.fresh + counted[name].step - of.train.step
        ready.append(algorithm.storage.can_sample(stores[name], Counts(fresh=fresh[name], total=counted[name].step)))
    due = active & _any(ready)
    if team is not None:
        learned, metrics = team.learn(counted, stores)
    else:
        ((name, learner),) = learners.items()
        train, found = _where_due(learner, algorithms[name], due, counted[name], stores[name])
        learned, metrics = {name: train}, {name: found}
    faults = {n: jnp.where(frozen, -1, fault_of(seen[n], due, metrics[n], learned[n])) for n in learners}
    first = reduce(lambda found, other: jnp.where(found[0] >= 0, found, other), faults.values())
    sound = ~frozen & (first[0] < 0)
    active, due = active & sound, due & sound
    sizes, after = {name: learner.env for name, learner in learners.items()}, {}
    over = teams_over(sizes, {name: of.steps for name, of in given.items()})
    for name, (learner, of) in {name: (learners[name], given[name]) for name in learners}.items():
        tags, so_far = told[name]
        episodes = figures(learner.env, of.steps, over)
        episodes = episodes._replace(stats={**episodes.stats, **tags})
        fault = jnp.where(faults[name][:1] < 0, first, faults[name])
        log = IterationLog(
            updates=due.astype(jnp.int32),
            metric_sums={tag: jnp.where(due, value, 0.0) for tag, value in metrics[name].items()},
            episodes=jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), episodes),
            fault=jnp.concatenate([jnp.where(fault[:1] < 0, -1, of.iteration.astype(jnp.int32)[None]), fault]),
        )
        both = (learned[name], jnp.zeros_like(fresh[name])), (counted[name], fresh[name])
        now = jax.tree.map(partial(jnp.where, due), *both)
        train, count = jax.tree.map(partial(jnp.where, active), now, (of.train, of.fresh))
        if not learner.alone:  # decisions still count
            train = train.replace(step=jnp.where(sound, counted[name].step, train.step))
        so_far = jax.tree.map(partial(jnp.where, sound), so_far, of.paid)
        after[name] = train, algorithms[name].storage.kept(stores[name]), count, log, so_far
    return after


def of_values(learner: Learner, values: dict[str, Array]) -> Algorithm:
    """Return the algorithm with a seed's own settings."""
    algorithm = learner.algorithm
    if values and algorithm.with_traced_settings is not None:
        traced = algorithm.with_traced_settings(values)  # its other fields may have been replaced in `algorithm`
        storage = algorithm.storage._replace(can_sample=traced.storage.can_sample)
        algorithm = algorithm._replace(
            learn=traced.learn, signal_rewards=traced.signal_rewards, watch=traced.watch, storage=storage
        )
    return algorithm if learner.alone else met_somebody(algorithm)


def met_somebody(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm without updates for a behavior that has no new decisions, as it was absent."""
    due = algorithm.storage.can_sample
    storage = algorithm.storage._replace(can_sample=lambda store, counts: due(store, counts) & (counts.fresh > 0))
    return algorithm._replace(storage=storage)


def _stacked(learners: Learners, given: Mapping[str, Given]) -> dict[str, Rollout]:
    """Make one seed's rollouts; those of several behaviors have the rows of their team."""
    horizon = next(iter(learners.values())).time_horizon
    if len(learners) > 1:
        steps = {name: part.steps for name, part in given.items()}
        last, memory = ({name: part.last[i] for name, part in given.items()} for i in range(2))
        sizes = {name: learner.env for name, learner in learners.items()}
        return stack_team(sizes, steps, last, memory, time_horizon=horizon)
    ((name, learner),) = learners.items()
    rows, part = learner.algorithm.team_rows, given[name]
    return {name: stack(learner.env, part.steps, *part.last, team_rows=rows, time_horizon=horizon)}


def _any(flags: Iterable[Any]) -> Any:
    """Return whether any flag holds; a single one is returned unchanged."""
    return reduce(lambda some, more: some | more, flags)


def _paid(algorithm: Algorithm, train: TrainState, rollout: Rollout, before: Any) -> tuple[dict[str, Moments], Any]:
    """Compute, by tag, moments of signals' sums over the episodes that ended in a rollout; and the open ones' sums."""
    if algorithm.signal_rewards is None:
        return {}, before
    paid = paid_by_decision(rollout, algorithm.signal_rewards.of(train, rollout))
    sums, so_far = episode_sums(before, paid)
    return {tag_of(f"reward/{name}"): moments(x, paid.over) for name, x in sums.items()}, so_far


def _at_once(algorithm: Algorithm) -> bool:
    """Return whether all seeds learn side by side.

    On a CPU one after the other is faster and takes less memory, unless a replay would be copied out and back by seed.
    """
    return mesh.on_accelerator() or replays(algorithm)


def _where_due(
    learner: Learner, algorithm: Algorithm, due: Array, state: TrainState, store: Any
) -> tuple[TrainState, Metrics]:
    """Run `learn` of one seed; with a replay, or by turns, only if an update is due for some seed."""
    if not replays(algorithm) and not learner.by_turns:
        return algorithm.learn(state, store)
    _, metrics = jax.eval_shape(algorithm.learn, state, store)

    def wait() -> tuple[TrainState, Metrics]:
        return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

    somewhere = jax.lax.pmax(due.astype(jnp.int32), EVERY_SEED) > 0 if _at_once(algorithm) else due
    return jax.lax.cond(somewhere, lambda: algorithm.learn(state, store), wait)


def fault_of(seen: Array, due: Array, metrics: Metrics, learned: TrainState) -> Array:
    """Return the first non-finite number of one seed's iteration, int32 [3]; -1 if all were finite.

    The environment's numbers come first, as in `first_fault` (`seen`, kinds 0 and 1). Else, of an update that was due,
    a metric: (its place among the sorted names, 0 nan or 1 inf or 2 -inf, 2), or the parameters: (0, 0, 3).
    """
    values = jnp.stack([metrics[name] for name in sorted(metrics)])
    bad = ~jnp.isfinite(values)
    at = jnp.argmax(bad)
    which = jnp.where(jnp.isnan(values[at]), 0, jnp.where(values[at] > 0, 1, 2))
    of_metric = jnp.stack([at, which, jnp.full_like(at, METRIC)])
    leaves = [x for x in jax.tree.leaves((learned.policy, learned.critic)) if jnp.issubdtype(x.dtype, jnp.inexact)]
    whole = jnp.stack([jnp.isfinite(x).all() for x in leaves]).all()
    of_learner = jnp.where(bad.any(), of_metric, jnp.where(whole, -1, jnp.array([0, 0, PARAMETERS])))
    return jnp.where(seen[0] >= 0, seen, jnp.where(due, of_learner, -1)).astype(jnp.int32)
