"""What one look at a model has shown."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """What follows from it."""

    OK = "ok"
    OPEN = "not compared"  # nobody said what the behavior is like
    WARNING = "warning"  # Unity takes the model; something may go wrong later, or with an older engine
    REFUSED = "refused"  # Unity does not take the model


class Finding(NamedTuple):
    """One line."""

    check: str  # what was looked at
    outcome: Outcome
    text: str
    remedy: str = ""  # what to do, where not all is well
