"""Findings of one look at a model."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """Consequence of a finding."""

    OK = "ok"
    OPEN = "not compared"  # the behavior's spec is not known
    WARNING = "warning"  # Unity takes the model; something may go wrong later, or with an older engine
    REFUSED = "refused"  # Unity does not take the model


class Finding(NamedTuple):
    """Finding in one line."""

    check: str  # name of the check
    outcome: Outcome
    text: str
    remedy: str = ""  # advice, where not all is well
