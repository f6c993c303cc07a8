"""Tells from their effects whether a recording's actions stand beside their observations or one record late.

For pairs t and t + 1 of an episode, the change of each observed number is predicted by least squares: from what was
observed and its change before, and from these together with actions, of pair t (lag 0), of pair t + 1 (lag 1), or
both. A share is that of the error which the actions take away, in episodes that were not fitted, for the number with
the largest share. Where observations alone leave nothing to explain, actions predict alone.

An action that caused a change explains it whatever else is known. That of the decision before is already in what is
seen, so that in a late recording lag 0 adds nothing to lag 1. In one that is not, lag 1 may add much to lag 0: the next
decision answers what chance did. Therefore what lag 0 adds decides first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.demonstrations.episodes import recorded_episodes
from jaxrl.demonstrations.reading import is_late
from jaxrl.demonstrations.records import kind_of
from jaxrl.settings.demonstrations import DETECT, NEXT_RECORD

_TRANSITIONS, _FEWEST = 20_000, 20
"""Transitions that are looked at, the first of a file, and how many it needs."""
_NUMBERS, _CHOICES = 256, 64
"""Observed numbers, evenly spaced in those that change, and choices of a branch, the most frequent ones."""
_RIDGE, _OPEN = 1e-3, 1e-3  # share of a variance that is added, and that is taken for none
_SOME = 0.05  # share that is more than chance
_ADDS, _ADDS_NOTHING = 0.15, 0.08  # of what lag 1 adds to lag 0: at least and at most that much of it


class Lags(NamedTuple):
    """Shares of the change of observations that actions explain, 0 to 1."""

    transitions: int
    lag_0: float = 0.0  # actions beside the observations
    lag_1: float = 0.0  # actions one record late
    lag_0_adds: float = 0.0  # to lag 1
    lag_1_adds: float = 0.0  # to lag 0

    @property
    def late(self) -> bool | None:
        """True if actions are one record late; None: it cannot be told."""
        if self.lag_0_adds >= max(_SOME, _ADDS * self.lag_1_adds):
            return False
        if self.lag_1_adds >= _SOME and self.lag_0_adds <= _ADDS_NOTHING * self.lag_1_adds:
            return True
        return None


class _Transitions(NamedTuple):
    """Pairs t and t + 1 of n transitions."""

    known: np.ndarray  # observed numbers and the change that led to them, 0 where an episode begins, float64 [n, 2 K]
    change: np.ndarray  # [n, K]
    actions: tuple[np.ndarray, np.ndarray]  # of pair t and of pair t + 1, branches one-hot, [n, F]
    half: np.ndarray  # bool [n]: each half is predicted with weights fitted to the other


def measure_lags(file: Path) -> Lags:
    """Return how well actions explain the change of observations in a file. Raises DemonstrationError."""
    data = _transitions(file)
    if data is None or len(data.half) < _FEWEST:
        return Lags(0 if data is None else len(data.half))
    alone, spread = _errors(data.known, data)
    known, counted, error = data.known, alone > _OPEN * spread, alone
    if not counted.any():
        known, counted, error = data.known[:, :0], spread > 0.0, spread
    first, second = data.actions
    lag_0, lag_1, both = (
        1.0 - _errors(np.concatenate([known, *actions], axis=1), data)[0][counted] / error[counted]
        for actions in ([first], [second], [first, second])
    )
    shares = lag_0, lag_1, both - lag_1, both - lag_0
    return Lags(len(data.half), *(float(np.clip(share, 0.0, 1.0).max(initial=0.0)) for share in shares))


def lag_lines(file: Path) -> Iterator[str]:
    """Yield the result of `measure_lags` and its effect on training, in words. Raises DemonstrationError."""
    kind, lags = kind_of(file), measure_lags(file)
    read_late = is_late(kind, DETECT)
    yield f"{file}: {kind.recorder}"
    yield f"  {lags.transitions} transitions; share of the change of observations that actions explain:"
    yield f"  lag 0, the action beside the observation: {lags.lag_0:.3f}; beyond lag 1 {lags.lag_0_adds:.3f}"
    yield f"  lag 1, the action of the next record: {lags.lag_1:.3f}; beyond lag 0 {lags.lag_1_adds:.3f}"
    manner = ("beside their observations", "one record late")
    if lags.late is None:
        yield f"  it cannot be told where actions stand; they are read as standing {manner[read_late]}"
    elif lags.late == read_late:
        yield f"  actions stand {manner[lags.late]}, and are read so"
    else:
        key = "next_record" if lags.late else "as_recorded"
        yield f"  actions stand {manner[lags.late]}, but are read as standing {manner[read_late]}:"
        yield f"  write demo_actions: {key} below each demo_path of this file"


def _transitions(file: Path) -> _Transitions | None:
    """Return the first transitions of a file without those into pairs that end an episode; None: there are none."""
    kind, episodes, count = kind_of(file), [], 0
    for number, (*obs, numbers, choices, _, _, done, _) in enumerate(recorded_episodes(file, kind, NEXT_RECORD)):
        length = min(len(done) - int(done[-1]), _TRANSITIONS)
        seen = np.concatenate([np.zeros((length, 0)), *(_some(x[:length], len(obs)) for x in obs)], axis=1)
        episodes.append((seen, numbers[:length], choices[:length], np.full(length, number)))
        count += length
        if count >= _TRANSITIONS:
            break
    if not episodes:
        return None
    seen, numbers, choices, episode = (np.concatenate(columns) for columns in zip(*episodes, strict=True))
    follows = np.append(False, episode[1:] == episode[:-1])
    at = np.flatnonzero(follows) - 1
    varying = np.flatnonzero(np.ptp(seen, axis=0))
    seen = seen[:, varying[:: -(-len(varying) // max(min(len(at) // 8, _NUMBERS), 1)) or 1]]
    came = np.diff(seen, axis=0, prepend=seen[:1]) * follows[:, None]
    actions = _features(numbers, choices)
    half = episode[at] % 2 == 0
    if half.all() or not half.any():
        half = at // 16 % 2 == 0
    return _Transitions(np.concatenate([seen, came], axis=1)[at], came[at + 1], (actions[at], actions[at + 1]), half)


def _some(numbers: np.ndarray, sensors: int) -> np.ndarray:
    """Return some of the numbers of a sensor, evenly spaced: float64 [n, K] of [n, ...]."""
    flat = numbers.reshape(len(numbers), -1)
    return flat[:, :: -(-flat.shape[1] // max(4 * _NUMBERS // sensors, 1)) or 1].astype(np.float64)


def _features(numbers: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Return actions as numbers [n, F], branches one-hot in their most frequent choices."""
    columns = [numbers.astype(np.float64)]
    for branch in choices.T:
        values, counts = np.unique(branch, return_counts=True)
        columns.append((branch[:, None] == values[np.argsort(-counts)[:_CHOICES]]).astype(np.float64))
    return np.concatenate(columns, axis=1)


def _errors(inputs: np.ndarray, data: _Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared error of the change of each number, predicted from the inputs, and around the mean, [K]."""
    error, spread = np.zeros(data.change.shape[1]), np.zeros(data.change.shape[1])
    for fitted in (data.half, ~data.half):
        mean, deviation = inputs[fitted].mean(0), inputs[fitted].std(0) + 1e-9
        x = (inputs - mean) / deviation
        target = data.change - data.change[fitted].mean(0)
        weights = x[fitted].T @ x[fitted] + _RIDGE * fitted.sum() * np.eye(x.shape[1])
        solution = np.linalg.solve(weights, x[fitted].T @ target[fitted])
        error += np.square(target - x @ solution)[~fitted].sum(0)
        spread += np.square(target)[~fitted].sum(0)
    return error, spread
