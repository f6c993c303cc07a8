"""What a run notes of its source, its packages and its machine, and that a resumed run adds to it."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from jaxrl.artifacts import run_manifest


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path, monkeypatch):
    (tmp_path / "clone" / "inside").mkdir(parents=True)
    (tmp_path / "clone" / "inside" / "a.txt").write_text("1")
    git(tmp_path / "clone", "init", "-q")
    git(tmp_path / "clone", "add", ".")
    git(tmp_path / "clone", "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path / "clone" / "inside")
    return tmp_path / "clone"


def test_every_start_notes_source_packages_and_machine(clone, tmp_path):
    logs = tmp_path / "run_logs"
    logs.mkdir()
    run_manifest.write(logs, ["cpu: cpu"], resume=False)
    (clone / "new.txt").write_text("untracked: results often are")
    (clone / "inside" / "a.txt").write_text("2")
    run_manifest.write(logs, ["cuda: A", "cuda: A"], resume=True)
    first, second = json.loads((logs / "manifest.json").read_text())["starts"]
    commit = git(clone, "rev-parse", "HEAD")
    assert first["working_directory"] == {"commit": commit, "changed": False}
    assert second["working_directory"] == {"commit": commit, "changed": True}
    assert (first["devices"], second["devices"]) == (["cpu: cpu"], ["cuda: A", "cuda: A"])
    assert first["host"] == platform.node() and first["python"] == platform.python_version()
    versions = {found.name: found.version for found in metadata.distributions() if found.name}
    assert first["packages"] == versions and {"jax", "jaxrl", "numpy"} <= set(versions)
    run_manifest.write(logs, [], resume=False)
    assert len(json.loads((logs / "manifest.json").read_text())["starts"]) == 1
    (logs / "manifest.json").write_text("[")
    run_manifest.write(logs, [], resume=True)
    assert len(json.loads((logs / "manifest.json").read_text())["starts"]) == 1


def test_no_clone_is_none_and_a_package_in_somebodys_clone_is_not_of_it(clone, tmp_path):
    assert run_manifest.git_state(tmp_path) is None
    (clone / "site-packages").mkdir()
    (clone / "site-packages" / "__init__.py").touch()
    assert run_manifest.git_state(clone / "site-packages", tracked="__init__.py") is None
    assert run_manifest.git_state(clone / "inside", tracked="a.txt") is not None


def test_a_clone_cannot_have_a_program_started(clone, tmp_path):
    """`core.fsmonitor` of a clone names a program, which `git status` would start."""
    told = tmp_path / "told"
    git(clone, "config", "core.fsmonitor", f"touch {told}")
    assert run_manifest.git_state(clone) is not None and not told.exists()
