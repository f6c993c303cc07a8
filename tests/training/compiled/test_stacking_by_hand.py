"""Three decisions, stacked by hand: flags, observations and returns; and the first number that is not finite."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.jax_envs.interface import TeamView
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.compiled.play import EpisodeSums, Transitions
from jaxrl.training.compiled.stacking import first_fault, stack
from jaxrl.types import Action
from tests.algorithms.team_rollouts import returns_of
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_jit


def by_hand(**changes: Any) -> tuple[Transitions, TeamView]:
    """Three decisions in two areas of two members. Observations are 10 · decision + member, those after it + 0.5.

    Area 0: member 1 ends with decision 0, member 0 with decision 2, for good. Area 1: both are cut off with decision 2.
    """
    shape = (3, 2, 2)
    seen = (10.0 * np.arange(3)[:, None, None, None] + np.arange(2)[None, None, :, None]).astype(np.float32)
    seen = np.broadcast_to(seen, (*shape, 1)).copy()
    alive = np.ones(shape, bool)
    alive[1:, 0, 1] = False
    seen[1:, 0, 1] = np.nan
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    terminated[0, 0, 1] = terminated[2, 0, 0] = True
    truncated[2, 1] = True
    nothing = np.zeros(shape, np.float32)
    steps = Transitions(
        obs=(seen,),
        action_mask=np.ones((*shape, 2), bool),
        action=Action(continuous=np.zeros((*shape, 0), np.float32), discrete=np.ones((*shape, 1), np.int32)),
        extras={"log_prob": np.full((*shape, 1), -0.5, np.float32)},
        carry=(),
        last_carry=(),
        begin=np.zeros(shape, bool),
        alive=alive,
        waits=np.zeros(shape, bool),
        arrived=alive,
        reward=nothing + np.float32([1.0, 2.0]),
        mates_reward=nothing,
        group_reward=nothing,
        terminated=terminated,
        truncated=truncated,
        stays=alive & ~terminated & ~truncated,
        last_obs=(seen + np.float32(0.5),),
        sums=EpisodeSums(nothing, nothing.astype(np.int32), nothing[..., :1], nothing, nothing),
        over=np.array([[False, False], [False, False], [True, True]]),
        stats={},
    )
    last = TeamView(
        obs=(np.full((2, 2, 1), 99.0, np.float32),),
        action_mask=np.ones((2, 2, 2), bool),
        alive=np.ones((2, 2), bool),
    )
    return steps._replace(**changes), last


ENV = make_toy(ToySettings(truncates=True))


@cache
def hand_stacked() -> Rollout:
    """Of the example above: 7 states, decisions in 0, 2 and 4, true last observations in 5, the next ones in 6."""
    return jax.tree.map(np.asarray, quick_jit(partial(stack, ENV, team_rows=True, time_horizon=2))(*by_hand(), ()))


def places(flags: np.ndarray) -> list[list[int]]:
    """Where [T, B, A] is True."""
    return np.argwhere(flags).tolist()


def test_flags_of_three_decisions() -> None:
    rollout = hand_stacked()
    assert rollout.present.shape == (7, 2, 2)
    assert places(rollout.left) == [[0, 0, 1]]
    assert places(rollout.terminated) == [[4, 0, 0]]
    assert places(rollout.truncated) == [[4, 1, 0], [4, 1, 1]]
    # decision 1 is the second of those who live on; a segment begins again with decision 2, which ends
    assert places(rollout.cut) == [[2, 0, 0], [2, 1, 0], [2, 1, 1]]
    assert rollout.acted[:, 1].tolist() == [[x, x] for x in (True, False, True, False, True, False, False)]
    assert rollout.acted[:, 0, 1].tolist() == [True] + [False] * 6
    assert places(rollout.present & ~rollout.acted) == [
        [5, 1, 0],
        [5, 1, 1],
        *([6, b, a] for b in (0, 1) for a in (0, 1)),
    ]
    # only the second states in which nobody was cut off are passed through
    assert places(rollout.waiting[..., 0]) == [[1, 0], [1, 1], [3, 0], [3, 1], [5, 0]]


def test_observations_of_three_decisions() -> None:
    obs = hand_stacked().obs[0][..., 0]
    # member 1 of area 0 is absent after decision 0, and what stood there (NaN) is gone
    assert obs[:, 0].tolist() == [[0, 1], [0, 0], [10, 0], [0, 0], [20, 0], [0, 0], [99, 99]]
    # state 5 is the true last observation, state 6 the first of the next episode
    assert obs[:, 1].tolist() == [[0, 1], [0, 0], [10, 11], [0, 0], [20, 21], [20.5, 21.5], [99, 99]]


def test_returns_of_three_decisions() -> None:
    """γ = λ = 1/2; V of a team is what its member 0 sees; member 0 earns 1 with each decision, member 1 earns 2."""
    rollout, settings = hand_stacked(), ppo_settings(reward_signals__extrinsic__gamma=0.5, hyperparameters__lambd=0.5)

    @partial(quick_jit, static_argnums=1)
    def returns(rollout: Rollout, posthumous: bool):
        value = rollout.obs[0][:, :, :1].repeat(2, axis=2)
        return returns_of(settings, False, rollout, value, posthumous)[..., 0]

    found = np.asarray(returns(rollout, False))[:6:2]  # of the decisions; nobody acts in the states between them
    # Area 0. Member 0: 1 + 0.5 (0.5 · 10 + 0.5 · 11); cut, 1 + 0.5 · 20; terminated, 1.
    # Member 1 has left: 2 + 0.5 · 10, the value of its team in the next decision.
    assert found[:, 0].tolist() == [[6.25, 7.0], [11.0, 0.0], [1.0, 0.0]]
    # Area 1. Truncated: 1 + 0.5 · 20.5 and 2 + 0.5 · 20.5, of the true last observation.
    # Cut: 1 + 0.5 · 20 and 2 + 0.5 · 20. First: 1 + 0.5 (0.5 · 10 + 0.5 · 11) and 2 + 0.5 (0.5 · 10 + 0.5 · 12).
    assert found[:, 1].tolist() == [[6.25, 7.5], [11.0, 12.0], [11.25, 12.25]]
    # Along the team, member 1 of area 0 has 2 + 0.5 (0.5 · 10 + 0.5 · 11): 11 is what member 0 goes on to earn.
    along = np.asarray(returns(rollout, True))[:6:2]
    assert along[:, 0].tolist() == [[6.25, 7.25], [11.0, 0.0], [1.0, 0.0]]
    np.testing.assert_array_equal(along[:, 1], found[:, 1])


NAN = np.float32(np.nan)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("nothing", [-1, -1, -1]),
        ("obs", [1, 1, 0]),
        ("reward", [2, 0, 1]),
        ("last_obs", [2, 1, 0]),
        ("last", [3, 0, 0]),
    ],
)
def test_first_number_that_is_not_finite(where: str, expected: list[int]) -> None:
    """What the dead see and earn does not count; the view after the last decision does, as it is bootstrapped from."""
    steps, last = by_hand()
    steps.reward[1:, 0, 1] = NAN
    if where == "obs":
        steps.obs[0][1:, 1] = NAN
    elif where == "reward":
        steps.reward[2, :, 0] = np.inf
    elif where == "last_obs":
        steps.last_obs[0][2, 1, 0] = NAN
    elif where == "last":
        last.obs[0][0, 1] = NAN
    assert np.asarray(compiled_fault(steps, last)).tolist() == expected


compiled_fault = quick_jit(first_fault)
