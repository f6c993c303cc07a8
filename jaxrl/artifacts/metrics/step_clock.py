"""Decides when summaries, evaluations and checkpoints are due, in trainer steps (agent decisions): for both loops."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl.settings import BehaviorSettings


def crossed_multiple(step: int, new_steps: int, interval: int) -> int | None:
    """Return the multiple of `interval` that `new_steps` more reach from `step`, or None.

    next = step + (interval − step mod interval); due when step + new_steps >= next and step != 0, as in ML-Agents. Ask
    before the new steps are counted: a summary carries the multiple, a checkpoint the old `step`. One multiple at most
    is reported, even if the jump passes several; the first message of a run (step 0) never reports one. Units: agent
    steps. `interval` must be positive.
    """
    if step == 0:
        return None
    following = _following(step, interval)
    return following if step + new_steps >= following else None


class Due(NamedTuple):
    """Events that fall due between two trainer steps."""

    summary: int | None  # the step that it is labelled with
    evaluation: int | None
    checkpoint: bool


def due(settings: BehaviorSettings, before: int, step: int) -> Due:
    """Return the events that a behavior's steps from `before` to `step` reach, as `crossed_multiple` of each interval.

    There is also a summary with the last step of the training, whatever summary_freq is.
    """
    new, evaluation = step - before, settings.evaluation
    summary = crossed_multiple(before, new, settings.summary_freq)
    if summary is None and before < settings.max_steps <= step:
        summary = settings.max_steps
    return Due(
        summary,
        None if evaluation is None else crossed_multiple(before, new, evaluation.interval),
        crossed_multiple(before, new, settings.checkpoint_interval) is not None,
    )


def next_due(settings: BehaviorSettings, step: int) -> int:
    """Return the first step after `step` at which any event of a behavior is due."""
    evaluation = settings.evaluation
    intervals = settings.summary_freq, settings.checkpoint_interval, evaluation and evaluation.interval
    following = (_following(step, interval) for interval in intervals if interval is not None)
    return min([*following, *([settings.max_steps] if step < settings.max_steps else ())])


def never_due(settings: BehaviorSettings) -> list[str]:
    """Return a sentence for each interval that is longer than the training."""
    texts = []
    if settings.summary_freq > settings.max_steps:
        texts.append(
            f"summary_freq is {settings.summary_freq} and max_steps {settings.max_steps}: there is one summary, at the "
            "end of the training"
        )
    evaluation = settings.evaluation
    if evaluation is not None and evaluation.interval > settings.max_steps:
        texts.append(
            f"evaluation.interval is {evaluation.interval} and max_steps {settings.max_steps}: nothing is evaluated"
        )
    return texts


def _following(step: int, interval: int) -> int:
    return step + interval - step % interval
