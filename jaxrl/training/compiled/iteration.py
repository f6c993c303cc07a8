"""One iteration of the loop inside jit, for all seeds at once: T decisions in every area, and the updates that are due.

Each behavior learns for itself and has a rollout of its own length: `every` iterations of T decisions. What it has met
is kept until then. The first behavior draws as it would alone, so that it learns bit for bit what it does in a `JaxEnv`
of its own, which is a scene of one behavior.

Pure functions; `trainer.py` compiles them and spreads them over devices. The letters are those of `jaxrl.types`,
with S seeds, E areas per seed and K teams per area.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
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
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.artifacts.metrics.statistics import ELO
from jaxrl.artifacts.metrics.tags import tag_of
from jaxrl.jax_envs.interface import Areas, TeamView
from jaxrl.jax_envs.sampling import Distribution, Value
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.compiled import connectors, league, opponents
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
from jaxrl.training.compiled.stacking import (
    EpisodeFigures,
    Moments,
    figures,
    first_fault,
    moments,
    stack,
    stack_team,
    teams_over,
    together,
)
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
    teams: Mapping[str, TeamAlgorithm] = {}  # by name: behaviors that learn together

    @property
    def together(self) -> list[tuple[dict[str, Learner], TeamAlgorithm | None]]:
        """The behaviors that learn with each other, most of them each for itself."""
        mates = {name: team for team in self.teams.values() for name in team.kinds}
        alone = [({name: learner}, None) for name, learner in self.learners.items() if name not in mates]
        return [*alone, *(({name: self.learners[name] for name in team.kinds}, team) for team in self.teams.values())]

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
    for learners, team in plan.together:
        own = {name: state.parts[name] for name in learners}
        met = {name: plays[name] for name in learners}, {name: steps[name] for name in learners}
        found = _after(learners, team, plan.steps, own, *met)
        parts |= found[0]
        logs |= found[1]
    parts, logs = ({name: of[name] for name in plan.learners} for of in (parts, logs))
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
    told = {name: _with_stats(log, {ELO: found.elo[name]}) if name in met else log for name, log in logs.items()}
    if any(of.size > 1 for of in plan.rivals.values()):
        state, told, renewed = _in_leagues(plan, state, found.games, told)
        new = new | renewed
    return jax.lax.cond(new.any(), lambda state: begin_anew(plan, state, new), lambda state: state, state), told


def _with_stats(log: IterationLog, stats: Mapping[str, Moments]) -> IterationLog:
    return log._replace(episodes=log.episodes._replace(stats={**log.episodes.stats, **stats}))


def _in_leagues(
    plan: Plan, state: SceneState, games: Mapping[str, Array], logs: Logs
) -> tuple[SceneState, Logs, Array]:
    """Exploiters that are done join the pools of their main agents and begin anew: in which seeds, bool [S].

    An exploiter is left behind with its main agent where that one's numbers are not finite.
    """
    parts, logs, renewed = dict(state.parts), dict(logs), []
    for name, of in plan.rivals.items():
        part, own = parts[name], of.settings.league
        assert own is not None  # the same of all, see `checks.check_sides`
        rivals = part.rivals.replace(league=league.with_games(part.rivals.league, games[name]))
        logs[name] = _with_stats(logs[name], league.figures(own, rivals.league))
        ready = part.iteration % plan.learners[name].every == 0
        rivals, which = opponents.joined(of, rivals, part.train.policy, part.train.step, ready)
        train = league.renewed(own, plan.learners[name].algorithm, part.train, which, part.key, part.iteration)
        frozen = part.frozen | league.of_main(part.frozen, of.size)
        parts[name] = part.replace(rivals=rivals, train=train, frozen=frozen)
        renewed.append(which)
    return state.replace(parts=parts), logs, _any(renewed)


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
    rivals, mates = [rivals_of(name) for name in plan.rivals], [list(team.kinds) for team in plan.teams.values()]
    return collect(plan.scene, plan.algorithms, policies, state.world, keys, state.episodes, rivals, mates)


States = dict[str, JittedState]
Logs = dict[str, IterationLog]
Learners = Mapping[str, Learner]
"""Of behaviors that learn together, most of them each for itself."""


def _after(
    learners: Learners,
    team: TeamAlgorithm | None,
    count: int,
    states: States,
    plays: Mapping[str, Play],
    steps: Mapping[str, Transitions],
) -> tuple[States, Logs]:
    """The states after `count` decisions `steps` [T, S, ...], learned from where they complete a rollout."""
    met = {name: connected(learner, states[name], plays[name]) for name, learner in learners.items()}
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), dict(steps))
    every = next(iter(learners.values())).every  # the same of all in a team
    if every == 1:
        return learned(learners, team, states, met, steps)
    place = (next(iter(states.values())).iteration[0] % every).astype(jnp.int32)
    kept = {
        name: jax.tree.map(
            lambda room, new: jax.lax.dynamic_update_slice_in_dim(room, new, place * count, 1), state.store.steps, new
        )
        for (name, state), new in zip(states.items(), (steps[name] for name in states), strict=True)
    }

    def learn(states: States) -> tuple[States, Logs]:
        return learned(learners, team, states, met, kept)

    def wait(states: States) -> tuple[States, Logs]:
        _, logs = jax.eval_shape(learn, states)
        after = {name: _waited(learner, states[name], met[name]) for name, learner in learners.items()}
        return after, {name: _empty(log) for name, log in logs.items()}

    own = {name: state.replace(store=state.store.own) for name, state in states.items()}
    after, logs = jax.lax.cond(place == every - 1, learn, wait, own)
    return {
        name: state.replace(store=Pending(own=state.store, steps=kept[name])) for name, state in after.items()
    }, logs


def _waited(learner: Learner, state: JittedState, met: Met) -> JittedState:
    """The state after decisions that do not complete a rollout."""
    chain = learner.algorithm.connectors
    before = connectors.with_statistics(chain, (), state.train.policy)
    same = connectors.statistics_of(chain, met.train, before, state.frozen)
    told = nothing(learner.newest, len(state.key)) if learner.newest else ()  # episodes are, with the rollout
    return state.replace(train=same, play=met.play, iteration=state.iteration + 1, newest=told)


def learned(
    learners: Learners,
    team: TeamAlgorithm | None,
    states: States,
    met: Mapping[str, Met],
    steps: Mapping[str, Transitions],
) -> tuple[States, Logs]:
    """The updates that follow `steps` [S, T, ...], of learners as `connected` has left them."""
    given = {
        name: Given(
            values=states[name].values,
            train=met[name].train,
            store=states[name].store,
            fresh=states[name].fresh,
            frozen=states[name].frozen,
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
    if first.side_by_side or replays(first.algorithm):  # one by one would take each seed's store out, and back
        found = jax.vmap(learn, axis_name=EVERY_SEED)(given)
    else:
        found = jax.lax.map(learn, given)
    sizes = {name: learner.env for name, learner in learners.items()}
    over = jax.vmap(partial(teams_over, sizes))(dict(steps))
    after, logs = {}, {}
    for name, learner in learners.items():
        (train, store, fresh, log, paid), state, chain = found[name], states[name], learner.algorithm.connectors
        frozen = state.frozen | (log.fault[:, 0] >= 0)  # the statistics of connectors of a frozen seed stay as well
        before = connectors.with_statistics(chain, (), state.train.policy)
        train = connectors.statistics_of(chain, train, before, frozen)
        told = jax.vmap(partial(newest, learner.newest))(steps[name], over) if learner.newest else ()
        play = met[name].play
        play = play._replace(made=jax.vmap(still_open)(play.made, steps[name]))
        made = state.replace(train=train, store=store, fresh=fresh, play=play, frozen=frozen, newest=told, paid=paid)
        after[name] = made.replace(iteration=state.iteration + 1, recent=with_recent(state.recent, log.episodes))
        logs[name] = log
    return after, logs


class Met(NamedTuple):
    """What one behavior has met, as its connectors have left it."""

    train: TrainState
    play: Play
    last: TeamView  # after the last step, as policies will see it


def connected(learner: Learner, state: JittedState, play: Play) -> Met:
    """Statistics of the connectors go back to the learners; and the view after the last step, as policies will see it.

    Those of a seed that has passed max_steps stay as they were, like everything that it has learned.
    """
    chain, train = learner.algorithm.connectors, state.train
    _, last = connectors.observed(chain, play.connectors, play.view, begins(play))
    train = connectors.statistics_of(chain, train, play.connectors, train.step <= _end(learner, state.last_step))
    return Met(train, play if chain is None else play._replace(connectors=play.connectors.slots), last)


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


class Given(NamedTuple):
    """What one seed of one behavior learns from; fields as in `JittedState`."""

    values: dict[str, Array]
    train: TrainState
    store: Any
    fresh: Array
    frozen: Array
    steps: Transitions  # [T, E, A, ...]
    made: Made  # decisions that were open before the steps
    last: tuple[TeamView, Any]  # what was seen after them, and what was remembered
    iteration: Array
    last_step: Any
    paid: Any


Learnt = tuple[TrainState, Any, Array, IterationLog, Any]
"""What comes of it: train, store, fresh, log, paid."""


def _learn(learners: Learners, team: TeamAlgorithm | None, given: Mapping[str, Given]) -> dict[str, Learnt]:
    """The update of one seed where the algorithm is ready for it; of a team where it is for one of its behaviors.

    Once the seed has passed max_steps, with all behaviors of its team, nothing is kept any more, as the host loop ends
    there. Where a number is not finite the seed stays as it was before this iteration, its team with it, and nothing of
    the iteration is told but the fault. `Given.paid` comes back as it is after the steps.
    """
    given = {name: given[name]._replace(steps=from_before(given[name].made, given[name].steps)) for name in learners}
    algorithms = {name: _of_values(learner.algorithm, given[name].values) for name, learner in learners.items()}
    rollouts = _stacked(learners, given)
    frozen = _any(of.frozen for of in given.values())
    unpassed = _any(given[n].train.step <= _end(of, given[n].last_step) for n, of in learners.items())
    seen = {name: first_fault(of.steps, of.last[0]) for name, of in given.items()}
    active, sighted = ~frozen & unpassed, ~_any(fault[0] >= 0 for fault in seen.values())
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
    first = _first_of(list(faults.values()))
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


def _of_values(algorithm: Algorithm, values: dict[str, Array]) -> Algorithm:
    """The algorithm with a seed's own settings."""
    if not values or algorithm.with_traced_settings is None:
        return algorithm
    other = algorithm.with_traced_settings(values)  # all else may have been replaced
    return algorithm._replace(learn=other.learn, signal_rewards=other.signal_rewards)


def _stacked(learners: Learners, given: Mapping[str, Given]) -> dict[str, Rollout]:
    """One seed's rollouts, whose rows are those of one team where there are several."""
    horizon = next(iter(learners.values())).time_horizon
    if len(learners) > 1:
        steps, last = ({n: of.steps for n, of in given.items()}, {n: of.last[0] for n, of in given.items()})
        return stack_team({name: of.env for name, of in learners.items()}, steps, last, time_horizon=horizon)
    ((name, learner),) = learners.items()
    rows, of = learner.algorithm.team_rows, given[name]
    return {name: stack(learner.env, of.steps, *of.last, team_rows=rows, time_horizon=horizon)}


def _any(flags: Iterable[Any]) -> Any:
    """Whether one of some flags holds; one alone as it is."""
    return reduce(lambda some, more: some | more, flags)


def _first_of(faults: Sequence[Array]) -> Array:
    """The first fault that is one, int32 [3]."""
    return reduce(lambda found, other: jnp.where(found[0] >= 0, found, other), faults)


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
