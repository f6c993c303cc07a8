"""What a signal has paid an agent over its episode, as "Policy/Extrinsic Reward" and its like show it.

The extrinsic signal is added up episode by episode. What another signal pays is known once per update, for decisions of
episodes that have begun before and go on after: their mean is what an episode of mean length has brought.
"""

from __future__ import annotations

import numpy as np

from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.artifacts.metrics.statistics import EPISODE_LENGTH, SIGNAL_REWARD, Summary, signal_tag
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


def per_episode(settings: BehaviorSettings, summaries: dict[str, Summary]) -> dict[str, Summary]:
    """Summaries in which "Policy/<Name> Reward" of each other signal is the sum over an episode, not per decision.

    mean of a decision · (mean length + 1), with the lengths of the episodes that ended meanwhile, in which the last
    decision is not counted. Left out where none has ended, as what is added up by episodes.
    """
    lengths = summaries.get(EPISODE_LENGTH)
    tags = {signal_tag(SIGNAL_REWARD, name) for name in settings.reward_signals if name != "extrinsic"}
    if lengths is None:
        return {tag: summary for tag, summary in summaries.items() if tag not in tags}
    decisions = lengths.mean + 1
    return {tag: _times(decisions, summary) if tag in tags else summary for tag, summary in summaries.items()}


def _times(factor: float, summary: Summary) -> Summary:
    scaled = {key: factor * getattr(summary, key) for key in ("value", "mean", "std", "sum")}
    return summary._replace(**scaled)
