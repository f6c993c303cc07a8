"""Teams of two in which somebody pays and somebody else is paid: who learns it depends on who is credited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxrl.types import Action, BehaviorMessage
from tests.helpers import decision_steps, make_spec, message, terminal_steps

SPEC = make_spec((2,), branches=(2,))
COST, GAIN = 0.2, 1.0


class Script:
    """An environment that is written as one generator: it yields messages and finds what was chosen in `choice`."""

    def __init__(self) -> None:
        self.spec = SPEC
        self.choice = np.zeros(0, np.int64)  # of those who asked last, in their order
        self._script = self.messages()

    def first(self) -> BehaviorMessage:
        """The first message."""
        return next(self._script)

    def step(self, action: Action) -> BehaviorMessage:
        """The message after these actions; one to which nobody had asked has none."""
        self.choice = action.discrete[:, 0]
        return next(self._script)

    def messages(self) -> Iterator[BehaviorMessage]:
        """What the environment says."""
        raise NotImplementedError


class Sacrifice(Script):
    """Heroes and mates. A hero that chooses 1 dies for -0.2 and wins its team +1 at once: 0.8 more than to stay.

    The group reward comes after the death, so that the dead hero itself has no part in it.

    Args:
      end: when the team ends: "later", after one more decision of those who live; "same", in the message of the death;
        "next", in a message later without a decision in between.
      penalty: group reward of everybody with every message that rewards it.
      truncated: the end is an interruption.
    """

    def __init__(self, *, end: str = "later", penalty: float = 0.0, truncated: bool = False, teams: int = 16) -> None:
        assert end in ("later", "same", "next")
        self.end, self.penalty, self.truncated, self.teams = end, penalty, truncated, teams
        super().__init__()

    def messages(self) -> Iterator[BehaviorMessage]:
        ended, first = None, 0
        while True:
            heroes = first + 2 * np.arange(self.teams)
            first += 2 * self.teams
            yield self._message(ended, self._asks(np.sort(np.concatenate([heroes, heroes + 1])), step=0))
            died = self.choice[::2] == 1
            dead, alive = heroes[died], np.sort(np.concatenate([heroes[~died], heroes + 1]))
            won = np.isin(alive - alive % 2, dead) * GAIN
            deaths = (dead, np.full(len(dead), -COST), np.zeros(len(dead)))
            rest = (alive, np.zeros(len(alive)), won)
            if self.end == "same":
                ended = [deaths, rest]
            elif self.end == "next":
                yield self._message([deaths], None)
                ended = [rest]
            else:
                yield self._message([deaths], self._asks(alive, step=1, group_reward=won + self.penalty))
                ended = [(alive, np.zeros(len(alive)), np.zeros(len(alive)))]

    def _message(self, ended: list | None, asks) -> BehaviorMessage:
        columns = [] if ended is None else zip(*ended, strict=True)
        return message(self.spec, self._ends(*map(np.concatenate, columns)) if ended else None, asks)

    def _asks(self, agents: np.ndarray, step: int, **fields):
        return decision_steps(self.spec, agents, groups=1 + agents // 2, obs=[_observe(agents, step)], **fields)

    def _ends(self, agents: np.ndarray, reward: np.ndarray, group_reward: np.ndarray):
        return terminal_steps(
            self.spec,
            agents,
            groups=1 + agents // 2,
            reward=reward,
            group_reward=group_reward + self.penalty,
            truncated=np.full(len(agents), self.truncated),
            obs=[_observe(agents, 1)],
        )


class Helpers(Script):
    """Endless teams of two. Who chooses 1 pays 0.2 of its own reward, and its mate has +1: 0.8 for the team.

    `turns`: the two decide in different messages, and what a mate is given reaches it in its own next message, while
    the giver's decision is open. Otherwise both decide in every message.
    """

    def __init__(self, *, turns: bool, teams: int = 16) -> None:
        self.turns, self.teams = turns, teams
        super().__init__()

    def messages(self) -> Iterator[BehaviorMessage]:
        first, second = 2 * np.arange(self.teams), 2 * np.arange(self.teams) + 1
        parts = [first, second] if self.turns else [np.sort(np.concatenate([first, second]))]
        due = np.zeros(2 * self.teams)  # gathers until its agent decides again
        while True:
            for agents in parts:
                fields = {"reward": due[agents], "obs": [_observe(agents, 0)]}
                due[agents] = 0.0
                yield message(self.spec, None, decision_steps(self.spec, agents, groups=1 + agents // 2, **fields))
                helped = self.choice == 1
                due[agents] -= COST * helped
                due[agents ^ 1] += GAIN * helped


def _observe(agents: np.ndarray, step: int) -> np.ndarray:
    """[1 for the first of a team, step]."""
    return np.stack([agents % 2 == 0, np.full(len(agents), step)], axis=-1).astype(np.float32)


class Deserter(Script):
    """Teams of a deserter, a slow one and a clock. The deserter that chooses 1 ends for nothing, and pays 0.3 for it.

    The slow one decides once. Two messages later the team is over and has +1, whatever anybody did; in the message
    between the clock alone asks, and a deserter that has stayed.
    """

    def __init__(self, *, teams: int = 16) -> None:
        self.teams = teams
        super().__init__()

    def messages(self) -> Iterator[BehaviorMessage]:
        ended, first = None, 0
        while True:
            everybody = first + np.arange(3 * self.teams)
            first += 3 * self.teams
            yield message(self.spec, ended, self._asks(everybody, step=0))
            deserts = self.choice[::3] == 1
            gone, stays = everybody[::3][deserts], np.sort(np.append(everybody[::3][~deserts], everybody[2::3]))
            yield message(self.spec, self._ends(gone, reward=-0.3, group_reward=0.0), self._asks(stays, step=1))
            ended = self._ends(np.setdiff1d(everybody, gone), reward=0.0, group_reward=1.0)

    def _asks(self, agents: np.ndarray, step: int):
        return decision_steps(self.spec, agents, groups=1 + agents // 3, obs=[_watch(agents, step)])

    def _ends(self, agents: np.ndarray, **rewards: float):
        paid = {name: np.full(len(agents), reward) for name, reward in rewards.items()}
        return terminal_steps(self.spec, agents, groups=1 + agents // 3, obs=[_watch(agents, 1)], **paid)


class BlindSeer(Script):
    """Teams of a seer and an opener. The seer sees -1 or 1, chooses what the opener is shown, and is gone.

    The opener sees what was chosen and not what was right. Then the team has +1 if the seer chose 1 for 1 and 0 for -1.
    V of what the opener sees is the same whatever the seer does.
    """

    def __init__(self, *, teams: int = 16) -> None:
        self.teams = teams
        super().__init__()

    def messages(self) -> Iterator[BehaviorMessage]:
        ended, first, rng = None, 0, np.random.default_rng(0)
        while True:
            seers = first + 2 * np.arange(self.teams)
            first += 2 * self.teams
            code, shown = rng.integers(0, 2, self.teams), np.zeros(self.teams)
            obs = np.stack([np.stack([2 * code - 1, shown], 1), np.zeros((self.teams, 2))], 1).reshape(-1, 2)
            everybody = np.sort(np.concatenate([seers, seers + 1]))
            yield message(self.spec, ended, self._steps(decision_steps, everybody, obs))
            number = self.choice[::2]
            obs = np.stack([shown, 2 * number - 1], 1)
            gone = self._steps(terminal_steps, seers, np.zeros((self.teams, 2)))
            yield message(self.spec, gone, self._steps(decision_steps, seers + 1, obs))
            ended = self._steps(terminal_steps, seers + 1, obs, group_reward=(number == code).astype(float))

    def _steps(self, make: Any, agents: np.ndarray, obs: np.ndarray, **paid: np.ndarray):
        return make(self.spec, agents, groups=1 + agents // 2, obs=[obs.astype(np.float32)], **paid)


def _watch(agents: np.ndarray, step: int) -> np.ndarray:
    """[1 for the deserter, -1 for the clock, else 0; step]."""
    return np.stack([1.0 - agents % 3, np.full(len(agents), step)], axis=-1).astype(np.float32)
