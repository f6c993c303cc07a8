"""One iteration of the loop inside jit, for all seeds at once: T decisions in every area, and the updates that are due.

Each behavior learns for itself and has a rollout of its own length: `every` iterations of T decisions. What it has met
is kept until then. The first behavior draws as it would alone, so that it learns bit for bit what it does in a `JaxEnv`
of its own, which is a scene of one behavior.

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
    replays,
    store_rollout,
)
from jaxrl.artifacts.metrics.statistics import ELO
from jaxrl.artifacts.metrics.tags import tag_of
from jaxrl.jax_envs.interface import Areas, TeamView
from jaxrl.jax_envs.sampling import Distribution, Value
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.compiled import connectors, opponents
from jaxrl.training.compiled.collect import (
    Made,
    Play,
    Transitions,
    World,
    begins,
    collect,
    from_before,
    none_made,
    remembered,
    start_anew,
    start_play,
    still_open,
)
from jaxrl.training.compiled.contest import TURN, rivals_of
from jaxrl.training.compiled.newest_episodes import newest, nothing
from jaxrl.training.compiled.opponents import Rivals, RivalState
from jaxrl.training.compiled.recent_returns import RecentReturns, none_yet
from jaxrl.training.compiled.recent_returns import counted as with_recent
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments, figures, first_fault, moments, stack, together
from jaxrl.training.signal_rewards import episode_sums, paid_by_decision

EVERY_SEED = "every seed"
"""Name of the axis over which learners are mapped side by side."""
_RIVALS = 2**31 - 2
"""What is drawn for rivals, apart from iterations."""
METRIC, PARAMETERS = 2, 3
"""Kinds of `fault_of` beside those of `stacking.first_fault`."""


class JittedState(struct.PyTreeNode):
    """What the training of one behavior continues from. Every array has the leading axis S."""

    train: TrainState
    store: Any  # what the algorithm keeps from one iteration to the next; () on-policy; `Pending` of a longer rollout
    fresh: Array  # int32 [S], decisions that the store was given since the last update
    play: Play  # [S, E, ...]
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin
    values: dict[str, Array]  # settings in which seeds differ, float32 [S], by dotted key
    key: Array  # typed key [S], never consumed: iteration n draws from fold_in(key, n)
    iteration: Array  # uint32 [S]
    frozen: Array  # bool [S], numbers of this seed were not finite: it plays on, but learns and tells nothing any more
    recent: RecentReturns  # what each seed is worth lately
    newest: Any = ()  # `NewestEpisodes` [S] of the last iteration, where lessons are judged by episodes
    last_step: Any = ()  # int32 [S], the trainer step after which it learns no more, where others then go on; else ()
    rivals: Any = ()  # `RivalState` where it learns by self-play; else ()
    paid: Any = ()  # float32 [S, B, A] by signal, what episodes under way were paid; () where nothing is added up


class Pending(struct.PyTreeNode):
    """`JittedState.store` of a behavior whose rollout is longer than an iteration."""

    own: Any  # what the algorithm keeps
    steps: Transitions  # [S, `every` * T, ...], filled from the front


def stored(state: JittedState) -> Any:
    """What the algorithm keeps, without what it has not been given yet."""
    return state.store.own if isinstance(state.store, Pending) else state.store


def with_stored(state: JittedState, own: Any) -> JittedState:
    """The state in which the algorithm keeps this."""
    return state.replace(store=state.store.replace(own=own) if isinstance(state.store, Pending) else own)


class SceneState(struct.PyTreeNode):
    """Everything that a run continues from. Every array has the leading axis S."""

    areas: Areas  # [S, E]
    parts: dict[str, JittedState]  # by behavior; without areas and parameters, which are everybody's
    parameters: dict[str, Value]  # of the environment, float32 [S] or a distribution [S]: for episodes that begin

    def of(self, name: str) -> JittedState:
        """One behavior's state with the areas: what its checkpoint holds."""
        part = self.parts[name]
        return part.replace(play=part.play._replace(areas=self.areas), parameters=self.parameters)

    @staticmethod
    def made_of(states: Mapping[str, JittedState]) -> SceneState:
        """The whole of what `of` tells of each behavior."""
        first = next(iter(states.values()))
        parts = {name: of.replace(play=of.play._replace(areas=()), parameters={}) for name, of in states.items()}
        return SceneState(first.play.areas, parts, first.parameters)

    @property
    def world(self) -> World:
        """Where all behaviors stand."""
        plays = {name: part.play for name, part in self.parts.items()}
        return self.areas, plays | {rivals_of(name): of.play for name, of in self.rivals.items()}

    @property
    def rivals(self) -> dict[str, RivalState]:
        """By behavior that learns by self-play."""
        return {name: part.rivals for name, part in self.parts.items() if isinstance(part.rivals, RivalState)}

    @property
    def episodes(self) -> dict[str, Value]:
        """`parameters`, with whose turn it is to learn."""
        turn = next((of.turn for of in self.rivals.values()), None)  # the same of all
        return self.parameters if turn is None else {**self.parameters, TURN: turn.astype(jnp.float32)}


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


