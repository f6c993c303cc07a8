"""Agents that wait are no vanished ones: nobody is interrupted where everybody comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pytest

from jaxrl.rollout.booking.occupants import Source
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.booking.slots import Slots
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((1,), branches=(2,))
Said = dict[int, tuple[list[int], list[int]]]
"""By worker, who ends and who asks."""


ONE = Source(0, "Wait?team=0")


def turns(areas: int, players: int, turn: int, *, rounds: int = 3, games: int = 2, late: int = 0) -> Iterator[Said]:
    """Games in turns, of which each begins `late` messages after the one before it; half of the areas in each worker.

    Agents of a game are first there with their first turn, and all end with its last round.
    """
    length = players * turn * rounds
    for number in range(length * games + late * areas):
        said: Said = {0: ([], []), 1: ([], [])}
        for area in range(areas):
            clock = number - late * area
            if 0 <= clock <= length * games:
                ended, asking = said[area % 2]
                game, at = divmod(clock, length)
                first = (area + areas * game) * players
                if at == 0 and game:
                    ended += [first - areas * players + player for player in range(players)]
                if game < games:
                    asking.append(first + at // turn % players)
        yield said


def events(agents: int, *, messages: int = 1500, ends: bool = True) -> Iterator[Said]:
    """Agents that decide five times in a row on an event, then wait for 100 to 400 messages; now and then one ends."""
    rng, names, born = np.random.default_rng(0), list(range(agents)), agents
    due = rng.integers(0, 300, agents)
    burst = np.zeros(agents, int)
    for _ in range(messages):
        ended = []
        asking = np.flatnonzero(due <= 0)
        burst[asking] += 1
        over = asking[burst[asking] == 5]
        burst[over], due[over] = 0, rng.integers(100, 400, len(over))
        yield_ = [names[i] for i in asking]
        for i in over[: int(ends and rng.random() < 0.3)]:
            ended, names[i], born = [names[i]], born, born + 1
            yield_ = [agent for agent in yield_ if agent not in ended]
        due[due > 0] -= 1
        yield {0: (ended, yield_)}


def sleepers(agents: int, pause: int) -> Iterator[Said]:
    """Every second agent asks with every message and is another one after ten; the others sleep after five requests."""
    awake, asleep = list(range(agents // 2)), list(range(agents // 2, agents))
    for number in range(pause + 20):
        ended = []
        if number % 10 == 9:
            ended, awake = awake, [agent + agents for agent in awake]
        yield {0: (ended, [*awake, *(asleep if number < 5 or number >= pause else [])])}


def seldom() -> Iterator[Said]:
    """100 agents take turns, two in each message; now and then one ends and another comes."""
    agents, born = list(range(100)), 100
    for number in range(400):
        at, ended = 2 * (number % 50), []
        if number > 100 and number % 7 == 0:
            ended, agents[at], born = [agents[at]], born, born + 1
        yield {0: (ended, agents[at : at + 2])}


SCENES = {
    "five players": lambda: turns(8, 5, 20),
    "five players, areas apart": lambda: turns(8, 5, 20, late=7),
    "five players, 64 areas": lambda: turns(64, 5, 20, rounds=2, games=1),
    "20 players": lambda: turns(4, 20, 5, rounds=2),
    "40 players": lambda: turns(8, 40, 5, rounds=2),
    "chess": lambda: turns(16, 2, 1, rounds=40),
    "events": lambda: events(300),
    "two of a hundred": seldom,
    "a cooldown": lambda: turns(1, 60, 1, rounds=5),
    "long sleep": lambda: sleepers(80, 3000),
}


def played(slots: Slots, scene: Iterator[Said], *, group: bool = False) -> tuple[int, float, int]:
    """How many were interrupted, what was told of returns, and what was paid: 1 for each message since a request."""
    asked: dict[tuple[int, int], int] = {}
    told, paid, vanished = 0.0, 0, 0
    for number, said in enumerate(scene):
        messages = {}
        for worker, (ended, asking) in said.items():
            pay = [[number - asked.get((worker, agent), number) for agent in part] for part in (ended, asking)]
            again = [(worker, agent) for agent in asking]
            paid += sum(pay[0]) + sum(pay[1])
            asked |= dict.fromkeys(again, number)
            groups, over = ([1 + agent // 20 for agent in part] if group else None for part in (asking, ended))
            messages[Source(worker, "Wait?team=0")] = message(
                SPEC,
                terminal_steps(SPEC, ended, reward=pay[0], groups=over),
                decision_steps(SPEC, asking, reward=pay[1], groups=groups),
            )
        ingested = slots.ingest(messages)
        vanished += ingested.vanished
        told += sum(sum(records.returns) for records in ingested.episodes)
    living = sum(float(slots._episodes.sums[row, member, 0]) for row, member in np.argwhere(slots._arrays.alive))
    return vanished, told + living, paid


@pytest.mark.parametrize("scene", SCENES)
def test_nobody_is_interrupted_where_everybody_comes_back(scene: str) -> None:
    """So all that was paid is told, whatever the pauses: with a patience of ten mean intervals most of it was lost."""
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    vanished, told, paid = played(slots, SCENES[scene]())
    assert vanished == 0 and told == paid > 0


@pytest.mark.parametrize("scene", ["five players", "20 players", "a cooldown"])
def test_nor_in_teams(scene: str) -> None:
    slots = Slots(SPEC, team_rows=True, rows=1, members=1)
    vanished, told, paid = played(slots, SCENES[scene](), group=True)
    assert vanished == 0 and told == paid > 0


def test_who_comes_back_proves_that_others_will() -> None:
    """100 areas with ten players in turns of 8 are more than are carried: some are interrupted in the first round.

    With the second it is known that all come back: nobody is interrupted from then on, also where games end.
    """
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    interrupted, waits = [], []
    for number, said in enumerate(turns(100, 10, 8, rounds=3, games=2)):
        messages = {Source(worker, ONE.behavior_id): asks(*agents) for worker, agents in said.items()}
        ingested = slots.ingest(messages)
        interrupted += [number] * ingested.vanished
        waits += [ingested.waited] if ingested.waited else []
    assert 0 < len(interrupted) < 1000 and max(interrupted) < 80 + 80
    assert set(waits) == {73}, "8 messages of each of the nine others, and one"
    assert slots._overdue._lost == 0, "all are back"


def test_who_came_back_before_there_was_need_for_room_proves_it_too() -> None:
    """Beside the same 100 areas another one plays, which has begun two rounds earlier: nobody is interrupted."""
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    early, vanished = turns(1, 10, 8, rounds=20, games=1), 0
    scene = chain([{}] * 160, turns(100, 10, 8, rounds=3, games=2))
    for one, others in zip(early, scene, strict=False):
        ended, asking = one[0]
        said = {Source(2, ONE.behavior_id): asks(ended, asking)}
        said |= {Source(worker, ONE.behavior_id): asks(*agents) for worker, agents in others.items()}
        vanished += slots.ingest(said).vanished
    assert vanished == 0 and slots.rows == 1024


def asks(ended: Sequence[int], asking: Sequence[int]):
    return message(SPEC, terminal_steps(SPEC, ended), decision_steps(SPEC, asking))


def crowd(slots: Slots, messages: int, *, first: int = 0, agents: int = 20, extra: Sequence[int] = ()) -> int:
    """Of `agents` agents two vanish with each message and two others come; returns how many were interrupted."""
    vanished = 0
    for number in range(messages):
        begin = first + 2 * number
        vanished += slots.ingest({ONE: asks((), [*range(begin, begin + agents), *extra])}).vanished
    return vanished


def test_one_that_comes_back_from_a_long_silence_among_many_that_do_not_proves_nothing() -> None:
    """An agent is silent for 600 messages while 1,200 others vanish. 512 rows are enough for 3,600 more."""
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    waiting = 10**6
    slots.ingest({ONE: asks((), [waiting])})
    crowd(slots, 600)
    waited = slots.ingest({ONE: asks((), [*range(1200, 1220), waiting])}).waited
    assert waited > 600, "it had been interrupted, as it was silent for longest"
    assert crowd(slots, 1800, first=1202) > 3000
    assert slots.rows == 512


def test_several_that_come_back_make_patience_longer_than_the_longest_silence() -> None:
    """40 of them after 300 messages: those that vanish from then on, 2 in each, are carried for 600 at least."""
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    waiting = range(10**6, 10**6 + 40)
    slots.ingest({ONE: asks((), waiting)})
    assert crowd(slots, 300) > 0
    assert slots.ingest({ONE: asks((), [*range(600, 620), *waiting])}).waited > 280
    assert crowd(slots, 590, first=602) == 0


def full(slots: Slots) -> None:
    """400 agents ask twice, one asks 30 times alone: of the 512 rows 111 are free."""
    for asking in [range(400)] * 2 + [range(400, 401)] * 30:
        slots.ingest({ONE: asks((), asking)})


def test_nobody_makes_room_while_there_is_room() -> None:
    """111 newcomers find rows; then one ends whose row the next one takes; of two more the second finds none."""
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    full(slots)
    assert slots.ingest({ONE: asks((), range(400, 512))}).vanished == 0
    assert slots.ingest({ONE: asks((511,), [*range(400, 511), 512])}).vanished == 0
    assert slots.ingest({ONE: asks((512,), [*range(400, 511), 513, 514])}).vanished == 50
    assert slots.rows == 512


def test_who_asks_in_the_message_that_needs_room_stays() -> None:
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    full(slots)
    ingested = slots.ingest({ONE: asks((), [0, *range(401, 521)])})
    assert ingested.vanished == 49 and ingested.waited == 0, "of 399, of whom an eighth makes room"
    assert ingested.steps.ending[0].tolist() == [Ending.CONTINUES]


def test_after_a_reset_ids_are_other_agents() -> None:
    slots = Slots(SPEC, team_rows=False, rows=1, members=1)
    full(slots)
    assert slots.ingest({ONE: asks((), range(401, 521))}).vanished == 50
    slots.discard(ONE)
    assert slots.ingest({ONE: asks((), range(400))}).waited == 0
