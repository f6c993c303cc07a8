"""Runs parity cases: each is one fixture of the reference implementation, compared array by array."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.parity.cases import Case, UnsupportedCaseError, expected_names, load
from tests.parity.cloning_cases import run_cloning
from tests.parity.compare import Comparison
from tests.parity.demonstration_cases import run_demonstration
from tests.parity.forward_cases import run_forward
from tests.parity.lesson_cases import run_faulty, run_lessons
from tests.parity.memory_cases import run_memory_forward, run_memory_trajectories
from tests.parity.normalizer_case import run_normalizer
from tests.parity.returns_cases import run_returns, run_schedules
from tests.parity.sac_cases import run_sac
from tests.parity.self_play_cases import run_formula, run_self_play
from tests.parity.signal_cases import run_curiosity, run_gail, run_rnd
from tests.parity.stream_cases import run_sac_signals, run_streams
from tests.parity.trajectory_cases import run_trajectories
from tests.parity.update_cases import run_losses, run_update

TOLERANCE = 1e-4
FAMILIES: dict[str, Callable[[Case], Comparison]] = {
    "a_returns*": run_returns,
    "a_schedules*": run_schedules,
    "b_*": run_forward,
    "c_losses*": run_losses,
    "c_*_update*": run_update,
    "d_*": run_trajectories,
    "e_*": run_normalizer,
    "f_sac*": run_sac,
    "g_curiosity*": run_curiosity,
    "g_rnd*": run_rnd,
    "g_gail*": run_gail,
    "g_streams*": run_streams,
    "h_bc*": run_cloning,
    "i_demo*": run_demonstration,
    "j_sac_signals*": run_sac_signals,
    "k_elo_formula*": run_formula,
    "k_elo*": run_self_play,
    "l_curriculum_errors*": run_faulty,
    "l_curriculum*": run_lessons,
}
"""The first pattern that fits the case's name decides."""
WITH_MEMORY = {"b": run_memory_forward, "d": run_memory_trajectories}
"""In their place for a case with memory, by the first letter of its name."""


class Outcome(NamedTuple):
    """Result of one case."""

    name: str
    status: str  # pass, FAIL or unsupported
    arrays: int
    error: float  # largest scaled error, see compare.py
    note: str

    def __str__(self) -> str:
        return f"{self.status:<12}{self.name:<36}{self.arrays:>4} arrays  worst {self.error:.1e}  {self.note}"


def run_case(path: Path) -> Outcome:
    """Compare one case; an array of the reference that nobody compared is a failure as well."""
    case = load(path)
    family = next((run for pattern, run in FAMILIES.items() if fnmatch.fnmatch(case.name, pattern)), None)
    if family is None:
        return Outcome(case.name, "unsupported", 0, math.nan, "no runner for this family")
    try:
        if case.meta.get("network_settings", {}).get("memory"):
            family = WITH_MEMORY.get(case.name[0], family)
        comparison = family(case)
    except UnsupportedCaseError as reason:
        return Outcome(case.name, "unsupported", 0, math.nan, str(reason))
    except Exception as error:  # the other cases are worth running; the exit code tells
        return Outcome(case.name, "FAIL", 0, math.inf, f"{type(error).__name__}: {error}")
    left = [name for name in expected_names(case) if name not in comparison.errors]
    worst, error = comparison.worst
    failed = not error <= TOLERANCE or bool(left)
    note = f"not compared: {', '.join(left)}" if left else worst
    return Outcome(case.name, "FAIL" if failed else "pass", len(comparison.errors), error, note)


def find(folder: Path, pattern: str = "*") -> list[Path]:
    """Cases of a folder whose name fits the pattern."""
    return [path for path in sorted(folder.glob("*.json")) if fnmatch.fnmatch(path.stem, pattern)]


def run_all(folder: Path, pattern: str = "*") -> Iterator[Outcome]:
    """Outcomes of `find(folder, pattern)`, one by one."""
    return map(run_case, find(folder, pattern))