class Report(NamedTuple):
    """All that the host reads of a behavior after some iterations, as numpy arrays with the leading axis S."""

    step: Any  # int32 [S], of the trainer
    frozen: Any  # bool [S]
    iteration: Any  # uint32 [S]
    values: Any  # float32 [S] by dotted key
    recent: RecentReturns
    newest: Any  # `NewestEpisodes` of the last iteration, or ()
    log: Any = ()  # `IterationLog` of these iterations; () before any

    def slowest(self) -> int:
        """Step of the slowest seed that still learns; of the slowest of all where none does."""
        return int(self.step.min() if self.frozen.all() else self.step[~self.frozen].min())


class JittedTrainer(NamedTuple):
    """Two compiled functions and the sizes that they are compiled for, of one behavior.

    init: (seeds, S whole numbers) → JittedState, a fresh start of every seed.
    run:  (JittedState, count) → (JittedState, IterationLog), `count` iterations; the state given is used up.
    place: (JittedState) → JittedState, a state from elsewhere (a checkpoint) put where `run` expects it.
    save: (JittedState, path, keep=0) → folder of the checkpoint, written below `path`; see `trainer_checkpoint.save`.
    restore: (path) → JittedState, which goes on bit for bit where `save` was called; see `trainer_checkpoint.restore`.
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


class SceneTrainer(NamedTuple):
    """As `JittedTrainer`, with a `SceneState`, a log for each behavior, and some numbers by behavior."""

    init: Callable[[Sequence[int]], SceneState]
    run: Callable[[SceneState, int], tuple[SceneState, dict[str, IterationLog]]]
    place: Callable[[SceneState], SceneState]
    take: Callable[[SceneState, int, int], SceneState]
    put: Callable[[SceneState, SceneState, int], SceneState]
    begin_anew: Callable[[SceneState, np.ndarray], SceneState]
    read: Callable[[Any], Any]  # arrays of it, which may lie on other hosts too → as numpy arrays; every host asks
    here: Callable[[SceneState], SceneState]  # as arrays of this process alone, where there are other hosts; each asks
    report: Callable[..., dict[str, Report]]  # (SceneState, logs = {}) → by behavior all that is read between chunks
    seeds: int
    areas: int
    steps: int
    every: Mapping[str, int]  # iterations from one update to the next
    agents: Mapping[str, int]
    algorithms: Mapping[str, Algorithm]
    devices: int
    bytes: int
    shapes: SceneState  # of a state, as `jax.eval_shape` tells them


class Learner(NamedTuple):
    """What one behavior's learning is bound to."""

    env: Sizes
    algorithm: Algorithm
    time_horizon: int
    max_steps: int  # agent steps after which a seed learns no more
    values: Mapping[str, Any] = {}  # settings in which seeds differ, float [S] by dotted key
    newest: int = 0  # episodes of each rollout that are told one by one, at most
    every: int = 1  # iterations from one update to the next
    side_by_side: bool = False  # seeds learn at once; on a CPU core one after the other is faster, and takes less room
    alone: bool = True  # no other behavior goes on to learn once this one is done
    by_turns: bool = False  # there are iterations in which nothing is met, because another behavior learns


class Plan(NamedTuple):
    """What an iteration is bound to."""

    scene: JaxScene
    learners: Mapping[str, Learner]  # by behavior, in the order of the scene
    parameters: Mapping[str, Any]  # of the environment at the start: numbers, arrays [S] or distributions [S]
    areas: int  # E
    steps: int  # T
    rivals: Mapping[str, Rivals] = {}  # by behavior that learns by self-play

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """By behavior, of those too that act as rivals."""
        learners = {name: learner.algorithm for name, learner in self.learners.items()}
        return learners | {rivals_of(name): of.algorithm for name, of in self.rivals.items()}


