"""Records that travel between modules and processes.

Everything that crosses a module or process border is one of these NamedTuples of numpy arrays, built with keywords.
Environment workers import this module, so it must never import JAX.

Axis letters used all over jaxrl: `T` time, `B` slots (rows), `A` members of a team including self (padded), `R` reward
streams, `H` hidden units, `N` flat samples (here: agents of one message), `C` continuous action dimensions, `D`
discrete branches, `M` sum of the branch sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np


class JaxrlError(RuntimeError):
    """An error that the user can mend. The command line prints its text alone and exits with 1."""


class PolicyError(JaxrlError):
    """A policy cannot do what is asked, or cannot be added, removed or followed. The text says what is possible."""


NO_GROUP = 0
"""Group id of an agent that belongs to no team (ML-Agents' convention)."""


class ObservationType(IntEnum):
    """Meaning of an observation to the trainer; numbers as on the wire."""

    DEFAULT = 0
    GOAL_SIGNAL = 1


class DimensionProperty(IntEnum):
    """Property of one axis of an observation; bits as on the wire."""

    UNSPECIFIED = 0
    NONE = 1
    TRANSLATIONAL_EQUIVARIANCE = 2
    VARIABLE_SIZE = 4


class ObservationSpec(NamedTuple):
    """Sensor: its name, the shape of one observation and the property of each axis."""

    name: str
    shape: tuple[int, ...]
    dimension_property: tuple[DimensionProperty, ...] = ()
    observation_type: ObservationType = ObservationType.DEFAULT
    dtype: str = "float32"  # of the arrays from the wire to the device: numpy's name, "uint8" for images


class ActionSpec(NamedTuple):
    """Number of continuous dimensions (C) and the size of each discrete branch (D entries, sum M)."""

    continuous_size: int
    discrete_branches: tuple[int, ...]

    @property
    def mask_size(self) -> int:
        """M, the length of an action mask: all branches concatenated."""
        return sum(self.discrete_branches)

    @property
    def columns(self) -> int:
        """C + D, the number of log-probabilities of one action: each dimension and each branch has its own."""
        return self.continuous_size + len(self.discrete_branches)


class BehaviorSpec(NamedTuple):
    """Observations and actions shared by all agents of one behavior, sensors in the environment's order."""

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec


class Identity(NamedTuple):
    """Name and spaces of agents of somebody else's environment: equal ones are one behavior, in every worker."""

    name: str  # without its number
    spaces: str  # of observations and actions, in words, with a digest of all their numbers


class Action(NamedTuple):
    """Actions of N agents; also used with other leading axes inside the learner, there with JAX arrays."""

    continuous: Any  # float32 [N, C]
    discrete: Any  # int32 [N, D]


class TerminalSteps(NamedTuple):
    """Agents whose episode ended with this message: the last reward and observation of each."""

    agent_id: np.ndarray  # int64 [N]
    group_id: np.ndarray  # int64 [N], NO_GROUP for a lone agent
    reward: np.ndarray  # float32 [N], since the agent's last decision
    group_reward: np.ndarray  # float32 [N]
    truncated: np.ndarray  # bool [N], True: interrupted (bootstrap), False: terminated
    obs: tuple[np.ndarray, ...]  # one per sensor, float32 [N, *shape]


class DecisionSteps(NamedTuple):
    """Agents that ask for an action now; actions go back in this order."""

    agent_id: np.ndarray  # int64 [N]
    group_id: np.ndarray  # int64 [N]
    reward: np.ndarray  # float32 [N], since the agent's last decision
    group_reward: np.ndarray  # float32 [N]
    action_mask: np.ndarray  # bool [N, M], True: allowed
    obs: tuple[np.ndarray, ...]  # one per sensor, float32 [N, *shape]


def ended_and_deciding(
    count: int,
    numbers: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    obs: tuple[np.ndarray, ...],
    *,
    truncated: np.ndarray,
    action_mask: np.ndarray,
) -> tuple[TerminalSteps, DecisionSteps]:
    """Split agents, the first `count` of which have ended. `numbers`: ids, groups, own and group rewards."""
    agent_id, group_id, pay, group = numbers
    ended, rest = slice(count), slice(count, None)
    return (
        TerminalSteps(
            agent_id[ended], group_id[ended], pay[ended], group[ended], truncated, tuple(x[ended] for x in obs)
        ),
        DecisionSteps(agent_id[rest], group_id[rest], pay[rest], group[rest], action_mask, tuple(x[rest] for x in obs)),
    )


class Taken(NamedTuple):
    """Actions that agents really took in their last decision, where these differ from those they were sent."""

    agent_id: np.ndarray  # int64 [K], each stands among the deciding or the ended agents of its message
    action: Action  # [K, C] and [K, D]


NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The empty mapping, of which there need be only one."""


class BehaviorMessage(NamedTuple):
    """Part of one behavior in one message. Ended agents come first: an id may stand in both."""

    ended: TerminalSteps
    deciding: DecisionSteps
    infos: Mapping[int, Mapping[str, Any]] = NOTHING  # by agent id, further data of the environment
    taken: Taken | None = None


class Aggregation(IntEnum):
    """Way in which values of one statistic between two summaries become one number; numbers as on the wire."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


class EnvironmentStat(NamedTuple):
    """Value that the environment sent through the stats side channel."""

    name: str
    value: float
    aggregation: Aggregation


class SamplerSpec(NamedTuple):
    """A distribution that an environment draws one of its parameters from at each episode reset."""

    kind: Literal["uniform", "gaussian", "multirangeuniform"]
    values: tuple[float, ...]  # least and largest; mean and standard deviation; bounds of one interval after the other
    seed: int  # of its draws, fits an int32
    each_worker: bool = False  # nobody gave the seed: each worker draws a sequence of its own


ParameterValue = float | SamplerSpec
"""Value of an environment parameter, as it is sent to the environment."""


class StepTiming(NamedTuple):
    """Parts of a worker's time, in seconds of wall time; parts that an environment does not measure are 0."""

    exchange: float = 0.0  # waiting for the player's answer
    decode: float = 0.0  # from its bytes to arrays
    own: float = 0.0  # the worker's, for the command before: unpacking actions, packing and sending the result


class CopyFault(NamedTuple):
    """Failure of one of the copies in an environment, which was made anew."""

    why: str
    agents: Mapping[str, Collection[int]]  # ids of its lost agents, by behavior id
    bad_data: bool = False  # data of an agent cannot be used


class EnvMessage(NamedTuple):
    """Answer of one environment to a reset or a step."""

    worker: int
    steps: Mapping[str, BehaviorMessage]  # by behavior id; only behaviors with agents in this message
    new_specs: Mapping[str, BehaviorSpec]  # behaviors seen for the first time
    stats: tuple[EnvironmentStat, ...]
    seconds: float  # wall time the environment took, measured beside it
    infos: Mapping[str, Any] = NOTHING  # data that concern all agents
    timing: StepTiming = StepTiming()  # parts of `seconds`, and the time of the worker itself
    incarnation: int = 0  # how often the worker was started again: ids of another incarnation are other agents
    faults: tuple[CopyFault, ...] = ()  # of copies, before this message
    identities: Mapping[str, Identity] = NOTHING  # of behavior names (without a team) that are new in this worker
