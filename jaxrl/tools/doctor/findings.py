"""What the doctor says of one thing that it has looked at."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How bad it is."""

    OK = "OK"
    WARN = "WARN"  # training works, but slower or with less than there could be
    FAIL = "FAIL"  # training does not work


class Finding(NamedTuple):
    """One line of the report."""

    outcome: Outcome
    subject: str  # a word
    text: str
    remedy: str = ""  # what to do; empty where all is well


def ok(subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(Outcome.OK, subject, text)


def warn(subject: str, text: str, remedy: str) -> Finding:
    """Better done."""
    return Finding(Outcome.WARN, subject, text, remedy)


def fail(subject: str, text: str, remedy: str = "") -> Finding:
    """To be done; the remedy may stand in the text."""
    return Finding(Outcome.FAIL, subject, text, remedy)
