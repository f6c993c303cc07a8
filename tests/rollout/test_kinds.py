"""Teams whose members are of several behaviors, each with observations and actions of its own, over shared rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.records import Ending, Ingested
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.types import Action, BehaviorMessage, Taken
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SEER, RUNNER = make_spec((3,), branches=(2,)), make_spec((2,), continuous=1)
KINDS = ("Seer?team=0", "Runner?team=0")


def said(spec: Any, ask: Mapping[int, int], end: Mapping[int, int], number: int) -> BehaviorMessage:
    """Agents, each with its group; every number of the message tells whose it is and when."""

    def of(agents: Mapping[int, int]) -> dict[str, Any]:
        told = 100.0 * number + np.array(list(agents), np.float32)
        obs = [np.repeat(told[:, None], *sensor.shape, axis=1) for sensor in spec.observations]
        paid = {"reward": [number + a / 8 for a in agents], "group_reward": [number / 4] * len(agents)}
        return {"agents": list(agents), "groups": list(agents.values()), "obs": obs} | paid

    return message(spec, terminal_steps(spec, **of(end)), decision_steps(spec, **of(ask)))


class Seen:
    """What slots say of each agent, wherever it lives."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.homes: dict[int, tuple[int, int]] = {}  # row, place among all members
        self.gone: dict[int, tuple[int, int]] = {}  # where those lived whose ending is not told yet

    def say(self, messages: Mapping[Source, BehaviorMessage]) -> tuple[Ingested, dict[int, Any]]:
        ingested = self.slots.ingest(messages)
        waiting = self.homes | self.gone  # for what came of their decision
        for source, steps in messages.items():
            self.gone |= {i: self.homes.pop(i) for i in steps.ended.agent_id.tolist()}
            places = (divmod(place, self.slots.members) for place in ingested.decisions[source].tolist())
            self.homes |= dict(zip(steps.deciding.agent_id.tolist(), places, strict=True))
        parts = (ingested.steps, *ingested.beside)
        told: dict[int, tuple[Any, ...]] = {}
        for agent, (row, member) in (self.homes | waiting).items():
            kind = next(k for k in range(len(parts)) if member in self.slots.columns(k))
            at, steps = self.slots.columns(kind).tolist().index(member), parts[kind]
            told[agent] = (agent,)
            if agent in waiting:
                told[agent] += (steps.reward[row, at].tolist(), int(steps.ending[row, at]))
                if steps.ending[row, at] != Ending.OPEN:
                    self.gone.pop(agent, None)
            if agent in self.homes:
                state = [x[1, row, at].tolist() for x in steps.obs]
                told[agent] += (bool(steps.present[1, row, at]), bool(steps.deciding[row, at]), state)
        return ingested, told


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_kinds_of_one_spec_are_booked_as_members_of_one_behavior(data: st.DataObject) -> None:
    """Random lives of agents in three teams: the same endings, rewards and states, whoever is of which kind."""
    one = Seen(Slots(RUNNER, team_rows=True, rows=1, members=1))
    two = Seen(Slots(RUNNER, team_rows=True, rows=1, members=1, beside={"Seer": RUNNER}))
    living: dict[int, int] = {}
    for number in range(data.draw(st.integers(2, 8))):
        end = {a: g for a, g in living.items() if data.draw(st.integers(0, 3)) == 0}
        newcomers = {10 * number + i: data.draw(st.integers(1, 3)) for i in range(data.draw(st.integers(0, 3)))}
        living = {a: g for a, g in living.items() if a not in end} | newcomers
        ask = {a: g for a, g in living.items() if a in newcomers or data.draw(st.booleans())}
        whole = one.say({Source(0, KINDS[1]): said(RUNNER, ask, end, number)})
        parts = [[{a: g for a, g in x.items() if a % 2 == k} for x in (ask, end)] for k in (0, 1)]
        split = two.say({Source(0, KINDS[k]): said(RUNNER, parts[k][0], parts[k][1], number) for k in (0, 1)})
        assert whole[1] == split[1] and whole[0].finished == split[0].finished
        for slots in (one, two):
            rows = {living[agent]: row for agent, (row, _) in slots.homes.items()}
            assert all(rows[living[agent]] == row for agent, (row, _) in slots.homes.items())
            assert len(set(rows.values())) == len(rows), "a row holds one team"
        returns = [Counter(x for r in i.episodes for x in r.team_returns) for i in (whole[0], split[0])]
        assert not returns[0] - returns[1]
        assert set(returns[0]) == set(returns[1]), "each kind of a team is told its return"