def start(plan: Plan, numbers: Array) -> SceneState:
    """A fresh start of each seed in `numbers`, uint32 [S]. What a seed does depends on its number alone."""
    keys = jax.vmap(lambda number: jax.random.split(jax.random.key(number), 3))(numbers)  # [S, 3]
    parameters = of_each_seed(plan.parameters, numbers)
    first = {TURN: jnp.zeros(numbers.shape, jnp.float32)} if plan.rivals else {}
    areas, plays = start_play(plan.scene, plan.algorithms, keys[:, 1], plan.areas, {**parameters, **first})
    parts = {}
    for index, (name, learner) in enumerate(plan.learners.items()):
        own = keys if index == 0 else jax.vmap(jax.vmap(lambda key, i=index: jax.random.fold_in(key, i)))(keys)
        part = parts[name] = _start_learners(learner, own[:, 0], own[:, 2], plays[name])
        if name in plan.rivals:
            draws = jax.vmap(lambda key: jax.random.fold_in(key, _RIVALS))(own[:, 2])
            of_rivals = opponents.begin(plan.rivals[name], part.train.policy, plays[rivals_of(name)], draws)
            parts[name] = part.replace(rivals=of_rivals)
    state = SceneState(areas, parts, parameters)
    return state.replace(parts={name: _with_room(plan, name, state) for name in parts})


def _start_learners(learner: Learner, init_keys: Array, keys: Array, play: Play) -> JittedState:
    """A fresh learner for each seed beside the areas that it begins with. Both keys [S] are consumed."""
    algorithm = learner.algorithm
    store, train = algorithm.storage.init(), jax.vmap(algorithm.init)(init_keys)
    made = none_made(learner.env, algorithm, acting(algorithm, train), play, keys)
    return JittedState(
        train=train,
        store=jax.tree.map(lambda x: jnp.broadcast_to(x, (*keys.shape, *x.shape)), store),
        fresh=jnp.zeros(keys.shape, jnp.int32),
        play=play._replace(made=made),
        parameters={},
        values={key: for_each(value, keys) for key, value in learner.values.items()},
        key=keys,
        iteration=jnp.zeros(keys.shape, jnp.uint32),
        frozen=jnp.zeros(keys.shape, bool),
        recent=none_yet(len(keys)),
        newest=nothing(learner.newest, len(keys)) if learner.newest else (),
        last_step=() if learner.alone else for_each(learner.max_steps, keys, jnp.int32),
        paid=_nothing_paid(learner, play.view.alive),
    )


def _with_room(plan: Plan, name: str, state: SceneState) -> JittedState:
    """The state of a behavior, with room for what it meets until it learns."""
    part, every = state.parts[name], plan.learners[name].every
    if every == 1:
        return part
    _, met = jax.eval_shape(partial(_played, plan), state)
    room = jax.tree.map(lambda x: jnp.zeros((x.shape[1], every * x.shape[0], *x.shape[2:]), x.dtype), met[name])
    return part.replace(store=Pending(own=part.store, steps=room))


def begin_anew(plan: Plan, state: SceneState, which: Array) -> SceneState:
    """All episodes of the seeds of which `which` [S] is True are broken off, and others begin.

    What behaviors have met in these episodes since their last update is not learned from: no return is known of it.
    """
    areas, plays = start_anew(plan.scene, plan.algorithms, state.world, which, state.episodes)
    parts = {}
    for name, part in state.parts.items():
        every, store = plan.learners[name].every, part.store
        if every > 1:
            steps = store.steps
            met = (part.iteration[0] % every).astype(jnp.int32) * plan.steps  # of the rollout that is not complete
            now = (jnp.arange(steps.over.shape[1]) < met)[:, None]
            ended = jnp.cumsum((steps.over & now)[:, ::-1], axis=1)[:, ::-1] > 0  # here or later
            broken = (now & ~ended & which[:, None, None])[..., None]  # [S, `every` * T, E, 1]
            lost = {field: getattr(steps, field) & ~broken for field in ("alive", "waits", "arrived", "begin")}
            store = store.replace(steps=steps._replace(**lost))
        parts[name] = part.replace(play=plays[name], store=store)
        if name in plan.rivals:
            parts[name] = parts[name].replace(rivals=part.rivals.replace(play=plays[rivals_of(name)]))
    return state.replace(areas=areas, parts=parts)


