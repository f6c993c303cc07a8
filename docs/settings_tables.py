"""What mkdocs makes of the code for two pages: every setting with its type and default, every command with its flags.

Nothing of it is kept in the repository, so that neither page can say what is no longer so.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli import commands
from jaxrl.settings import BehaviorSettings, RunSettings
from jaxrl.settings.connectors import ConnectorSettings
from jaxrl.settings.original import ANY, KEYS
from jaxrl.settings.rewards import RewardSignalSettings

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "anything"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Tables and helps in the place of their comments."""
    for mark, made in (("<!-- settings -->", settings), ("<!-- commands -->", command_line)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n\n".join(made()))
    return markdown


def command_line() -> Iterator[str]:
    """A section for each command: its help as it is printed."""
    for name, what in commands._COMMANDS.items():
        _, parser = commands._parser(name)
        assert parser is not None
        yield f"## jaxrl {name}\n\n{what[0].upper()}{what[1:]}.\n\n```text\n{parser.format_help().strip()}\n```"


def settings() -> Iterator[str]:
    """A table for each section, those below it after it."""
    for path, model, notes in [
        ((), RunSettings, ""),
        (("behaviors", ANY), BehaviorSettings, "Also of `default_settings`, which every behavior begins with."),
    ]:
        yield from _tables(path, model, notes, set())


def _tables(path: tuple[str, ...], model: type[BaseModel], notes: str, seen: set[Any]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    rows = [_row(path, key, field) for key, field in model.model_fields.items()]
    head = "| key | type | default | of | what |\n|---|---|---|---|---|"
    title = ".".join(path) or "the file itself"
    yield "\n\n".join(part for part in (f"## {title}", notes, "\n".join([head, *rows])) if part)
    for key, field in model.model_fields.items():
        below = (*path, key)
        if below == ("behaviors",) or key == "default_settings":
            continue
        for name, section in _below(key, field.annotation):
            yield from _tables((*below, *([name] if name else [])), section, _notes(key, section), seen)


def _below(key: str, annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections under a key, by the name that stands between."""
    if key == "hyperparameters":
        for trainer, section in HYPERPARAMETER_TYPES.items():
            yield f"of {trainer}", section
        return
    for section in _models(annotation):
        kinds = [section]
        if section in (RewardSignalSettings, ConnectorSettings):
            kinds = _leaves(section)
        named = get_origin(annotation) in (dict, tuple) or len(kinds) > 1
        yield from ((f"{ANY}" if len(kinds) == 1 else _spoken(kind), kind) if named else ("", kind) for kind in kinds)


def _leaves(section: type[BaseModel]) -> list[type[BaseModel]]:
    found = [leaf for kind in section.__subclasses__() for leaf in _leaves(kind)]
    return ([section] if "type" in section.model_fields or not found else []) + found if found else [section]


def _spoken(kind: type[BaseModel]) -> str:
    return re.sub(r"Settings$", "", kind.__name__)


def _notes(key: str, section: type[BaseModel]) -> str:
    text = (section.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    return "" if text.startswith("Usage docs") else " ".join(text.split())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        if isinstance(part, type) or get_origin(part) is not None:
            yield from _models(part)


def _row(path: tuple[str, ...], key: str, field: Any) -> str:
    varies = isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("variable")
    what = (field.description or "") + ("; varies" if varies else "")
    cells = (
        f"`{key}`",
        _type(field.annotation, field.metadata),
        _default(field),
        "ML-Agents" if _is_theirs((*path, key)) else "jaxrl",
        what,
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;") for cell in cells) + " |"


def _type(annotation: Any, metadata: Any = ()) -> str:
    if get_origin(annotation) is Annotated:
        first, *more = get_args(annotation)
        return _type(first, more)
    bounds = [f"{sign} {getattr(one, name)}" for one in _flat(metadata) for name, sign in _BOUNDS.items()
              if getattr(one, name, None) is not None]  # fmt: skip
    kind = get_origin(annotation)
    if kind in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys("null" if part is types.NoneType else _type(part) for part in get_args(annotation))
        )
    if kind is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if kind is dict:
        return f"mapping to {_type(get_args(annotation)[1])}"
    if kind in (tuple, list):
        return f"list of {_type(get_args(annotation)[0])}"
    choices = [member.value for member in annotation] if hasattr(annotation, "__members__") else []
    name = ", ".join(f"`{choice}`" for choice in choices) or _NAMES.get(
        annotation, getattr(annotation, "__name__", "any")
    )
    return " ".join([name, *bounds])


def _flat(metadata: Any) -> Iterator[Any]:
    for one in metadata:
        yield from getattr(one, "metadata", None) or [one]


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    try:
        value = field.get_default(call_default_factory=True, validated_data={})
    except Exception:  # one that depends on other keys
        return "by the others"
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in ({}, ()):
        return ""
    plain = getattr(value, "value", value)
    if plain is None or isinstance(plain, bool):
        return {None: "null", True: "true", False: "false"}[plain]
    return f"`{plain}`" if isinstance(plain, str | int | float) else ""


def _is_theirs(path: tuple[str, ...]) -> bool:
    """Whether ML-Agents 1.1.0 reads the key."""
    tree: Any = KEYS
    for key in path:
        if tree is None:
            return True
        if key.startswith("of ") or (key == ANY and ANY not in tree):
            continue
        if key not in tree and ANY not in tree:
            return False
        tree = tree.get(key, tree.get(ANY))
    return True
