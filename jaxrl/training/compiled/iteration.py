"""Iteration of the loop inside jit, for all seeds at once: T decisions in every area, and the updates that are due.

Each behavior learns separately and has its own rollout length: `every` iterations of T decisions, which are stored
until then. The first behavior has the random draws of a scene without the others, so that it learns bit for bit what it
learns in its own `JaxEnv`, which is a scene of one behavior.

All functions are pure; `trainer.py` compiles them and spreads them over devices. The letters are those of
`jaxrl.types`, with S seeds, E areas per seed and K teams per area.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import acting
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.artifacts.metrics.statistics import DECIDED, ELO
from jaxrl.training.compiled import connectors, league, opponents, ratings
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.contest import rivals_of
from jaxrl.training.compiled.plan import Learner, Plan
from jaxrl.training.compiled.play import Play, Transitions, World, begins, start_anew
from jaxrl.training.compiled.recent_returns import nothing
from jaxrl.training.compiled.stacking import Moments
from jaxrl.training.compiled.state import IterationLog, JittedState, Pending, SceneState, add_log, empty_log
from jaxrl.training.compiled.updates import Learners, Logs, Met, States, learned, unpassed


def begin_anew(plan: Plan, state: SceneState, which: Array) -> SceneState:
    """Break off all episodes of the seeds where `which` [S] is True, and begin new ones.

    Decisions in these episodes since the last update are not learned from, as their returns are unknown.
    """
    areas, plays = start_anew(plan.scene, plan.algorithms, state.world, which, state.episodes)
    parts = {}
    for name, part in state.parts.items():
        every, store = plan.learners[name].every, part.store
        if every > 1:
            steps = store.steps
            stored = (part.iteration % every).astype(jnp.int32) * plan.steps  # [S], of the incomplete rollout
            now = (jnp.arange(steps.over.shape[1]) < stored[:, None])[..., None]
            ended = jnp.cumsum((steps.over & now)[:, ::-1], axis=1)[:, ::-1] > 0  # at this step or later
            broken = (now & ~ended & which[:, None, None])[..., None]  # [S, `every` * T, E, 1]
            lost = {field: getattr(steps, field) & ~broken for field in ("alive", "waits", "arrived", "begin")}
            store = store.replace(steps=steps._replace(**lost))
        parts[name] = part.replace(play=plays[name], store=store)
        if name in plan.rivals:
            parts[name] = parts[name].replace(rivals=part.rivals.replace(play=plays[rivals_of(name)]))
    return state.replace(areas=areas, parts=parts)


def iterate(plan: Plan, state: SceneState) -> tuple[SceneState, dict[str, IterationLog]]:
    """Make T decisions in each area of each seed, then update the behaviors whose rollout is complete."""
    (areas, plays), steps = played(plan, state)
    parts, logs = {}, {}
    for learners, team in plan.together:
        states = {name: state.parts[name] for name in learners}
        results = {name: plays[name] for name in learners}, {name: steps[name] for name in learners}
        new_states, new_logs = _after(learners, team, plan.steps, states, *results)
        parts |= new_states
        logs |= new_logs
    parts, logs = ({name: values[name] for name in plan.learners} for values in (parts, logs))
    new_state = state.replace(areas=areas, parts=parts)
    return _contested(plan, new_state, plays, steps, logs) if plan.rivals else (new_state, logs)


def _contested(
    plan: Plan, state: SceneState, plays: Mapping[str, Play], steps: Mapping[str, Any], logs: dict[str, IterationLog]
) -> tuple[SceneState, dict[str, IterationLog]]:
    """Rate games, then change learning teams, snapshots and opponents where they are due.

    With another learning team all episodes of the seed begin anew.
    """
    before, parts = state.rivals, state.parts
    result = ratings.rated(plan.rivals, before, steps)
    rated = {
        name: rivals.replace(
            play=plays[rivals_of(name)],
            rating=result.rating[name],
            met=result.met[name],
            ghost=rivals.ghost + steps[rivals_of(name)].decisions.sum(0),
        )
        for name, rivals in before.items()
    }
    policies = {name: parts[name].train.policy for name in rated}
    counts = {name: parts[name].train.step for name in rated}
    iteration = next(iter(parts.values())).iteration
    frozen = {name: parts[name].frozen for name in rated}
    rivals, new = opponents.scheduled(plan.rivals, rated, policies, counts, iteration, frozen)
    state = state.replace(parts={name: part.replace(rivals=rivals.get(name, ())) for name, part in parts.items()})
    logs = {
        name: _with_stats(log, {ELO: result.elo[name], DECIDED: result.decided[name]}) if name in rated else log
        for name, log in logs.items()
    }
    if any(setup.size > 1 for setup in plan.rivals.values()):
        state, logs, renewed = _in_leagues(plan, state, result.games, logs)
        new = new | renewed
    return jax.lax.cond(new.any(), lambda state: begin_anew(plan, state, new), lambda state: state, state), logs


def _with_stats(log: IterationLog, stats: Mapping[str, Moments]) -> IterationLog:
    return log._replace(episodes=log.episodes._replace(stats={**log.episodes.stats, **stats}))


def _in_leagues(
    plan: Plan, state: SceneState, games: Mapping[str, Array], logs: Logs
) -> tuple[SceneState, Logs, Array]:
    """Let exploiters that are done join their main agents' pools and begin anew; return also which seeds, bool [S].

    An exploiter is frozen with its main agent if that one's numbers are not finite.
    """
    parts, logs, renewed = dict(state.parts), dict(logs), []
    for name, setup in plan.rivals.items():
        part, options = parts[name], setup.settings.league
        assert options is not None  # equal for all behaviors, see `checks.check_sides`
        rivals = part.rivals.replace(league=league.with_games(part.rivals.league, games[name]))
        logs[name] = _with_stats(logs[name], league.figures(options, rivals.league))
        ready = part.iteration % plan.learners[name].every == 0
        rivals, which = opponents.joined(setup, rivals, part.train.policy, part.train.step, ready)
        train = league.renewed(options, plan.learners[name].algorithm, part.train, which, part.key, part.iteration)
        frozen = part.frozen | league.of_main(part.frozen, setup.size)
        parts[name] = part.replace(rivals=rivals, train=train, frozen=frozen)
        renewed.append(which)
    return state.replace(parts=parts), logs, jnp.stack(renewed).any(0)


def played(plan: Plan, state: SceneState) -> tuple[World, dict[str, Any]]:
    """Make T decisions in each area of each seed; return the world and the steps [T, S, ...]."""
    keys, policies = {}, {}
    learns = plan.algorithms | {name: team for team in plan.teams.values() for name in team.kinds}
    for name, part in state.parts.items():
        draws = jax.vmap(lambda key, n: jax.random.split(jax.random.fold_in(key, n), plan.steps))
        keys[name] = jnp.swapaxes(draws(part.key, part.iteration), 0, 1)
        policies[name] = acting(learns[name], part.train)
        if name in plan.rivals:
            rival = rivals_of(name)
            keys[rival] = jnp.swapaxes(draws(part.rivals.key, part.iteration), 0, 1)
            policies[rival] = part.rivals.playing
    rivals = {rivals_of(name): partial(ratings.steps_of_rivals, setup) for name, setup in plan.rivals.items()}
    mates = [tuple(team.kinds) for team in plan.teams.values()]
    steps = {tuple(team.kinds): team.critic_step for team in plan.teams.values() if team.critic_step is not None}
    return collect(plan.scene, plan.algorithms, policies, state.world, keys, state.episodes, rivals, mates, steps)


def _after(
    learners: Learners,
    team: TeamAlgorithm | None,
    count: int,
    states: States,
    plays: Mapping[str, Play],
    steps: Mapping[str, Transitions],
) -> tuple[States, Logs]:
    """Store `count` decisions `steps` [T, S, ...], and update the behaviors if they complete a rollout."""
    goes_on = unpassed(learners, states)
    met = {name: connected(learner, states[name], plays[name], goes_on) for name, learner in learners.items()}
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), dict(steps))
    every = next(iter(learners.values())).every  # equal for all behaviors of a team
    if every == 1:
        return learned(learners, team, states, met, steps)
    # [S]: resumed runs of one program, and trials that follow others, are at different places in their rollouts
    place = (next(iter(states.values())).iteration % every).astype(jnp.int32)
    complete, put = place == every - 1, jax.vmap(partial(jax.lax.dynamic_update_slice_in_dim, axis=0))
    kept = {
        name: jax.tree.map(lambda room, new: put(room, new, place * count), state.store.steps, steps[name])
        for name, state in states.items()
    }

    def learn(states: States) -> tuple[States, Logs]:
        return learned(learners, team, states, met, kept, complete)

    def wait(states: States) -> tuple[States, Logs]:
        _, logs = jax.eval_shape(learn, states)
        after = {name: _waited(learner, states[name], met[name]) for name, learner in learners.items()}
        return after, {name: empty_log(log) for name, log in logs.items()}

    without_steps = {name: state.replace(store=state.store.own) for name, state in states.items()}
    new_states, logs = jax.lax.cond(complete.any(), learn, wait, without_steps)
    pending = {name: Pending(own=state.store, steps=kept[name]) for name, state in new_states.items()}
    return {name: state.replace(store=pending[name]) for name, state in new_states.items()}, logs


def _waited(learner: Learner, state: JittedState, met: Met) -> JittedState:
    """Return the state after decisions that do not complete a rollout."""
    chain = learner.algorithm.connectors
    before = connectors.with_statistics(chain, (), state.train.policy)
    same = connectors.statistics_of(chain, met.train, before, state.frozen)
    newest = nothing(learner.newest, len(state.key)) if learner.newest else ()  # reported with the rollout
    return state.replace(train=same, play=met.play, iteration=state.iteration + 1, newest=newest)


def connected(learner: Learner, state: JittedState, play: Play, goes_on: Array) -> Met:
    """Return the train state with the connectors' statistics, the play, and the last view as policies will see it.

    Statistics of a seed that learns no more (`goes_on` [S] is False) do not change, like the rest of its train state.
    """
    chain, train = learner.algorithm.connectors, state.train
    _, last = connectors.observed(chain, play.connectors, play.view, begins(play))
    train = connectors.statistics_of(chain, train, play.connectors, goes_on)
    return Met(train, play if chain is None else play._replace(connectors=play.connectors.slots), last)


def iterate_several(plan: Plan, state: SceneState, count: Array) -> tuple[SceneState, dict[str, IterationLog]]:
    """Run `count` iterations, a traced number, so that chunks of every length are one program."""

    def body(_: Array, carry: tuple[SceneState, dict[str, IterationLog]]) -> tuple[Any, dict[str, IterationLog]]:
        state, totals = carry
        state, logs = iterate(plan, state)
        return state, {name: add_log(totals[name], log) for name, log in logs.items()}

    _, logs = jax.eval_shape(partial(iterate, plan), state)
    return jax.lax.fori_loop(0, count, body, (state, {name: empty_log(log) for name, log in logs.items()}))
