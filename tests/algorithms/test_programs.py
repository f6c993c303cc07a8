"""The two programs of a behavior: compiled once while agents come and go, once more per growth, blind to old memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

import jax
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, quick_jit

from jaxrl.algorithms import ALGORITHMS
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer.cells import pack
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, learn
from jaxrl.types import BehaviorMessage
from tests.helpers import decision_steps, message, settings_of, terminal_steps

SOURCE = Source(0, "Push?team=0")


@pytest.fixture(autouse=True)
def key_reuse() -> Iterator[None]:
    """Raise where a random key is used twice."""
    with jax.debug_key_reuse(True):
        yield


class Crowd:
    """`teams` of up to two agents that die, end (also interrupted), start anew and keep silent."""

    def __init__(self, teams: int) -> None:
        self.rng = np.random.default_rng(0)
        self.next_id = 0
        self.teams = [self.born() for _ in range(teams)]

    def born(self) -> list[int]:
        self.next_id += 2
        return [self.next_id, self.next_id + 1]

    def message(self) -> BehaviorMessage:
        ended: list[int] = []
        truncated: list[bool] = []
        groups: dict[int, int] = {}
        for group, team in enumerate(self.teams, start=1):
            groups |= dict.fromkeys(team, group)
            gone = [a for a in team if self.rng.random() < 0.1] if self.rng.random() < 0.9 else list(team)
            ended += gone
            truncated += [bool(self.rng.random() < 0.5)] * len(gone)
            team[:] = [a for a in team if a not in gone] or self.born()
            groups |= dict.fromkeys(team, group)
        asking = [a for team in self.teams for a in team if self.rng.random() < 0.8 or a > self.next_id - 4]
        return message(
            SPEC,
            terminal_steps(SPEC, ended, groups=[groups[a] for a in ended], truncated=truncated, obs=self.obs(ended)),
            decision_steps(SPEC, asking, groups=[groups[a] for a in asking], reward=asking, obs=self.obs(asking)),
        )

    def obs(self, agents: list[int]) -> list[np.ndarray]:
        return [self.rng.normal(size=(len(agents), *sensor.shape)) for sensor in SPEC.observations]


@cache
def made(trainer: str):
    """Settings, algorithm, programs and how often each was traced."""
    settings = settings_of(trainer, SMALL | {"time_horizon": 8})
    algorithm = ALGORITHMS[trainer](SPEC, settings)
    algorithm = algorithm._replace(init=quick_jit(algorithm.init))
    traces = Counter()

    def counted(name, function):
        def call(*args):
            traces[name] += 1
            return function(*args)

        return quick_jit(call)

    programs = Programs(
        ActorPrograms(decide=counted("decide", partial(decide, algorithm, settings.time_horizon))),
        LearnerPrograms(learn=counted("learn", partial(learn, algorithm))),
    )
    return settings, algorithm, programs, traces


def crowded(trainer: str, spoil=lambda buffer: buffer) -> Behavior:
    settings, algorithm, programs, _ = made(trainer)
    whole = programs.learner.learn
    spoiled = LearnerPrograms(learn=lambda state, store, buffer: whole(state, store, spoil(buffer)))
    spoiling = programs._replace(learner=spoiled)
    behavior = make_behavior("Push", SPEC, settings, algorithm, spoiling, jax.random.key(0), training=True)
    behavior.act({SOURCE: message(SPEC, None, decision_steps(SPEC, [2, 3, 4, 5], groups=[1, 1, 2, 2]))})
    return behavior


def play(behavior: Behavior, crowd: Crowd, updates: int, shapes: set | None = None) -> list[dict[str, float]]:
    """Until so many updates were made; their metrics. Shapes of the buffer are noted in `shapes`."""
    metrics = []
    for _ in range(300):
        behavior.act({SOURCE: crowd.message()})
        (set() if shapes is None else shapes).add((behavior.actor.buffer.shape, behavior.actor.buffer.clock.shape))
        if behavior.due():
            metrics.append(behavior.learn())
        if len(metrics) == updates:
            return metrics
    raise AssertionError(f"{len(metrics)} updates after 300 messages, expected {updates}")


@pytest.mark.parametrize("trainer", [pytest.param("ppo", marks=pytest.mark.slow), "poca"])
def test_programs_compile_once_and_once_more_per_growth(trainer: str) -> None:
    behavior, crowd = crowded(trainer), Crowd(teams=2)
    traces = made(trainer)[-1]
    play(behavior, crowd, updates=3)
    assert traces == {"decide": 1, "learn": 1}
    crowd.teams.append(crowd.born())
    shapes: set = set()
    play(behavior, crowd, updates=3, shapes=shapes)
    assert traces["decide"] - 1 == len(shapes) <= 3, "one for the rows, and while they are uneven one for more pages"
    assert traces["learn"] <= 3
    play(behavior, crowd, updates=2, shapes=shapes)
    assert traces["decide"] - 1 == len(shapes), "no more then"
    assert int(behavior.state.step) == pytest.approx(behavior.step, abs=12), "differs by what is still open"


def poisoned(buffer: TrajectoryState) -> TrajectoryState:
    """NaN wherever no present member stands."""
    cells = buffer.cells
    filled = np.arange(buffer.shape[0])[:, None] < np.asarray(buffer.size)
    live = filled[..., None] & np.asarray(cells.present)

    def spoil(x: jax.Array) -> np.ndarray:
        rubbish = np.nan if np.issubdtype(x.dtype, np.floating) else 77
        return np.where(live.reshape(live.shape + (1,) * (x.ndim - 3)), x, np.asarray(rubbish, x.dtype))

    spoilt = cells._replace(
        obs=tuple(map(spoil, cells.obs)),
        action=jax.tree.map(spoil, cells.action),
        extras={name: spoil(x) for name, x in cells.extras.items()},
    )
    return dataclasses.replace(buffer, stored=pack(spoilt, buffer.layout))


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_nan_in_unused_memory_changes_no_update(trainer: str) -> None:
    """Metrics and parameters are the same to the last bit after three updates."""
    runs = []
    for spoil in (poisoned, lambda buffer: buffer):
        behavior = crowded(trainer, spoil)
        runs.append((play(behavior, Crowd(teams=2), updates=3), behavior.state.policy, behavior.state.critic))
    for x, y in zip(*map(jax.tree.leaves, runs), strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.isfinite(x).all()
