"""The wheel outside of any clone: configurations, benchmarks and trained policies are in it and are found."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_lies_beside_the_code_works_from_a_wheel(tmp_path: Path) -> None:
    """Built as pip builds it, unpacked where Python looks, and used from an empty folder."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=300, cwd=tmp_path)
    (wheel,) = tmp_path.glob("jaxrl-*.whl")
    site, away = tmp_path / "site-packages", tmp_path / "away"
    away.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    assert {"jaxrl/configs/ppo/basic.yaml", "jaxrl/benchmarks/returns.py", "jaxrl/zoo/basic/card.json"} <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) or "jaxrl/benchmarks/__init__" in name for name in names)

    def jaxrl(*words: str) -> str:
        place = {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "jaxrl.cli", *words]
        ended = subprocess.run(command, cwd=away, env=place, capture_output=True, text=True, timeout=200, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "dungeon_escape" in jaxrl("init") and "zoo" in jaxrl("--help")
    assert "jaxrl train basic" in jaxrl("zoo")
    assert "return 0.930" in jaxrl("zoo", "play", "basic", "--episodes", "4")
    assert "x as fast as the loop" in jaxrl("bench", "--quick", "--only", "returns", "--json", "a.jsonl")
    assert "Beware: some were measured once" in jaxrl("bench", "compare", "a.jsonl", "a.jsonl")
    assert "64 steps" in jaxrl("bench", "history", ".")
