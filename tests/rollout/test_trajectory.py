"""Slots and buffer together against an agent-by-agent reference, on random streams and on single cases."""

from __future__ import annotations

import numpy as np
import pytest
from agent_by_agent import AgentByAgent
from random_streams import RandomStream
from row_collector import RowCollector

MESSAGES = 120


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
@pytest.mark.parametrize(("seed", "poison", "rows"), [(0, True, 1), (1, False, 32), (2, True, 32), (3, True, 32)])
def test_random_streams_give_the_transitions_of_single_agents(
    seed: int, poison: bool, rows: int, team_rows: bool
) -> None:
    """M1 M2 M3 M4 M6 M7 M8 M11 M20 U1 U2 U4 U8 U10: each decision is trained exactly once, with everything that is its.

    Rows are taken many times in between, tables grow (seed 0), untouched memory holds NaN or not.
    """
    stream = RandomStream(seed)
    members = 4 if rows > 1 and team_rows else 1
    collector = RowCollector(team_rows=team_rows, rows=rows, members=members, capacity=14, horizon=5, poison=poison)
    agents = AgentByAgent(team_rows=team_rows, horizon=5)
    rng = np.random.default_rng(seed + 1000)
    trained = []
    for _ in range(MESSAGES):
        arrived = stream.message()
        collector.feed(arrived)
        agents.feed(arrived)
        if collector.full or rng.random() < 0.08:
            expected = agents.take()
            assert collector.take() == expected
            trained += expected
    expected = agents.take()
    assert collector.take() == expected
    trained += expected
    waiting = sum(len(team.waiting) for team in agents.teams.values())
    assert len(trained) + waiting == collector.finished
    assert len({(t.uid, t.serial) for t in trained}) == len(trained), "trained twice"
    assert {t.ending for t in trained} == {"continues", "terminated", "truncated", "cut"} | ({"left"} if team_rows else set())
    assert collector.slots.rows >= 8
    assert collector.slots.members == (4 if team_rows else 1)
