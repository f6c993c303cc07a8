"""Callbacks by name: what cannot be imported is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxrl
from jaxrl.callbacks import CallbackError, load_callbacks

MODULE = """
from jaxrl import Callbacks
class Mine(Callbacks): pass
class Nested:
    class Inner(Callbacks): pass
class Greedy(Callbacks):
    def __init__(self, more): pass
class Other: pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_callbacks.py").write_text(MODULE)
    (tmp_path / "broken_callbacks.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p not in ("", str(tmp_path))])
    return tmp_path


def test_classes_of_the_current_folder_in_order(folder: Path) -> None:
    first, second = load_callbacks(["their_callbacks:Nested.Inner", "their_callbacks.py:Mine"])
    assert [type(c).__name__ for c in (first, second)] == ["Inner", "Mine"] and isinstance(first, jaxrl.Callbacks)
    assert load_callbacks([]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("their_callbacks", "got 'their_callbacks', expected module:Class or FILE.py:Class"),
        ("nowhere_at_all:Mine", "nowhere_at_all:Mine: there is no module nowhere_at_all"),
        ("broken_callbacks:Mine", "nothing_of_that_name"),
        ("their_callbacks:Yours", "Yours"),
        ("their_callbacks:Greedy", "Greedy cannot be used: TypeError"),
        ("their_callbacks:Other", "makes a Other, expected a subclass of jaxrl.Callbacks"),
    ],
)
def test_what_cannot_be_used_is_named(folder: Path, name: str, text: str) -> None:
    with pytest.raises(CallbackError, match=r"^callbacks: ") as caught:
        load_callbacks([name])
    assert text in str(caught.value) and "\n" not in str(caught.value)