def of_each_seed(parameters: Mapping[str, Any], numbers: Array) -> dict[str, Value]:
    """Of the environment: a number becomes one for each seed [S], distributions are that already."""
    return {
        name: jax.tree.map(jnp.asarray, value) if isinstance(value, Distribution) else for_each(value, numbers)
        for name, value in parameters.items()
    }


def for_each(value: Any, numbers: Array, dtype: Any = jnp.float32) -> Array:
    """The same number for each seed, or one for each: [S]."""
    return jnp.broadcast_to(jnp.asarray(value, dtype), numbers.shape)


def step_of(state: JittedState) -> int:
    """`Report.slowest` of a state."""
    steps, frozen = np.asarray(state.train.step), np.asarray(state.frozen)
    return int(steps.min() if frozen.all() else steps[~frozen].min())


def iterate(plan: Plan, state: SceneState) -> tuple[SceneState, dict[str, IterationLog]]:
    """T decisions in each area of each seed, then the updates of the behaviors whose rollout is complete."""
    (areas, plays), steps = _played(plan, state)
    parts, logs = {}, {}
    for name, learner in plan.learners.items():
        parts[name], logs[name] = _after(learner, plan.steps, state.parts[name], plays[name], steps[name])
    after = state.replace(areas=areas, parts=parts)
    return _contested(plan, after, plays, steps, logs) if plan.rivals else (after, logs)


def _contested(
    plan: Plan, state: SceneState, plays: Mapping[str, Play], steps: Mapping[str, Any], logs: dict[str, IterationLog]
) -> tuple[SceneState, dict[str, IterationLog]]:
    """Games are rated; then turns, snapshots and opponents change where it is time.

    With a turn all episodes of the seed begin anew.
    """
    before, parts = state.rivals, state.parts
    found = opponents.rated(plan.rivals, before, steps)
    met = {
        name: of.replace(
            play=plays[rivals_of(name)],
            rating=found.rating[name],
            met=found.met[name],
            ghost=of.ghost + steps[rivals_of(name)].sum(0),
        )
        for name, of in before.items()
    }
    policies = {name: parts[name].train.policy for name in met}
    counts = {name: parts[name].train.step for name in met}
    iteration = next(iter(parts.values())).iteration
    after, new = opponents.scheduled(plan.rivals, met, policies, counts, iteration)
    state = state.replace(parts={name: part.replace(rivals=after.get(name, ())) for name, part in parts.items()})
    told = {
        name: log._replace(episodes=log.episodes._replace(stats={**log.episodes.stats, ELO: found.elo[name]}))
        if name in met
        else log
        for name, log in logs.items()
    }
    return jax.lax.cond(new.any(), lambda state: begin_anew(plan, state, new), lambda state: state, state), told


def _played(plan: Plan, state: SceneState) -> tuple[World, dict[str, Any]]:
    """T decisions, [T, S, ...]."""
    keys, policies = {}, {}
    for name, part in state.parts.items():
        draws = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(key, n), plan.steps))
        keys[name] = jnp.swapaxes(draws(part.key, part.iteration), 0, 1)
        policies[name] = acting(plan.learners[name].algorithm, part.train)
        if name in plan.rivals:
            own = rivals_of(name)
            keys[own] = jnp.swapaxes(draws(part.rivals.key, part.iteration), 0, 1)
            policies[own] = opponents.opponents(part.rivals)
    rivals = [rivals_of(name) for name in plan.rivals]
    return collect(plan.scene, plan.algorithms, policies, state.world, keys, state.episodes, rivals)


