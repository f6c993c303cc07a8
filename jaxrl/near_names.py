"""Error text for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(
    path: str,
    name: str,
    known: Iterable[str],
    *,
    what: str = "no such environment",
    there_are: str = "there are",
    prefix: str = "",
    suffix: str = "",
) -> str:
    """Write an error for an unknown `name` at `path`: the nearest `known` names, and all, as prefix NAME suffix."""
    by_lowered = {entry.lower(): f"{prefix}{entry}{suffix}" for entry in sorted(known)}
    near = [by_lowered[hit] for hit in difflib.get_close_matches(name.lower(), by_lowered, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{path}: {what}, {hint}{there_are} {', '.join(by_lowered.values()) or 'none'}"
