"""A player process that shows behaviors of ML-Agents' example scenes: `python scenes_player.py --behaviors A,B`.

Two agents of each see random numbers and earn 1 a step; episodes end after five.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mlagents_scenes import SCENES, TEAMS
from scripted_player import Player, m

from jaxrl.envs.player.messages import PlayerMessages
from jaxrl.types import BehaviorMessage, BehaviorSpec
from tests.helpers import decision_steps, terminal_steps

AGENTS, LENGTH = (1, 2), 5


class ScenesPlayer(Player):
    def __init__(self, arguments) -> None:
        super().__init__(arguments)
        self.random = np.random.default_rng(0)
        names = arguments.behaviors.split(",") if arguments.behaviors else list(SCENES)
        self.behaviors = {name: PlayerMessages(name, SCENES[name]) for name in names}

    def run(self) -> None:
        first = next(iter(self.behaviors.values()))
        reply = m.UnityMessageProto.FromString(self.call(first.handshake().SerializeToString(), timeout=120))
        assert reply.header.status == 200
        inputs, t = self.send(), 0
        while True:
            t = 0 if inputs.rl_input.command == m.RESET else t + 1
            message = m.UnityMessageProto()
            for name, writer in self.behaviors.items():
                message.MergeFrom(writer.output((self.seen(name, over=t > 0 and t % LENGTH == 0),), b""))
            inputs = self.send(message.unity_output)

    def seen(self, name: str, over: bool) -> BehaviorMessage:
        spec, ended = SCENES[name], AGENTS if over else ()
        groups = [int(name in TEAMS)] * len(AGENTS)
        last = terminal_steps(spec, ended, groups=groups[: len(ended)], reward=[1.0] * len(ended))
        asking = decision_steps(spec, AGENTS, groups=groups, reward=[0.0 if over else 1.0] * len(AGENTS))
        return BehaviorMessage(
            last._replace(obs=self.shown(spec, len(ended))), asking._replace(obs=self.shown(spec, len(AGENTS)))
        )

    def shown(self, spec: BehaviorSpec, agents: int) -> tuple[np.ndarray, ...]:
        return tuple(
            self.random.integers(256, size=(agents, *sensor.shape)).astype(np.uint8)
            if sensor.dtype == "uint8"
            else self.random.standard_normal((agents, *sensor.shape), np.float32)
            for sensor in spec.observations
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    parser.add_argument("--behaviors", default="", help="separated by commas; all of them")
    parser.add_argument("-logFile", dest="log")
    arguments, _ = parser.parse_known_args()
    if arguments.log:
        sys.stdout = sys.stderr = open(arguments.log, "w", encoding="utf-8")  # noqa: SIM115, open for the whole life
    ScenesPlayer(arguments).run()


if __name__ == "__main__":
    main()
