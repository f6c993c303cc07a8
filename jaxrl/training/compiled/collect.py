"""Acting in a JAX environment inside a compiled program: T decisions of S seeds in E areas each, kept for a rollout.

The environments of all seeds step as one batch of S·E areas, so that a new episode is drawn only in steps in which one
is due; the policies of each behavior act side by side, one per seed. Everything that no step needs is worked out
afterwards, for all T steps at once.

A member that is not alive and has not ended pauses: its decision stays open, and what it and its mates earn meanwhile
is that decision's, until it decides again or ends (`arrived`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, CriticStep, Decision, PolicyState, alone
from jaxrl.artifacts.metrics.statistics import scene_tag
from jaxrl.jax_envs.interface import TeamActions, TeamStep, advance_areas
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import JaxScene, Sizes, step_of_behavior
from jaxrl.masks import select
from jaxrl.training.compiled import connectors
from jaxrl.training.compiled.packing import pack, unpack
from jaxrl.training.compiled.play import (
    EpisodeSums,
    Made,
    Open,
    Play,
    Transitions,
    World,
    begins,
    by_team,
    join,
    remembered,
    split,
)
from jaxrl.types import NOTHING


def collect(
    scene: JaxScene,
    algorithms: Mapping[str, Algorithm],
    policies: Mapping[str, PolicyState],
    world: World,
    keys: Mapping[str, Array],
    parameters: Mapping[str, Value],
    untold: Mapping[str, Callable[[Transitions], Any]] = NOTHING,
    teams: Sequence[Sequence[str]] = (),
    shared: Mapping[tuple[str, ...], CriticStep] = NOTHING,
) -> tuple[World, dict[str, Any]]:
    """Act and step T times. Everything is by behavior but the areas and the parameters.

    Args:
      policies: one per seed, leading axis [S].
      keys: typed keys [T, S], consumed: the noise of each decision.
      parameters: float32 [S] by name or a distribution [S], for episodes that begin.
      untold: by behavior that nobody learns from, the function of its `Transitions` that gives what is told of them.
      teams: behaviors whose members are mates of each other.
      shared: of behaviors whose critic is one and remembers, `TeamAlgorithm.critic_step`.

    Returns:
      The areas after it, and the plays, whose `connectors` are a whole `ChainState`, with statistics; what happened.
    """
    areas, plays = world
    seeds, count = areas.clock.shape
    values = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), parameters)
    noise = {name: noise_of(of, keys[name], plays[name].view.alive.shape[1:]) for name, of in algorithms.items()}
    begun = {name: with_statistics(of, plays[name], policies[name]) for name, of in algorithms.items()}
    begun = {name: play._replace(made=()) for name, play in begun.items()}
    critics = {(name,): alone(of.critic_step) for name, of in algorithms.items() if of.critic_step is not None}

    def step(world: Any, noise: dict[str, Any]) -> tuple[Any, Any]:
        areas, plays = unpack(world)
        chosen = {name: choose(of, policies[name], plays[name], noise[name]) for name, of in algorithms.items()}
        for names, critic_step in {**critics, **shared}.items():
            rows = [scene.part(n).members if algorithms[n].team_rows else 1 for n in names]
            of_each = [(row, policies[n], plays[n], chosen[n]) for row, n in zip(rows, names, strict=True)]
            chosen |= zip(names, _remembered(critic_step, *zip(*of_each, strict=True)), strict=True)
        sent = {name: join(choice.sent) for name, choice in chosen.items()}
        moved, result = advance_areas(scene, join(areas), sent, values)
        done, views = split(result.step, seeds), split(result.view, seeds)
        came = {
            name: outcome(of, plays[name], chosen[name], step_of_behavior(done, name))
            for name, of in algorithms.items()
        }
        mates = {name: of for names in teams for name, of in _mates(scene, {n: came[n] for n in names}).items()}
        after, here = {}, {}
        for name, of in algorithms.items():
            seen = plays[name], chosen[name], came[name]
            play, here[name] = note(scene.part(name), of, *seen, mates.get(name))
            after[name] = play._replace(view=views[name])
            if name in untold:
                here[name] = untold[name](here[name])
        return pack((split(moved, seeds), after)), pack(here)

    world, steps = jax.lax.scan(step, pack((areas, begun)), noise)
    areas, after = unpack(world)
    return (areas, {name: play._replace(made=plays[name].made) for name, play in after.items()}), unpack(steps)


def with_statistics(algorithm: Algorithm, play: Play, policy: PolicyState) -> Play:
    """The areas with the whole state of the connectors, statistics of the policies [S] included."""
    return play._replace(connectors=connectors.with_statistics(algorithm.connectors, play.connectors, policy))


class Choice(NamedTuple):
    """Decisions of the members of S seeds and E areas, and what was known when they were made."""

    made: Made  # also rows of members that do not decide
    alive: Array  # bool [S, E, A], those who decide
    doing: Any  # what everybody does, those who pause too, `Action` or (), as in `Open`
    after: Any  # memory after the decision; that of critics joins when all have chosen
    sent: TeamActions  # what the environment gets, [S, E, A, ...]
    connectors: Any  # their state after the decision


def choose(algorithm: Algorithm, policy: PolicyState, play: Play, key: Array) -> Choice:
    """What the members decide now. `key`: of one step for each seed [S], or what `noise` has drawn from it."""
    chain = algorithm.connectors
    begin = begins(play)
    connected, view = connectors.observed(chain, play.connectors, play.view, begin)
    carry = remembered(play)
    decision = jax.vmap(algorithm.act)(policy, view.obs, view.action_mask, carry, key)
    where_alive = partial(jax.tree.map, partial(select, view.alive))
    doing = () if play.open.action == () else where_alive(decision.action, play.open.action)  # pausing: as before
    after = where_alive(decision.carry, carry)  # the dead remember what they knew
    connected, action = connectors.sent(chain, connected, decision, view.alive)
    sent = TeamActions(continuous=action.continuous, discrete=action.discrete)
    made = Made(view.obs, view.action_mask, decision.action, decision.extras, carry, begin)
    return Choice(made, view.alive, doing, after, sent, connected)


class Outcome(NamedTuple):
    """What came of the decisions of one behavior. Leading axes [S, E, A]."""

    done: TeamStep
    undecided: Array  # bool, its decision was open
    ended: Array  # bool
    arrived: Array  # bool, what came of the decision is known
    earned: Array  # float32, of the open decision so far: own reward
    told: Array  # float32, likewise where it has arrived
    connectors: Any  # their state after it
    own: Array  # float32, `told` as the connectors leave it
    group: Array  # float32, likewise of the group reward
    paid: Array  # float32, group reward of the open decision so far


class Mates(NamedTuple):
    """What members of other behaviors bring to each team, [S, E, K]."""

    highest: Array  # float32, group reward that one of them received now
    lowest: Array
    told: Array  # float32, their `Outcome.told`, added up
    own: Array  # float32, their `Outcome.own`, added up
    stay: Array  # bool, one of them lives on


def outcome(algorithm: Algorithm, play: Play, chosen: Choice, done: TeamStep) -> Outcome:
    """What came of the decisions, `done` [S, E, ...].

    With the episode everybody's decision is over, also where the environment forgets to say so.
    """
    alive, before = chosen.alive, play.open
    undecided = alive | before.waits
    ended = done.terminated | done.truncated | (undecided & done.over[..., None])
    arrived = undecided & (ended | done.view.alive)
    earned, paid = (
        jnp.where(alive, 0.0, so_far) + jnp.where(undecided, now, 0.0)
        for so_far, now in ((before.reward, done.reward), (before.group_reward, done.group_reward))
    )
    told = jnp.where(arrived, earned, 0.0)
    connected, own, group = connectors.rewarded(algorithm.connectors, chosen.connectors, earned, paid, arrived)
    own, group = jnp.where(arrived, own, 0.0), jnp.where(arrived, group, 0.0)
    return Outcome(done, undecided, ended, arrived, earned, told, connected, own, group, paid)


def _mates(scene: JaxScene, came: Mapping[str, Outcome]) -> dict[str, Mates]:
    """By behavior of one team, what its mates of the others bring."""
    of = {name: _brought(scene.part(name), found) for name, found in came.items()}

    def joined(some: Mates, others: Mates) -> Mates:
        return Mates(
            jnp.maximum(some.highest, others.highest),
            jnp.minimum(some.lowest, others.lowest),
            some.told + others.told,
            some.own + others.own,
            some.stay | others.stay,
        )

    return {name: reduce(joined, [of[other] for other in of if other != name]) for name in of}


def _brought(env: Sizes, came: Outcome) -> Mates:
    """What one behavior brings to its mates of others."""
    paid = by_team(env, jnp.where(came.undecided, came.done.group_reward, 0.0))
    told, own = by_team(env, came.told).sum(-1), by_team(env, came.own).sum(-1)
    return Mates(paid.max(-1), paid.min(-1), told, own, by_team(env, _stays(came)).any(-1))


def _stays(came: Outcome) -> Array:
    """bool [S, E, A]: who lives on after the step, deciding or pausing; nobody where the episode is over."""
    return (came.done.view.alive | (came.undecided & ~came.ended)) & ~came.done.over[..., None]


def note(
    env: Sizes, algorithm: Algorithm, play: Play, chosen: Choice, came: Outcome, beside: Mates | None = None
) -> tuple[Play, Transitions]:
    """What came of the decisions, for a rollout; and the play, its areas and view as before."""
    chain, alive, before, done, ended = algorithm.connectors, chosen.alive, play.open, came.done, came.ended
    arrived, waits = came.arrived, came.undecided & ~came.arrived
    sums, sums_after = _add_up(env, play.sums, alive, before.waits, came, beside)
    mates = jnp.where(alive, 0.0, before.mates_reward) + _of_mates(
        env, came.own, None if beside is None else beside.own
    )
    here = Transitions(
        **chosen.made._asdict(),
        last_carry=chosen.after if env.truncates else (),
        alive=alive,
        waits=before.waits,
        arrived=arrived,
        reward=came.own,
        mates_reward=jnp.where(arrived, mates, 0.0),
        group_reward=came.group,
        terminated=ended & ~done.truncated,
        truncated=done.truncated,
        stays=(done.view.alive | waits) & ~done.over[..., None],
        last_obs=connectors.last(chain, came.connectors, done.view) if env.truncates else (),
        sums=sums,
        over=done.over,
        stats={scene_tag(name): figure for name, figure in done.stats.items()},
    )
    still = (came.earned, came.paid, mates, chosen.doing)
    still = Open(waits, *jax.tree.map(lambda x: select(waits, x, jnp.zeros_like(x)), still))
    return play._replace(sums=sums_after, carry=chosen.after, open=still, connectors=came.connectors), here


def from_before(made: Made, steps: Transitions) -> Transitions:
    """One seed's steps [T, E, A, ...], in whose first one the decisions `made` [E, A, ...] before stand, still open.

    As in the host loop's buffer: there everything is known of them that an update needs, and none is lost.
    """
    waits = steps.waits[0]
    fields = {name: getattr(steps, name) for name in Made._fields}
    first = jax.tree.map(lambda old, x: x.at[0].set(select(waits, old, x[0])), made._asdict(), fields)
    return steps._replace(
        **first, alive=steps.alive.at[0].set(steps.alive[0] | waits), waits=steps.waits.at[0].set(False)
    )


def still_open(made: Made, steps: Transitions) -> Made:
    """What was known when the decisions were made that are open after one seed's steps, [E, A, ...]; zeros elsewhere.

    Those that were open before are `made`.
    """
    time, areas, members = steps.alive.shape
    newest = jnp.where(steps.alive, jnp.arange(time)[:, None, None], -1).max(0)
    waits = (steps.alive | steps.waits)[-1] & ~steps.arrived[-1]
    at = jnp.maximum(newest, 0), jnp.arange(areas)[:, None], jnp.arange(members)
    fields = Made(*(getattr(steps, name) for name in Made._fields))
    known = jax.tree.map(lambda x, old: select(newest >= 0, x[at], old), fields, made)
    return jax.tree.map(lambda x: select(waits, x, jnp.zeros_like(x)), known)


def none_made(algorithm: Algorithm, policy: PolicyState, play: Play, keys: Array) -> Made:
    """Zeros, as before the first decision of S seeds. `keys` [S] are used for their shape alone."""

    def made(policy: PolicyState, play: Play, keys: Array) -> Made:
        noise = noise_of(algorithm, keys[None], play.view.alive.shape[1:])
        return choose(algorithm, policy, with_statistics(algorithm, play, policy), noise[0]).made

    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(made, policy, play, keys))


def noise_of(algorithm: Algorithm, keys: Array, lead: tuple[int, ...]) -> Any:
    """What `act` draws from the keys [T, S] for members [*lead], all at once; the keys where it draws for itself.

    The numbers are those that it would draw in each step, where 48 of them took 33 us (one core, jaxlib 0.10.2).
    """
    draw = algorithm.noise
    return keys if draw is None else jax.vmap(jax.vmap(lambda key: draw(key, lead)))(keys)


def _remembered(
    critic_step: CriticStep,
    members: Sequence[int],
    policies: Sequence[PolicyState],
    plays: Sequence[Play],
    chosen: Sequence[Choice],
) -> list[Choice]:
    """The choices of behaviors with one critic, in rows of so many `members` of each, with what it remembers after."""

    def rows(count: int, x: Any) -> Any:  # [S, E, A, ...] → [S, E * A / count, count, ...]
        return jax.tree.map(lambda y: y.reshape(y.shape[0], y.shape[1] * y.shape[2] // count, count, *y.shape[3:]), x)

    made = [Decision(of.doing, of.doing, {}, of.after) for of in chosen]
    there = [of.alive | play.open.waits for of, play in zip(chosen, plays, strict=True)]
    given = ([of.made.obs for of in chosen], there, made)
    in_rows = [[rows(count, x) for count, x in zip(members, of_each, strict=True)] for of_each in given]
    found = []
    for of, after in zip(chosen, jax.vmap(critic_step)(policies, *in_rows), strict=True):
        after = jax.tree.map(lambda x, y: x.reshape(y.shape), after, of.after)
        found.append(of._replace(after=jax.tree.map(partial(select, of.alive), after, of.after)))
    return found


def _add_up(
    env: Sizes, sums: EpisodeSums, alive: Array, waits: Array, came: Outcome, beside: Mates | None
) -> tuple[EpisodeSums, EpisodeSums]:
    """Sums with this step, and what of them goes on: nothing of agents that ended and teams of which nobody is left.

    What decisions have earned whose outcome has arrived, mates know of then, as in the host loop.
    """
    undecided, done, ended = came.undecided, came.done, came.ended
    own, paid = jnp.where(undecided, done.reward, 0.0), jnp.where(undecided, done.group_reward, 0.0)
    group = by_team(env, paid)
    highest, lowest, goes_on = group.max(-1), group.min(-1), by_team(env, _stays(came)).any(-1)
    if beside is not None:
        highest, lowest = jnp.maximum(highest, beside.highest), jnp.minimum(lowest, beside.lowest)
        goes_on |= beside.stay
    of_mates = _of_mates(env, came.told, None if beside is None else beside.told)
    # The team's reward, by whomever it was received: the dying may get none where the living get it.
    received = jnp.where(highest > -lowest, highest, lowest)
    now = EpisodeSums(
        reward=sums.reward + own,
        length=sums.length - waits,  # the open decision has not been followed by another
        group_reward=sums.group_reward + received,
        received=sums.received + paid,
        mates_reward=sums.mates_reward + jnp.where(undecided, of_mates, 0.0),
    )
    return now, EpisodeSums(
        reward=jnp.where(ended, 0.0, now.reward),
        length=jnp.where(ended, 0, sums.length + alive),
        group_reward=jnp.where(goes_on, now.group_reward, 0.0),
        received=jnp.where(ended, 0.0, now.received),
        mates_reward=jnp.where(ended, 0.0, now.mates_reward),
    )


def _of_mates(env: Sizes, own: Array, beside: Array | None) -> Array:
    """Of `own` [..., A] the sum over everybody else in a member's team, [..., A]; with `beside` [..., K] of others."""
    earned = by_team(env, own)
    others = earned.sum(-1, keepdims=True) - earned
    if beside is not None:
        others = others + beside[..., None]
    return others.reshape(own.shape)
