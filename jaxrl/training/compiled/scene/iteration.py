"""One iteration of several learners in one program: T decisions in every area, and the updates that are due.

Each behavior has a rollout of its own length: `every` iterations of T decisions. What it has met is kept until then.
Everything else is done behavior by behavior by the functions for one (`collect.py`, `iteration.py`). The first behavior
draws as it would alone, so that a scene of one behavior learns bit for bit what that behavior's `JaxEnv` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxrl.algorithms.interface import acting, nothing_remembered
from jaxrl.jax_envs.interface import Areas, TeamView
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import BehaviorPart, JaxScene, advance_scene, start_scene, step_of_behavior
from jaxrl.training.compiled import connecting
from jaxrl.training.compiled.collect import (
    Play,
    Transitions,
    begin_play,
    choose,
    join,
    noise_of,
    note,
    split,
    with_statistics,
)
from jaxrl.training.compiled.iteration import (
    IterationLog,
    JittedState,
    Plan,
    add_log,
    connected,
    for_each,
    learned,
    of_each_seed,
    start_learners,
)
from jaxrl.training.compiled.newest import nothing


class Learner(NamedTuple):
    """What one behavior's learning is bound to."""

    part: BehaviorPart
    plan: Plan  # whose `env` is the part, and `steps` those of an iteration
    every: int  # iterations from one update to the next


class ScenePlan(NamedTuple):
    """What an iteration is bound to."""

    scene: JaxScene
    learners: Mapping[str, Learner]  # by behavior, in the order of the scene
    parameters: Mapping[str, Any]  # of the environment at the start, all of them: numbers, or arrays [S]
    areas: int  # E
    steps: int  # T


class SceneState(struct.PyTreeNode):
    """Everything that a run continues from. Every array has the leading axis S."""

    areas: Areas  # [S, E]
    parts: dict[str, JittedState]  # by behavior; without areas and parameters, which are everybody's
    parameters: dict[str, Value]  # of the environment, numbers or distributions [S]: for episodes that begin
    last_step: dict[str, Array]  # int32 [S], by behavior the trainer step after which it learns no more

    def of(self, name: str) -> JittedState:
        """One behavior's state with the areas: what its checkpoint holds."""
        part = self.parts[name]
        return part.replace(play=part.play._replace(areas=self.areas), parameters=self.parameters)


class Pending(struct.PyTreeNode):
    """`JittedState.store` of a behavior whose rollout is longer than an iteration."""

    own: Any  # what the algorithm keeps
    steps: Transitions  # [S, `every` * T, ...], filled from the front


def start(plan: ScenePlan, numbers: Array) -> SceneState:
    """A fresh start of each seed in `numbers`, uint32 [S]. What a seed does depends on its number alone."""
    keys = jax.vmap(lambda number: jax.random.split(jax.random.key(number), 3))(numbers)  # [S, 3]
    parameters = of_each_seed(plan.parameters, numbers)
    begin = jax.vmap(lambda key, of_seed: start_scene(plan.scene, key, plan.areas, _everywhere(of_seed, plan.areas)))
    areas, views = begin(keys[:, 1], parameters)
    parts = {}
    for index, (name, learner) in enumerate(plan.learners.items()):
        own = jax.vmap(jax.vmap(partial(_own_key, index)))(keys)
        algorithm = learner.plan.algorithm
        play = begin_play(learner.part, nothing_remembered(algorithm), (), views[name], algorithm.connectors)
        parts[name] = start_learners(learner.plan, own[:, 0], own[:, 2], play, {})
    last = {name: for_each(learner.plan.max_steps, numbers, jnp.int32) for name, learner in plan.learners.items()}
    state = SceneState(areas, parts, parameters, last)
    return state.replace(parts={name: _with_room(plan, name, state) for name in parts})


def _own_key(index: int, key: Array) -> Array:
    """The key of the behavior at this place in the scene."""
    return key if index == 0 else jax.random.fold_in(key, index)


def _everywhere(of_seed: dict[str, Array], areas: int) -> dict[str, Array]:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (areas, *x.shape)), of_seed)


def _with_room(plan: ScenePlan, name: str, state: SceneState) -> JittedState:
    """The state of a behavior, with room for what it meets until it learns."""
    part, every = state.parts[name], plan.learners[name].every
    if every == 1:
        return part
    _, met = jax.eval_shape(partial(collect_scene, plan), state)
    room = jax.tree.map(lambda x: jnp.zeros((x.shape[0], every * x.shape[1], *x.shape[2:]), x.dtype), met[name])
    return part.replace(store=Pending(own=part.store, steps=room))


