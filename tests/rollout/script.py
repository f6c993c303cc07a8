"""Short messages written by hand, for slots and buffer together."""

from __future__ import annotations

import numpy as np
from row_collector import SPEC, RowCollector, Transition, allowed, observe

from jaxrl.rollout.booking.slots import Source
from tests.helpers import decision_steps, message, terminal_steps

ONE = Source(0, "Push?team=0")


class Script:
    """Short messages of one source: agents get uid = id, serials by count and the given weights."""

    def __init__(self, collector: RowCollector) -> None:
        self.collector = collector
        self.serial: dict[int, int] = {}
        self.group: dict[int, int] = {}  # where it is not the usual one

    def say(self, *, end: dict[int, int] | None = None, ask: dict[int, int] | None = None, **fields) -> None:
        """`end` and `ask` give the weight of each agent's observation; all are in team 7, ids over 100 in team 8."""
        ended = self._part(end or {}, reward=fields.get("end_reward"), group_reward=fields.get("end_group_reward"))
        deciding = self._part(ask or {}, reward=fields.get("reward"), group_reward=fields.get("group_reward"))
        masks = [allowed(self.serial[agent]) for agent in ask or {}]
        cut = [fields.get("truncated", False)] * len(end or {})
        part = message(
            SPEC, terminal_steps(SPEC, truncated=cut, **ended), decision_steps(SPEC, action_mask=masks, **deciding)
        )
        self.collector.feed({ONE: part})

    def _part(self, weights: dict[int, int], **rewards: list[float] | None) -> dict:
        for agent in weights:
            self.serial[agent] = self.serial.get(agent, 0) + 1
        shots = [observe(agent, self.serial[agent], weight) for agent, weight in weights.items()]
        return {
            "agents": list(weights),
            "groups": [self.group.get(agent, 8 if agent > 100 else 7) for agent in weights],
            **rewards,
            "obs": [
                np.array([shot[i] for shot in shots]).reshape(-1, *s.shape) for i, s in enumerate(SPEC.observations)
            ],
        }


def script(**options) -> Script:
    return Script(RowCollector(**{"rows": 2, "members": 2, "poison": True} | options))


def brief(trained: list[Transition]) -> list[tuple[int, int, str, float]]:
    return [(t.uid, t.serial, t.ending, t.bootstrap) for t in trained]
