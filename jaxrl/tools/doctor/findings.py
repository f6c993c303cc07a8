"""The doctor's finding about one subject."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """Severity of a finding."""

    OK = "OK"
    WARN = "WARN"  # training works, but slower or with less than there could be
    FAIL = "FAIL"  # training does not work


class Finding(NamedTuple):
    """Line of the report."""

    outcome: Outcome
    subject: str  # a word
    text: str
    remedy: str = ""  # what to do; empty if nothing


def ok(subject: str, text: str) -> Finding:
    """Return a finding without anything to do."""
    return Finding(Outcome.OK, subject, text)


def warn(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding that is better mended."""
    return Finding(Outcome.WARN, subject, text, remedy)


def fail(subject: str, text: str, remedy: str = "") -> Finding:
    """Return a finding that must be mended; the remedy may stand in the text."""
    return Finding(Outcome.FAIL, subject, text, remedy)
