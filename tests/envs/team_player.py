"""A player process with teams of two behaviors, Seer and Runner, over Unity's protocol: `--play` names what happens.

script  Message t counts from the reset (t = 0) and repeats every 12; an agent sees [its id, t of 12] (a Seer also 0).
        What it is paid and when it ends stands in `SCRIPT`, so that everything that is booked follows by hand.
late    The same, but the Runner is first heard of in the second round.
lock    In each of 16 areas a Seer is shown one of four codes and sets the lock; then the Runner is shown one of four
        levers, and a light if the lock is set right, and pulls one. The team is paid 1 together if both were right: by
        chance 1/16, and 1/4 if only the Runner learns.
gone    The same, but the Seer's episode ends when it has set the lock, before the team is paid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.protobuf import messages
from tests.envs.scripted_player import Player, stat

m = messages()
SEER, RUNNER = "Seer?team=0", "Runner?team=0"
ROUND, AREAS, CODES = 12, 16, 4
OPENED, AVERAGE = "Lock/Opened", 0


class Say(NamedTuple):
    """One agent in one message."""

    behavior: str
    agent: int
    group: int = 1
    reward: float = 0.0
    group_reward: float = 0.0
    done: bool = False
    interrupted: bool = False


def asks(agent: int, reward: float = 0.0, group_reward: float = 0.0) -> Say:
    return Say(SEER if agent < 10 else RUNNER, agent, reward=reward, group_reward=group_reward)


def ends(agent: int, reward: float = 0.0, group_reward: float = 0.0, *, interrupted: bool = False) -> Say:
    return asks(agent, reward, group_reward)._replace(done=True, interrupted=interrupted)


SCRIPT: Mapping[int, Sequence[Say]] = {
    # Seer 1, Runners 11 and 12; 12 decides with every second message. The seer is gone before the group is paid.
    0: [asks(1), asks(11), asks(12)],
    1: [asks(1, 1.0), asks(11, 2.0)],
    2: [ends(1, 0.5), asks(11), asks(12, 4.0)],
    3: [asks(11, 0.25)],
    4: [ends(11, 0.0, 8.0), ends(12, 0.0, 8.0), asks(21), asks(22)],  # the next episode, which has no seer
    5: [asks(21, 1.0), asks(22)],
    # Seer 3 comes when its team is in the middle of an episode; all are cut off with message 8.
    6: [asks(21), asks(22, 2.0), asks(3)],
    7: [asks(21), asks(22), asks(3, 16.0)],
    8: [ends(21, 1.0, 4.0, interrupted=True), ends(22, 0.0, 4.0, interrupted=True), ends(3, interrupted=True)],
    # A seer alone, while its runner has nothing to decide.
    9: [asks(4), asks(31)],
    10: [asks(4, 1.0)],
    11: [asks(4, 1.0), asks(31)],
}
LAST = [ends(4, 2.0, 1.0), ends(31, 0.0, 1.0)]
"""With message 0 of every round but the first; agents of round n have 100 n added to their ids."""


class TeamPlayer(Player):
    def run(self) -> None:
        self.introduce()
        inputs, t, told = self.send(), 0, set()
        lock = Lock(gone=self.arguments.play == "gone")
        while True:
            t = 0 if inputs.rl_input.command == m.RESET else t + 1
            output = m.UnityOutputProto()
            if self.arguments.play in ("lock", "gone"):
                names = (SEER, RUNNER)
                lock.play(output, inputs, reset=t == 0)
            else:
                names = (SEER, RUNNER) if self.arguments.play == "script" or t > ROUND else (SEER,)
                for say in script(t):
                    if say.behavior in names:
                        add(output, say, [say.agent, t % ROUND, 0.0][: SIZES[say.behavior]])
            for name in names:
                if name not in told:
                    introduce(output, name)
                    told.add(name)
            inputs = self.send(output)


SIZES = {SEER: 3, RUNNER: 2}


def script(t: int) -> list[Say]:
    """Everybody in message t."""
    number, at = divmod(t, ROUND)
    last = [say._replace(agent=say.agent + 100 * (number - 1)) for say in LAST if number and at == 0]
    return last + [say._replace(agent=say.agent + 100 * number) for say in SCRIPT[at]]


def add(output: Any, say: Say, numbers: Sequence[float]) -> None:
    given = {"id": say.agent, "group_id": say.group, "reward": say.reward, "group_reward": say.group_reward}
    over = {"done": say.done, "max_step_reached": say.interrupted}
    info = output.rl_output.agentInfos[say.behavior].value.add(**given, **over)
    sensor = info.observations.add(name="vector", shape=[len(numbers)], dimension_properties=[1])
    sensor.float_data.data.extend(numbers)


def introduce(output: Any, behavior: str) -> None:
    brain = output.rl_initialization_output.brain_parameters.add(brain_name=behavior, is_training=True)
    brain.action_spec.num_continuous_actions = 0
    brain.action_spec.num_discrete_actions = 1
    brain.action_spec.discrete_branch_sizes.append(CODES)


class Lock:
    """Areas in step with each other. A Seer sees the code and then nothing, a Runner nothing and then its lever."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        self.random = np.random.default_rng(1)
        self.next_id = 1

    def play(self, output: Any, inputs: Any, *, reset: bool) -> None:
        if reset:
            self.phase = 0
        elif self.phase == 0:
            self.right = self._of(inputs, SEER) == self.shown
            self.shown, self.phase = self.random.integers(0, CODES, AREAS), 1
        else:
            self._over(output, self.right & (self._of(inputs, RUNNER) == self.shown))
            self.phase = 0
        if self.phase == 0:
            self.shown = self.random.integers(0, CODES, AREAS)
            self.ids, self.next_id = self.next_id + np.arange(2 * AREAS).reshape(2, AREAS), self.next_id + 2 * AREAS
        for area in range(AREAS):
            seer, runner = (int(x) for x in self.ids[:, area])
            seen = [one_hot(self.shown[area] if self.phase == turn else None) for turn in (0, 1)]
            add(output, Say(SEER, seer, 1 + area, done=self.phase == 1 and self.gone), seen[0])
            light = float(self.phase == 1 and self.right[area])
            add(output, Say(RUNNER, runner, 1 + area), [*seen[1], light])

    def _over(self, output: Any, opened: np.ndarray) -> None:
        for area in range(AREAS):
            for behavior, agent in zip((SEER, RUNNER), self.ids[:, area].tolist(), strict=True):
                if behavior == RUNNER or not self.gone:
                    say = Say(behavior, agent, 1 + area, group_reward=float(opened[area]), done=True)
                    add(output, say, one_hot(None) + [0.0] * (behavior == RUNNER))
        output.rl_output.side_channel = stat(OPENED, float(opened.mean()), AVERAGE)

    @staticmethod
    def _of(inputs: Any, behavior: str) -> np.ndarray:
        """What the agents of a behavior chose, in the order in which they asked."""
        chosen = inputs.rl_input.agent_actions[behavior].value
        return np.array([action.discrete_actions[0] for action in chosen], np.int64)


def one_hot(number: int | None) -> list[float]:
    return [float(number == code) for code in range(CODES)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    parser.add_argument("--play", required=True, choices=["script", "late", "lock", "gone"])
    parser.add_argument("-logFile", dest="log")
    arguments, _ = parser.parse_known_args()
    arguments.scenario, arguments.record = "team", None
    if arguments.log:
        sys.stdout = sys.stderr = open(arguments.log, "w", encoding="utf-8")  # noqa: SIM115, open for the whole life
    TeamPlayer(arguments).run()


if __name__ == "__main__":
    main()