def collect_scene(plan: ScenePlan, state: SceneState) -> tuple[tuple[Areas, dict[str, Play]], dict[str, Transitions]]:
    """Act and step T times: the areas and what is known of each behavior after it, and what happened, [S, T, ...]."""
    scene, learners = plan.scene, plan.learners
    seeds = next(iter(state.parts.values())).key.shape[0]
    values = jax.tree.map(lambda x: jnp.repeat(x, plan.areas, axis=0), state.parameters)
    policies, plays, noise = {}, {}, {}
    for name, part in state.parts.items():
        algorithm = learners[name].plan.algorithm
        keys = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(key, n), plan.steps))(
            part.key, part.iteration
        )
        policies[name] = acting(algorithm, part.train)
        plays[name] = with_statistics(algorithm, part.play, policies[name])._replace(made=())
        noise[name] = noise_of(algorithm, jnp.swapaxes(keys, 0, 1), part.play.view.alive.shape[1:])

    def step(carry: tuple[Areas, dict[str, Play]], noise: dict[str, Any]) -> tuple[Any, dict[str, Transitions]]:
        areas, plays = carry
        chosen = {
            name: choose(learner.part, learner.plan.algorithm, policies[name], plays[name], noise[name])
            for name, learner in learners.items()
        }
        sent = {name: join(choice.sent) for name, choice in chosen.items()}
        moved, result = advance_scene(scene, join(areas), sent, values)
        done, views = split(result.step, seeds), split(result.view, seeds)
        after, here = {}, {}
        for name, learner in learners.items():
            of_behavior = step_of_behavior(done, name)
            play, here[name] = note(learner.part, learner.plan.algorithm, plays[name], chosen[name], of_behavior)
            after[name] = play._replace(view=views[name])
        return (split(moved, seeds), after), here

    (areas, plays), steps = jax.lax.scan(step, (state.areas, plays), noise)
    plays = {name: play._replace(made=state.parts[name].play.made) for name, play in plays.items()}
    return (areas, plays), jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)


def iterate(plan: ScenePlan, state: SceneState) -> tuple[SceneState, dict[str, IterationLog]]:
    """T decisions in each area of each seed, then the updates of the behaviors whose rollout is complete."""
    (areas, plays), steps = collect_scene(plan, state)
    parts, logs = {}, {}
    for name, learner in plan.learners.items():
        own = learner._replace(plan=learner.plan._replace(max_steps=state.last_step[name][0]))
        parts[name], logs[name] = _learned(own, state.parts[name], plays[name], steps[name])
    return state.replace(areas=areas, parts=parts), logs


def _learned(learner: Learner, state: JittedState, play: Play, steps: Transitions) -> tuple[JittedState, IterationLog]:
    """One behavior's state after T decisions `steps` [S, T, ...], learned from where they complete its rollout."""
    plan, every = learner.plan, learner.every
    train, play, last = connected(plan, state.train, play)
    if every == 1:
        return learned(plan, state, train, play, steps, last)
    place = (state.iteration[0] % every).astype(jnp.int32)
    kept = jax.tree.map(
        lambda room, new: jax.lax.dynamic_update_slice_in_dim(room, new, place * plan.steps, 1),
        state.store.steps,
        steps,
    )

    def learn(state: JittedState) -> tuple[JittedState, IterationLog]:
        return learned(plan, state, train, play, kept, last)

    def wait(state: JittedState) -> tuple[JittedState, IterationLog]:
        chain = plan.algorithm.connectors
        before = connecting.with_statistics(chain, (), state.train.policy)
        same = connecting.statistics_of(chain, train, before, state.frozen)
        told = nothing(plan.newest, len(state.key)) if plan.newest else ()  # episodes are, with the rollout
        waiting = state.replace(train=same, play=play, iteration=state.iteration + 1, newest=told)
        return waiting, empty_log(plan, state, last, kept)

    after, log = jax.lax.cond(place == every - 1, learn, wait, state.replace(store=state.store.own))
    return after.replace(store=Pending(own=after.store, steps=kept)), log


def empty_log(plan: Plan, state: JittedState, last: TeamView, steps: Transitions) -> IterationLog:
    """Of an iteration in which a behavior has learned nothing, and told nothing."""
    _, log = jax.eval_shape(lambda s: learned(plan, s, s.train, s.play, steps, last), state)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), log)
    return nothing._replace(fault=nothing.fault - 1)


def iterate_several(plan: ScenePlan, state: SceneState, count: Array) -> tuple[SceneState, dict[str, IterationLog]]:
    """`count` iterations, a traced number: chunks of every length are one program."""

    def body(_: Array, carry: tuple[SceneState, dict[str, IterationLog]]) -> tuple[Any, dict[str, IterationLog]]:
        state, totals = carry
        state, logs = iterate(plan, state)
        return state, {name: add_log(totals[name], log) for name, log in logs.items()}

    _, shapes = jax.eval_shape(partial(iterate, plan), state)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    empty = {name: log._replace(fault=log.fault - 1) for name, log in empty.items()}
    return jax.lax.fori_loop(0, count, body, (state, empty))
