"""From the name of an algorithm's metric to ML-Agents' TensorBoard tag.

A metric is called `name`, or `name/signal` where it belongs to one stream of rewards: `value_estimate/gail` is
"Policy/Gail Value Estimate". PER_SIGNAL has what each signal has; any other metric follows a rule, so that a new
algorithm or signal needs no line here:

    name ends in "loss"   Losses/<Name In Capitals>      q1_loss           → Losses/Q1 Loss
    else                  Policy/<Name In Capitals>      expert_estimate   → Policy/Expert Estimate
    with a signal         its name stands in front       accuracy/gail     → Policy/GAIL Accuracy
"""

from __future__ import annotations

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.statistics import signal_tag

PER_SIGNAL = {
    "value_estimate": tags.VALUE_ESTIMATE,
    "baseline_estimate": tags.BASELINE_ESTIMATE,
    "reward": tags.SIGNAL_REWARD,
    "value": tags.SIGNAL_VALUE,
}
"""Tags of metrics that each reward signal has; without `/signal` they are the first signal's."""

_ABBREVIATIONS = {"gail": "GAIL", "kl": "KL", "rnd": "RND"}
"""Words that ML-Agents writes in capitals, except in the tags that each signal has ("Policy/Gail Reward")."""


def tag_of(metric: str, first_signal: str = "extrinsic") -> str:
    """The tag of a metric; `first_signal` is the behavior's first reward signal."""
    name, _, signal = metric.partition("/")
    if name in PER_SIGNAL:
        return signal_tag(PER_SIGNAL[name], signal or first_signal)
    words = [_ABBREVIATIONS.get(word, word.capitalize()) for word in name.split("_")]
    group = "Losses" if words[-1] == "Loss" and name != "grad_mag_loss" else "Policy"  # as ML-Agents has that one
    first = [_ABBREVIATIONS.get(signal, signal.capitalize())] if signal else []
    return f"{group}/{' '.join(first + words)}"
