"""Agents that vanish without an ending: they stay, or with `missing: truncate` their rows are freed (M5, R25)."""

from __future__ import annotations

import numpy as np
import pytest
from script import ONE

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.missing import MissingAgents
from jaxrl.rollout.booking.records import Ending, Ingested
from jaxrl.rollout.booking.slots import Slots
from jaxrl.types import BehaviorMessage, EnvMessage
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((1,), branches=(2,))


def said(*agents: int, end: tuple[int, ...] = (), **fields) -> EnvMessage:
    part = message(SPEC, terminal_steps(SPEC, end), decision_steps(SPEC, agents, **fields))
    steps = {ONE.behavior_id: part} if agents or end else {}
    return EnvMessage(worker=0, steps=steps, new_specs={}, stats=(), seconds=0.0)


def ended(found: EnvMessage) -> list[int]:
    part = found.steps.get(ONE.behavior_id)
    return [] if part is None else part.ended.agent_id.tolist()


@pytest.mark.parametrize(("after", "rows"), [(None, 64), (3, 8)])
def test_m5_forty_vanished_agents_keep_their_rows_or_free_them(after: int | None, rows: int) -> None:
    """Eight waves of five agents each, of which none ever ends; a wave asks twice and is not heard of again.

    A wave lasts four messages. With 3 messages of patience its agents are ended by the first of the next wave, whose
    agents take their rows: 8 rows are enough. Nobody ends the last wave. Two decisions each, the first of which was
    answered by the second: 40 and 35 that were ended with it.
    """
    missing = None if after is None else MissingAgents(after)
    slots = Slots(SPEC, team_rows=False, rows=8, members=1)
    finished = episodes = 0
    for wave in range(8):
        for number in range(4):
            there = range(5 * wave, 5 * wave + 5) if number < 2 else ()
            part = message(SPEC, None, decision_steps(SPEC, there))
            heard = said()._replace(steps={ONE.behavior_id: part})
            heard = heard if missing is None else missing.complete(heard)
            ingested = slots.ingest({ONE: heard.steps[ONE.behavior_id]})
            finished += ingested.finished
            episodes += sum(len(records.returns) for records in ingested.episodes)
    assert slots.rows == rows
    if after is None:
        assert (int(slots.living.sum()), finished, episodes) == (40, 40, 0)
    else:
        assert (int(slots.living.sum()), finished, episodes) == (5, 40 + 35, 35)


def test_it_is_interrupted_with_what_it_saw_last_and_no_reward() -> None:
    missing = MissingAgents(2)
    slots = Slots(SPEC, team_rows=False, rows=2, members=1)
    for heard in (said(1, 2, obs=[[[10.0], [20.0]]]), said(1, obs=[[[11.0]]]), said(1, obs=[[[12.0]]], reward=[5.0])):
        ingested = slots.ingest({ONE: missing.complete(heard).steps[ONE.behavior_id]})
    steps = ingested.steps
    assert steps.ending[:, 0].tolist() == [Ending.CONTINUES, Ending.TRUNCATED]
    assert steps.obs[0][0, 1, 0].tolist() == [20.0] and steps.reward[:, 0, 0].tolist() == [5.0, 0.0]
    assert slots.living.tolist() == [True, False]


def test_messages_without_its_behavior_count_and_it_is_told_in_the_last_of_them() -> None:
    missing = MissingAgents(3)
    assert [ended(missing.complete(said(*who))) for who in ((1, 2), (2,), (), (), ())] == [[], [], [], [1], [2]]
    assert ended(missing.complete(said())) == [], "once"


def test_who_ends_or_asks_in_time_is_not_missed_and_who_comes_back_is_counted_anew() -> None:
    missing = MissingAgents(2)
    told = [((1, 2), ()), ((2,), ()), ((1, 2), ()), ((2,), (1,)), ((2,), ()), ((2,), ())]
    assert [ended(missing.complete(said(*ask, end=end))) for ask, end in told] == [[], [], [], [1], [], []]


def test_endings_of_the_message_stay_in_front_and_its_other_parts_as_they_are() -> None:
    missing = MissingAgents(1)
    missing.complete(said(1, 2, 3))
    heard = said(4, end=(3,))
    part: BehaviorMessage = missing.complete(heard).steps[ONE.behavior_id]
    assert part.ended.agent_id.tolist() == [3, 1, 2] and part.ended.truncated.tolist() == [False, True, True]
    assert part.deciding is heard.steps[ONE.behavior_id].deciding
    assert part.ended.obs[0].dtype == np.float32 and part.ended.obs[0].tolist() == [[3.0], [1.0], [2.0]]


def test_a_lost_worker_has_nobody_to_wait_for() -> None:
    missing = MissingAgents(1)
    missing.complete(said(1))
    missing.forget(Loss(0, 0, "it is gone"))
    assert ended(missing.complete(said())) == []


def asks(slots: Slots, agents: list[int], groups: list[int] | None = None, end: tuple[int, ...] = ()) -> Ingested:
    """One message in which these agents ask; what each sees is its id."""
    obs = [[[float(agent)] for agent in agents]]
    fields = {} if groups is None else {"groups": groups}
    deciding = decision_steps(SPEC, agents, obs=obs, **fields)
    return slots.ingest({ONE: message(SPEC, terminal_steps(SPEC, end), deciding)})


@pytest.mark.parametrize("teams", [False, True])
def test_rows_of_agents_that_vanished_are_given_back_when_they_are_more_than_are_carried(teams: bool) -> None:
    """Of 20 agents two vanish with each message, 1,198 in all: rows end at 512 (a team's places at 128), not at 2,048.

    Each is interrupted once, bootstraps from what it saw last, and counts as one decision.
    """
    slots = Slots(SPEC, team_rows=teams, rows=1 if teams else 20, members=20 if teams else 1)
    there, born, vanished, told = list(range(20)), 20, 0, 0
    for _ in range(600):
        there = [*there[2:], born, born + 1]
        born += 2
        ingested = asks(slots, there, [5] * 20 if teams else None)
        vanished += ingested.vanished
        told += sum(len(records.returns) for records in ingested.episodes)
        steps = ingested.steps
        cut = steps.ending == (Ending.LEFT if teams else Ending.TRUNCATED)
        assert cut.sum() == ingested.vanished
        if not teams:
            assert np.all(steps.obs[0][0][cut][:, 0] < there[0]), "what it saw last: itself"
            assert steps.present[0][cut].all() and not steps.reward[cut].any()
    assert vanished == told and 700 < vanished < 1200
    assert (slots.rows, slots.members) == ((1, 128) if teams else (512, 1))
    assert slots.living.sum() == (1 if teams else 20 + 1198 - vanished)


def test_one_that_is_back_is_noted_with_the_messages_that_it_was_away() -> None:
    missing = MissingAgents(2)
    waits = []
    for who, end in (((1, 2), ()), ((2,), ()), ((2,), ()), ((2,), ()), ((1, 2), ()), ((), ()), ((), ()), ((), (2,))):
        missing.complete(said(*who, end=end))
        waits.append(missing.longest_wait)
    assert waits == [0, 0, 0, 0, 4, 4, 4, 4], "agent 1 asks again after 4 messages, agent 2 ends after 3"
    for agents in (None, {ONE.behavior_id: [1]}):
        for who in ((1,), *[()] * 8):
            missing.complete(said(*who))
        missing.forget(Loss(0, 0, "it is gone", agents=agents))
        missing.complete(said(1))
        assert missing.longest_wait == 4, "it is another one"
