"""Plays games between two players in a JAX environment, as one compiled program: the first episode of N areas.

A player decides for all members of its side, by behavior. Every start is played twice, with exchanged sides, so that
no player profits from a field or a start that favours one side.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import of_episode, of_one
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.tools.watch.film import Role
from jaxrl.training.acting import Act, by_team, first_moment, next_moment
from jaxrl.types import JaxrlError

CUT = 2
"""Result of a game that did not end in time."""


class Player(NamedTuple):
    """A player. Nothing is compiled anew if its `act` is that of another one, with policies of equal shapes."""

    name: str
    roles: Mapping[str, Role]  # by behavior


class Record(NamedTuple):
    """Results of games of one player against another."""

    won: int
    drawn: int
    lost: int
    cut: int = 0  # drawn games that did not end in time

    @property
    def share(self) -> float:
        """Share of won games among the decided ones; NaN where there are none."""
        decided = self.won + self.lost
        return self.won / decided if decided else float("nan")

    def turned(self) -> Record:
        """Return the record from the other player's view."""
        return self._replace(won=self.lost, lost=self.won)

    def plus(self, other: Record) -> Record:
        """Return the sum of both records."""
        return Record(*(a + b for a, b in zip(self, other, strict=True)))


class Match(NamedTuple):
    """All games of two players, from the first player's view."""

    on_first_side: Record  # games in which it has side 0
    on_second_side: Record

    @property
    def total(self) -> Record:
        """Record on either side."""
        return self.on_first_side.plus(self.on_second_side)


class Table:
    """Plays matches.

    Args:
      games: of a match; half of them with exchanged sides.
      longest: decisions after which a game without an end is a draw.
      seed: the same starts for all matches.
      returns: compare the returns of a game, not the rewards of its last step.

    Raises JaxrlError unless the environment has two sides: two teams of one behavior, or two behaviors of one.
    """

    def __init__(self, env: JaxEnv | JaxScene, *, games: int, longest: int, seed: int, returns: bool = False) -> None:
        scene, starts = scene_of(env), -(-games // 2)
        sides = _sides_of(scene)
        self._values = of_one(env.parameters)
        self._keys = jnp.tile(jax.random.split(jax.random.key(seed), starts), 2)[:games]
        self._turned = np.repeat([False, True], starts)[:games]
        self._program = jax.jit(partial(_results, scene, sides, longest, returns), static_argnums=0)

    def play(self, first: Player, second: Player) -> Match:
        """Play a match."""
        names = list(first.roles)
        acts = tuple(tuple((name, player.roles[name].act) for name in names) for player in (first, second))
        policies, memories = (
            {name: tuple(player.roles[name][field] for player in (first, second)) for name in names} for field in (1, 2)
        )
        outcomes = self._program(acts, policies, memories, self._keys, jnp.asarray(self._turned), self._values)
        results = np.asarray(outcomes)
        sides = (results[self._turned == turned] for turned in (False, True))
        return Match(*map(counted, sides))


def counted(results: np.ndarray) -> Record:
    """Return how many games were won, drawn, lost and cut."""
    won, drawn, lost, cut = (int((results == result).sum()) for result in (1, 0, -1, CUT))
    return Record(won, drawn + cut, lost, cut)


def _sides_of(scene: JaxScene) -> dict[str, np.ndarray]:
    """Return the side, 0 or 1, of each member by behavior. Raises JaxrlError unless there are two sides."""
    teams = [(part.name, part.members) for part in scene.parts for _ in range(part.teams)]
    if len(teams) != 2:
        raise JaxrlError(
            f"{scene.name}: has {len(teams)} team(s), and a game of a tournament is played by two: "
            "give an environment of two teams with --env, such as jax:pong"
        )
    return {
        part.name: np.concatenate([np.full(n, side) for side, (name, n) in enumerate(teams) if name == part.name])
        for part in scene.parts
    }


def _results(
    scene: JaxScene,
    sides: Mapping[str, np.ndarray],
    longest: int,
    returns: bool,
    acts: tuple[tuple[tuple[str, Act], ...], ...],
    policies: Any,
    memories: Any,
    keys: Array,
    turned: Array,
    values: Any,
) -> Array:
    """Return int32 [N]: 1 if the first player won, -1 if the second, 0 if neither, CUT if the game did not end.

    The result is what self-play rates: the side with more reward in the last step, own and group rewards together, from
    members that end for good; with `returns` the side with more reward in the whole game.
    """
    decide = {name: (one, dict(acts[1])[name]) for name, one in acts[0]}

    def begin(key: Array) -> tuple[Any, Any, Array]:
        state, views = scene.reset(jax.random.fold_in(key, 0), of_episode(values, key))
        return state, {name: first_moment(view) for name, view in views.items()}, jnp.zeros(2)

    def step(number: Array, key: Array, swap: Array, playing: Any) -> tuple[Any, Array, Array]:
        state, moments, earned, remembered = playing
        keys = jax.random.split(jax.random.fold_in(key, number + 1), 1 + len(decide))
        player = {name: jnp.asarray(side) ^ swap for name, side in sides.items()}  # [A], of each member
        sent, after = {}, {}
        for (name, both), own in zip(decide.items(), keys[1:], strict=True):
            act = by_team(both, player[name])
            sent[name], after[name] = act(policies[name], remembered[name], moments[name], own)
        state, result = scene.step(keys[0], state, sent)
        following, paid = {}, jnp.zeros(2)
        for name, of in result.behaviors.items():
            ended = of.terminated | of.truncated
            following[name] = next_moment(moments[name], of.view, ended, of.reward, of.group_reward)
            paid = paid.at[player[name]].add(jnp.where(of.terminated, of.reward + of.group_reward, 0.0))
            earned = earned.at[player[name]].add(of.reward + of.group_reward)
        decides = earned if returns else paid
        return (state, following, earned, after), result.over, jnp.sign(decides[0] - decides[1]).astype(jnp.int32)

    def all_games(carry: Any) -> Any:
        number, playing, over, results = carry
        playing, ends, came = jax.vmap(partial(step, number))(keys, turned.astype(jnp.int32), playing)
        return number + 1, playing, over | ends, jnp.where(ends & ~over, came, results)

    def goes_on(carry: Any) -> Array:
        number, _, over, _ = carry
        return (number < longest) & ~over.all()

    count = len(keys)
    everywhere = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), memories)
    playing = (*jax.vmap(begin)(keys), everywhere)
    begun = jnp.int32(0), playing, jnp.zeros(count, bool), jnp.zeros(count, jnp.int32)
    _, _, over, results = jax.lax.while_loop(goes_on, all_games, begun)
    return jnp.where(over, results, CUT)