def test_each_kind_sees_and_does_its_own_and_the_row_is_one_team() -> None:
    """The seer is gone before the group is paid: it is told with the next state of its team, which the runner makes."""
    seen = Seen(Slots(SEER, team_rows=True, rows=1, members=1, beside={"Runner": RUNNER}))
    seer, runner = (Source(0, name) for name in KINDS)
    begun, _ = seen.say({seer: said(SEER, {1: 7}, {}, 1), runner: said(RUNNER, {2: 7, 3: 7}, {}, 1)})
    (steps, beside) = begun.steps, begun.beside[0]
    assert [x.shape for x in steps.obs] == [(2, 1, 1, 3)] and [x.shape for x in beside.obs] == [(2, 1, 2, 2)]
    assert steps.action_mask.shape == (1, 1, 2) and beside.action_mask.shape == (1, 2, 0), "nobody is padded"
    assert beside.obs[0][1].tolist() == [[[102.0, 102.0], [103.0, 103.0]]] and beside.deciding.all()

    gone, _ = seen.say({seer: said(SEER, {}, {1: 7}, 2)})
    assert gone.steps.ending.tolist() == [[Ending.OPEN]], "what follows is not known yet"
    told, _ = seen.say({runner: said(RUNNER, {2: 7}, {}, 3)})
    assert told.steps.ending.tolist() == [[Ending.LEFT]] and told.steps.reward.tolist() == [[[2.125, 0.5]]]
    assert told.beside[0].present[1].tolist() == [[True, True]] and not told.steps.present.any()
    over, _ = seen.say({runner: said(RUNNER, {}, {2: 7, 3: 7}, 4)})
    assert over.beside[0].ending.tolist() == [[Ending.TERMINATED, Ending.TERMINATED]]
    assert [kind.finished for kind in over.kinds] == [0, 2] and [kind.finished for kind in gone.kinds] == [1, 0]
    shared = [[r.team_returns for r in kind.episodes] for kind in over.kinds]
    assert shared == [[[1.75]], [[1.75]]], "3/4 and 4/4; the seer is told what its team got"


def test_the_team_of_another_worker_process_or_side_is_another() -> None:
    seen = Seen(Slots(SEER, team_rows=True, rows=1, members=1, beside={"Runner": RUNNER}))
    first, other, anew = Source(0, KINDS[0]), Source(1, KINDS[1]), Source(0, KINDS[1], incarnation=1)
    foe = Source(0, "Runner?team=1")
    seen.say(
        {first: said(SEER, {1: 7}, {}, 1)}
        | {s: said(RUNNER, {i: 7}, {}, 1) for i, s in ((2, other), (3, anew), (4, foe))}
    )
    assert len({row for row, _ in seen.homes.values()}) == 4
    loss = Loss(0, 0, "it is gone")
    assert [loss.concerns(*source, 1) for source in (first, other, anew)] == [True, False, False]
    assert seen.slots.discard(first) == 1
    dropped, _ = seen.say({other: said(RUNNER, {2: 7}, {}, 2)})
    assert np.array_equal(dropped.steps.ending.ravel()[:1], [Ending.DROPPED])


def test_actions_that_agents_took_themselves_and_decisions_that_leave_no_samples_are_told_by_kind() -> None:
    """Runner 3 and seer 1 did something else; of runner 2 nobody shall learn, and it does not count."""
    slots = Slots(SEER, team_rows=True, rows=1, members=1, beside={"Runner": RUNNER})
    seer, runner = (Source(0, name) for name in KINDS)
    slots.ingest({seer: said(SEER, {1: 7}, {}, 1), runner: said(RUNNER, {2: 7, 3: 7}, {}, 1)}, {runner: {2}})
    did = {
        seer: Taken(np.array([1]), Action(np.zeros((1, 0), np.float32), np.array([[1]], np.int32))),
        runner: Taken(np.array([3]), Action(np.array([[0.5]], np.float32), np.zeros((1, 0), np.int32))),
    }
    arrived = {seer: said(SEER, {1: 7}, {}, 2), runner: said(RUNNER, {2: 7, 3: 7}, {}, 2)}
    told = slots.ingest({source: steps._replace(taken=did[source]) for source, steps in arrived.items()})
    of_seer, of_runner = told.kinds
    assert of_seer.taken is not None and of_runner.taken is not None and told.taken is None
    assert of_seer.taken[0].tolist() == [[True]] and of_seer.taken[1].discrete.tolist() == [[[1]]]
    assert of_runner.taken[0].tolist() == [[False, True]] and of_runner.taken[1].continuous[0, 1].tolist() == [0.5]
    assert [kind.finished for kind in told.kinds] == [1, 1] and told.finished == 2
    assert told.left_out is not None
    assert [told.left_out[:, slots.columns(kind)].tolist() for kind in (0, 1)] == [[[False]], [[True, False]]]
