"""Slots and buffer together against an agent-by-agent reference, on random streams and on single cases."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_by_agent import AgentByAgent
from random_streams import SOURCES, RandomStream
from row_collector import SPEC, RowCollector, Transition, chosen
from script import ONE, brief, script

from jaxrl.algorithms.interface import Decision
from jaxrl.algorithms.ppo import make_ppo
from jaxrl.networks.actions import to_environment
from jaxrl.rollout.booking.slots import Slots
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.buffer.repaging import resize
from jaxrl.rollout.buffer.trajectory_state import NO_DECISION
from jaxrl.rollout.noise import noise_key
from jaxrl.training.host.decide import decide
from jaxrl.types import Action
from tests.helpers import decision_steps, message, ppo_settings

MESSAGES = 120


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
@pytest.mark.parametrize(("seed", "poison", "rows"), [(0, True, 4), (1, False, 32), (2, True, 32), (3, True, 32)])
def test_random_streams_give_the_transitions_of_single_agents(
    seed: int, poison: bool, rows: int, team_rows: bool
) -> None:
    """M1 M2 M3 M4 M6 M7 M8 M11 M20 U1 U2 U4 U7 U8 U10: each decision is trained once, with all that is its.

    Rows are taken many times in between, tables grow (seed 0), untouched memory holds NaN or not.
    """
    stream = RandomStream(seed)
    members = 4 if rows > 4 and team_rows else 1
    collector = RowCollector(team_rows=team_rows, rows=rows, members=members, capacity=14, horizon=5, poison=poison)
    agents = AgentByAgent(team_rows=team_rows, horizon=5)
    rng = np.random.default_rng(seed + 1000)
    trained = []
    for _ in range(MESSAGES):
        if rng.random() < 0.05:  # its agents go on under their ids, as others
            source = SOURCES[rng.integers(len(SOURCES))]
            collector.slots.discard(source)
            agents.discard(source)
            if rng.random() < 0.5:
                trained += expect(collector, agents)
        arrived = stream.message()
        collector.feed(arrived)
        agents.feed(arrived)
        if collector.full or rng.random() < 0.08:
            trained += expect(collector, agents)
    trained += expect(collector, agents)
    waiting = sum(len(team.waiting) for team in agents.teams.values())
    assert len(trained) + waiting == collector.finished
    assert len({(t.uid, t.serial) for t in trained}) == len(trained), "trained twice"
    kinds = {"continues", "terminated", "truncated", "cut"}
    assert {t.ending for t in trained} == (kinds | {"left"} if team_rows else kinds)
    assert collector.slots.rows >= 8
    assert collector.slots.members == (4 if team_rows else 1)


def alone(found: list[Transition]) -> list[Transition]:
    """Without what the mates of a decision saw and did."""
    return sorted(t._replace(state=frozenset(o for o in t.state if o[0] == t.uid)) for t in found)


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
@pytest.mark.parametrize("cut", [None, 6], ids=["long", "cut"])
def test_pages_that_are_full_lose_and_change_nothing(cut: int | None, team_rows: bool) -> None:
    """Rows go on in fresh pages, and pages are cut shorter in between: the transitions are those of single agents.

    λ is 0 here, so that the end of a page, where the return restarts from the value, does not show. A decision that is
    open when a page ends moves on to the row's newest state, as with `take`: its mates are those that it then has.
    """
    stream = RandomStream(5)
    collector = RowCollector(
        team_rows=team_rows, rows=32, members=4 if team_rows else 1, capacity=9, horizon=1000, poison=True, turns=True
    )
    agents = AgentByAgent(team_rows=team_rows, horizon=1000)
    trained: list[Transition] = []
    for i in range(MESSAGES):
        arrived = stream.message()
        collector.feed(arrived)
        agents.feed(arrived)
        if cut is not None and i == 70:
            collector.cut(cut)
        if i % 50 == 49:
            expected = agents.take()
            assert alone(collector.take()) == alone(expected)
            trained += expected
    assert collector.turned > 20
    assert len({(t.uid, t.serial) for t in trained}) == len(trained) > 100


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "open"])
def test_a_decision_across_a_cut_is_followed_by_the_state_that_answers_it(answered: bool) -> None:
    """2 is silent while 1 decides six times; pages of 4 states cut there, after the answer or before it."""
    play = script(capacity=16)
    play.say(ask={1: 10, 2: 20})
    for weight in range(11, 17):
        play.say(ask={1: weight})
    if answered:
        play.say(ask={1: 17, 2: 27})
    play.collector.cut(4)
    if not answered:
        play.say(ask={1: 17, 2: 27})
    alone = [(1, i, "continues", 30.0 + i) for i in range(1, 7)]
    assert brief(play.collector.take()) == [*alone, (1, 7, "continues", 44.0), (2, 1, "continues", 44.0)]


def test_a_decision_that_moves_to_a_cut_leaves_its_state_to_those_who_wait_there() -> None:
    """1 decides alone in states 1 to 3 and then in 6, 2 in 0 and from 4 on. The cut at 5 takes 1's third decision
    along; what 2 decided first is followed by state 4 all the same, not by 3, in which nobody is left to learn.
    """
    play = script(capacity=16)
    play.say(ask={1: 10, 2: 20})
    for weight in (11, 12, 13):
        play.say(ask={1: weight})
    play.say(ask={2: 24})
    play.say(ask={2: 25})
    play.say(ask={1: 16, 2: 26})
    for weight in (27, 28):
        play.say(ask={2: weight})
    play.collector.cut(6)
    found = brief(play.collector.take())
    assert (2, 1, "continues", 13.0 + 24.0) in found and (1, 4, "continues", 16.0 + 26.0) in found


def expect(collector: RowCollector, agents: AgentByAgent) -> list[Transition]:
    """What is trained now, which both agree upon."""
    expected = agents.take()
    assert collector.take() == expected
    return expected


def test_m3_m6_final_state_and_first_state_of_the_next_team_in_one_message() -> None:
    """State 1 is the true last observation (weights 30 + 40), state 2 belongs to the next team."""
    play = script()
    play.say(ask={1: 10, 2: 20})
    play.say(end={1: 30, 2: 40}, ask={101: 500, 102: 600}, truncated=True)
    play.say(ask={101: 1, 102: 2})
    trained = play.collector.take()
    assert brief(trained) == [
        (1, 1, "truncated", 70.0),
        (2, 1, "truncated", 70.0),
        (101, 1, "continues", 3.0),
        (102, 1, "continues", 3.0),
    ]
    rollout = play.collector.rollout
    assert rollout is not None
    np.testing.assert_array_equal(rollout.acted[:4, 0], [[True] * 2, [False] * 2, [True] * 2, [False] * 2])
    np.testing.assert_array_equal(rollout.present[:5, 0, 0], [True, True, True, True, False])


def test_m2_left_member_bootstraps_from_the_survivors_never_from_the_next_team() -> None:
    """Member 1 ends, state {2: 25} follows. Then 2 ends for good with nobody after it in its team: 0, not 600."""
    play = script()
    play.say(ask={1: 10, 2: 20})
    play.say(end={1: 11}, ask={2: 25})
    assert brief(play.collector.take()) == [(1, 1, "left", 25.0), (2, 1, "continues", 25.0)]
    play.say(end={2: 1}, ask={101: 10, 102: 20})
    play.say(end={101: 1})
    play.say(end={102: 1}, ask={1: 600})
    assert brief(play.collector.take()) == [
        (2, 2, "terminated", 0.0),
        (101, 1, "terminated", 0.0),
        (102, 1, "terminated", 0.0),
    ]


def test_u10_open_decisions_survive_updates_and_are_trained_once() -> None:
    """Member 2 is silent over two updates; its decision is trained with the state in which it last stood."""
    play = script()
    play.say(ask={1: 10, 2: 20})
    play.say(ask={1: 11}, reward=[1.0])
    assert [t[:3] for t in play.collector.take()] == [(1, 1, 1.0)]
    assert play.collector.take() == []
    play.say(ask={1: 12}, reward=[2.0])
    assert [t[:3] for t in play.collector.take()] == [(1, 2, 2.0)]
    play.say(ask={1: 13, 2: 21}, reward=[4.0, 8.0])
    first, second = play.collector.take()
    assert first[:3] == (1, 3, 4.0)
    assert second == (2, 1, 8.0, 0.0, "continues", 34.0, frozenset({(1, 3, chosen(1, 3)), (2, 1, chosen(2, 1))}))


def test_u4_m13_segment_ends_at_time_horizon_and_at_every_update() -> None:
    """Horizon 3: the third decision is cut; after an update the count starts anew."""
    play = script(horizon=3)
    for weight in range(6):
        play.say(ask={1: weight})
    assert [t.ending for t in play.collector.take()] == ["continues", "continues", "cut", "continues", "continues"]
    for weight in range(4):
        play.say(ask={1: weight})
    assert [t.ending for t in play.collector.take()] == ["continues", "continues", "cut", "continues"]


def test_m1_rows_of_different_rhythm_share_the_buffer() -> None:
    play = script()
    play.say(ask={1: 1, 101: 1})
    for _ in range(4):
        play.say(ask={101: 1})
    assert play.collector.buffer.size.tolist() == [1, 5]
    assert {t.uid for t in play.collector.take()} == {101}
    assert play.collector.buffer.size.tolist() == [1, 1]


def test_m20_raw_action_is_stored_and_the_clipped_one_is_sent() -> None:
    """30 is stored; clip(30, -3, 3) / 3 = 1 is sent."""

    def act(_policy, obs, mask, carry, _key):
        action = Action(continuous=jnp.full((1, 1, 1), 30.0), discrete=jnp.ones((1, 1, 1), int))
        return Decision(action, to_environment(action), {"log_prob": jnp.zeros((1, 1, 2))}, carry)

    algorithm = make_ppo(SPEC, ppo_settings())._replace(act=act, noise=None)
    slots = Slots(SPEC, team_rows=True, rows=1, members=1)
    steps = slots.ingest({ONE: message(SPEC, None, decision_steps(SPEC, [1]))}).steps
    buffer = trajectory.init(SPEC, algorithm.extras, capacity=3, rows=1, members=1)
    sent, buffer, _ = decide(algorithm, 64, None, buffer, steps, noise_key([0, 0], 0))
    assert sent.continuous.tolist() == [[[1.0]]]
    assert buffer.cells.action.continuous[0].tolist() == [[[30.0]]]
    assert sent.discrete.tolist() == [[[1]]]


def test_states_beyond_the_capacity_are_dropped_without_harm() -> None:
    """Inference never takes: the first states stay as they were."""
    play = script(capacity=3)
    for weight in range(1, 9):
        play.say(ask={1: weight})
    np.testing.assert_array_equal(play.collector.buffer.cells.obs[0][:, 0, 0, 2], [1, 2, 3])


def test_growth_keeps_every_cell() -> None:
    before = RowCollector(rows=2, members=1, capacity=3).buffer
    numbers = before.stored._replace(
        columns=jnp.arange(before.stored.columns.size, dtype=jnp.float32).reshape(before.stored.columns.shape)
    )
    before = dataclasses.replace(before, stored=numbers)
    after = resize(before, capacity=3, pages=5, members=2, fresh=[3, 4])
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        inside = tuple(slice(n) for n in old.shape)
        np.testing.assert_array_equal(new[inside], old)
        assert new.dtype == old.dtype
    np.testing.assert_array_equal(after.open_at, NO_DECISION)
    assert after.shape == (3, 5, 2) and after.page.tolist() == [0, 1, 3, 4]
