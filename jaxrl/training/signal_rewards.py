"""What the extrinsic signal has paid an agent over its episode, as "Policy/Extrinsic Reward" shows it."""

from __future__ import annotations

import numpy as np

from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.settings import BehaviorSettings


def extrinsic_sum(
    settings: BehaviorSettings, *, own: np.ndarray, group: np.ndarray, mates: np.ndarray
) -> np.ndarray | None:
    """strength · (own + group [+ mates' own rewards]), what ML-Agents adds up over an episode; None without the signal.

    Args:
      own, group, mates: float64 [N], sums over an agent's episode (or over several): its individual rewards, the group
        rewards that it received, and the individual rewards of its mates while it lived.
    """
    signal = settings.reward_signals.get("extrinsic")
    if signal is None:
        return None
    cooperative = TRAINER_TYPES[settings.trainer_type].cooperative
    return signal.strength * (own + group + (mates if cooperative else 0.0))
