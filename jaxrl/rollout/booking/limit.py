"""Episodes that never end are given one (`max_episode_length`): in the data, without a word to the environment.

Numpy only. An agent that has made the last decision of its episode and asks again is told apart into an interrupted
agent, which ends with what it now sees and has earned, and a new one under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.rollout.booking.occupants import Occupant, places_of
from jaxrl.types import BehaviorMessage


def limited(message: BehaviorMessage, homes: Mapping[int, Occupant], lengths: np.ndarray, most: int) -> BehaviorMessage:
    """The message with an end of the episode for agents that ask after `most` decisions of it (X20).

    Args:
      homes: where the living agents of its source live, by id.
      lengths: int64 [B, A], finished decisions of each slot's episode.
    """
    ids = message.deciding.agent_id.tolist()
    known = [(i, homes[agent]) for i, agent in enumerate(ids) if agent in homes]
    decided = lengths[places_of([home for _, home in known])]
    late = [known[i][0] for i in np.flatnonzero(decided >= most - 1).tolist()]
    ended = set(message.ended.agent_id.tolist()) if late else ()
    late = [i for i in late if ids[i] not in ended]
    return interrupted(message, late) if late else message


def interrupted(message: BehaviorMessage, index: Sequence[int]) -> BehaviorMessage:
    """The message with the deciding agents `index` ended by interruption before they decide as new agents.

    Their reward goes with the ending; a first request earns nothing.
    """
    ended, deciding = message.ended, message.deciding
    rewards = deciding.reward.copy(), deciding.group_reward.copy()
    for reward in rewards:
        reward[index] = 0.0

    def joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second[index]])

    return message._replace(
        ended=ended._replace(
            agent_id=joined(ended.agent_id, deciding.agent_id),
            group_id=joined(ended.group_id, deciding.group_id),
            reward=joined(ended.reward, deciding.reward),
            group_reward=joined(ended.group_reward, deciding.group_reward),
            truncated=np.concatenate([ended.truncated, np.ones(len(index), bool)]),
            obs=tuple(map(joined, ended.obs, deciding.obs)),
        ),
        deciding=deciding._replace(reward=rewards[0], group_reward=rewards[1]),
    )
