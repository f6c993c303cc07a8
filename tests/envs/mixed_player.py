"""A player process with several behaviors whose every number is known: `--cast` names those that take part.

Message t counts from the reset (t = 0). Observations are [t, agent id, ...]; what is learned does not matter.

fast    Fast?team=0: agents 1 and 2 ask with every message, each message pays 1, episodes last 5 messages.
slow    Slow?team=0: agent 11 asks with every second message, each decision pays 2, episodes last 3 decisions.
chess   Chess?team=0 and ?team=1: agents 21 and 22 ask by turns. After 8 messages, of which each has had 4, one has won
        (1) and the other has lost (-1).
late    Late?team=0: agent 31 is first heard of in message 10; as slow in its specs, else as fast.

An episode that ends begins anew within the message that ends it. Every message counts 1 in the statistic MESSAGES.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from jaxrl.envs.protobuf import messages
from tests.envs.scripted_player import Player, stat

m = messages()
BRANCHES = {"Fast": (), "Slow": (3,), "Chess": (2, 2), "Late": (3,)}
SIZES = {"Fast": 3, "Slow": 2, "Chess": 4, "Late": 2}
LATE = 10
MESSAGES, SUM = "Mixed/Messages", 2


def add(output: Any, behavior: str, agent: int, t: int, reward: float, *, done: bool = False) -> None:
    info = output.rl_output.agentInfos[behavior].value.add(id=agent, reward=reward, done=done)
    size = SIZES[behavior.partition("?")[0]]
    sensor = info.observations.add(name="vector", shape=[size], dimension_properties=[1])
    sensor.float_data.data.extend([t, agent, 0, 0][:size])


def introduce(output: Any, behavior: str) -> None:
    branches = BRANCHES[behavior.partition("?")[0]]
    brain = output.rl_initialization_output.brain_parameters.add(brain_name=behavior, is_training=True)
    brain.action_spec.num_continuous_actions = 0 if branches else 2
    brain.action_spec.num_discrete_actions = len(branches)
    brain.action_spec.discrete_branch_sizes.extend(branches)


def endless(output: Any, behavior: str, agent: int, t: int, *, every: int, length: int, pay: float) -> None:
    """Asks at multiples of `every`; `length` decisions are an episode."""
    if t % every:
        return
    begins = t % (every * length) == 0
    if t and begins:
        add(output, behavior, agent, t, pay, done=True)
    add(output, behavior, agent, t, 0.0 if begins else pay)


def fast(output: Any, t: int) -> None:
    for agent in (1, 2):
        endless(output, "Fast?team=0", agent, t, every=1, length=5, pay=1.0)


def slow(output: Any, t: int) -> None:
    endless(output, "Slow?team=0", 11, t, every=2, length=3, pay=2.0)


def chess(output: Any, t: int) -> None:
    if t and t % 8 == 0:
        for team, reward in enumerate((1.0, -1.0)):
            add(output, f"Chess?team={team}", 21 + team, t, reward, done=True)
    add(output, f"Chess?team={t % 2}", 21 + t % 2, t, 0.0)


def late(output: Any, t: int) -> None:
    if t >= LATE:
        endless(output, "Late?team=0", 31, t - LATE, every=1, length=5, pay=1.0)


CAST: dict[str, tuple[Callable[[Any, int], None], tuple[str, ...]]] = {
    "fast": (fast, ("Fast?team=0",)),
    "slow": (slow, ("Slow?team=0",)),
    "chess": (chess, ("Chess?team=0", "Chess?team=1")),
    "late": (late, ("Late?team=0",)),
}


class MixedPlayer(Player):
    def run(self) -> None:
        self.introduce()
        inputs, t, told = self.send(), 0, set()
        while True:
            t = 0 if inputs.rl_input.command == m.RESET else t + 1
            output = m.UnityOutputProto()
            output.rl_output.side_channel = stat(MESSAGES, 1.0, SUM)
            for name in self.arguments.cast:
                play, behaviors = CAST[name]
                if name != "late" or t >= LATE:
                    for behavior in behaviors if name not in told else ():
                        introduce(output, behavior)
                    told.add(name)
                play(output, t)
            inputs = self.send(output)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    parser.add_argument("--cast", nargs="+", required=True, choices=list(CAST))
    parser.add_argument("-logFile", dest="log")
    arguments, _ = parser.parse_known_args()
    arguments.scenario, arguments.record = "mixed", None
    if arguments.log:
        sys.stdout = sys.stderr = open(arguments.log, "w", encoding="utf-8")  # noqa: SIM115, open for the whole life
    MixedPlayer(arguments).run()


if __name__ == "__main__":
    main()
