"""Buffers of several kinds of members over shared rows: what is learned from is that of one behavior with them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from agent_by_agent import AgentByAgent
from random_streams import RandomStream
from row_collector import ADD, EXTRAS, SPEC, Transition, policy, transitions
from test_trajectory import alone

from jaxrl.rollout.booking.missing import some
from jaxrl.rollout.booking.records import Ingested
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer import kinds, trajectory
from jaxrl.rollout.buffer.kinds import KindTrajectories
from jaxrl.rollout.buffer.pages import Pages
from jaxrl.types import BehaviorMessage

TAKE, TURN = jax.jit(kinds.take), jax.jit(kinds.turn)
ADD_ROWS = partial(ADD, time_horizon=1000)


class KindCollector:
    """As `row_collector.RowCollector`, for members of two behaviors, Push and Pull, of one spec."""

    def __init__(self, *, rows: int, members: Sequence[int], capacity: int) -> None:
        self.slots = Slots(SPEC, team_rows=True, rows=rows, members=members, beside={"Pull": SPEC})
        one = partial(trajectory.init, SPEC, EXTRAS, capacity=capacity, rows=rows)
        self.buffer = KindTrajectories(tuple(one(members=count) for count in members))
        self.pages, self.turned, self.finished = Pages(capacity, rows), 0, [0, 0]

    def feed(self, messages: Mapping[Source, BehaviorMessage]) -> Ingested:
        ingested = self.slots.ingest(messages)
        pages = self.pages
        if (self.slots.rows, self.slots.members) != (len(pages.page), self.buffer.shape[2]):
            self.resize(pages.grow(self.slots.rows))
        turning = pages.full(ingested.rows)
        if turning.any():
            self.turned += int(turning.sum())
            page = pages.turn(turning, np.asarray((self.buffer.open_at >= 0).any(-1)))
            if pages.given > self.buffer.shape[1]:
                self.resize(())
            self.buffer = TURN(self.buffer, turning, page.astype(np.int32))
        steps = jax.tree.map(np.copy, (ingested.steps, *ingested.beside))
        rows, made = trajectory.rows_of(*steps), []
        for own, state in zip(steps, self.buffer.kinds, strict=True):
            action, log_prob = policy(own.obs)
            log_prob = np.where(own.deciding[..., None], log_prob, 7)
            made.append(ADD_ROWS(state, own, action, {"log_prob": log_prob}, rows=rows))
        self.buffer = KindTrajectories(tuple(made))
        pages.append(ingested.rows)
        self.finished = [count + kind.finished for count, kind in zip(self.finished, ingested.kinds, strict=True)]
        assert sum(kind.finished for kind in ingested.kinds) == ingested.finished
        self.check()
        return ingested

    def cut(self, capacity: int) -> None:
        self.buffer, self.pages = kinds.repage(self.buffer, self.pages, capacity=capacity)
        self.check()

    def resize(self, fresh: np.ndarray | tuple[()]) -> None:
        given = 64 * -(-max(self.pages.given, self.buffer.shape[1]) // 64)
        sizes = {"capacity": self.pages.capacity, "pages": given, "members": self.slots.counts}
        self.buffer = kinds.resize(self.buffer, **sizes, fresh=fresh)

    def check(self) -> None:
        for state in self.buffer.kinds:
            np.testing.assert_array_equal(self.pages.size, state.size)
            np.testing.assert_array_equal(self.pages.page, state.page)

    def take(self) -> list[Transition]:
        """What both kinds learn from, as the members of one behavior."""
        rollouts, self.buffer = TAKE(self.buffer)
        self.pages.taken(self.slots.living)
        self.check()
        return transitions(jax.tree.map(lambda *of: jnp.concatenate(of, axis=2), *rollouts))


def split(messages: Mapping[Source, BehaviorMessage]) -> dict[Source, BehaviorMessage]:
    """Agents with an odd uid are of another behavior."""
    parts = {}
    for source, steps in messages.items():
        for kind, name in enumerate(("Push", "Pull")):
            ended, deciding = (
                some(each, np.flatnonzero(each.obs[0][:, 0] % 2 == kind)) for each in (steps.ended, steps.deciding)
            )
            mine = source._replace(behavior_id=source.behavior_id.replace("Push", name))
            parts[mine] = BehaviorMessage(ended=ended, deciding=deciding)
    return parts


def test_two_kinds_of_one_spec_are_learned_from_as_one_behavior() -> None:
    """Random lives, deaths, moves and updates, in buffers that grow, over pages that turn and are cut.

    Each agent's transitions; whom it saw may differ, as decisions that are open where a page ends move on there.
    """
    stream, agents = RandomStream(4, groups=1, most=3), AgentByAgent(team_rows=True, horizon=1000)
    collector, trained = KindCollector(rows=16, members=(1, 4), capacity=9), 0
    for number in range(1, 41):
        arrived = stream.message()
        collector.feed(split(arrived))
        agents.feed(arrived)
        if number == 28:
            collector.cut(6)
        if number % 20 == 0:
            found = alone(collector.take())
            assert found == alone(agents.take())
            trained += len(found)
    assert trained > 180 and collector.turned > 10 and collector.slots.counts[0] > 1 and min(collector.finished) > 80
