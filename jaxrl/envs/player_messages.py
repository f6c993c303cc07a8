"""Protocol messages as a Unity player writes and reads them. One message holds all agents of one behavior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxrl.envs.protobuf import messages
from jaxrl.types import Action, AgentSteps, BehaviorSpec, JaxrlError, ObservationSpec

COMMUNICATION_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
RUNNING = 200
STOPPED = 400


class InvalidActionsError(JaxrlError):
    """The trainer's actions do not fit the agents that asked for them."""


class PlayerMessages:
    """Writes the messages of one behavior. Constant parts are built once and merged into each agent's entry."""

    def __init__(self, behavior_id: str, spec: BehaviorSpec) -> None:
        """`behavior_id`: name and team, as in `DungeonEscape?team=0`."""
        self._proto = messages()
        self._behavior_id = behavior_id
        self._spec = spec
        self._templates = tuple(self._template(sensor) for sensor in spec.observations)

    def handshake(self, name: str) -> Any:
        """The first message: who speaks, which protocol and what it can do. Specs follow with the first agents."""
        message = self.status(RUNNING)
        output = message.unity_output.rl_initialization_output
        output.name = name
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

    def output(self, steps: AgentSteps, side_channel: bytes, with_spec: bool) -> Any:
        """Ended agents, then those that ask for a decision. `with_spec`: also how to read them, needed once."""
        message = self.status(RUNNING)
        rl_output = message.unity_output.rl_output
        rl_output.side_channel = side_channel
        if with_spec:
            self._add_spec(message.unity_output.rl_initialization_output)
        infos = rl_output.agentInfos[self._behavior_id].value
        self._add_ended(infos, steps)
        self._add_deciding(infos, steps)
        return message

    def read_actions(self, rl_input: Any, count: int) -> Action:
        """Actions of the `count` agents that asked, in their order.

        Raises:
            InvalidActionsError: another number of agents, or of values per agent, or a number outside its branch.
        """
        actions = rl_input.agent_actions[self._behavior_id].value
        if len(actions) != count:
            raise InvalidActionsError(
                f"behavior {self._behavior_id}: {count} agents asked for a decision, {len(actions)} actions came"
            )
        branches = self._spec.action.discrete_branches
        continuous = [list(action.continuous_actions) for action in actions]
        discrete = [list(action.discrete_actions) for action in actions]
        size = self._spec.action.continuous_size
        self._check_width("continuous", continuous, size)
        self._check_width("discrete", discrete, len(branches))
        chosen = np.array(discrete, np.int32).reshape(count, len(branches))
        if ((chosen < 0) | (chosen >= np.array(branches, np.int32))).any():
            raise InvalidActionsError(
                f"behavior {self._behavior_id}: discrete actions {chosen.tolist()} leave the branches {branches}"
            )
        return Action(continuous=np.array(continuous, np.float32).reshape(count, size), discrete=chosen)

    def _check_width(self, kind: str, rows: list[list], width: int) -> None:
        wrong = next((len(row) for row in rows if len(row) != width), None)
        if wrong is not None:
            raise InvalidActionsError(
                f"behavior {self._behavior_id}: {wrong} {kind} actions, expected {width} per agent"
            )

    def _template(self, sensor: ObservationSpec) -> Any:
        observation = self._proto.ObservationProto(name=sensor.name)
        observation.shape.extend(sensor.shape)
        observation.dimension_properties.extend(int(value) for value in sensor.dimension_property)
        observation.observation_type = int(sensor.observation_type)
        return observation

    def _add_spec(self, output: Any) -> None:
        brain = output.brain_parameters.add(brain_name=self._behavior_id, is_training=True)
        action = self._spec.action
        brain.action_spec.num_continuous_actions = action.continuous_size
        brain.action_spec.num_discrete_actions = len(action.discrete_branches)
        brain.action_spec.discrete_branch_sizes.extend(action.discrete_branches)

    def _add_ended(self, infos: Any, steps: AgentSteps) -> None:
        ended = steps.ended
        rows = zip(*(column.tolist() for column in ended[:5]), *map(_flat, ended.obs), strict=True)
        for agent_id, group_id, reward, group_reward, truncated, *obs in rows:
            info = infos.add(
                id=agent_id,
                group_id=group_id,
                reward=reward,
                group_reward=group_reward,
                done=True,
                max_step_reached=truncated,
            )
            self._add_observations(info, obs)

    def _add_deciding(self, infos: Any, steps: AgentSteps) -> None:
        deciding = steps.deciding
        forbidden = (~deciding.action_mask).tolist()  # on the wire True means: not allowed
        rows = zip(*(column.tolist() for column in deciding[:4]), forbidden, *map(_flat, deciding.obs), strict=True)
        for agent_id, group_id, reward, group_reward, mask, *obs in rows:
            info = infos.add(id=agent_id, group_id=group_id, reward=reward, group_reward=group_reward, action_mask=mask)
            self._add_observations(info, obs)

    def _add_observations(self, info: Any, obs: list[list[float]]) -> None:
        for template, values in zip(self._templates, obs, strict=True):
            observation = info.observations.add()
            observation.MergeFrom(template)
            observation.float_data.data.extend(values)


def _flat(obs: np.ndarray) -> list[list[float]]:
    """[N, *shape] as N lists of floats: what a repeated field takes fastest."""
    return obs.reshape(len(obs), math.prod(obs.shape[1:])).tolist()
