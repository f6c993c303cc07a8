"""What `jaxrl` promises: every name is there, is described, and type checkers see the same names."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import jaxrl


@pytest.mark.parametrize("name", jaxrl.__all__)
def test_every_public_name_is_there_and_described(name: str) -> None:
    found = getattr(jaxrl, name)
    assert callable(found) and found.__name__ == name
    assert inspect.getdoc(found), name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(jaxrl.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == jaxrl._HOMES and sorted(imported) == jaxrl.__all__
