"""Slots and buffer together against an agent-by-agent reference, on random streams and on single cases."""

from __future__ import annotations

import numpy as np
import pytest
from agent_by_agent import AgentByAgent
from random_streams import RandomStream
from row_collector import RowCollector

MESSAGES = 150


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
@pytest.mark.parametrize("seed", range(6))
def test_random_streams_give_the_transitions_of_single_agents(seed: int, poison: bool, team_rows: bool) -> None:
    """M1 M2 M3 M4 M6 M7 M8 M11 M20 U1 U2 U4 U8 U10: each decision is trained exactly once, with everything that is its.

    Tables start at 1 x 1 and grow; rows are taken many times in between; untouched memory holds NaN or not.
    """
    stream = RandomStream(seed)
    rows = RowCollector(team_rows=team_rows, capacity=14, horizon=5, poison=poison)
    agents = AgentByAgent(team_rows=team_rows, horizon=5)
    rng = np.random.default_rng(seed + 1000)
    finished = 0
    for _ in range(MESSAGES):
        arrived = stream.message()
        rows.feed(arrived)
        agents.feed(arrived)
        if rows.full or rng.random() < 0.08:
            expected = agents.take()
            assert rows.take() == expected
            finished += len(expected)
    expected = agents.take()
    assert rows.take() == expected
    assert finished + len(expected) + sum(len(team.waiting) for team in agents.teams.values()) == rows.finished
    assert rows.slots.rows >= 8 and rows.slots.members == (4 if team_rows else 1)
