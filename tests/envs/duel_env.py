"""A zero-sum game in numpy, small enough for runs of seconds: who guesses better wins.

An agent sees a number (one-hot) and gains a point for naming it; after `length` decisions the side with more points has
+1, the other -1, and with equal points both 0. Whoever learns to read beats whoever guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.types import (
    NO_GROUP,
    NOTHING,
    Action,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    EnvMessage,
    ObservationSpec,
    ParameterValue,
    TerminalSteps,
)

NUMBERS = 4


@dataclass(frozen=True)
class DuelSettings:
    """Two sides of `members` each in every area."""

    sides: tuple[str, ...] = ("Duel?team=0", "Duel?team=1")
    areas: int = 4
    members: int = 1  # more than one: a team, which is paid together
    length: int = 4
    continuous: bool = False  # the sign of each dimension is a bit of the number
    image: bool = False  # the number is seen as a picture
    seed: int = 0
    early: bool = False  # the result is paid a step before the end, and the last step costs everybody 0.01


class DuelEnv:
    """All areas step alike, and their episodes end together."""

    def __init__(self, worker: int = 0, settings: DuelSettings | None = None) -> None:
        self.worker, self.settings = worker, settings or DuelSettings()
        self.resets = 0
        self.actions: list[dict[str, Action]] = []  # what it was sent
        self._known = False
        self._random = np.random.default_rng([self.settings.seed, worker])
        self._next_id, self._begun = 1, 0

    @property
    def spec(self) -> BehaviorSpec:
        shape = (1, 20, 20) if self.settings.image else (NUMBERS,)
        action = ActionSpec(2, ()) if self.settings.continuous else ActionSpec(0, (NUMBERS,))
        return BehaviorSpec(observations=(ObservationSpec(name="number", shape=shape),), action=action)

    @property
    def about(self) -> str:
        return ""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        if seed is not None:
            self._random, self._next_id = np.random.default_rng(seed), 1
        self.resets += 1
        self._begin()
        return self._message(None)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        self.actions.append(dict(actions))
        for side in self.settings.sides:
            named = self._named(actions[side]).reshape(self._shape)
            self._points[side] += (named == self._numbers[side]).sum(-1)
        self._clock += 1
        self._draw()
        first, second = self.settings.sides[0], self.settings.sides[-1]
        won = np.sign(self._points[first] - self._points[second]).astype(np.float32)
        ended = {side: won * (1 if side == first else -1) for side in self.settings.sides}
        if self._clock < self.settings.length:
            paid = ended if self.settings.early and self._clock == self.settings.length - 1 else {}
            return self._message(None, paid)
        if self.settings.early:
            ended = {side: np.full_like(won, -0.01) for side in self.settings.sides}
        over = {side: self._ids[side] for side in self.settings.sides}
        self._begin()
        return self._message({side: (over[side], ended[side]) for side in over})

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def _shape(self) -> tuple[int, int]:
        return self.settings.areas, self.settings.members

    def _named(self, action: Action) -> np.ndarray:
        if self.settings.continuous:
            return (action.continuous > 0) @ np.array([1, 2])
        return action.discrete[:, 0]

    def _begin(self) -> None:
        self._clock, self._ids = 0, {}
        self._points = {side: np.zeros(self.settings.areas, int) for side in self.settings.sides}
        for side in self.settings.sides:
            count = self.settings.areas * self.settings.members
            self._ids[side] = np.arange(self._next_id, self._next_id + count)
            self._next_id += count
        self._draw()

    def _draw(self) -> None:
        self._numbers = {side: self._random.integers(0, NUMBERS, self._shape) for side in self.settings.sides}

    def _observe(self, side: str) -> tuple[np.ndarray]:
        shown = np.eye(NUMBERS, dtype=np.float32)[self._numbers[side].ravel()]
        if self.settings.image:
            shown = np.kron(shown.reshape(-1, 1, 2, 2), np.ones((10, 10), np.float32))
        return (shown,)

    def _groups(self, ids: np.ndarray) -> np.ndarray:
        alone = self.settings.members == 1
        return np.full(len(ids), NO_GROUP) if alone else 1 + (ids - 1) // self.settings.members

    def _message(
        self, over: Mapping[str, tuple[np.ndarray, np.ndarray]] | None, earned: Mapping[str, np.ndarray] = NOTHING
    ) -> EnvMessage:
        steps = {}
        for side in self.settings.sides:
            ids, seen = self._ids[side], self._observe(side)
            nothing = np.zeros(len(ids), np.float32)
            mask = np.ones((len(ids), self.spec.action.mask_size), bool)
            asked = DecisionSteps(ids, self._groups(ids), earned.get(side, nothing), nothing, mask, seen)
            gone, won = (ids[:0], nothing[:0]) if over is None else over[side]
            paid = np.repeat(won, self.settings.members) if over is not None else won
            own = paid if self.settings.members == 1 else np.zeros_like(paid)
            ended = TerminalSteps(
                agent_id=gone, group_id=self._groups(gone), reward=own, group_reward=paid - own,
                truncated=np.zeros(len(gone), bool), obs=(seen[0][: len(gone)],),
            )  # fmt: skip
            steps[side] = BehaviorMessage(ended=ended, deciding=asked)
        new: dict[str, Any] = {} if self._known else dict.fromkeys(self.settings.sides, self.spec)
        self._known = True
        return EnvMessage(worker=self.worker, steps=steps, new_specs=new, stats=(), seconds=0.0)