def _after(
    learner: Learner, count: int, state: JittedState, play: Play, steps: Transitions
) -> tuple[JittedState, IterationLog]:
    """One behavior's state after `count` decisions `steps` [T, S, ...], learned from where they complete a rollout."""
    train, play, last = connected(learner, state, play)
    steps, every = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps), learner.every
    if every == 1:
        return learned(learner, state, train, play, steps, last)
    place = (state.iteration[0] % every).astype(jnp.int32)
    kept = jax.tree.map(
        lambda room, new: jax.lax.dynamic_update_slice_in_dim(room, new, place * count, 1), state.store.steps, steps
    )

    def learn(state: JittedState) -> tuple[JittedState, IterationLog]:
        return learned(learner, state, train, play, kept, last)

    def wait(state: JittedState) -> tuple[JittedState, IterationLog]:
        chain = learner.algorithm.connectors
        before = connectors.with_statistics(chain, (), state.train.policy)
        same = connectors.statistics_of(chain, train, before, state.frozen)
        told = nothing(learner.newest, len(state.key)) if learner.newest else ()  # episodes are, with the rollout
        _, log = jax.eval_shape(learn, state)
        return state.replace(train=same, play=play, iteration=state.iteration + 1, newest=told), _empty(log)

    after, log = jax.lax.cond(place == every - 1, learn, wait, state.replace(store=state.store.own))
    return after.replace(store=Pending(own=after.store, steps=kept)), log


def learned(
    learner: Learner, state: JittedState, train: TrainState, play: Play, steps: Transitions, last: TeamView
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
        state.last_step,
        state.paid,
    )
    learn, chain = partial(_learn, learner), learner.algorithm.connectors
    if learner.side_by_side or replays(learner.algorithm):  # one by one would take each seed's store out, and back
        train, store, fresh, log, paid = jax.vmap(learn, axis_name=EVERY_SEED)(*arguments)
    else:
        train, store, fresh, log, paid = jax.lax.map(lambda x: learn(*x), arguments)
    frozen = state.frozen | (log.fault[:, 0] >= 0)  # the statistics of connectors of a frozen seed stay as well
    train = connectors.statistics_of(chain, train, connectors.with_statistics(chain, (), state.train.policy), frozen)
    told = jax.vmap(partial(newest, learner.env, learner.newest))(steps) if learner.newest else ()
    play = play._replace(made=jax.vmap(still_open)(play.made, steps))
    after = state.replace(train=train, store=store, fresh=fresh, play=play, frozen=frozen, newest=told, paid=paid)
    return after.replace(iteration=state.iteration + 1, recent=with_recent(state.recent, log.episodes)), log


def connected(learner: Learner, state: JittedState, play: Play) -> tuple[TrainState, Play, TeamView]:
    """Statistics of the connectors go back to the learners; and the view after the last step, as policies will see it.

    Those of a seed that has passed max_steps stay as they were, like everything that it has learned.
    """
    chain, train = learner.algorithm.connectors, state.train
    _, last = connectors.observed(chain, play.connectors, play.view, begins(play))
    train = connectors.statistics_of(chain, train, play.connectors, train.step <= _end(learner, state.last_step))
    return train, play if chain is None else play._replace(connectors=play.connectors.slots), last


def _end(learner: Learner, last_step: Any) -> Any:
    """The trainer step after which it learns no more."""
    return learner.max_steps if learner.alone else last_step


def iterate_several(plan: Plan, state: SceneState, count: Array) -> tuple[SceneState, dict[str, IterationLog]]:
    """`count` iterations, a traced number: chunks of every length are one program."""

    def body(_: Array, carry: tuple[SceneState, dict[str, IterationLog]]) -> tuple[Any, dict[str, IterationLog]]:
        state, totals = carry
        state, logs = iterate(plan, state)
        return state, {name: add_log(totals[name], log) for name, log in logs.items()}

    _, logs = jax.eval_shape(partial(iterate, plan), state)
    return jax.lax.fori_loop(0, count, body, (state, {name: _empty(log) for name, log in logs.items()}))


def _empty(shapes: IterationLog) -> IterationLog:
    """Of no iteration, or of one in which a behavior has learned nothing, and told nothing."""
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return empty._replace(fault=empty.fault - 1)


def add_log(total: IterationLog, log: IterationLog) -> IterationLog:
    """Both together, with the first fault."""
    fault = jnp.where(total.fault[:, :1] < 0, log.fault, total.fault)
    return together(total, log)._replace(fault=fault)


