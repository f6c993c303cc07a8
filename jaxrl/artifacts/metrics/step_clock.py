"""When summaries and checkpoints are due, counted in trainer steps (agent decisions)."""

from __future__ import annotations


def crossed_multiple(step: int, new_steps: int, interval: int) -> int | None:
    """The multiple of `interval` that `new_steps` more reach from `step`, or None.

    next = step + (interval − step mod interval); due when step + new_steps >= next and step != 0, as in ML-Agents. Ask
    before the new steps are counted: a summary carries the multiple, a checkpoint the old `step`. One multiple at most
    is reported, even if the jump passes several; the first message of a run (step 0) never reports one. Units: agent
    steps. `interval` must be positive.
    """
    if step == 0:
        return None
    following = step + interval - step % interval
    return following if step + new_steps >= following else None
