"""Act in a JAX environment inside a compiled program: T decisions of S seeds in E areas each, stored for a rollout.

The environments of all seeds step as one batch of S·E areas, so that a new episode is drawn only in steps in which one
is due; the policies of each behavior act side by side, one per seed. Values that no step needs are computed afterwards,
for all T steps at once.

A member that is not alive and has not ended pauses: its decision stays pending, and gets the rewards of the member and
its mates until the member decides again or ends (`arrived`).
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
    """Act and step T times. All arguments are by behavior, except the areas and the parameters.

    Args:
      policies: one per seed, leading axis [S].
      keys: typed keys [T, S], consumed: the noise of each decision.
      parameters: float32 [S] by name or a distribution [S], for episodes that begin.
      untold: for behaviors that are not learned from, the function that reduces `Transitions` to what is reported.
      teams: behaviors whose members are mates of each other.
      shared: `TeamAlgorithm.critic_step` of behaviors with a common critic that has memory.

    Returns:
      The areas afterwards and the plays, whose `connectors` are a whole `ChainState`, with statistics; the steps.
    """
    areas, plays = world
    seeds, count = areas.clock.shape
    values = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), parameters)
    items = algorithms.items()
    noise = {name: noise_of(algo, keys[name], plays[name].view.alive.shape[1:]) for name, algo in items}
    begun = {name: with_statistics(algo, plays[name], policies[name]) for name, algo in items}
    begun = {name: play._replace(made=()) for name, play in begun.items()}
    critics = {(name,): alone(algo.critic_step) for name, algo in items if algo.critic_step is not None}

    def step(world: Any, noise: dict[str, Any]) -> tuple[Any, Any]:
        areas, plays = unpack(world)
        chosen = {name: choose(algo, policies[name], plays[name], noise[name]) for name, algo in items}
        for names, critic_step in {**critics, **shared}.items():
            rows = [scene.part(n).members if algorithms[n].team_rows else 1 for n in names]
            of_each = [(row, policies[n], plays[n], chosen[n]) for row, n in zip(rows, names, strict=True)]
            chosen |= zip(names, _remembered(critic_step, *zip(*of_each, strict=True)), strict=True)
        sent = {name: join(choice.sent) for name, choice in chosen.items()}
        moved, result = advance_areas(scene, join(areas), sent, values)
        done, views = split(result.step, seeds), split(result.view, seeds)
        came = {name: outcome(algo, plays[name], chosen[name], step_of_behavior(done, name)) for name, algo in items}
        mates: dict[str, Mates] = {}
        for names in teams:
            mates |= _mates(scene, {name: came[name] for name in names})
        new_plays, here = {}, {}
        for name, algo in items:
            seen = plays[name], chosen[name], came[name]
            play, here[name] = note(scene.part(name), algo, *seen, mates.get(name))
            new_plays[name] = play._replace(view=views[name])
            if name in untold:
                here[name] = untold[name](here[name])
        return pack((split(moved, seeds), new_plays)), pack(here)

    world, steps = jax.lax.scan(step, pack((areas, begun)), noise)
    areas, last = unpack(world)
    return (areas, {name: play._replace(made=plays[name].made) for name, play in last.items()}), unpack(steps)


def with_statistics(algorithm: Algorithm, play: Play, policy: PolicyState) -> Play:
    """Return the play with the whole state of the connectors, including the policies' statistics [S]."""
    return play._replace(connectors=connectors.with_statistics(algorithm.connectors, play.connectors, policy))


class Choice(NamedTuple):
    """Decisions of the members of S seeds and E areas, with their inputs."""

    made: Made  # also rows of members that do not decide
    alive: Array  # bool [S, E, A], members that decide
    doing: Any  # action of every member, of paused ones their last, `Action` or (), as in `Open`
    after: Any  # memory after the decision; the critic's is added when all have chosen
    sent: TeamActions  # actions for the environment, [S, E, A, ...]
    connectors: Any  # their state after the decision


