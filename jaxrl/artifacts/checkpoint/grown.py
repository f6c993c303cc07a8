"""Adapts weights of a behavior whose sensors have changed: weights of the old sensors keep their meaning.

Sensors are matched by name, then by shape. New inputs begin with weights of zero: whatever is seen there,
networks compute their former outputs, until they have learned otherwise. New entities beside others are an exception:
one attention weighs all. The first numbers of a vector that has grown are the old ones (AddObservation behind the
others); in a stack, the first numbers of each frame.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts.checkpoint.tree import Leaves
from jaxrl.networks.encoders import is_goal, kind_of
from jaxrl.networks.observations import encoding_parts
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import BehaviorSpec, ObservationSpec

KEPT_COUNT = 2**14
"""Largest count of observations in the statistics of a vector that grows: statistics of its new numbers adapt soon."""
_SIZE = re.compile(r"StackingSensor_size\d+_|size\d+")  # ML-Agents: VectorSensor_size8, and with frames
_STACK = re.compile(r"StackingSensor_size(\d+)_")


class Grown(NamedTuple):
    """Checkpoint as if the behavior had always had today's sensors."""

    leaves: Leaves
    arrays: Mapping[str, Any]
    anew: frozenset[str]  # leaves of today that belong to new sensors alone
    told: str  # text that lists copied and new weights


def grown(
    saved: Leaves, arrays: Mapping[str, Any], wanted: Leaves, old: BehaviorSpec, new: BehaviorSpec, net: NetworkSettings
) -> Grown:
    """Rearrange the leaves `saved` of networks for `old`, so that they fit `new`.

    Leaves that do not fit for another reason than their sensors stay as they are.
    """
    move = _Move(old, new, net)
    leaves, moved, anew, widened = {}, {}, set(), []
    for path, entry in wanted.items():
        origin = move.origin(path)
        if origin is None or (origin not in saved and origin != path):
            anew.add(path)
            continue
        if origin not in saved:
            continue
        leaves[path] = saved[origin]
        if origin not in arrays:  # of size zero
            continue
        moved[path] = move.value(path, np.asarray(arrays[origin]), entry["shape"], arrays, wanted)
        if moved[path] is not arrays[origin] and list(moved[path].shape) == list(entry["shape"]):
            leaves[path] = {**saved[origin], "shape": entry["shape"]}
            widened.append(path)
    return Grown(leaves, moved, frozenset(anew), move.told(widened, anew))


