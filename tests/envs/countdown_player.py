"""A player process for a tiny numpy environment of which every number is known: `python countdown_player.py --port P`.

E areas of three members. Each step pays every living member 1 plus the parameter `bonus` of its episode, and the team
10. Member 0 terminates with step 2; members 1 and 2 are cut off with step 4, and a new episode begins. Observation:
[area, member, steps of this episode, last discrete action, last continuous action]. Member 1 may not choose action 2.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping

import numpy as np

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import AreasOutcome, BehaviorPart
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, JaxrlError, ObservationSpec

MEMBERS = 3
SPEC = BehaviorSpec(
    (ObservationSpec("countdown", (5,), (DimensionProperty.NONE,)),),
    ActionSpec(continuous_size=1, discrete_branches=(3,)),
)


class Countdown:
    def __init__(self, areas: int, seed: int) -> None:
        self.areas = areas

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        self.clock = 0
        self.alive = np.ones((self.areas, MEMBERS), bool)
        self.bonus = parameters["bonus"]
        nothing = Action(np.zeros((self.areas, MEMBERS, 1), np.float32), np.zeros((self.areas, MEMBERS, 1), np.int32))
        nobody = np.zeros_like(self.alive)
        return (self.result(nobody, nobody, self.see(nothing), nothing),)

    def step(self, sent: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        (actions,) = sent
        self.clock += 1
        before = self.alive.copy()
        last = self.see(actions)
        if self.clock == 2:
            self.alive[:, 0] = False
        ended, truncated = before & ~self.alive, np.zeros_like(before)
        if self.clock == 4:
            ended, truncated, paid = before, before, self.pay(before)
            (restarted,) = self.reset(parameters)
            restarted = restarted._replace(
                ended=ended, truncated=truncated, reward=paid, group_reward=10.0 * before, last_obs=(last,),
                over=np.ones(self.areas, bool), stats={"Countdown/Areas": np.arange(self.areas, dtype=np.float32)},
            )  # fmt: skip
            return (restarted,)
        paid = {"reward": self.pay(before), "group_reward": (10.0 * before).astype(np.float32)}
        return (self.result(ended, truncated, last, actions)._replace(**paid),)

    def pay(self, alive: np.ndarray) -> np.ndarray:
        return (alive * (1.0 + self.bonus[:, None])).astype(np.float32)

    def see(self, actions: Action) -> np.ndarray:
        area, member = np.indices((self.areas, MEMBERS))
        columns = (area, member, np.full_like(area, self.clock), actions.discrete[..., 0], actions.continuous[..., 0])
        return np.stack(columns, axis=2).astype(np.float32)

    def result(self, ended, truncated, obs, actions) -> AreasOutcome:
        mask = np.ones((self.areas, MEMBERS, 3), bool)
        mask[:, 1, 2] = False
        zero = np.zeros((self.areas, MEMBERS), np.float32)
        over = np.zeros(self.areas, bool)
        return AreasOutcome(ended, truncated, zero, zero, (obs,), self.alive.copy(), mask, (obs,), over, {})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    parser.add_argument("--teams", type=int, default=1, help="of MEMBERS / teams each")
    parser.add_argument("--decision-period", type=int, default=1)
    parser.add_argument("--connect-seconds", type=float, default=20.0)
    parser.add_argument("--answer-seconds", type=float, default=20.0)
    arguments = vars(parser.parse_known_args()[0])
    teams = arguments.pop("teams")
    part = BehaviorPart("Countdown", SPEC, MEMBERS // teams, teams)
    served = ServedScene("Countdown", (part,), {"bonus": 0.0}, Countdown)
    logging.basicConfig(level=logging.INFO)
    try:
        serve(served, PlayerOptions(**arguments))
    except JaxrlError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
