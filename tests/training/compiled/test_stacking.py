"""Rollouts of the compiled loop are equal to what the host loop makes of the same steps."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from jaxrl.jax_envs.dungeon_escape import DungeonSettings, make_dungeon_escape
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.training.compiled.stacking import EpisodeFigures
from tests.jax_envs.toy_jax_env import ToySettings, make_toy
from tests.training.compiled.both_loops import Part, algorithm, by_number, play, preparation, told

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
}
"""What the steps bring about, so that the comparison means something."""


@cache
def played(name: str) -> list[Part]:
    return play(ENVIRONMENTS[name])


@pytest.mark.parametrize("trainer", ["poca", "ppo"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_equal_to_the_host_loop(name: str, trainer: str) -> None:
    """Same observations, rewards, flags, returns, advantages and episodes, in two rollouts one after the other."""
    made, parts = algorithm(trainer, SPEC), played(name)
    prepare, state = preparation(trainer, SPEC), made.init(jax.random.key(2))
    for part, (theirs, episodes) in zip(parts, told(ENVIRONMENTS[name], parts, team_rows=made.team_rows), strict=True):
        ours = part.rollouts[made.team_rows]
        _, batch, _ = prepare(state, ours)
        state, expected_batch, _ = prepare(state, theirs)
        found, expected = by_number(ours, batch), by_number(theirs, expected_batch)
        assert len(found["acted"]) == part.steps.alive.sum() == len(expected["acted"])
        for field in expected:
            np.testing.assert_allclose(found[field], expected[field], rtol=1e-5, atol=1e-5, err_msg=field)
        assert_same_episodes(part.figures, episodes, teams_agree=name == "dungeon")
        assert_same_rewards(part.figures, episodes, mates=made.team_rows)
    rollouts = [part.rollouts[made.team_rows] for part in parts]
    assert {end for end in ENDS if np.any([getattr(rollout, end) for rollout in rollouts])} == COVERED[name, trainer]


def assert_same_episodes(found: EpisodeFigures, records: list[EpisodeRecords], *, teams_agree: bool) -> None:
    """The host's team return is that of its longest-lived agent; a team of the toy earns before that one begins."""
    kinds = [(found.reward, "returns"), (found.length, "lengths"), (found.group_reward, "team_returns")]
    for moments, kind in kinds:
        expected = np.array([x for record in records for x in getattr(record, kind)])
        assert len(expected) == moments.count
        if kind != "team_returns" or teams_agree:
            assert moments.total == pytest.approx(expected.sum(), abs=1e-5)
            assert moments.squares == pytest.approx(np.square(expected - expected.mean()).sum(), abs=1e-5)


def assert_same_rewards(found: EpisodeFigures, records: list[EpisodeRecords], *, mates: bool) -> None:
    """What the extrinsic signal is made of beside the agents' own rewards; alone in its row an agent has no mates."""
    assert found.received == pytest.approx(sum(sum(record.group_rewards) for record in records), abs=1e-4)
    if mates:
        assert found.mates_reward == pytest.approx(sum(sum(record.mates_returns) for record in records), abs=1e-4)
