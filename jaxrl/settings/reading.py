"""Configuration files: YAML or JSON text to a plain mapping, with an explanation when that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxrl import trust
from jaxrl.regular_files import read_regular
from jaxrl.settings.original import block_in, overlay
from jaxrl.settings.section import Location, SettingsError, dotted

LARGEST = 100_000
"""Most values of a YAML file, mappings and lists included. Two hundred behaviors with every key have forty thousand."""
DEEPEST = 64
"""Deepest nesting of mappings and lists."""


def read_yaml(path: str | Path, doubled: list[str] | None = None) -> dict[str, Any]:
    """Return the mapping that a configuration file holds; an empty file holds an empty one.

    A file called *.json holds JSON. What stands in the block of jaxrl's own settings at the end of a YAML file is part
    of it. What it names is not followed by that alone (`jaxrl.trust`). A key that stands twice in a mapping is refused;
    with a list `doubled` a text for each is added to it, and the last one counts. Raises SettingsError, with the
    absolute path, if the file is missing, unreadable, not UTF-8, no YAML or no mapping.
    """
    path = Path(path).absolute()
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"configuration file not found: {path}") from None
    except OSError as error:
        raise SettingsError(f"configuration file cannot be read: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"configuration file is not UTF-8 (byte {error.start}): {path}: save it with UTF-8 encoding"
        ) from None
    try:
        content = _json(text) if path.suffix.lower() == ".json" else _with_own(text, doubled)
        problems = [f"{dotted(location)}: this key is not text, put it in quotes" for location in _odd_keys(content)]
    except RecursionError:
        raise SettingsError(f"{path}: nested without end, or too deeply") from None
    except SettingsError as error:
        raise SettingsError(error.problems, str(path)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected a mapping with keys such as `behaviors`, got {type(content).__name__}")
    if problems:
        raise SettingsError(problems, str(path))
    trust.note(content, path)
    return content


def _with_own(text: str, doubled: list[str] | None) -> Any:
    block, content = block_in(text), _parse(text, doubled)
    own_settings = _parse(block) if block else None
    return content if own_settings is None else overlay(content, own_settings)


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SettingsError(f"JSON error at {place}: {error.msg}; run a JSON linter on the file") from None
    except ValueError as error:
        raise SettingsError(f"JSON error: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"key {key!r} twice")
        content[key] = value
    return content


def _parse(text: str, doubled: list[str] | None = None) -> Any:
    try:
        return load_yaml(text, doubled)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise SettingsError(
                f"YAML error at {place}: the line begins with a tab, and YAML allows blanks alone: replace each tab by "
                "two blanks"
            ) from None
        raise SettingsError(
            f"YAML error at {place}: {error.problem}; check indentation and colons, or run a YAML linter"
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a scalar such as the date 2024-13-01
        raise SettingsError(f"YAML error: {error}; run a YAML linter on the file") from None


def load_yaml(text: str, doubled: list[str] | None = None) -> Any:
    """Return what a YAML text holds: no objects, no key twice, and a bound on its size, aliases written out.

    Ten aliases of ten aliases of ten aliases take some hundred bytes, and everything that walks through them for ever.
    `doubled`: as in `read_yaml`.

    Raises yaml.YAMLError; ValueError for a scalar such as the date 2024-13-01, RecursionError for endless nesting.
    """
    _check_size(text)
    loader = _Loader(text, doubled)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _check_size(text: str) -> None:
    """Raise RecursionError or MarkedYAMLError for a text that nests too deeply or holds too much. Nothing is made."""
    sizes: dict[str, int] = {}  # by anchor
    counts, anchors = [0], [""]  # values in each open mapping or list, the file's first; its anchor
    for event in yaml.parse(text, Loader=_PARSER):
        if isinstance(event, yaml.AliasEvent):
            counts[-1] += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            counts.append(1)
            anchors.append(event.anchor or "")
        elif isinstance(event, yaml.CollectionEndEvent):
            size = counts.pop()
            sizes[anchors.pop()] = size
            counts[-1] += size
        if len(counts) > DEEPEST:
            raise RecursionError
        if counts[-1] > LARGEST:
            problem = f"more than {LARGEST:,} values, counting what aliases repeat"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


class _Loader(_PARSER):
    """Safe loader that notices a key written twice, where YAML would silently keep the last."""

    def __init__(self, stream: str, doubled: list[str] | None) -> None:
        super().__init__(stream)
        self._looked_at: set[yaml.MappingNode] = set()
        self._doubled = doubled

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Look at the keys that are written, before those that are merged (`<<`) stand among them.

        A mapping that others merge may be flattened before it is its turn, and then again.
        """
        if node not in self._looked_at:
            self._looked_at.add(node)
            _notice_twice(node, self._doubled)
        super().flatten_mapping(node)


def _notice_twice(node: yaml.MappingNode, doubled: list[str] | None) -> None:
    """Add a text to `doubled` for each key that stands twice in a mapping; None: raise MarkedYAMLError for it."""
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
            continue
        if key_node.value in seen and doubled is None:
            raise yaml.MarkedYAMLError(problem=f"key {key_node.value!r} twice", problem_mark=key_node.start_mark)
        if key_node.value in seen and doubled is not None:
            mark = key_node.start_mark
            doubled.append(f"line {mark.line + 1}, column {mark.column + 1}: key {key_node.value!r} twice")
        seen.add(key_node.value)


def _odd_keys(content: Any, location: Location = ()) -> Iterator[Location]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if isinstance(key, str):
                yield from _odd_keys(value, (*location, key))
            else:
                yield (*location, str(key))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _odd_keys(value, (*location, index))
