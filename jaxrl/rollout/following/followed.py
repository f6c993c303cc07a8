"""Episodes that are followed one by one, for callbacks, mappings and windows. Host side, numpy only.

An `Episode` is that of a team, or of an agent without a team, from the first decision to the end of its last member. A
team may hold agents of several behaviors; it is over when its last living member ends, also if another one asks in the
same message under the same group id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from jaxrl.types import Action


class Outcome(Enum):
    """Reason why an agent left an episode, or a piece of its stream ended."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    MOVED = "moved"  # it asks under another group id: it is part of another episode now
    LOST = "lost"  # its worker was lost
    CUT = "cut"  # only of streams: time_horizon reached, the agent goes on


@dataclass(eq=False)
class AgentRecord:
    """Agent in one episode. Rewards in reward units; one before the first decision belongs to no decision."""

    agent_id: int
    behavior_id: str  # with its team: "Soccer?team=1"
    policy: str  # policy that it follows, for its whole life
    samples: bool = True  # False: it acts, and is not learned from
    mapped: bool = False  # whether its policy is settled
    decisions: int = 0  # number of decisions that it has asked for
    own_return: float = 0.0  # sum of its individual rewards
    group_return: float = 0.0  # sum of the group rewards that it received
    outcome: Outcome | None = None  # None: it goes on
    infos: Mapping[str, Any] = field(default_factory=dict)  # the newest that came with it
    index: int = 0  # its index in `Episode.agents`
    last_obs: tuple[np.ndarray, ...] = ()  # last observation, one per sensor; only with callbacks, as the next three
    last_action: Action | None = None  # last action, as the environment has it: float32 [C], int32 [D]
    last_reward: float = 0.0  # last individual reward
    last_group_reward: float = 0.0  # last group reward

    @property
    def is_done(self) -> bool:
        """True if the agent has left the episode."""
        return self.outcome is not None

    @property
    def behavior(self) -> str:
        """Name of the behavior without a team."""
        return self.behavior_id.partition("?")[0]


@dataclass(eq=False)
class Episode:
    """Episode. Callbacks may write into the last four fields."""

    episode_id: str  # 16 hexadecimal digits, see `episode_id`
    worker: int
    incarnation: int  # incarnation of the worker
    group_id: int  # NO_GROUP: one agent without a team
    agents: list[AgentRecord] = field(default_factory=list)  # in the order in which they came, also ended ones
    length: int = 0  # messages after the first in which any of its agents asks or ends
    group_return: float = 0.0  # group rewards of the team, from its first decision on
    over: bool = False
    truncated: bool = False  # over because it was interrupted
    error: Exception | None = None  # error by which its worker was lost
    infos: Mapping[str, Any] = field(default_factory=dict)  # the newest that concern all agents of the worker
    custom_metrics: dict[str, float] = field(default_factory=dict)  # mean, least and largest become tags Custom/<name>
    hist_data: dict[str, list[float]] = field(default_factory=dict)  # a histogram Custom/<name>
    media: dict[str, np.ndarray] = field(default_factory=dict)  # uint8 [H, W, 3], shown under Custom/<name>
    user_data: dict[str, Any] = field(default_factory=dict)  # not read by jaxrl

    @property
    def faulty(self) -> bool:
        """True if the episode broke off with its worker."""
        return self.error is not None

    def agent(self, agent_id: int, behavior_id: str | None = None) -> AgentRecord:
        """Return the newest agent of this id; `behavior_id` if several behaviors of the episode have one.

        Raises KeyError if there is none.
        """
        agents = [a for a in self.agents if a.agent_id == agent_id and behavior_id in (None, a.behavior_id)]
        if not agents:
            there = ", ".join(str(agent.agent_id) for agent in self.agents)
            raise KeyError(f"episode {self.episode_id} has no agent {agent_id}, only {there}")
        return agents[-1]

    def policy_for(self, agent_id: int, behavior_id: str | None = None) -> str:
        """Return the policy that an agent follows. Raises as `agent`."""
        return self.agent(agent_id, behavior_id).policy

    def is_done(self, agent_id: int, behavior_id: str | None = None) -> bool:
        """Return whether an agent has left the episode. Raises as `agent`."""
        return self.agent(agent_id, behavior_id).is_done

    @property
    def agent_steps(self) -> int:
        """Number of decisions that all of its agents have asked for."""
        return sum(agent.decisions for agent in self.agents)

    @property
    def living(self) -> list[AgentRecord]:
        """Agents that have not left the episode."""
        return [agent for agent in self.agents if agent.outcome is None]

    @property
    def total_return(self) -> float:
        """Sum of the individual rewards of all agents and the group return."""
        return sum(agent.own_return for agent in self.agents) + self.group_return


class Trajectory(NamedTuple):
    """A piece of an agent's stream: T decisions up to its end, or to time_horizon.

    A copy, which cannot be written to. The setting `postprocess` can change the data for learning.
    """

    obs: tuple[np.ndarray, ...]  # one per sensor, its dtype [T, *shape]
    action: Action  # as the environment has it: float32 [T, C], int32 [T, D]
    reward: np.ndarray  # float32 [T], individual reward after each decision
    group_reward: np.ndarray  # float32 [T]
    last_obs: tuple[np.ndarray, ...]  # one per sensor [*shape], observation after the last decision
    outcome: Outcome | None  # None for a mate that goes on
    time_step: np.ndarray  # int32 [T], number of the decision in the agent's episode, from 0
    worker: int  # the environment
    agent_index: int  # index of the agent in `Episode.agents`


def episode_id(seed: int, begun_at: int, worker: int, incarnation: int, number: int) -> str:
    """Make the id of a worker's episode `number`: unique, and equal in every run of one seed.

    `begun_at` is the number of decisions at which a resumed run begins: it does not repeat the ids of its first part.
    """
    words = f"{seed} {begun_at} {worker} {incarnation} {number}"
    return blake2b(words.encode(), digest_size=8).hexdigest()
