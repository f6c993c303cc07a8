"""The same bookkeeping done the slow, obvious way: one Python object per agent, from the rules, not from the code.

Rules: terminals first (M6); the reward of a message belongs to the decision before it (M7); what follows a decision is
the state in which its agent decides again, the last observation of an interrupted team, or, for an agent that left
before its team ended, the team's next state; an agent that asks under another group id has left its team, and when
nobody is left there it is what follows itself; an agent whose source is discarded is interrupted, and its open decision
is never taken; an update takes every decision whose reward and following state are known.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from row_collector import Transition, chosen

from jaxrl.rollout.booking.slots import Source
from jaxrl.types import NO_GROUP, BehaviorMessage

Member = tuple[int, int, int]  # uid, serial and weight of an observation
State = dict[int, Member]  # by uid


@dataclass
class Agent:
    """One episode of one agent."""

    uid: int
    seen: Member  # newest observation
    state: State = field(default_factory=dict)  # of its open decision
    actions: dict[int, float] = field(default_factory=dict)  # of everybody in that state
    decided: Member | None = None
    age: int = 0
    gone: tuple[float, float] | None = None  # rewards, if it left and what follows is not known yet
    how: str = ""  # it left: terminated, truncated, moved, dropped
    last: Member = (0, 0, 0)  # what it saw when it left


@dataclass
class Team:
    """Living agents by (source, id), those that left before, or with this message, and the newest state."""

    living: dict[Hashable, Agent] = field(default_factory=dict)
    waiting: list[Agent] = field(default_factory=list)
    leaving: list[Agent] = field(default_factory=list)
    newest: tuple[State, dict[int, float]] = field(default_factory=lambda: ({}, {}))


class AgentByAgent:
    """All transitions of a stream of messages."""

    def __init__(self, *, team_rows: bool, horizon: int) -> None:
        self.team_rows = team_rows
        self.horizon = horizon
        self.teams: dict[Hashable, Team] = {}
        self.home: dict[tuple[Source, int], Hashable] = {}  # (source, agent id) → team
        self.done: list[Transition] = []
        self.discarded: list[Source] = []

    def feed(self, messages: Mapping[Source, BehaviorMessage]) -> None:
        """One message: everybody who leaves, then all decisions."""
        for agent in [agent for agent in self.home if agent[0] in self.discarded]:
            self._leave(agent, "dropped", (0.0, 0.0), None)
        self.discarded = []
        for source, steps in messages.items():
            self._move(source, steps)
            self._end(source, steps)
        for key in [key for key, team in self.teams.items() if team.leaving]:
            self._settle_up(key)
        deciding: dict[Hashable, list[tuple[Hashable, Member, float, float]]] = {}
        for source, steps in messages.items():
            d = steps.deciding
            for i, agent_id in enumerate(d.agent_id.tolist()):
                agent, team = (source, agent_id), self._team(source, agent_id, int(d.group_id[i]))
                entry = (agent, _member(d.obs[0][i]), float(d.reward[i]), float(d.group_reward[i]))
                deciding.setdefault(self.home.setdefault(agent, team), []).append(entry)
        for key, entries in deciding.items():
            self._decide(self.teams.setdefault(key, Team()), entries)

    def take(self) -> list[Transition]:
        """Everything done since the last time, sorted. Open decisions move to the newest state of their team."""
        done, self.done = sorted(self.done), []
        for team in self.teams.values():
            for agent in [*team.living.values(), *team.waiting]:
                agent.state, agent.actions = team.newest
                agent.age = 0
        return done

    def discard(self, source: Source) -> None:
        """The source is no more: its agents are interrupted with the next message."""
        self.discarded.append(source)

    def _move(self, source: Source, steps: BehaviorMessage) -> None:
        d, ended = steps.deciding, steps.ended.agent_id.tolist()
        for i, agent_id in enumerate(d.agent_id.tolist()):
            agent = (source, agent_id)
            known = agent in self.home and agent_id not in ended
            if known and self.home[agent] != self._team(source, agent_id, int(d.group_id[i])):
                self._leave(agent, "moved", (float(d.reward[i]), float(d.group_reward[i])), _member(d.obs[0][i]))

    def _end(self, source: Source, steps: BehaviorMessage) -> None:
        e = steps.ended
        for i, agent_id in enumerate(e.agent_id.tolist()):
            if (source, agent_id) in self.home:
                how = "truncated" if e.truncated[i] else "terminated"
                rewards = float(e.reward[i]), float(e.group_reward[i])
                self._leave((source, agent_id), how, rewards, _member(e.obs[0][i]))

    def _leave(self, key: tuple[Source, int], how: str, rewards: tuple[float, float], last: Member | None) -> None:
        team = self.teams[self.home.pop(key)]
        agent = team.living.pop(key)
        agent.gone, agent.how, agent.last = rewards, how, last or agent.seen
        team.leaving.append(agent)

    def _settle_up(self, key: Hashable) -> None:
        """Whoever left with this message waits for its team's next state; if nobody is left there is none."""
        team = self.teams[key]
        before, now, team.leaving = team.waiting, team.leaving, []
        if team.living:
            team.waiting = before + now
            return
        del self.teams[key]
        interrupted = any(agent.how in ("truncated", "dropped") for agent in now)
        live_on = [agent for agent in now if agent.how == "moved"]
        if not interrupted and not live_on:
            live_on = [agent for agent in before if agent.how == "moved"]
        final = {agent.uid: agent.last for agent in (now if interrupted else live_on)}
        for agent in [agent for agent in before + now if agent.how != "dropped"]:
            if agent in now and agent.how == "terminated":
                self._finish(agent, agent.gone, "terminated", {})
            elif agent in now or agent in live_on:
                self._finish(agent, agent.gone, "truncated" if interrupted else "cut", final)
            elif interrupted or agent.how == "moved":
                self._finish(agent, agent.gone, "left", final)
            else:
                self._finish(agent, agent.gone, "terminated", {})

    def _team(self, source: Source, agent_id: int, group: int) -> Hashable:
        return (source, group) if self.team_rows and group != NO_GROUP else (source, "lone", agent_id)

    def _decide(self, team: Team, entries: list[tuple[Hashable, Member, float, float]]) -> None:
        before = {agent: team.living.get(agent) for agent, *_ in entries}
        for agent, seen, _, _ in entries:
            team.living.setdefault(agent, Agent(uid=seen[0], seen=seen)).seen = seen
        state = {agent.uid: agent.seen for agent in team.living.values()}
        for agent in team.waiting:
            self._finish(agent, agent.gone, "left", state)
        team.waiting = []
        for agent, _, reward, group_reward in entries:
            known = before[agent]
            if known is not None:
                cut = known.age + 1 >= self.horizon
                self._finish(known, (reward, group_reward), "cut" if cut else "continues", state)
                known.age = 0 if cut else known.age + 1
        for agent, seen, _, _ in entries:
            team.living[agent].decided = seen
        decided = [agent.decided for agent in team.living.values()]
        actions = {m[0]: chosen(m[0], m[1]) for m in decided if m is not None}
        team.newest = (state, actions)
        for agent, *_ in entries:
            team.living[agent].state, team.living[agent].actions = state, actions

    def _finish(self, agent: Agent, rewards: tuple[float, float] | None, ending: str, after: State) -> None:
        assert agent.decided is not None and rewards is not None
        self.done.append(
            Transition(
                uid=agent.uid,
                serial=agent.decided[1],
                reward=rewards[0],
                group_reward=rewards[1],
                ending=ending,
                bootstrap=0.0 if ending == "terminated" else float(sum(m[2] for m in after.values())),
                state=frozenset((m[0], m[1], agent.actions[m[0]]) for m in agent.state.values()),
            )
        )


def _member(obs) -> Member:
    uid, serial, weight = obs.tolist()
    return int(uid), int(serial), int(weight)
