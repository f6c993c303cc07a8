"""The README's program runs as it is printed, only shorter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxrl

README = Path(__file__).parents[1] / "README.md"
GUIDE = README.parent / "docs" / "game-developer.md"


def test_the_program_of_the_readme_trains_four_seeds():
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(program.strip().splitlines()) <= 13
    short = program
    for printed, reduced in {"range(7)": "range(2)", "state, 7)": "state, 1)", "4096": "256", "512": "64"}.items():
        assert printed in short
        short = short.replace(printed, reduced)
    ended = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.strip().splitlines()
    steps = [[int(n) for n in re.findall(r"\d+", line.partition("]")[0])] for line in (first, second)]
    assert all(len(line) == 4 for line in steps)
    assert all(0 < a < b for a, b in zip(*steps, strict=True))


def test_a_newcomer_reads_it_in_two_minutes():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 80


def test_the_callbacks_of_the_guide_are_callbacks():
    """Every method that it defines is one that is called, and the policy that it maps to is the one that it adds."""
    program, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(program, found)
    own = {name for name in vars(found["Mine"]) if not name.startswith("_")}
    assert own <= {name for name in vars(jaxrl.Callbacks) if not name.startswith("_")}
    added: list[str] = []
    mine = found["Mine"]()
    mine.on_run_start(SimpleNamespace(add_policy=lambda name, like: added.append(name)))
    assert mine.policy_mapping(SimpleNamespace(behavior_id="Soccer?team=1"), None, 0) == added[0]
    assert mine.policy_mapping(SimpleNamespace(behavior_id="Soccer?team=0"), None, 0) is None
