"""Protocol messages as a Unity player writes and reads them. One message holds all agents, by behavior; a behavior on
the wire is a name with a team, as in `SoccerTwos?team=1`.

Masks and observations are laid out in numpy as they lie in a message (`observations.py`) and merged into each agent's
entry: one call per agent, where filling the fields takes four.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from jaxrl.envs.player.observations import ObservationWriter, byte_column, field_head
from jaxrl.envs.protobuf import messages
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, JaxrlError

COMMUNICATION_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
RUNNING = 200
STOPPED = 400


class InvalidActionsError(JaxrlError):
    """The trainer's actions do not fit the agents that asked for them."""


class PlayerMessages:
    """Writes and reads the messages of one behavior and its teams."""

    def __init__(self, name: str, spec: BehaviorSpec, teams: int = 1) -> None:
        """`name`: without team, as in `DungeonEscape`. Raises UnsendableError: a sensor that no player can send."""
        self._proto = messages()
        self._name = name
        self._behavior_ids = tuple(f"{name}?team={team}" for team in range(teams))
        self._introduced: set[str] = set()
        self._spec = spec
        self._numbers = {field.name: field.number for field in self._proto.AgentInfoProto.DESCRIPTOR.fields}
        self._obs = ObservationWriter(spec)

    def handshake(self) -> Any:
        """The first message: who speaks, which protocol and what it can do. Specs follow with the first agents."""
        message = self.status(RUNNING)
        output = message.unity_output.rl_initialization_output
        output.name = self._name
        output.communication_version = COMMUNICATION_VERSION
        output.package_version = PACKAGE_VERSION
        for field in output.capabilities.DESCRIPTOR.fields:
            setattr(output.capabilities, field.name, True)
        return message

    def status(self, status: int, text: str = "") -> Any:
        """A message that says only how the player is: 200 running, 400 stopped."""
        message = self._proto.UnityMessageProto()
        message.header.status = status
        message.header.message = text
        return message

    def output(self, steps: Sequence[BehaviorMessage], side_channel: bytes) -> Any:
        """Of each team that has any, agents that ended, then agents that ask for a decision; with the first of them
        also how to read them.
        """
        message = self.status(RUNNING)
        message.unity_output.rl_output.side_channel = side_channel
        self.add(message, steps)
        return message

    def add(self, message: Any, steps: Sequence[BehaviorMessage]) -> None:
        """The agents of this behavior, by team, to a message that may hold those of others; as `output`."""
        rl_output = message.unity_output.rl_output
        for behavior_id, of_team in zip(self._behavior_ids, steps, strict=True):
            ended, deciding = len(of_team.ended.agent_id), len(of_team.deciding.agent_id)
            if not ended + deciding:
                continue
            if behavior_id not in self._introduced:
                self._introduced.add(behavior_id)
                self._add_spec(message.unity_output.rl_initialization_output, behavior_id)
            infos = rl_output.agentInfos[behavior_id].value
            if ended:
                self._add_ended(infos, of_team)
            if deciding:
                self._add_deciding(infos, of_team)

    def read_actions(self, rl_input: Any, counts: Sequence[int]) -> tuple[Action, ...]:
        """By team, actions of the `counts` agents that asked, in their order.

        Raises:
            InvalidActionsError: another number of agents, or of values per agent, or a number outside its branch.
        """
        pairs = zip(self._behavior_ids, counts, strict=True)
        return tuple(self._read_team(behavior_id, rl_input, count) for behavior_id, count in pairs)

    def _read_team(self, behavior_id: str, rl_input: Any, count: int) -> Action:
        actions = rl_input.agent_actions[behavior_id].value
        if len(actions) != count:
            raise InvalidActionsError(
                f"behavior {behavior_id}: {count} agents asked for a decision, {len(actions)} actions came"
            )
        branches, size = self._spec.action.discrete_branches, self._spec.action.continuous_size
        continuous = _table(behavior_id, "continuous", [row.continuous_actions for row in actions], size, np.float32)
        chosen = _table(behavior_id, "discrete", [row.discrete_actions for row in actions], len(branches), np.int32)
        if ((chosen < 0) | (chosen >= np.array(branches, np.int32))).any():
            raise InvalidActionsError(
                f"behavior {behavior_id}: discrete actions {chosen.tolist()} leave the branches {branches}"
            )
        return Action(continuous=continuous, discrete=chosen)

    def _add_spec(self, output: Any, behavior_id: str) -> None:
        brain = output.brain_parameters.add(brain_name=behavior_id, is_training=True)
        action = self._spec.action
        brain.action_spec.num_continuous_actions = action.continuous_size
        brain.action_spec.num_discrete_actions = len(action.discrete_branches)
        brain.action_spec.discrete_branch_sizes.extend(action.discrete_branches)

    def _add_ended(self, infos: Any, steps: BehaviorMessage) -> None:
        ended = steps.ended
        nothing = np.zeros((len(ended.agent_id), 0), np.uint8)
        rows = zip(*(column.tolist() for column in ended[:5]), self._obs.write(nothing, ended.obs), strict=True)
        for agent_id, group_id, reward, group_reward, truncated, obs in rows:
            infos.add(
                id=agent_id,
                group_id=group_id,
                reward=reward,
                group_reward=group_reward,
                done=True,
                max_step_reached=truncated,
            ).MergeFromString(obs)

    def _add_deciding(self, infos: Any, steps: BehaviorMessage) -> None:
        deciding = steps.deciding
        forbidden = ~deciding.action_mask  # on the wire True means: not allowed
        mask = byte_column(field_head(self._numbers["action_mask"], forbidden.shape[1]), forbidden)
        rows = zip(*(column.tolist() for column in deciding[:4]), self._obs.write(mask, deciding.obs), strict=True)
        for agent_id, group_id, reward, group_reward, rest in rows:
            infos.add(id=agent_id, group_id=group_id, reward=reward, group_reward=group_reward).MergeFromString(rest)


def _table(behavior_id: str, kind: str, rows: list[Any], width: int, dtype: type) -> np.ndarray:
    """Rows of the message as an array [N, width]."""
    lengths = list(map(len, rows))
    if lengths.count(width) != len(rows):
        wrong = next(length for length in lengths if length != width)
        raise InvalidActionsError(f"behavior {behavior_id}: {wrong} {kind} actions, expected {width} per agent")
    return np.fromiter(chain.from_iterable(rows), dtype, width * len(rows)).reshape(len(rows), width)