def choose(algorithm: Algorithm, policy: PolicyState, play: Play, key: Array) -> Choice:
    """Compute the members' decisions of one step. `key`: one for each seed [S], or the noise drawn from it."""
    chain = algorithm.connectors
    begin = begins(play)
    connected, view = connectors.observed(chain, play.connectors, play.view, begin)
    carry = remembered(play)
    decision = jax.vmap(algorithm.act)(policy, view.obs, view.action_mask, carry, key)
    where_alive = partial(jax.tree.map, partial(select, view.alive))
    doing = () if play.open.action == () else where_alive(decision.action, play.open.action)  # paused: unchanged
    after = where_alive(decision.carry, carry)  # members that do not decide keep their memory
    connected, action = connectors.sent(chain, connected, decision, view.alive)
    sent = TeamActions(continuous=action.continuous, discrete=action.discrete)
    made = Made(view.obs, view.action_mask, decision.action, decision.extras, carry, begin)
    return Choice(made, view.alive, doing, after, sent, connected)


class Outcome(NamedTuple):
    """Outcomes of the decisions of one behavior. Leading axes [S, E, A]."""

    done: TeamStep
    undecided: Array  # bool, its decision was pending
    ended: Array  # bool
    arrived: Array  # bool, the decision's outcome is complete
    earned: Array  # float32, individual reward of the pending decision so far
    told: Array  # float32, `earned` where arrived, else 0
    connectors: Any  # their state after the step
    own: Array  # float32, `told` as the connectors return it
    group: Array  # float32, group reward where arrived, as the connectors return it
    paid: Array  # float32, group reward of the pending decision so far


class Mates(NamedTuple):
    """Values of a team's members of other behaviors, reduced to each team, [S, E, K]."""

    highest: Array  # float32, highest group reward that one of them received now
    lowest: Array  # float32, lowest one
    told: Array  # float32, sum of their `Outcome.told`
    own: Array  # float32, sum of their `Outcome.own`
    stay: Array  # bool, one of them lives on


def outcome(algorithm: Algorithm, play: Play, chosen: Choice, done: TeamStep) -> Outcome:
    """Compute the outcomes of the decisions from the step `done` [S, E, ...].

    All decisions end with the episode, even if the environment does not say so for a member.
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
    """Compute, for each behavior of one team, the `Mates` of its other behaviors."""
    parts = {name: _brought(scene.part(name), result) for name, result in came.items()}

    def joined(some: Mates, others: Mates) -> Mates:
        return Mates(
            jnp.maximum(some.highest, others.highest),
            jnp.minimum(some.lowest, others.lowest),
            some.told + others.told,
            some.own + others.own,
            some.stay | others.stay,
        )

    return {name: reduce(joined, [parts[other] for other in parts if other != name]) for name in parts}


def _brought(env: Sizes, came: Outcome) -> Mates:
    """Reduce one behavior's outcomes to teams, as `Mates` for its other behaviors."""
    paid = by_team(env, jnp.where(came.undecided, came.done.group_reward, 0.0))
    told, own = by_team(env, came.told).sum(-1), by_team(env, came.own).sum(-1)
    return Mates(paid.max(-1), paid.min(-1), told, own, by_team(env, _stays(came)).any(-1))


def _stays(came: Outcome) -> Array:
    """Return which members live on after the step, deciding or pausing, bool [S, E, A]; none if the episode is over."""
    return (came.done.view.alive | (came.undecided & ~came.ended)) & ~came.done.over[..., None]


def note(
    env: Sizes, algorithm: Algorithm, play: Play, chosen: Choice, came: Outcome, beside: Mates | None = None
) -> tuple[Play, Transitions]:
    """Return the play with its view unchanged, and the step's `Transitions` for a rollout."""
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
    """Put the decisions `made` [E, A, ...] that are still pending into the first of one seed's steps [T, E, A, ...].

    So, as in the host loop's buffer, an update has all their inputs, and none is lost.
    """
    waits = steps.waits[0]
    fields = {name: getattr(steps, name) for name in Made._fields}
    first = jax.tree.map(lambda old, x: x.at[0].set(select(waits, old, x[0])), made._asdict(), fields)
    return steps._replace(
        **first, alive=steps.alive.at[0].set(steps.alive[0] | waits), waits=steps.waits.at[0].set(False)
    )


