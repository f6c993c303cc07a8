"""What each decision is paid, from messages to reward signals: by slots, buffer and the environment's own reward."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rollout.booking.occupants import Source
from tests.helpers import decision_steps, message, terminal_steps
from tests.rollout.row_collector import SPEC, RowCollector, observe

SOURCE = Source(0, "Push?team=0")
HERO, MATE, THIRD = 1, 2, 3
COOPERATIVE = pytest.mark.parametrize("cooperative", [True, False], ids=["team", "member"])
Pay = Mapping[int, tuple[float, float]]
"""Own and group reward that reach an agent."""


class Story:
    """One team's messages; afterwards what the decisions were paid, {(agent, its n-th decision): reward}."""

    def __init__(self) -> None:
        self.rows = RowCollector(rows=1, members=4, capacity=32)
        self._asked: dict[int, int] = {}
        self._paid: dict[tuple[int, int], float] = {}

    def say(self, *, end: Pay | None = None, ask: Pay | None = None, truncated: bool = False) -> None:
        """Who ends and who is asked, each with what arrives for its last decision."""
        end, ask = end or {}, ask or {}
        for agent in ask:
            self._asked[agent] = self._asked.get(agent, 0) + 1
        ended = terminal_steps(SPEC, truncated=[truncated] * len(end), **self._fields(end))
        self.rows.feed({SOURCE: message(SPEC, ended, decision_steps(SPEC, **self._fields(ask)))})

    def update(self, *, cooperative: bool) -> None:
        """Train on what is finished."""
        self.rows.take(check=False)
        rollout = self.rows.rollout
        reward = np.asarray(EXTRINSIC.reward((), rollout, cooperative=cooperative))
        for at in zip(*np.nonzero(np.asarray(rollout.acted)), strict=True):
            agent, decision, _ = np.asarray(rollout.obs[0])[at]
            self._paid[int(agent), int(decision)] = round(float(reward[at]), 5)

    def paid(self, *, cooperative: bool = True) -> dict[tuple[int, int], float]:
        """The rewards of all decisions that are finished."""
        self.update(cooperative=cooperative)
        return self._paid

    def _fields(self, pay: Pay) -> dict:
        shots = [observe(agent, self._asked.get(agent, 0), 0) for agent in pay]
        return {
            "agents": list(pay),
            "groups": [7] * len(pay),
            "reward": [own for own, _ in pay.values()],
            "group_reward": [group for _, group in pay.values()],
            "obs": [
                np.array([shot[i] for shot in shots]).reshape(-1, *s.shape) for i, s in enumerate(SPEC.observations)
            ],
        }


def asked(*agents: int) -> Pay:
    return dict.fromkeys(agents, (0.0, 0.0))


# What the hero's only decision is paid when it dies for -0.2 and its team has +1: -0.2 + 1, and the mate is told the
# same in a team; alone the mate has +1 of the group and nothing of its own.
SACRIFICE = {True: {(HERO, 1): 0.8, (MATE, 1): 0.8}, False: {(HERO, 1): 0.8, (MATE, 1): 1.0}}


def told(story: Story, cooperative: bool) -> dict[tuple[int, int], float]:
    return {key: story.paid(cooperative=cooperative)[key] for key in SACRIFICE[cooperative]}


@COOPERATIVE
def test_who_died_has_what_its_team_earned_while_the_team_goes_on(cooperative: bool) -> None:
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (-0.2, 0.0)}, ask={MATE: (0.0, 1.0)})
    assert told(story, cooperative) == SACRIFICE[cooperative]


@COOPERATIVE
def test_a_penalty_that_reaches_the_dying_takes_nothing_from_it(cooperative: bool) -> None:
    """The group has -0.001 a step: the hero's own share is that, its mate's 0.999, and 0.999 counts."""
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (-0.2, -0.001)}, ask={MATE: (0.0, 0.999)})
    expected = {(HERO, 1): 0.799, (MATE, 1): 0.799 if cooperative else 0.999}
    assert told(story, cooperative) == pytest.approx(expected)


@COOPERATIVE
@pytest.mark.parametrize("truncated", [False, True], ids=["terminated", "truncated"])
def test_death_reward_and_the_end_of_the_team_in_one_message(cooperative: bool, truncated: bool) -> None:
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (-0.2, 0.0), MATE: (0.0, 1.0)}, truncated=truncated)
    assert told(story, cooperative) == SACRIFICE[cooperative]


@COOPERATIVE
@pytest.mark.parametrize("truncated", [False, True], ids=["terminated", "truncated"])
def test_the_end_of_the_team_one_message_after_a_death(cooperative: bool, truncated: bool) -> None:
    """Nobody decides in between, so death and reward belong to one state."""
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (-0.2, 0.0)})
    story.say(end={MATE: (0.0, 1.0)}, truncated=truncated)
    assert told(story, cooperative) == SACRIFICE[cooperative]


