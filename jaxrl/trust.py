"""Decides which names are imported: code that a folder names is not trusted until the user says that it may be.

`evil.py:make` in the configuration of a run that somebody sent would run `evil.py` as soon as anything looked at the
run. So whatever reads a file of a run notes the names in it (`note`), and whatever imports a name asks (`require`). A
name is followed if no folder has it, or if the user has said it himself: on the command line or in a file that was
given to a command (`ours`), with --trust or trust=True (`accept`), or earlier, when he trained the run in that folder
(`remember`: kept in jaxrl's cache folder, which no results folder can change).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from jaxrl.cache import cache_folder
from jaxrl.types import JaxrlError

_DEEPEST = 4
"""Largest number of folders from a file of a run up to the run's own."""
_theirs: dict[str, dict[Path, str]] = {}  # text in a folder: by file, the key at which it stands
_ours: set[str] = set()  # texts of the user
_followed: dict[str, str | None] = {}  # names that were imported, and where they stood
_accepted: list[Path] = []
_log = logging.getLogger(__name__)


class UntrustedError(JaxrlError):
    """A folder names code that the user has not named. The text says where; nothing was imported."""


def note(content: Any, file: Path) -> None:
    """Note the texts in a run's file (nested mappings and lists): they name no code that may be imported."""
    for key, text in _texts(content):
        _theirs.setdefault(text, {})[file] = key


def ours(*contents: Any) -> None:
    """Note texts that the user has given: words of the command line, contents of his own configuration file."""
    _ours.update(text for content in contents for _, text in _texts(content))


def accept(folder: Path) -> None:
    """Trust names in files below this folder from now on, as the user has asked."""
    _accepted.append(folder.resolve())


def require(address: str) -> None:
    """Raise UntrustedError if `address` (`FILE.py:NAME`, `module:NAME`, `pettingzoo:...`) is a folder's word alone."""
    if not any(_mentions(text, address) for text in _ours):
        places = [(text, file) for text in _theirs if _mentions(text, address) for file in _theirs[text]]
        if places and not any(_is_trusted(text, file, address) for text, file in places):
            text, file = places[0]
            raise UntrustedError(
                f"{file}: {_theirs[text][file]}: got {text}, which is code that this folder names, and not you: it was "
                "not imported. Where you know what it does: --trust, in Python trust=True"
            )
    _followed.setdefault(address, _place(address))
    _ours.add(address)


def remember(folder: Path, content: Any) -> None:
    """Remember, for a run that begins in `folder`, that the names in its settings that were followed are this user's.

    Nothing is written for a run that names no code. Code inside the folder itself, which comes and goes with it, is
    not remembered.
    """
    inside = folder.resolve()
    named = {
        text: place
        for _, text in _texts(content)
        for address, place in _followed.items()
        if place is not None and _mentions(text, address) and not Path(place).is_relative_to(inside)
    }
    if not named:
        return
    try:
        path = _memory(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"run": str(inside), "named": named}, indent=4), encoding="utf-8")
    except (OSError, RuntimeError) as error:
        _log.warning("That this run's code is yours cannot be remembered (%s): `jaxrl watch` asks for --trust.", error)


def _is_trusted(text: str, file: Path, address: str) -> bool:
    """Return whether the user has accepted the folder, or trained its run with the same code of the same place."""
    folders = list(file.resolve().parents)[:_DEEPEST]
    if any(file.resolve().is_relative_to(folder) for folder in _accepted):
        return True
    place = _place(address)
    return place is not None and any(_remembered(folder).get(text) == place for folder in folders)


def _remembered(folder: Path) -> Mapping[str, str]:
    try:
        return json.loads(_memory(folder).read_text(encoding="utf-8"))["named"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return {}


def _memory(folder: Path) -> Path:
    return cache_folder() / "trusted" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"


def _place(address: str) -> str | None:
    """Return the file of an address (of a module, that of its outer package), without importing anything."""
    name = re.sub(r"^(pettingzoo|gymnasium):", "", address)
    file, is_file, _ = name.partition(".py:")
    if is_file:
        return str(Path(f"{file}.py").expanduser().resolve())
    spec = PathFinder.find_spec(re.split("[.:]", name)[0], [str(Path.cwd()), *sys.path])
    if spec is None:
        return None
    return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)


def _mentions(text: str, address: str) -> bool:
    """Return whether `address` stands in `text` as a whole name, behind a colon or `--env=`, or before `.Inner`."""
    at = text.find(address)
    while at >= 0:
        end = at + len(address)
        if (at == 0 or text[at - 1] in ":=") and not re.match(r"\w", text[end:]):
            return True
        at = text.find(address, at + 1)
    return False


def _texts(content: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of all texts that may name code: those with a colon."""
    if isinstance(content, str):
        if ":" in content:
            yield key, content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, Sequence):
        for index, value in enumerate(content):
            yield from _texts(value, f"{key}[{index}]")
