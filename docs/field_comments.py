"""For the reference: what stands beside a field becomes its description (an extension of griffe).

Fields of NamedTuples are described by a comment, `name: type  # what it is`, those of settings by their Field's
description. Lines `name: ...` of a class docstring that describe its fields become a list.
"""

from __future__ import annotations

import ast
import re
import tokenize
from io import StringIO
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Found by griffe by its base class."""

    def on_attribute_instance(self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any) -> None:
        """Without a docstring it takes its comment, or the description of its Field, whose default is shown."""
        if attr.docstring is not None or not isinstance(node, ast.AST):
            return
        told = _field(node)
        text = ast.literal_eval(told["description"]) if "description" in told else _comment(attr.source)
        if told:
            attr.value = ast.unparse(told["default"]) if "default" in told else None
        if text:
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Lines that describe a field begin an item of a list."""
        names = "|".join(map(re.escape, cls.attributes))
        if cls.docstring is not None and names:
            cls.docstring.value = re.sub(rf"^({names}): +", r"- `\1`: ", cls.docstring.value, flags=re.MULTILINE)


def _field(node: ast.AST) -> dict[str, ast.expr]:
    """Arguments of the pydantic Field that is assigned; nothing where there is none."""
    value = getattr(node, "value", None)
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field"):
        return {}
    return {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}


def _comment(source: str) -> str:
    """The comments of a declaration, as one sentence."""
    tokens = tokenize.generate_tokens(StringIO(source.strip()).readline)
    return " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
