"""A word about sequences that are shorter than the episodes."""

from __future__ import annotations

from jaxrl.artifacts.metrics.statistics import EPISODE_LENGTH, Summary
from jaxrl.training.recorder import memory_remark as remark


def summaries(mean: float) -> dict[str, Summary]:
    return {EPISODE_LENGTH: Summary(mean, mean, 0.0, mean, 1, None)}


def settings(length: int) -> dict:
    return {"network_settings": {"memory": {"sequence_length": length}}}


def test_episodes_of_five_decisions_fit_into_sequences_of_five_but_not_of_four() -> None:
    """ML-Agents' length of five decisions is 4: the last is not counted."""
    assert remark(settings(5), summaries(4.0)) is None
    said = remark(settings(4), summaries(4.0))
    assert said is not None and "episodes last 5 decisions" in said and "sequence_length is 4" in said


def test_nothing_is_said_without_memory_or_before_an_episode_ended() -> None:
    assert remark({"network_settings": {"memory": None}}, summaries(900.0)) is None
    assert remark(settings(4), {}) is None