def still_open(made: Made, steps: Transitions) -> Made:
    """Return the inputs of the decisions that are pending after one seed's steps, [E, A, ...]; zeros elsewhere.

    `made`: inputs of the decisions that were pending before.
    """
    time, areas, members = steps.alive.shape
    newest = jnp.where(steps.alive, jnp.arange(time)[:, None, None], -1).max(0)
    waits = (steps.alive | steps.waits)[-1] & ~steps.arrived[-1]
    at = jnp.maximum(newest, 0), jnp.arange(areas)[:, None], jnp.arange(members)
    fields = Made(*(getattr(steps, name) for name in Made._fields))
    known = jax.tree.map(lambda x, old: select(newest >= 0, x[at], old), fields, made)
    return jax.tree.map(lambda x: select(waits, x, jnp.zeros_like(x)), known)


def none_made(algorithm: Algorithm, policy: PolicyState, play: Play, keys: Array) -> Made:
    """Return zeros, for the time before the first decision of S seeds. Only the shape of `keys` [S] is used."""

    def made(policy: PolicyState, play: Play, keys: Array) -> Made:
        noise = noise_of(algorithm, keys[None], play.view.alive.shape[1:])
        return choose(algorithm, policy, with_statistics(algorithm, play, policy), noise[0]).made

    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(made, policy, play, keys))


def noise_of(algorithm: Algorithm, keys: Array, lead: tuple[int, ...]) -> Any:
    """Draw the noise of `act` from keys [T, S] for members [*lead] at once; return the keys if `act` draws itself.

    The numbers are those of drawing in each step, where 48 of them took 33 us (one core, jaxlib 0.10.2).
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
    """Return the choices of behaviors with one critic with its new memory, in rows of `members` of each behavior."""

    def rows(count: int, x: Any) -> Any:  # [S, E, A, ...] → [S, E * A / count, count, ...]
        return jax.tree.map(lambda y: y.reshape(y.shape[0], y.shape[1] * y.shape[2] // count, count, *y.shape[3:]), x)

    decisions = [Decision(choice.doing, choice.doing, {}, choice.after) for choice in chosen]
    there = [choice.alive | play.open.waits for choice, play in zip(chosen, plays, strict=True)]
    inputs = ([choice.made.obs for choice in chosen], there, decisions)
    in_rows = [[rows(count, x) for count, x in zip(members, values, strict=True)] for values in inputs]
    choices = []
    for choice, memory in zip(chosen, jax.vmap(critic_step)(policies, *in_rows), strict=True):
        memory = jax.tree.map(lambda x, y: x.reshape(y.shape), memory, choice.after)
        choices.append(choice._replace(after=jax.tree.map(partial(select, choice.alive), memory, choice.after)))
    return choices


def _add_up(
    env: Sizes, sums: EpisodeSums, alive: Array, waits: Array, came: Outcome, beside: Mates | None
) -> tuple[EpisodeSums, EpisodeSums]:
    """Return episode sums with this step, and those carried on, reset for ended agents and for teams without members.

    A decision's reward enters its mates' sums when its outcome has arrived, as in the host loop.
    """
    undecided, done, ended = came.undecided, came.done, came.ended
    own, paid = jnp.where(undecided, done.reward, 0.0), jnp.where(undecided, done.group_reward, 0.0)
    group = by_team(env, paid)
    highest, lowest, goes_on = group.max(-1), group.min(-1), by_team(env, _stays(came)).any(-1)
    if beside is not None:
        highest, lowest = jnp.maximum(highest, beside.highest), jnp.minimum(lowest, beside.lowest)
        goes_on |= beside.stay
    of_mates = _of_mates(env, came.told, None if beside is None else beside.told)
    # The team's reward, whichever member received it: dying members may get none while living ones get it.
    received = jnp.where(highest > -lowest, highest, lowest)
    now = EpisodeSums(
        reward=sums.reward + own,
        length=sums.length - waits,  # the pending decision has not been followed by another
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
    """Sum `own` [..., A] over all other members of each member's team; add `beside` [..., K] of other behaviors."""
    earned = by_team(env, own)
    others = earned.sum(-1, keepdims=True) - earned
    if beside is not None:
        others = others + beside[..., None]
    return others.reshape(own.shape)
