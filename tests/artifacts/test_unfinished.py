"""Whose half-written files are: only those of the dead are removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl import unfinished

posix = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be asked there")


def name_of(process: int, host: str | None = None) -> str:
    """The name under which that process would write Walker-5."""
    own = unfinished.beside(Path("Walker-5"), unfinished.PARTIAL).name
    host = own.split("-", 2)[2].removesuffix(unfinished.PARTIAL) if host is None else host
    return f"Walker-5.{process}-{host}.partial"


def test_the_name_tells_the_owner_and_what_it_becomes() -> None:
    path = Path("run", "My.Walker-1.5-500")
    for kind in unfinished.KINDS:
        partial = unfinished.beside(path, kind)
        assert partial.parent == path.parent and f".{os.getpid()}-" in partial.name and partial.suffix == kind
        assert unfinished.target(partial) == path
    assert unfinished.target(Path("Walker-5.old")) == Path("Walker-5")  # of jaxrl 0.2.0


@posix
def test_what_a_living_process_writes_stays_until_it_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        path = tmp_path / name_of(other.pid)
        path.mkdir()
        assert unfinished.remove(tmp_path) == []
        other.communicate(b"\n", timeout=60)
    assert unfinished.remove(tmp_path) == [path.name] and not path.exists()


def test_own_names_and_those_of_older_versions_are_abandoned(tmp_path: Path) -> None:
    names = ["Walker-5.partial", "checkpoint.123.tmp", name_of(os.getpid()), "Walker-4.old"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "Walker-5").mkdir()
    assert unfinished.remove(tmp_path) == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["Walker-5"]


def test_of_another_machine_only_the_time_tells(tmp_path: Path) -> None:
    path = tmp_path / name_of(1, "elsewhere")
    (path / "arrays").mkdir(parents=True)
    assert not unfinished.abandoned(path)
    old = time.time() - unfinished.ELSEWHERE_SECONDS - 10.0
    os.utime(path, (old, old))
    assert not unfinished.abandoned(path)  # something in it is young
    os.utime(path / "arrays", (old, old))
    assert unfinished.abandoned(path)
