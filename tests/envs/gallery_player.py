"""A player process whose agents see one sensor of each kind: `python gallery_player.py --port P`.

E areas of two members; episodes end after three steps. Every number of every sensor follows from area, member and clock
(`shown`), so that whoever reads the messages knows what should have arrived.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import numpy as np

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import AreasOutcome, BehaviorPart
from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

MEMBERS, LENGTH = 2, 3
NONE = DimensionProperty.NONE
SPEC = BehaviorSpec(
    (
        ObservationSpec("camera", (3, 8, 9), IMAGE_PROPERTIES, dtype="uint8"),
        ObservationSpec("grid", (7, 5, 6), IMAGE_PROPERTIES, dtype="uint8"),
        ObservationSpec("speed", (2,), (NONE,)),
        ObservationSpec("grey", (1, 4, 5), IMAGE_PROPERTIES, dtype="uint8"),
        ObservationSpec("depth", (2, 3, 4), IMAGE_PROPERTIES),
        ObservationSpec("tiles", (4, 3), (DimensionProperty.VARIABLE_SIZE, NONE)),
        ObservationSpec("wish", (2,), (NONE,), ObservationType.GOAL_SIGNAL),
        ObservationSpec("target", (2, 4, 4), IMAGE_PROPERTIES, ObservationType.GOAL_SIGNAL, "uint8"),
    ),
    ActionSpec(continuous_size=1, discrete_branches=()),
)


def shown(areas: int, clock: int) -> tuple[np.ndarray, ...]:
    """What all members see after `clock` steps, [E, A, *shape]: random numbers of that moment."""
    random = np.random.default_rng([areas, clock])
    lead = (areas, MEMBERS)
    return tuple(
        random.integers(256, size=(*lead, *s.shape), dtype=np.uint8)
        if s.dtype == "uint8"
        else random.standard_normal((*lead, *s.shape), np.float32)
        for s in SPEC.observations
    )


class Gallery:
    def __init__(self, areas: int, seed: int) -> None:
        self.areas, self.clock = areas, 0

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        self.clock = 0
        return self.outcome(over=False, last=shown(self.areas, 0))

    def step(self, actions: tuple[Action, ...], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        self.clock += 1
        last, over = shown(self.areas, self.clock), self.clock == LENGTH
        self.clock %= LENGTH
        return self.outcome(over, last)

    def outcome(self, over: bool, last: tuple[np.ndarray, ...]) -> tuple[AreasOutcome, ...]:
        shape = (self.areas, MEMBERS)
        outcome = AreasOutcome(
            ended=np.full(shape, over),
            truncated=np.zeros(shape, bool),
            reward=np.zeros(shape, np.float32),
            group_reward=np.zeros(shape, np.float32),
            last_obs=last,
            alive=np.ones(shape, bool),
            action_mask=np.ones((*shape, 0), bool),
            obs=shown(self.areas, self.clock),
            over=np.full(self.areas, over),
            stats={},
        )
        return (outcome,)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    port = parser.parse_known_args()[0].port
    serve(ServedScene("Gallery", (BehaviorPart("Gallery", SPEC, MEMBERS),), {}, Gallery), PlayerOptions(port=port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
