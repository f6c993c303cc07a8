"""Remarks on teams whose members take from each other what they earn, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl.training.teams import ENOUGH, CancellingRewards

ZERO_SUM = [1.0, -1.0, 0.5, -0.5]


def remarks(group_id: list[int], rewards: list[list[float]]) -> list[int]:
    """Return the messages, each with these rewards of four agents, after which there was a remark."""
    rewarded = CancellingRewards()
    texts = [rewarded.see("Duel", "poca", np.array(group_id), np.array(reward, np.float32)) for reward in rewards]
    return [number for number, text in enumerate(texts, start=1) if text]


def test_a_team_whose_rewards_always_cancel_is_named_once() -> None:
    """Two teams are paid by each message; messages without rewards do not count."""
    nothing = [0.0] * 4
    assert remarks([1, 1, 2, 2], [nothing, *[ZERO_SUM] * ENOUGH]) == [1 + ENOUGH // 2]


@pytest.mark.parametrize(
    ("group_id", "first"),
    [([1, 1, 2, 2], [1.0, 1.0, 0.0, 0.0]), ([1, 2, 1, 2], ZERO_SUM), ([0, 0, 0, 0], ZERO_SUM)],
    ids=["paid together once", "each team as a whole", "no team"],
)
def test_others_are_not_named(group_id: list[int], first: list[float]) -> None:
    assert remarks(group_id, [first, *[ZERO_SUM] * ENOUGH]) == []
