"""Demonstrations that are larger than what is held in memory: files beside the results, of the same numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.demonstrations import DemonstrationError, columns, decisions, reading, records
from tests.demonstrations.test_demonstrations import SPEC, episode, written


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A results folder; pieces of 4 pairs, and from 200 bytes on files."""
    monkeypatch.setattr(records, "_PAIRS", 4)
    monkeypatch.setattr(columns, "LARGE", 200)
    monkeypatch.setattr(columns, "_results", [])
    reading._read_once.cache_clear()
    columns.keep_in(tmp_path / "results")
    return tmp_path / "results" / columns.FOLDER


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    (tmp_path / "demos").mkdir()
    written(tmp_path / "demos" / "a.demo", episode(5), episode(7, 10.0))
    written(tmp_path / "demos" / "b.demo", episode(6, 20.0, interrupted=True))
    return tmp_path / "demos"


def arrays(found: reading.Demonstration) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(found[2:])]


def test_they_are_parsed_once_and_lie_beside_the_results(small, demos, monkeypatch):
    monkeypatch.setattr(columns, "LARGE", 2**20)
    held = arrays(decisions(str(demos), SPEC))
    assert not small.exists()
    monkeypatch.setattr(columns, "LARGE", 200)
    reading._read_once.cache_clear()
    found = decisions(str(demos), SPEC)
    assert isinstance(found.obs[0], np.memmap) and sorted(x.name for x in demos.iterdir()) == ["a.demo", "b.demo"]
    assert all(map(np.array_equal, arrays(found), held))
    assert found.obs[0][:, 0].tolist() == [*range(5), *range(10, 17), *range(20, 26)]
    assert found.last.tolist() == [False] * 11 + [True] + [False] * 5 + [True]
    assert len(list(small.iterdir())) == 1
    reading._read_once.cache_clear()
    monkeypatch.setattr(reading, "_pieces", None)  # another process has nothing to parse
    again = decisions(str(demos), SPEC)
    assert all(map(np.array_equal, arrays(again), held)) and again.behavior == "Walker"


def test_what_has_changed_or_is_broken_is_parsed_again(small, demos):
    decisions(str(demos), SPEC)
    (kept,) = small.iterdir()
    with (kept / "0.bin").open("r+b") as file:
        file.truncate(3)
    reading._read_once.cache_clear()
    assert len(decisions(str(demos), SPEC).done) == 18
    written(demos / "b.demo", episode(9, 20.0))
    assert len(decisions(str(demos), SPEC).done) == 21
    assert [x.name == kept.name for x in small.iterdir()] == [False]  # the old one is gone
    whole = (demos / "b.demo").read_bytes()
    (demos / "b.demo").write_bytes(whole[:-5])
    os.utime(demos / "b.demo", (1, 1))
    with pytest.raises(DemonstrationError, match=r"b\.demo: it is cut off"):
        decisions(str(demos), SPEC)
    assert len(list(small.iterdir())) == 1  # no draft is left


def test_columns_of_a_stranger_are_numbers_in_files(tmp_path: Path) -> None:
    """Objects would be bytes of the file taken for addresses in memory."""
    for dtype, content in (("|O", bytes(64)), ("<f4", bytes(8)), ("<f4", None)):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "columns.json").write_text(json.dumps({"rows": 4, "columns": [[dtype, [2]]]}))
        if content is None:
            os.mkfifo(tmp_path / "a" / "0.bin")
        else:
            (tmp_path / "a" / "0.bin").write_bytes(content)
        assert columns.written(tmp_path / "a") is None and not (tmp_path / "a").exists()
