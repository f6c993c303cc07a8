"""Settings that ML-Agents does not know, as a comment at the end of a configuration file.

The original refuses a file with an unknown key anywhere. A comment it passes over; jaxrl reads it back. The block is
part of the file, so a copy of the file keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from jaxrl.settings.original import ANY, KEYS, Tree
from jaxrl.settings.section import Location, SettingsError, dotted

MARK = "# --- jaxrl's own settings: read by jaxrl, a comment for ML-Agents ---"
"""The line that the block begins with; it goes to the end of the file."""


def as_comment(content: Mapping[str, Any]) -> str:
    """The block, or nothing for nothing."""
    if not content:
        return ""
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return "\n".join([MARK, *(f"# {line}".rstrip() for line in text.splitlines()), ""])


def block_in(text: str) -> str:
    """The YAML text in the block of a file, on its own lines of the file; empty if there is none.

    Raises SettingsError for a line in the block that is no comment.
    """
    lines = text.splitlines()
    if MARK not in lines:
        return ""
    first = lines.index(MARK) + 1
    wrong = next((i for i, line in enumerate(lines[first:], first + 1) if line and not line.startswith("#")), None)
    if wrong is not None:
        raise SettingsError(f"line {wrong} stands below {MARK!r} and is no comment: move it above that line")
    block = (line.removeprefix("#").removeprefix(" ") for line in lines[first:])
    return "\n" * first + "\n".join(block)  # so that errors in it name lines of the file


def overlay(content: Any, block: Any, tree: Tree = KEYS, location: Location = ()) -> Any:
    """What is in the file together with what is in its block; `tree`: the original's keys there.

    Raises SettingsError where the two say different things, and for a name, as of a behavior, in the block alone.
    """
    if isinstance(content, Mapping) and isinstance(block, Mapping):
        return {**content, **{key: _added(content, key, block[key], tree, location) for key in block}}
    if isinstance(content, list) and isinstance(block, list) and len(content) == len(block):
        pairs = zip(content, block, strict=True)
        return [overlay(value, own, tree, (*location, index)) for index, (value, own) in enumerate(pairs)]
    if content != block and block != {}:
        raise SettingsError(
            f"{dotted(location)}: got {content!r} in the file and {block!r} in jaxrl's own settings at its end: "
            "remove one of them"
        )
    return content


def _added(content: Mapping[str, Any], key: str, value: Any, tree: Tree, location: Location) -> Any:
    there = (*location, key)
    below = None if tree is None else tree.get(key, tree.get(ANY))
    if key in content:
        return overlay(content[key], value, below, there)
    if value is not None and tree is not None and ANY in tree:
        raise SettingsError(
            f"{dotted(there)}: stands in jaxrl's own settings at the end alone: remove it there as well"
        )
    return value
