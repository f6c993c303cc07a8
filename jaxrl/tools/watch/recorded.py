"""Plays recorded episodes again in their JAX scene, to draw them: a demonstration holds no states.

All that is random in an area comes from its key and its clock (`jax_envs.interface`). For an episode that `jaxrl
record` made with a known seed, only the clock at its beginning is missing. The search takes the first clock after the
previous episode at which the scene shows the first recorded observation and, with the recorded actions, all later
observations and rewards. So episodes that the file left out are skipped, and a film shows the recording or fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.demonstrations import DemonstrationError
from jaxrl.demonstrations.episodes import Episode
from jaxrl.demonstrations.reading import check_same_spec
from jaxrl.demonstrations.records import kind_of
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.jax_envs.interface import Areas, JaxEnv, TeamActions, next_episodes, start_areas, step_areas
from jaxrl.masks import select
from jaxrl.tools.watch.film import Game, check_watchable, drawable, frames_of
from jaxrl.tools.watch.painter import Frame

_CLOSE = 1e-3
"""Relative or absolute difference up to which numbers are equal: another program rounds otherwise."""
_AT_ONCE, _CLOCKS, _TRIED = 1024, 1 << 16, 1024
"""Beginnings compared in one program, number of clocks, and number of matching ones that are played per episode."""


class Place(NamedTuple):
    """The scene that is drawn."""

    address: str  # jax:NAME, or FILE.py:FUNCTION
    seed: int = 0  # of the recording
    env_args: Sequence[str] | None = None


def recorded_frames(place: Place, file: Path, chosen: Sequence[tuple[int, Episode]], several: bool) -> list[Frame]:
    """Return pictures of the start of each episode and of the state after each decision.

    Args:
      place: scene and seed of the recording.
      file: a file of the recording, whose agent must be that of the scene.
      chosen: numbers of episodes, for messages, and their recordings.
      several: pictures say which episode they show.

    Raises DemonstrationError if the scene is for other agents or several, or differs from the recording; JaxrlError if
    there is no such scene, or it cannot be drawn.
    """
    env = _scene(place, file)
    longest = max(len(episode.reward) for _, episode in chosen)
    play = jax.jit(partial(_play, env))
    look = jax.jit(partial(_beginnings, env))
    key, clock, games = jax.random.fold_in(jax.random.key(np.uint32(place.seed & 0xFFFFFFFF)), 0), 0, []
    for number, episode in chosen:
        furthest = -1
        for began, areas in islice(_alike(look, key, clock, episode), _TRIED):
            played = jax.tree.map(np.asarray, play(areas, _actions(episode, longest)))
            right = _agreed(episode, played)
            if right == len(episode.reward):
                games.append(_game(env, played, right))
                clock = began + right
                break
            furthest = max(furthest, right)
        else:
            raise DemonstrationError(_parted(place, number, furthest))
    whole: Any = jax.tree.map(lambda *parts: np.concatenate(parts), *games)
    return frames_of(env, whole, whole.reward[env.name] + whole.group_reward[env.name], 1 + several)


def _scene(place: Place, file: Path) -> JaxEnv:
    check_watchable(place.address, None)
    env = drawable(place.address, keyword_arguments(place.env_args))
    if not isinstance(env, JaxEnv) or env.members * env.teams != 1:
        raise DemonstrationError(
            f"{place.address}: several agents live in it, and a demonstration holds what one of them did, so it cannot "
            "be played again; `jaxrl watch` films policies there"
        )
    check_same_spec(file, kind_of(file).spec, env.spec, place.address)
    return env


def _parted(place: Place, number: int, furthest: int) -> str:
    where = f"{place.address} with seed {place.seed}"
    mend = "Name the scene, --seed and --env-args of the recording; another version of a scene may not play it any more"
    if furthest < 0:
        return f"episode {number}: {where} never shows what was seen first in it, in {_CLOCKS:,} decisions. {mend}"
    return (
        f"episode {number}: {where} shows what was recorded up to decision {furthest}, and something else after it. "
        f"{mend}"
    )


def _beginnings(env: JaxEnv, key: Array, clocks: Array) -> tuple[Areas, tuple[Array, ...]]:
    """Return the episodes of a recorded area that begin at these clocks [K], and their first observations."""
    count = len(clocks)
    parameters = {name: jnp.full(count, value, jnp.float32) for name, value in env.parameters.items()}
    alone, first = start_areas(env, key, 1, {name: value[:1] for name, value in parameters.items()})
    areas = Areas(jnp.broadcast_to(alone.key, (count,)), clocks.astype(jnp.uint32) - 1, ())
    state, view = next_episodes(env, areas, parameters)
    state, obs = jax.tree.map(partial(select, clocks == 0), (alone.state, first.obs), (state, view.obs))
    return Areas(areas.key, clocks.astype(jnp.uint32), state), obs


def _alike(look: Any, key: Array, clock: int, one: Episode) -> Iterator[tuple[int, Areas]]:
    """Yield clock and area of the beginnings, from a clock on, that show the recorded first observation."""
    for start in range(clock, _CLOCKS, _AT_ONCE):
        areas, seen = look(key, start + jnp.arange(_AT_ONCE))
        same = _close([x[None, 0] for x in one.obs], [np.asarray(x)[:, 0] for x in seen])
        for at in map(int, np.flatnonzero(same)):
            yield start + at, jax.tree.map(lambda x, at=at: x[at : at + 1], areas)


def _actions(one: Episode, length: int) -> TeamActions:
    """Return the actions of an area with one agent, [T, 1, 1, ...], padded with zeros to a length."""
    padded = (np.pad(x, ((0, length - len(x)), (0, 0))) for x in one.action)
    return TeamActions(*(jnp.asarray(x[:, None, None]) for x in padded))


def _play(env: JaxEnv, areas: Areas, actions: TeamActions) -> tuple[Any, ...]:
    """Return states before and after, observations after, rewards [T, A], and the ends of episodes [T]."""

    def step(areas: Areas, action: TeamActions) -> tuple[Areas, Any]:
        new_state, outcome = step_areas(env, areas, action)
        seen = tuple(x[0] for x in outcome.view.obs)
        before, later = (jax.tree.map(lambda x: x[0], state) for state in (areas.state, new_state))
        return areas._replace(clock=areas.clock + 1, state=new_state), (
            before, later, seen, outcome.reward[0], outcome.group_reward[0], outcome.over[0],
        )  # fmt: skip

    return jax.lax.scan(step, areas, actions)[1]


def _agreed(one: Episode, played: tuple[Any, ...]) -> int:
    """Return the number of decisions before the first one whose outcome differs from the recording, T at most."""
    length, (_, _, seen, reward, group, over) = len(one.reward), played
    same = _close([x[1:] for x in one.obs], [x[:length, 0] for x in seen])
    same &= _close([one.reward, one.group_reward], [reward[:length, 0], group[:length, 0]])
    same &= ~over[:length] | (np.arange(length) == length - 1)
    return length if same.all() else int(same.argmin())


def _close(recorded: Sequence[np.ndarray], shown: Sequence[np.ndarray]) -> np.ndarray:
    """Return which rows of arrays [n, ...] agree, bool [n]; an array of 1 row is broadcast."""
    both = zip(recorded, shown, strict=True)
    near = (np.isclose(np.asarray(a, float), np.asarray(b, float), _CLOSE, _CLOSE) for a, b in both)
    return np.all([x.reshape(len(x), -1).all(axis=1) for x in near], axis=0)


def _game(env: JaxEnv, played: tuple[Any, ...], length: int) -> Game:
    """Return the first decisions as a game; the last one ends an episode, also where the recording was cut."""
    before, after, _, reward, group, _ = jax.tree.map(lambda x: x[:length], played)
    return Game(before, after, {env.name: reward}, {env.name: group}, np.arange(length) == length - 1)
