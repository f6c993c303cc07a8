"""Flags cut short, as argparse allows it to ML-Agents' own: `--run=x`, `--no-graphics-m`. And what a parser has."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

TAKES_THE_REST = "--env-args"
"""What stands behind it is not ours."""


class FlagParser(argparse.ArgumentParser):
    """A parser that can say which flags it has; it takes them in full alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.flags: dict[str, argparse.Action] = {}
        """By flag, as `--seed`, what was added for it."""
        self._one_list = False
        super().__init__(*args, **{**options, "allow_abbrev": False})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """As of any parser."""
        action = super().add_argument(*names, **options)
        self.flags |= dict.fromkeys(action.option_strings, action)
        self._one_list |= not action.option_strings and action.nargs in ("*", "+")
        return action

    @property
    def mixed(self) -> bool:
        """Whether there are flags, and beside them any number of words: flags may stand between these."""
        return self._one_list and not self.flags.keys() <= {"-h", "--help"}


def unrecognized(words: Sequence[str], flags: Collection[str]) -> str:
    """argparse's text for words that no parser took, with the flag that the first of them resembles."""
    near = difflib.get_close_matches(words[0].partition("=")[0], flags, n=1)
    return f"unrecognized arguments: {' '.join(words)}" + (f" (did you mean {near[0]}?)" if near else "")


def expanded(
    words: Sequence[str], flags: Collection[str], first: Collection[str], error: Callable[[str], NoReturn]
) -> list[str]:
    """The words of a command line with every flag in full.

    An abbreviation that several flags begin with means the one of them that is in `first`, so that what ML-Agents takes
    is not ambiguous for a flag that only jaxrl has. `error` is called with the text of argparse where it is ambiguous.
    """
    found = list(words)
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if name.startswith("--") and name not in flags:
            name = _meant(name, flags, first, error)
            found[i] = name + equals + value
        if name == TAKES_THE_REST:
            break
    return found


def _meant(name: str, flags: Collection[str], first: Collection[str], error: Callable[[str], NoReturn]) -> str:
    matches = [flag for flag in flags if flag.startswith(name)]
    matches = [flag for flag in matches if flag in first] or matches
    if len(matches) > 1:
        error(f"ambiguous option: {name} could match {', '.join(matches)}")
    return matches[0] if matches else name
