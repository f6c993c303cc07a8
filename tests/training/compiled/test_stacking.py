"""Rollouts of the compiled loop are equal to what the host loop makes of the same steps."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest

from jaxrl.jax_envs.dungeon_escape import DungeonSettings, make_dungeon_escape
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.training.compiled.play import Transitions
from jaxrl.training.compiled.stacking import EpisodeFigures
from tests.algorithms.team_rollouts import returns_of
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_jit
from tests.training.compiled.both_loops import E, Part, T, algorithm, by_number, play, preparation, told

A = 3
DUNGEON = make_dungeon_escape(DungeonSettings(size=4, capacity=A, team_size=A, dragon_period=1, episode_limit=8))
SPEC = DUNGEON.spec  # toys speak as the dungeon does, so that programs are shared
_TOY = ToySettings(
    members=A, length=7, die=True, spawn=True, obs_size=SPEC.observations[0].shape[0], actions=SPEC.action.mask_size
)
ENVIRONMENTS = {
    "terminates": make_toy(_TOY)._replace(spec=SPEC),
    "truncates": make_toy(_TOY._replace(truncates=True))._replace(spec=SPEC),
    "dungeon": DUNGEON,
    "pauses": make_toy(_TOY._replace(truncates=True, pause=True))._replace(spec=SPEC),
}
"""Episodes of 6 to 8 decisions; segments end after 3."""
ENDS = ("terminated", "truncated", "left", "cut")
COVERED = {
    ("terminates", "poca"): {"terminated", "left", "cut"},
    ("terminates", "ppo"): {"terminated", "cut"},
    ("truncates", "poca"): {"truncated", "left", "cut"},
    ("truncates", "ppo"): {"terminated", "truncated", "cut"},
    ("dungeon", "poca"): {"terminated", "left", "cut"},
    ("dungeon", "ppo"): {"terminated", "cut"},
    ("pauses", "poca"): {"truncated", "left", "cut"},
    ("pauses", "ppo"): {"terminated", "truncated", "cut"},
}
"""What the steps bring about, so that the comparison means something."""


@cache
def played(name: str) -> list[Part]:
    return play(ENVIRONMENTS[name])


@pytest.mark.parametrize("trainer", ["poca", "ppo"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_equal_to_the_host_loop(name: str, trainer: str) -> None:
    """Same observations, rewards, flags, returns, advantages and episodes, in two rollouts one after the other.

    What is open at the end of the first, because a member pauses, is part of the second.
    """
    made, parts = algorithm(trainer, SPEC), played(name)
    prepare, state = preparation(trainer, SPEC), made.init(jax.random.key(2))
    for part, (theirs, episodes) in zip(parts, told(ENVIRONMENTS[name], parts, team_rows=made.team_rows), strict=True):
        ours = part.rollouts[made.team_rows]
        _, batch, _ = prepare(state, ours)
        state, expected_batch, _ = prepare(state, theirs)
        found, expected = by_number(ours, batch), by_number(theirs, expected_batch)
        assert len(found["acted"]) == part.steps.arrived.sum() == len(expected["acted"])
        for field in expected:
            np.testing.assert_allclose(found[field], expected[field], rtol=1e-5, atol=1e-5, err_msg=field)
        assert_same_episodes(part.figures, episodes)
        assert_same_rewards(part.figures, episodes, mates=made.team_rows)
    rollouts = [part.rollouts[made.team_rows] for part in parts]
    assert {end for end in ENDS if np.any([getattr(rollout, end) for rollout in rollouts])} == COVERED[name, trainer]


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "agents"])
def test_returns_are_the_true_rest_also_of_members_that_pause(team_rows: bool) -> None:
    """V tells what is still to come, 7 beyond a last observation and 3 beyond the rollout: so does every return."""
    settings = settings_of("poca", {"hyperparameters__lambd": 0.9, "reward_signals__extrinsic__gamma": 1.0})
    returns = quick_jit(partial(returns_of, settings, team_rows))
    before = np.zeros((E, A), np.float32)  # what mates were paid for decisions that were made in the rollout before
    for part in played("pauses"):
        rollout, steps = part.rollouts[team_rows], part.steps
        told = steps.reward if team_rows else steps.reward + steps.group_reward
        ended, stays = steps.terminated | steps.truncated, steps.stays
        if team_rows:  # own rewards alone: what a group is paid is told to each member at another time
            told, rollout = told.sum(-1, keepdims=True), rollout._replace(group_reward=rollout.group_reward * 0)
            ended = ended.any(-1, keepdims=True) & ~stays.any(-1, keepdims=True)
        value, rest = np.zeros(rollout.acted.shape, np.float32), np.float32(3.0)
        value[2 * T] = rest
        for t in reversed(range(T)):
            rest = np.where(ended[t], np.where(steps.truncated[t].any(-1, keepdims=True), 7.0, 0.0), rest) + told[t]
            value[2 * t], value[2 * t + 1] = rest.reshape(value.shape[1], -1), 7.0
        found = np.asarray(returns(rollout, value[..., None]))[..., 0]
        assert part.steps.waits.sum() > 10 and rollout.acted.sum() > 40
        value[0] += np.where(steps.waits[0], before, 0.0).reshape(value.shape[1:]) * team_rows
        before = paid_meanwhile(steps)
        np.testing.assert_allclose(found[rollout.acted], value[rollout.acted], rtol=1e-5)


def paid_meanwhile(steps: Transitions) -> np.ndarray:
    """[E, A]: own rewards that reached others of the team after each member's newest decision."""
    paid = np.zeros((E, A), np.float32)
    for t in range(T):
        others = steps.reward[t].sum(-1, keepdims=True) - steps.reward[t]
        paid = np.where(steps.alive[t], 0.0, paid) + others
    return paid


def assert_same_episodes(found: EpisodeFigures, records: list[EpisodeRecords]) -> None:
    """Also of teams that earn before their longest-lived member came, as in the toy."""
    kinds = [(found.reward, "returns"), (found.length, "lengths"), (found.group_reward, "team_returns")]
    for moments, kind in kinds:
        expected = np.array([x for record in records for x in getattr(record, kind)])
        assert len(expected) == moments.count
        assert moments.total == pytest.approx(expected.sum(), abs=1e-5)
        assert moments.squares == pytest.approx(np.square(expected - expected.mean()).sum(), abs=1e-5)


def assert_same_rewards(found: EpisodeFigures, records: list[EpisodeRecords], *, mates: bool) -> None:
    """What the extrinsic signal is made of beside the agents' own rewards; alone in its row an agent has no mates."""
    assert found.received == pytest.approx(sum(sum(record.group_rewards) for record in records), abs=1e-4)
    if mates:
        assert found.mates_reward == pytest.approx(sum(sum(record.mates_returns) for record in records), abs=1e-4)
