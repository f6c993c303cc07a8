"""A scene in which one team learns and the others are played by snapshots of its behavior, or of another's.

Each behavior with self-play appears twice in it: as learner, with the members of the learning team, and as rivals,
whose policies come from a pool (`opponents.py`). So a learner's rows are always those of the learning team. The
learning team is an environment parameter, so that changing it compiles nothing.

All teams of all these behaviors, in the order of the scene, are the *sides* of the contest. If several behaviors take
turns, all teams of one may be rivals, so it has as many rival slots as teams; the only behavior of a contest has one
less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, State, TeamActions, TeamView
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.masks import where

TURN = "turn of self-play"
"""Environment parameter: the number of the side that learns."""
_RIVALS = "rivals of {}"


class Sides(NamedTuple):
    """Teams of one behavior in a contest."""

    first: int  # number of the side that its team 0 is
    teams: int  # K
    slots: int  # J, rivals of this behavior in an area

    def learning(self, turn: Array) -> Array:
        """Return whether one of these teams learns, bool in the shape of `turn`."""
        return (turn >= self.first) & (turn < self.first + self.teams)

    def team(self, turn: Array) -> Array:
        """Return the team that learns; the last one if none does, so that rival j is team j."""
        return jnp.where(self.learning(turn), turn - self.first, self.teams - 1)

    def slot(self, turn: Array, side: int) -> Array:
        """Return the slot of the rivals that play `side`, one of these teams; meaningless if that side learns."""
        return jnp.clip((side - self.first - self.team(turn) - 1) % self.teams, 0, self.slots - 1)


class Contest(NamedTuple):
    """State of an area, with the side that learns in this episode."""

    state: State
    turn: Array  # int32 []


def rivals_of(name: str) -> str:
    """Return the name of the part that holds the rivals of a behavior."""
    return _RIVALS.format(name)


def sides_of(scene: JaxScene, names: Collection[str]) -> dict[str, Sides]:
    """Return the sides of the contest between the behaviors `names`, by behavior."""
    sides: dict[str, Sides] = {}
    first = 0
    for part in scene.parts:
        if part.name in names:
            sides[part.name] = Sides(first, part.teams, part.teams - (len(names) == 1))
            first += part.teams
    return sides


def contest(scene: JaxScene, sides: Mapping[str, Sides]) -> JaxScene:
    """Return the scene with rivals appended after the learners; behaviors without self-play do not change."""
    members = {part.name: part.members for part in scene.parts}
    learners = [part._replace(teams=1) if part.name in sides else part for part in scene.parts]
    rivals = [
        part._replace(name=rivals_of(part.name), teams=sides[part.name].slots)
        for part in scene.parts
        if part.name in sides
    ]

    def divided(by_behavior: Mapping[str, Any], turn: Array, nobody: Any) -> dict[str, Any]:
        shown = {}
        for name, whole in by_behavior.items():
            if name not in sides:
                shown[name] = whole
                continue
            shown[name], shown[rivals_of(name)] = _divided(sides[name], members[name], whole, turn, nobody)
        return shown

    def reset(key: Array, parameters: EnvParams) -> tuple[Contest, dict[str, TeamView]]:
        turn = jnp.asarray(parameters.get(TURN, 0.0)).astype(jnp.int32)
        state, views = scene.reset(key, {name: value for name, value in parameters.items() if name != TURN})
        return Contest(state, turn), divided(views, turn, _unseen)

    def step(key: Array, state: Contest, actions: dict[str, TeamActions]) -> tuple[Contest, SceneStep]:
        sent = {
            part.name: _together(
                sides[part.name], members[part.name], actions[part.name], actions[rivals_of(part.name)], state.turn
            )
            if part.name in sides
            else actions[part.name]
            for part in scene.parts
        }
        new_state, done = scene.step(key, state.state, sent)
        steps = divided(done.behaviors, state.turn, _nothing_happened)
        return Contest(new_state, state.turn), SceneStep(steps, done.over, done.stats)

    parts: tuple[BehaviorPart, ...] = (*learners, *rivals)
    return JaxScene(scene.name, parts, {**scene.parameters, TURN: 0.0}, reset, step)


def _divided(sides: Sides, members: int, found: Any, turn: Array, nobody: Any) -> tuple[Any, Any]:
    """Divide arrays of all teams [K * M, ...] into those of the learning team [M, ...] and of the rivals [J * M, ...].

    `nobody`: (arrays, rows, bool [A]) → the arrays with these rows absent.
    """
    order = (sides.team(turn) + 1 + jnp.arange(sides.teams)) % sides.teams  # the learning team last

    def teams(of: Array) -> Any:
        def rows(x: Array) -> Array:
            return x.reshape(sides.teams, members, *x.shape[1:])[of].reshape(of.size * members, *x.shape[1:])

        return jax.tree.map(rows, found)

    learns = sides.learning(turn)
    absent = jnp.repeat((jnp.arange(sides.slots) == sides.teams - 1) & learns, members)
    return nobody(teams(order[-1:]), jnp.full(members, ~learns)), nobody(teams(order[: sides.slots]), absent)


def _together(sides: Sides, members: int, own: TeamActions, rivals: TeamActions, turn: Array) -> TeamActions:
    """Combine the actions of the learning team and the rivals to those of all teams [K * M, ...]."""
    learns, team = sides.learning(turn), sides.team(turn)
    place = (jnp.arange(sides.teams) - team - 1) % sides.teams

    def rows(mine: Array, others: Array) -> Array:
        others, mine = others.reshape(sides.slots, *mine.shape), mine[None]
        last = jnp.where(learns, mine, others[-1:]) if sides.slots == sides.teams else mine
        every = jnp.concatenate([others[: sides.teams - 1], last])[place]  # [K, M, *]
        return every.reshape(sides.teams * members, *every.shape[2:])

    return jax.tree.map(rows, own, rivals)


def _unseen(view: TeamView, absent: Array) -> TeamView:
    obs = jax.tree.map(partial(where, ~absent, fill=0), view.obs)
    return TeamView(obs, view.action_mask | absent[:, None], view.alive & ~absent)


def _nothing_happened(step: BehaviorStep, absent: Array) -> BehaviorStep:
    numbers = (where(~absent, x, 0) for x in step[1:])
    return BehaviorStep(_unseen(step.view, absent), *numbers)
