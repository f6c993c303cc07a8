"""Demonstrations episode by episode, as data sets hold them: T decisions and the T + 1 states around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.demonstrations.reading import pair_columns
from jaxrl.demonstrations.writing import Pair
from jaxrl.types import Action


class Episode(NamedTuple):
    """What one agent saw, did and was paid. Where neither flag is set the recording stops before the episode does."""

    obs: tuple[np.ndarray, ...]  # one per sensor, [T + 1, *shape]
    action: Action  # float32 [T, C], int32 [T, D]
    reward: np.ndarray  # float32 [T]
    group_reward: np.ndarray  # float32 [T]
    terminated: bool
    truncated: bool


def episodes(files: Iterable[Path]) -> Iterator[Episode]:
    """Of `.demo` files, one after the other; those of no decision are left out. Raises DemonstrationError."""
    for file in files:
        open_: list[list[np.ndarray]] = []
        for columns in pair_columns(file):
            ends = np.flatnonzero(columns[-2]) + 1
            for part in zip(*(np.split(x, ends) for x in columns), strict=True):
                if not len(part[0]):
                    continue
                open_.append(list(part))
                if part[-2][-1]:
                    yield from _episode(open_)
                    open_ = []
        yield from _episode(open_)


def _episode(parts: list[list[np.ndarray]]) -> Iterator[Episode]:
    if sum(len(part[0]) for part in parts) < 2:
        return
    *obs, numbers, choices, reward, group, done, interrupted = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    over, cut = bool(done[-1]), bool(interrupted[-1])
    yield Episode(tuple(obs), Action(numbers[:-1], choices[:-1]), reward[1:], group[1:], over and not cut, over and cut)


def pairs_of(found: Iterable[Episode]) -> Iterator[Pair]:
    """What `write` takes."""
    for episode in found:
        action, length = episode.action, len(episode.reward)
        for time in range(length + 1):
            paid = (float(episode.reward[time - 1]), float(episode.group_reward[time - 1])) if time else (0.0, 0.0)
            seen, over = [x[time] for x in episode.obs], episode.terminated or episode.truncated
            if time < length:
                yield Pair(seen, action.continuous[time], action.discrete[time], *paid)
            elif over:
                yield Pair(seen, (), (), *paid, done=True, interrupted=episode.truncated)
            else:
                nothing = [0.0] * action.continuous.shape[1], [0] * action.discrete.shape[1]
                yield Pair(seen, *nothing, *paid)
