"""Random messages with everything that may happen: joins, deaths, ends, restarts, moves, silence, strangers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from row_collector import SPEC, allowed, observe

from jaxrl.rollout.booking.slots import Source
from jaxrl.types import NO_GROUP, BehaviorMessage
from tests.helpers import decision_steps, message, terminal_steps

SOURCES: tuple[Source, ...] = (Source(0, "Push?team=0"), Source(1, "Push?team=0"), Source(0, "Push?team=1"))


@dataclass
class Living:
    """One agent in the stream. Ids start anew in every source; uids never repeat."""

    agent_id: int
    uid: int
    group: int
    serial: int = 0


@dataclass
class Part:
    """One source's part of a message while it is written: (agent, truncated) that end, agents that decide."""

    ended: list[tuple[Living, bool]] = field(default_factory=list)
    deciding: list[Living] = field(default_factory=list)


class RandomStream:
    """Messages from three sources with `groups` teams each and some lone agents."""

    def __init__(self, seed: int, *, groups: int = 2, most: int = 4) -> None:
        self.rng = np.random.default_rng(seed)
        self.groups = range(groups + 1)  # group 0: lone agents
        self.most = most
        self.next_uid = 1
        self.next_id = dict.fromkeys(SOURCES, 0)
        self.teams: dict[tuple[Source, int], list[Living]] = {}

    def message(self) -> dict[Source, BehaviorMessage]:
        """What arrives next: some of the sources, in any order."""
        present = [source for source in SOURCES if self.chance(0.7)] or [SOURCES[0]]
        self.rng.shuffle(present)
        return {source: self._write(source) for source in present}

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def _write(self, source: Source) -> BehaviorMessage:
        part = Part()
        for group in self.groups:
            team = self.teams.setdefault((source, group), [])
            if team and self.chance(0.12):
                self._everybody_ends(source, team, part)
            else:
                self._some_die(team, part)
            if not team and self.chance(0.6):
                team += [self._born(source, group) for _ in range(self.rng.integers(1, self.most + 1))]
            elif len(team) < self.most and self.chance(0.1):
                team.append(self._born(source, group))
            part.deciding += [agent for agent in team if agent.serial == 0 or self.chance(0.75)]
        self._some_move(source, part)
        if self.chance(0.1):
            part.ended.append((self._born(source, NO_GROUP), self.chance(0.5)))  # ends before it was ever seen
        self.rng.shuffle(part.deciding)
        return self._arrays(part)

    def _everybody_ends(self, source: Source, team: list[Living], part: Part) -> None:
        kind = self.rng.integers(3)  # terminated, truncated, some of both
        part.ended += [(agent, bool(kind == 1 or (kind == 2 and self.chance(0.5)))) for agent in team]
        again = [agent for agent in team if self.chance(0.3)]  # same id in both parts of the message
        team[:] = [Living(agent.agent_id, self._uid(), agent.group) for agent in again]

    def _some_die(self, team: list[Living], part: Part) -> None:
        for agent in [agent for agent in team if self.chance(0.08)]:
            part.ended.append((agent, self.chance(0.3)))
            team.remove(agent)

    def _some_move(self, source: Source, part: Part) -> None:
        """One agent, or its whole team, asks under another group id, which stands for living agents or for nobody."""
        if not part.deciding or not self.chance(0.25):
            return
        first = part.deciding[self.rng.integers(len(part.deciding))]
        old, whole = self.teams[source, first.group], self.chance(0.4)
        group = int(self.rng.choice([group for group in self.groups if group != first.group]))
        new = self.teams.setdefault((source, group), [])
        for agent in [agent for agent in part.deciding if agent is first or (whole and agent in old)]:
            if group == NO_GROUP or len(new) < self.most:
                old.remove(agent)
                new.append(agent)
                agent.group = group

    def _born(self, source: Source, group: int) -> Living:
        self.next_id[source] += 1
        return Living(self.next_id[source], self._uid(), group)

    def _uid(self) -> int:
        self.next_uid += 1
        return self.next_uid

    def _arrays(self, part: Part) -> BehaviorMessage:
        def fields(agents: list[Living]) -> dict:
            n = len(agents)
            return {
                "agents": [agent.agent_id for agent in agents],
                "groups": [agent.group for agent in agents],
                "reward": self.rng.integers(-9, 10, n),
                "group_reward": self.rng.integers(-9, 10, n),
                "obs": self._observations(agents),
            }

        gone = [agent for agent, _ in part.ended]
        ended = terminal_steps(SPEC, truncated=[cut for _, cut in part.ended], **fields(gone))
        masks = [allowed(agent.serial + 1) for agent in part.deciding]
        return message(SPEC, ended, decision_steps(SPEC, action_mask=masks, **fields(part.deciding)))

    def _observations(self, agents: list[Living]) -> tuple[np.ndarray, ...]:
        for agent in agents:
            agent.serial += 1
        shots = [observe(agent.uid, agent.serial, int(self.rng.integers(1, 4000))) for agent in agents]
        return tuple(
            np.array([shot[i] for shot in shots], np.float32).reshape(-1, *sensor.shape)
            for i, sensor in enumerate(SPEC.observations)
        )
