"""Demonstrations episode by episode, as data sets hold them: T decisions and the T + 1 states around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.demonstrations.reading import AGENTS, agent_columns, is_late
from jaxrl.demonstrations.records import Kind, kind_of
from jaxrl.demonstrations.writing import Pair
from jaxrl.settings.demonstrations import DETECT
from jaxrl.types import Action


class Episode(NamedTuple):
    """Observations, actions and rewards of one agent. Without a flag the recording stops before the episode does."""

    obs: tuple[np.ndarray, ...]  # one per sensor, [T + 1, *shape]
    action: Action  # float32 [T, C], int32 [T, D]
    reward: np.ndarray  # float32 [T]
    group_reward: np.ndarray  # float32 [T]
    terminated: bool
    truncated: bool


def episodes(files: Iterable[Path], demo_actions: str = DETECT) -> Iterator[Episode]:
    """Yield the episodes of `.demo` files, one after the other, without those of no decision.

    `demo_actions` as in the settings. Raises DemonstrationError.
    """
    for file in files:
        kind = kind_of(file)
        late = is_late(kind, demo_actions)
        for *obs, numbers, choices, reward, group, done, interrupted in recorded_episodes(file, kind, demo_actions):
            action = Action(*(x[1:] if late else x[:-1] for x in (numbers, choices)))
            over, cut = bool(done[-1]), bool(interrupted[-1])
            yield Episode(tuple(obs), action, reward[1:], group[1:], over and not cut, over and cut)


def recorded_episodes(file: Path, kind: Kind, demo_actions: str) -> Iterator[list[np.ndarray]]:
    """Yield the columns of `agent_columns` episode by episode, of two pairs at least. Raises DemonstrationError."""
    unfinished: dict[int, list[list[np.ndarray]]] = {}  # by agent
    for agent, columns in agent_columns(file, kind, demo_actions):
        ends = np.flatnonzero(columns[-2]) + 1
        for part in zip(*(np.split(x, ends) for x in columns), strict=True):
            if not len(part[0]):
                continue
            parts = unfinished.pop(agent, [])
            parts.append(list(part))
            if part[-2][-1]:
                yield from _joined(parts)
            else:
                unfinished[agent] = parts
        if len(unfinished) > AGENTS:
            yield from _joined(unfinished.pop(next(iter(unfinished))))
    for parts in unfinished.values():
        yield from _joined(parts)


def _joined(parts: list[list[np.ndarray]]) -> Iterator[list[np.ndarray]]:
    if sum(len(part[0]) for part in parts) > 1:
        yield [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def pairs_of(found: Iterable[Episode]) -> Iterator[Pair]:
    """Yield the pairs that `write` takes. Behind an episode without an end those of another agent follow."""
    agent = 0
    for episode in found:
        action, length = episode.action, len(episode.reward)
        over = episode.terminated or episode.truncated
        for time in range(length + 1):
            paid = (float(episode.reward[time - 1]), float(episode.group_reward[time - 1])) if time else (0.0, 0.0)
            pair = Pair([x[time] for x in episode.obs], (), (), *paid, agent=agent)
            if time < length:
                yield pair._replace(continuous=action.continuous[time], discrete=action.discrete[time])
            elif over:
                yield pair._replace(done=True, interrupted=episode.truncated)
            else:
                nothing = [0.0] * action.continuous.shape[1], [0] * action.discrete.shape[1]
                yield pair._replace(continuous=nothing[0], discrete=nothing[1])
        agent += not over
