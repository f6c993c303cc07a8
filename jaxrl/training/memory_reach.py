"""Whether the sequences that a memory learns from are shorter than what happens in an episode.

What was seen before a sequence began has no gradient: that it should have been remembered is never learned from it
(truncated backpropagation). In the probe whose cue must be remembered for k decisions the best return, 1, is reached
with sequence_length k + 1, and chance with less; so episodes longer than a sequence are worth a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.artifacts.metrics.statistics import EPISODE_LENGTH, Summary


def remark(described: Mapping[str, Any], summaries: Mapping[str, Summary]) -> str | None:
    """What to tell the user, given a behavior's settings as plain values and a summary; None: nothing.

    ML-Agents' episode length leaves the last decision out, so one is added.
    """
    memory = (described.get("network_settings") or {}).get("memory")
    length = summaries.get(EPISODE_LENGTH)
    if memory is None or length is None or not length.count or length.mean + 1 <= memory["sequence_length"]:
        return None
    return (
        f"episodes last {length.mean + 1:.0f} decisions, network_settings.memory.sequence_length is "
        f"{memory['sequence_length']}: to remember something for longer than that is not learned; raise it (at most "
        "batch_size) if the task needs it"
    )
