"""What `jaxrl` promises: every name is there, is described, and type checkers see the same names."""

from __future__ import annotations

import inspect

import pytest

import jaxrl


@pytest.mark.parametrize("name", jaxrl.__all__)
def test_every_public_name_is_there_and_described(name: str) -> None:
    found = getattr(jaxrl, name)
    assert callable(found) and found.__name__ == name
    assert inspect.getdoc(found), name


def test_names_that_are_not_there_are_told_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'make_pop'; it has .*make_poca"):
        jaxrl.make_pop  # noqa: B018 - it is looked up