@COOPERATIVE
def test_a_loss_of_the_team_is_the_loss_of_who_died(cooperative: bool) -> None:
    """Largest magnitude, not largest: a blunder that costs the team 2 is not paid with its bonus of 0.1."""
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (0.0, 0.1)}, ask={MATE: (0.0, -2.0)})
    assert told(story, cooperative) == {(HERO, 1): -2.0, (MATE, 1): -2.0}


@COOPERATIVE
def test_who_lives_keeps_its_own_share(cooperative: bool) -> None:
    """Only who ended is credited with a mate's share: THIRD goes on with the 0.25 that it was given."""
    story = Story()
    story.say(ask=asked(HERO, MATE, THIRD))
    story.say(end={HERO: (0.0, 0.0)}, ask={MATE: (0.0, 1.0), THIRD: (0.0, 0.25)})
    assert story.paid(cooperative=cooperative) == {(HERO, 1): 1.0, (MATE, 1): 1.0, (THIRD, 1): 0.25}


def test_what_the_team_earns_in_a_later_state_is_not_paid_to_the_dead() -> None:
    """It reaches them through the value of the state that follows."""
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (0.0, 0.0)}, ask={MATE: (0.0, 0.0)})
    story.say(end={MATE: (0.0, 1.0)})
    assert story.paid() == {(HERO, 1): 0.0, (MATE, 1): 0.0, (MATE, 2): 1.0}


SLOW, FAST = 1, 2


def slow_and_fast(story: Story, updates: int = 0) -> dict[tuple[int, int], float]:
    """FAST earns 4 with each of its five decisions, while SLOW's only one is open and ends with 1."""
    story.say(ask=asked(SLOW, FAST))
    for i in range(4):
        story.say(ask={FAST: (4.0, 0.0)})
        if i < updates:
            story.update(cooperative=True)
    story.say(ask={SLOW: (1.0, 0.0), FAST: (4.0, 0.0)})
    return story.paid()


@pytest.mark.parametrize("updates", [0, 1, 4])
def test_a_slow_member_has_what_its_mate_earns_while_its_decision_is_open(updates: int) -> None:
    """SLOW: 1 + 5 · 4 = 21. FAST: 4 each, and SLOW's 1 arrives with the last. An update in between loses nothing."""
    expected = {(FAST, i): 4.0 for i in range(1, 5)} | {(FAST, 5): 5.0, (SLOW, 1): 21.0}
    assert slow_and_fast(Story(), updates) == expected


def test_who_takes_turns_has_what_arrives_for_the_other_meanwhile() -> None:
    """Rewards 1, 2, 4, 8 ... for the decision that a message closes. Each is also paid to the decision open then."""
    story = Story()
    story.say(ask=asked(HERO))
    story.say(ask=asked(MATE))
    for i, agent in enumerate([HERO, MATE, HERO, MATE]):
        story.say(ask={agent: (2.0**i, 0.0)})
    # HERO's first decision closes with 1 while MATE's first is open; that one closes with 2 while HERO's second is.
    assert story.paid() == {(HERO, 1): 1.0, (MATE, 1): 3.0, (HERO, 2): 6.0, (MATE, 2): 12.0}


def test_each_member_counts_its_own_where_rewards_are_not_shared() -> None:
    story = Story()
    story.say(ask=asked(HERO))
    story.say(ask=asked(MATE))
    for i, agent in enumerate([HERO, MATE, HERO, MATE]):
        story.say(ask={agent: (2.0**i, 0.0)})
    assert story.paid(cooperative=False) == {(HERO, 1): 1.0, (MATE, 1): 2.0, (HERO, 2): 4.0, (MATE, 2): 8.0}


def test_side_by_side_everybody_has_the_sum_once() -> None:
    story = Story()
    story.say(ask=asked(HERO, MATE, THIRD))
    story.say(ask={HERO: (1.0, 0.0), MATE: (2.0, 0.0), THIRD: (4.0, 0.0)})
    assert story.paid() == dict.fromkeys([(HERO, 1), (MATE, 1), (THIRD, 1)], 7.0)


def test_what_a_dying_mate_is_given_is_counted_once() -> None:
    """It dies while nobody else decides, and what follows is told later: 8 arrives once, for the decision then open."""
    story = Story()
    story.say(ask=asked(HERO, MATE))
    story.say(end={HERO: (8.0, 0.0)})
    story.say(ask={MATE: (1.0, 0.0)})
    story.say(ask={MATE: (2.0, 0.0)})
    assert story.paid() == {(HERO, 1): 9.0, (MATE, 1): 9.0, (MATE, 2): 2.0}


def test_a_team_that_takes_the_row_begins_with_nothing() -> None:
    """Rewards of the team before are not left to the next one, also when both are in one message."""
    story = Story()
    story.say(ask=asked(SLOW, FAST))
    story.say(ask={FAST: (4.0, 0.0)})
    story.say(end={SLOW: (1.0, 0.0), FAST: (4.0, 0.0)}, ask=asked(11, 12))
    story.say(ask={11: (0.5, 0.0), 12: (0.0, 0.0)})
    expected = {(SLOW, 1): 9.0, (FAST, 1): 4.0, (FAST, 2): 5.0, (11, 1): 0.5, (12, 1): 0.5}
    assert story.paid() == expected
