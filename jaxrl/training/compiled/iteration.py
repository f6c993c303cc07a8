"""One iteration of the loop inside jit, for all seeds at once: T decisions in every area, one update.

Pure functions; `trainer.py` compiles them and spreads them over devices. The letters are those of `jaxrl.types`,
with S seeds, E areas per seed and K teams per area.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxrl.algorithms.interface import (
    Algorithm,
    Counts,
    Metrics,
    TrainState,
    acting,
    nothing_remembered,
    replays,
    store_rollout,
)
from jaxrl.jax_envs.interface import JaxEnv, TeamView
from jaxrl.jax_envs.sampling import Distribution, Value
from jaxrl.training.compiled import connecting
from jaxrl.training.compiled.collect import (
    Made,
    Play,
    Transitions,
    begins,
    collect,
    from_before,
    none_made,
    remembered,
    start_anew,
    start_play,
    still_open,
)
from jaxrl.training.compiled.newest import newest, nothing
from jaxrl.training.compiled.recent import Recent, none_yet
from jaxrl.training.compiled.recent import counted as with_recent
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments, figures, first_fault, stack, together

EVERY_SEED = "every seed"
"""Name of the axis over which learners are mapped side by side."""
METRIC, PARAMETERS = 2, 3
"""Kinds of `fault_of` beside those of `stacking.first_fault`."""


class JittedState(struct.PyTreeNode):
    """Everything that a run continues from. Every array has the leading axis S."""

    train: TrainState
    store: Any  # what the algorithm keeps from one iteration to the next; () on-policy
    fresh: Array  # int32 [S], decisions that the store was given since the last update
    play: Play  # [S, E, ...]
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin
    values: dict[str, Array]  # settings in which seeds differ, float32 [S], by dotted key
    key: Array  # typed key [S], never consumed: iteration n draws from fold_in(key, n)
    iteration: Array  # uint32 [S]
    frozen: Array  # bool [S], numbers of this seed were not finite: it plays on, but learns and tells nothing any more
    recent: Recent  # what each seed is worth lately
    newest: Any = ()  # `Newest` [S] of the last iteration, where lessons are judged by episodes


class IterationLog(NamedTuple):
    """What one or several iterations of `JittedTrainer.run` have brought. Every array has the leading axis S."""

    updates: Array  # int32 [S], iterations in which the seed learned: it was due, and max_steps not passed yet
    metric_sums: Metrics  # float32 [S] by name, over these updates
    episodes: EpisodeFigures
    fault: Array  # int32 [S, 4]: iteration, and what was not finite in it, as in `fault_of`; or -1

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """By name each metric's mean over the updates, float64 [S]; NaN for a seed that made none."""
        with np.errstate(invalid="ignore"):
            return {
                name: np.asarray(total, np.float64) / np.asarray(self.updates)
                for name, total in self.metric_sums.items()
            }

    def metric(self, name: str) -> np.ndarray:
        """One of `metrics`."""
        return self.metrics[name]

    @property
    def group_reward(self) -> np.ndarray:
        """Mean return of the team episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.group_reward)

    @property
    def reward(self) -> np.ndarray:
        """Mean return of the agent episodes that ended, float64 [S]; NaN where none did."""
        return _mean(self.episodes.reward)


class JittedTrainer(NamedTuple):
    """Two compiled functions and the sizes that they are compiled for.

    init: (seeds, S whole numbers) → JittedState, a fresh start of every seed.
    run:  (JittedState, count) → (JittedState, IterationLog), `count` iterations; the state given is used up.
    place: (JittedState) → JittedState, a state from elsewhere (a checkpoint) put where `run` expects it.
    save: (JittedState, path, keep=0) → folder of the checkpoint, written below `path`; see `kept.save`.
    restore: (path) → JittedState, which goes on bit for bit where `save` was called; see `kept.restore`.
    take: (JittedState, first, count) → JittedState of `count` of its seeds, from number `first` on.
    put:  (JittedState, JittedState of some seeds, first) → JittedState, in which these are from number `first` on.
    begin_anew: (JittedState, bool [S]) → JittedState, in which all episodes of these seeds are broken off and others
      begin.
    """

    init: Callable[[Sequence[int]], JittedState]
    run: Callable[[JittedState, int], tuple[JittedState, IterationLog]]
    place: Callable[[JittedState], JittedState]
    save: Callable[..., Path]
    restore: Callable[[str | Path], JittedState]
    take: Callable[[JittedState, int, int], JittedState]
    put: Callable[[JittedState, JittedState, int], JittedState]
    begin_anew: Callable[[JittedState, np.ndarray], JittedState]
    seeds: int  # S
    areas: int  # E
    steps: int  # T, decisions in each area per iteration
    agents: int  # of one area, at most
    devices: int
    bytes: int  # memory that a run takes on each device


class Plan(NamedTuple):
    """What an iteration is bound to."""

    env: JaxEnv
    algorithm: Algorithm
    parameters: Mapping[str, Any]  # of the environment at the start: numbers, arrays [S] or distributions [S]
    areas: int  # E
    steps: int  # T
    time_horizon: int
    max_steps: int  # agent steps after which a seed learns no more
    side_by_side: bool = False  # seeds learn at once; on a CPU core one after the other is faster, and takes less room
    values: Mapping[str, Any] = {}  # settings in which seeds differ, float [S] by dotted key
    newest: int = 0  # episodes of each iteration that are told one by one, at most
    goes_on: bool = False  # other behaviors learn on: after max_steps decisions still count


def start(plan: Plan, numbers: Array) -> JittedState:
    """A fresh start of each seed in `numbers`, uint32 [S]. What a seed does depends on its number alone."""
    keys = jax.vmap(lambda number: jax.random.split(jax.random.key(number), 3))(numbers)  # [S, 3]
    parameters = of_each_seed(plan.parameters, numbers)
    play = start_play(
        plan.env,
        nothing_remembered(plan.algorithm),
        keys[:, 1],
        plan.areas,
        parameters,
        plan.algorithm.connectors,
    )
    return start_learners(plan, keys[:, 0], keys[:, 2], play, parameters)


def start_learners(plan: Plan, init_keys: Array, keys: Array, play: Play, parameters: dict[str, Value]) -> JittedState:
    """A fresh learner for each seed beside the areas that it begins with. Both keys [S] are consumed."""
    store, train = plan.algorithm.storage.init(), jax.vmap(plan.algorithm.init)(init_keys)
    made = none_made(plan.env, plan.algorithm, acting(plan.algorithm, train), play, keys)
    return JittedState(
        train=train,
        store=jax.tree.map(lambda x: jnp.broadcast_to(x, (*keys.shape, *x.shape)), store),
        fresh=jnp.zeros(keys.shape, jnp.int32),
        play=play._replace(made=made),
        parameters=parameters,
        values={key: for_each(value, keys) for key, value in plan.values.items()},
        key=keys,
        iteration=jnp.zeros(keys.shape, jnp.uint32),
        frozen=jnp.zeros(keys.shape, bool),
        recent=none_yet(len(keys)),
        newest=nothing(plan.newest, len(keys)) if plan.newest else (),
    )


def begin_anew(plan: Plan, state: JittedState, which: Array) -> JittedState:
    """All episodes of the seeds of which `which` [S] is True are broken off, and others begin."""
    carry, chain = nothing_remembered(plan.algorithm), plan.algorithm.connectors
    return state.replace(play=start_anew(plan.env, carry, state.play, which, state.parameters, chain))


def of_each_seed(parameters: Mapping[str, Any], numbers: Array) -> dict[str, Value]:
    """Of the environment: a number becomes one for each seed [S], distributions are that already."""
    return {
        name: jax.tree.map(jnp.asarray, value) if isinstance(value, Distribution) else for_each(value, numbers)
        for name, value in parameters.items()
    }


def for_each(value: Any, numbers: Array, dtype: Any = jnp.float32) -> Array:
    """The same number for each seed, or one for each: [S]."""
    return jnp.broadcast_to(jnp.asarray(value, dtype), numbers.shape)


def step_of(state: JittedState, seeds: slice = slice(None)) -> int:
    """Trainer step of the slowest of some seeds that still learns; of the slowest of all of them where none does."""
    steps, frozen = np.asarray(state.train.step)[seeds], np.asarray(state.frozen)[seeds]
    return int(steps.min() if frozen.all() else steps[~frozen].min())


def iterate(plan: Plan, state: JittedState) -> tuple[JittedState, IterationLog]:
    """T decisions in each area of each seed, then one update of each seed for which it is due."""
    keys = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(key, n), plan.steps))(state.key, state.iteration)
    policy, keys = acting(plan.algorithm, state.train), jnp.swapaxes(keys, 0, 1)
    play, steps = collect(plan.env, plan.algorithm, policy, state.play, keys, state.parameters)
    train, play, last = connected(plan, state.train, play)
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
    return learned(plan, state, train, play, steps, last)


def learned(
    plan: Plan, state: JittedState, train: TrainState, play: Play, steps: Transitions, last: TeamView
) -> tuple[JittedState, IterationLog]:
    """The updates that follow `steps` [S, T, ...]: of `train`, as `connected` has left it. `last` is the view after."""
    arguments = (
        state.values,
        train,
        state.store,
        state.fresh,
        state.frozen,
        steps,
        play.made,
        (last, remembered(play)),
        state.iteration,
    )
    learn = partial(_learn, plan)
    if plan.side_by_side or replays(plan.algorithm):  # one after the other would take each seed's store out, and back
        train, store, fresh, log = jax.vmap(learn, axis_name=EVERY_SEED)(*arguments)
    else:
        train, store, fresh, log = jax.lax.map(lambda x: learn(*x), arguments)
    frozen = state.frozen | (log.fault[:, 0] >= 0)
    chain = plan.algorithm.connectors  # whose statistics of a frozen seed stay as well
    train = connecting.statistics_of(chain, train, connecting.with_statistics(chain, (), state.train.policy), frozen)
    told = jax.vmap(partial(newest, plan.env, plan.newest))(steps) if plan.newest else ()
    play = play._replace(made=jax.vmap(still_open)(play.made, steps))
    after = state.replace(train=train, store=store, fresh=fresh, play=play, frozen=frozen, newest=told)
    return after.replace(iteration=state.iteration + 1, recent=with_recent(state.recent, log.episodes)), log


def connected(plan: Plan, train: TrainState, play: Play) -> tuple[TrainState, Play, TeamView]:
    """Statistics of the connectors go back to the learners; and the view after the last step, as policies will see it.

    Those of a seed that has passed max_steps stay as they were, like everything that it has learned.
    """
    chain = plan.algorithm.connectors
    _, last = connecting.observed(chain, play.connectors, play.view, begins(play))
    train = connecting.statistics_of(chain, train, play.connectors, train.step <= plan.max_steps)
    return train, play if chain is None else play._replace(connectors=play.connectors.slots), last


def iterate_several(plan: Plan, state: JittedState, count: Array) -> tuple[JittedState, IterationLog]:
    """`count` iterations, a traced number: chunks of every length are one program."""

    def body(_: Array, carry: tuple[JittedState, IterationLog]) -> tuple[JittedState, IterationLog]:
        state, total = carry
        state, log = iterate(plan, state)
        return state, add_log(total, log)

    _, shapes = jax.eval_shape(partial(iterate, plan), state)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, empty._replace(fault=empty.fault - 1)))


def add_log(total: IterationLog, log: IterationLog) -> IterationLog:
    """Both together, with the first fault."""
    fault = jnp.where(total.fault[:, :1] < 0, log.fault, total.fault)
    return together(total, log)._replace(fault=fault)


def _learn(
    plan: Plan,
    values: dict[str, Array],
    train: TrainState,
    store: Any,
    fresh: Array,
    frozen: Array,
    steps: Transitions,
    made: Made,
    last: tuple[TeamView, Any],
    iteration: Array,
) -> tuple[TrainState, Any, Array, IterationLog]:
    """The update of one seed where the algorithm is ready for it.

    Once the seed has passed max_steps nothing is kept any more, as the host loop ends there. Where a number is not
    finite the seed stays as it was before this iteration, and nothing of the iteration is told but the fault. `made`
    are decisions that were open before the steps; `last` is what was seen after them, and what was remembered.
    """
    steps = from_before(made, steps)
    varied = plan.algorithm.varied
    algorithm = plan.algorithm
    if values and varied is not None:
        algorithm = algorithm._replace(learn=varied(values).learn)  # all else may have been replaced
    rollout = stack(plan.env, steps, *last, team_rows=algorithm.team_rows, time_horizon=plan.time_horizon)
    active, seen = ~frozen & (train.step <= plan.max_steps), first_fault(steps, last[0])
    counted, store = store_rollout(algorithm, train, store, rollout, active & (seen[0] < 0))
    given = fresh + counted.step - train.step
    due = active & algorithm.storage.can_sample(store, Counts(fresh=given, total=counted.step))
    learned, metrics = _where_due(algorithm, due, counted, store)
    fault = jnp.where(frozen, -1, fault_of(seen, due, metrics, learned))
    sound = ~frozen & (fault[0] < 0)
    active, due = active & sound, due & sound
    log = IterationLog(
        updates=due.astype(jnp.int32),
        metric_sums={name: jnp.where(due, value, 0.0) for name, value in metrics.items()},
        episodes=jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), figures(plan.env, steps)),
        fault=jnp.concatenate([jnp.where(fault[:1] < 0, -1, iteration.astype(jnp.int32)[None]), fault]),
    )
    after = jax.tree.map(partial(jnp.where, due), (learned, jnp.zeros_like(given)), (counted, given))
    train, fresh = jax.tree.map(partial(jnp.where, active), after, (train, fresh))
    if plan.goes_on:
        train = train.replace(step=jnp.where(sound, counted.step, train.step))
    return train, algorithm.storage.kept(store), fresh, log


def _where_due(algorithm: Algorithm, due: Array, state: TrainState, store: Any) -> tuple[TrainState, Metrics]:
    """`learn` of one seed. With a store that goes on it is computed only where it is due for some seed."""
    if not replays(algorithm):
        return algorithm.learn(state, store)
    _, metrics = jax.eval_shape(algorithm.learn, state, store)

    def wait() -> tuple[TrainState, Metrics]:
        return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

    somewhere = jax.lax.pmax(due.astype(jnp.int32), EVERY_SEED) > 0
    return jax.lax.cond(somewhere, lambda: algorithm.learn(state, store), wait)


def fault_of(seen: Array, due: Array, metrics: Metrics, learned: TrainState) -> Array:
    """int32 [3]: what of one seed's iteration was not finite first, -1 where everything was.

    The environment's numbers as `first_fault` tells them (`seen`, kinds 0 and 1). Else, of an update that was due, a
    metric: (its place among the sorted names, 0 nan or 1 inf or 2 -inf, 2), or the parameters: (0, 0, 3).
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


def _mean(moments: Moments) -> np.ndarray:
    return np.where(np.asarray(moments.count) > 0, np.asarray(moments.mean, np.float64), np.nan)