class _Move:
    """Map from leaves and inputs of the networks for `new` to those of the networks for `old`."""

    def __init__(self, old: BehaviorSpec, new: BehaviorSpec, net: NetworkSettings) -> None:
        self._old, self._new = old.observations, new.observations
        self._places = matched(self._old, self._new)
        self._continuous = new.action.continuous_size
        self._actions = new.action.continuous_size + new.action.mask_size
        self._entities = tuple(
            [i for i, sensor in enumerate(side) if kind_of(sensor) == "entities"] for side in (self._old, self._new)
        )
        parts = encoding_parts(old, net), encoding_parts(new, net)
        self._widths = sum(width for _, width in parts[0]), sum(width for _, width in parts[1])
        self._columns = self._encoding(*parts)
        alone = [[part for part in side if isinstance(part[0], int)] for side in parts]
        self._own = self._encoding(*alone)
        goals = ({i for i, sensor in enumerate(side) if is_goal(sensor)} for side in (self._old, self._new))
        self._goals = self._encoding(
            *([p for p in side if p[0] in its] for side, its in zip(alone, goals, strict=True))
        )

    def origin(self, path: str) -> str | None:
        """Return the leaf's path in the checkpoint; None: it belongs to a new sensor."""
        words = path.split("/")
        for at, word in enumerate(words[:-1]):
            if word == "connectors":  # which sensor each of their statistics is of, they alone know
                return None
            if word == "entities" and not self._entities[0]:  # the first that there are
                return None
            if word == "encoder" and words[at + 1].startswith("observation_"):
                place = self._places.get(int(words[at + 1].removeprefix("observation_")))
                words[at + 1] = f"observation_{place}"
            elif word == "entities" and words[at + 1].startswith("embed_"):
                place = self._places.get(self._entities[1][int(words[at + 1].removeprefix("embed_"))])
                words[at + 1] = f"embed_{None if place is None else self._entities[0].index(place)}"
            elif word == "normalizer" and words[at + 1].isdigit():
                words[at + 1] = str(self._places.get(int(words[at + 1])))
            else:
                continue
            return None if words[at + 1].endswith("None") else "/".join(words)
        return path

    def value(
        self, path: str, before: np.ndarray, shape: Sequence[int], arrays: Mapping[str, Any], wanted: Leaves
    ) -> np.ndarray:
        """Return the leaf rearranged for today, or `before` where it does not depend on the sensors."""
        *_, owner, name = path.split("/")
        if name in ("mean", "m2", "count") and "/normalizer/" in path:
            old, new = (sensors[i] for sensors, i in ((self._old, self._places[int(owner)]), (self._new, int(owner))))
            columns = _numbers(old, new)
            if columns == list(range(old.shape[0])):
                return before
            count = np.asarray(arrays[(self.origin(path) or path).rpartition("/")[0] + "/count"])
            return _statistic(name, before, count, columns)
        rows, now, is_made = before, shape[-2] if len(shape) > 1 else 0, owner == "made"
        if is_made:  # of a layer that goals choose: its kernel [inputs, hidden] in one row
            layer = path.removesuffix(f"/made/{name}")
            path, hidden = f"{layer}/kernel", wanted[f"{layer}/bias"]["shape"][-1]
            if before.shape[-1] % hidden:
                return before
            rows, now = before.reshape(*before.shape[:-1], -1, hidden), shape[-1] // hidden
        columns = self._inputs(path, rows.shape[-2], now, wanted) if now else None
        if columns is None or columns == list(range(rows.shape[-2])):
            return before
        widened = np.zeros((*rows.shape[:-2], len(columns), rows.shape[-1]), rows.dtype)
        copied = [i for i, origin in enumerate(columns) if origin >= 0]
        widened[..., copied, :] = rows[..., [columns[i] for i in copied], :]
        return widened.reshape(*widened.shape[:-2], -1) if is_made else widened

    def told(self, widened: Sequence[str], anew: set[str]) -> str:
        """Describe copied and new weights in words, by sensor and by layer."""
        known = [f"{sensor.name} {list(sensor.shape)}" for i, sensor in enumerate(self._new) if i in self._places]
        fresh = [f"{sensor.name} {list(sensor.shape)}" for i, sensor in enumerate(self._new) if i not in self._places]
        lost = [s.name for i, s in enumerate(self._old) if i not in self._places.values()]
        layers = [path for path in widened if "/normalizer/" not in path]
        return (
            f"Sensors found again: {', '.join(known) or 'none'}; new: {', '.join(fresh) or 'none'}; "
            f"left out: {', '.join(lost) or 'none'}. Layers that read them have copied the weights of what was there, "
            f"and weights of zero for new inputs: {', '.join(layers) or 'none'}. Begun anew: "
            f"{', '.join(sorted(anew)) or 'nothing'}. Everything else is copied."
        )

    def _inputs(self, path: str, before: int, now: int, wanted: Leaves) -> list[int] | None:
        """Return for each input of a layer that reads encodings its former place, or -1; None for other layers."""
        (old, new), (network, _, _) = self._widths, path.rpartition("body/layer_0/kernel")
        if path.endswith("encoder/entities/self/kernel"):
            return self._own
        if path.endswith("/hidden_0/kernel"):
            return self._goals
        if path.endswith(("/q1/params/body/layer_0/kernel", "/q2/params/body/layer_0/kernel")):
            return self._repeated([self._continuous], before)
        if path.endswith("/embed_obs/kernel"):
            return self._repeated([0], before)
        if path.endswith("/embed_obs_action/kernel"):
            return self._repeated([self._actions], before)
        if not path.endswith("/body/layer_0/kernel"):
            return self._columns if "/body/" in path and before == old and now == new != old else None
        if f"{network}embed_obs/kernel" in wanted:
            return None  # it reads what attention has made of them
        if now == new:
            return self._repeated([0], before)
        if f"{network}value/body/layer_0/kernel" in wanted:  # a member, then the others with actions and flags
            others = (now - new) // (new + self._actions + 1)
            return self._repeated([0] + [self._actions + 1] * others, before)
        return self._repeated([1] * (now // (new + 1)), before)  # every member with a flag

    def _repeated(self, behind: Sequence[int], before: int) -> list[int] | None:
        """Return places for several encodings with so many other inputs behind each; None if `before` differs."""
        places, start = [], 0
        for more in behind:
            places += [origin + start if origin >= 0 else -1 for origin in self._columns]
            start += self._widths[0]
            places += range(start, start + more)
            start += more
        return places if start == before else None

    def _encoding(self, old: Sequence[tuple[int | str, int]], new: Sequence[tuple[int | str, int]]) -> list[int]:
        """Return the former place of each column of an encoding, -1 for new ones."""
        starts, start = {}, 0
        for key, width in old:
            starts[key] = start
            start += width
        places: list[int] = []
        for key, width in new:
            before = self._places.get(key) if isinstance(key, int) else key
            if before not in starts:
                places += [-1] * width
                continue
            inside = list(range(width))
            if isinstance(key, int) and isinstance(before, int) and kind_of(self._new[key]) == "vector":
                inside = _numbers(self._old[before], self._new[key])
            places += [starts[before] + i if i >= 0 else -1 for i in inside]
        return places


def matched(old: Sequence[ObservationSpec], new: Sequence[ObservationSpec]) -> dict[int, int]:
    """Return the former place of each sensor, by its place now; new sensors are missing.

    By name first, then by name without the size that it tells, then by shape. Only vectors may have another size.
    """
    places: dict[int, int] = {}
    for alike in (lambda sensor: sensor.name, lambda sensor: _SIZE.sub("", sensor.name), lambda sensor: sensor.shape):
        for i, sensor in enumerate(new):
            free = (j for j, before in enumerate(old) if j not in places.values() and _comparable(before, sensor))
            place = None if i in places else next((j for j in free if alike(old[j]) == alike(sensor)), None)
            if place is not None:
                places[i] = place
    return places


def _comparable(old: ObservationSpec, new: ObservationSpec) -> bool:
    kind = kind_of(old) == kind_of(new) and old.observation_type == new.observation_type
    return kind and (kind_of(new) == "vector" or old.shape == new.shape)


def _numbers(old: ObservationSpec, new: ObservationSpec) -> list[int]:
    """Return the former place of each number of a vector, -1 for new ones. The newest frame of a stack is its last."""
    frames = [int(match[1]) if (match := _STACK.match(sensor.name)) else 1 for sensor in (old, new)]
    if old.shape[0] % frames[0] or new.shape[0] % frames[1]:
        frames = [1, 1]
    before, now = old.shape[0] // frames[0], new.shape[0] // frames[1]
    places = []
    for column in range(new.shape[0]):
        frame, number = column // now + frames[0] - frames[1], column % now
        places.append(frame * before + number if frame >= 0 and number < before else -1)
    return places


def _statistic(name: str, before: np.ndarray, count: np.ndarray, columns: Sequence[int]) -> np.ndarray:
    """Compute mean, M2 or count of a vector: old numbers keep theirs, new ones begin with mean 0 and deviation 1.

    M2 and count are divided by one power of two, which changes no quotient.
    """
    share = 0.5 ** max(math.ceil(math.log2(max(float(np.max(count)), 1.0) / KEPT_COUNT)), 0)
    if name == "count":
        return (before * share).astype(before.dtype)
    usual = np.zeros(1, before.dtype) if name == "mean" else (count * share)[..., None]
    old = before if name == "mean" else before * share
    statistic = np.broadcast_to(usual, (*before.shape[:-1], len(columns))).astype(before.dtype)
    copied = [i for i, origin in enumerate(columns) if origin >= 0]
    statistic[..., copied] = old[..., [columns[i] for i in copied]]
    return statistic