def _learn(
    learner: Learner,
    values: dict[str, Array],
    train: TrainState,
    store: Any,
    fresh: Array,
    frozen: Array,
    steps: Transitions,
    made: Made,
    last: tuple[TeamView, Any],
    iteration: Array,
    last_step: Any,
    before: Any,
) -> tuple[TrainState, Any, Array, IterationLog, Any]:
    """The update of one seed where the algorithm is ready for it.

    Once the seed has passed max_steps nothing is kept any more, as the host loop ends there. Where a number is not
    finite the seed stays as it was before this iteration, and nothing of the iteration is told but the fault. `made`
    are decisions that were open before the steps; `last` is what was seen after them, and what was remembered;
    `before` what signals have paid in episodes that go on, and comes back as it is after the steps.
    """
    steps = from_before(made, steps)
    algorithm = learner.algorithm
    if values and algorithm.with_traced_settings is not None:
        other = algorithm.with_traced_settings(values)  # all else may have been replaced
        algorithm = algorithm._replace(learn=other.learn, signal_rewards=other.signal_rewards)
    rollout = stack(learner.env, steps, *last, team_rows=algorithm.team_rows, time_horizon=learner.time_horizon)
    active, seen = ~frozen & (train.step <= _end(learner, last_step)), first_fault(steps, last[0])
    told, paid = _paid(algorithm, train, rollout, before)
    counted, store = store_rollout(algorithm, train, store, rollout, active & (seen[0] < 0))
    given = fresh + counted.step - train.step
    due = active & algorithm.storage.can_sample(store, Counts(fresh=given, total=counted.step))
    learned, metrics = _where_due(learner, algorithm, due, counted, store)
    fault = jnp.where(frozen, -1, fault_of(seen, due, metrics, learned))
    sound = ~frozen & (fault[0] < 0)
    active, due = active & sound, due & sound
    episodes = figures(learner.env, steps)
    episodes = episodes._replace(stats={**episodes.stats, **told})
    log = IterationLog(
        updates=due.astype(jnp.int32),
        metric_sums={name: jnp.where(due, value, 0.0) for name, value in metrics.items()},
        episodes=jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), episodes),
        fault=jnp.concatenate([jnp.where(fault[:1] < 0, -1, iteration.astype(jnp.int32)[None]), fault]),
    )
    after = jax.tree.map(partial(jnp.where, due), (learned, jnp.zeros_like(given)), (counted, given))
    train, fresh = jax.tree.map(partial(jnp.where, active), after, (train, fresh))
    if not learner.alone:  # decisions still count
        train = train.replace(step=jnp.where(sound, counted.step, train.step))
    paid = jax.tree.map(partial(jnp.where, sound), paid, before)
    return train, algorithm.storage.kept(store), fresh, log, paid


def _paid(algorithm: Algorithm, train: TrainState, rollout: Rollout, before: Any) -> tuple[dict[str, Moments], Any]:
    """By tag, what signals have paid in the episodes that ended in one seed's rollout; and so far in the others."""
    if algorithm.signal_rewards is None:
        return {}, before
    found = paid_by_decision(rollout, algorithm.signal_rewards.of(train, rollout))
    sums, after = episode_sums(before, found)
    return {tag_of(f"reward/{name}"): moments(x, found.over) for name, x in sums.items()}, after


def _nothing_paid(learner: Learner, alive: Array) -> Any:
    """`JittedState.paid` before anything was, for the members `alive` [S, E, A]; () where no signal asks for it."""
    algorithm, (seeds, areas, agents) = learner.algorithm, alive.shape
    if algorithm.signal_rewards is None:
        return ()
    members = learner.env.members if algorithm.team_rows else 1
    nothing = jnp.zeros((seeds, areas * agents // members, members), jnp.float32)
    return dict.fromkeys(algorithm.signal_rewards.names, nothing)


def _where_due(
    learner: Learner, algorithm: Algorithm, due: Array, state: TrainState, store: Any
) -> tuple[TrainState, Metrics]:
    """`learn` of one seed. With a store that goes on it is computed only where it is due for some seed."""
    mapped = learner.side_by_side or replays(algorithm)
    if not replays(algorithm) and not learner.by_turns:
        return algorithm.learn(state, store)
    _, metrics = jax.eval_shape(algorithm.learn, state, store)

    def wait() -> tuple[TrainState, Metrics]:
        return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

    somewhere = jax.lax.pmax(due.astype(jnp.int32), EVERY_SEED) > 0 if mapped else due
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
