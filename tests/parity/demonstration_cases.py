"""Family i: demonstration files, row by row, and what becomes of those that are broken."""

from __future__ import annotations

import numpy as np

from jaxrl.demonstrations import Demonstration, DemonstrationError, read
from jaxrl.settings.demonstrations import AS_RECORDED
from tests.parity.cases import Case
from tests.parity.compare import Comparison

STRICTER = ("truncated_at_boundary", "steps_more")
"""What the original reads shorter than its header says, without a word."""
MILDER = ("terminal_without_action",)
"""What the original cannot read: there nothing was decided."""
OF_POLICIES = ("good",)
"""The intact file, beside policies of other specs: those are looked at where a policy is there."""


def run_demonstration(case: Case) -> Comparison:
    """All rows of a file; of a folder those that the original does not make across the border of two files."""
    if "cases" in case.meta:
        return _broken(case)
    comparison = Comparison()
    parts = [read(case.folder / name, AS_RECORDED) for name in case.meta["files"]]
    borders = np.cumsum([len(part.done) + 1 for part in parts])[:-1] - 1
    for name, theirs in case.below("seq1/").items():
        if name != "prev_action":  # used nowhere
            ours = np.concatenate([_column(part, name) for part in parts])
            theirs = np.delete(theirs, borders, axis=0)
            if name.startswith("obs") and parts[0].obs[int(name[4:])].dtype == np.uint8:  # rounded, as a policy sees it
                theirs = np.where(np.abs(ours - theirs) <= 0.5001 / 255, ours, theirs)
            comparison.add(f"seq1/{name}", ours, theirs)
    return comparison


def _column(part: Demonstration, name: str) -> np.ndarray:
    if name.startswith("obs_"):
        x = part.obs[int(name[4:])]
        return x / np.float32(255.0) if x.dtype == np.uint8 else x
    return {
        "done": part.done.astype(np.float32),
        "environment_rewards": part.reward,
        "continuous_action": part.action.continuous,
        "discrete_action": part.action.discrete.astype(np.float32),
    }[name]


def _broken(case: Case) -> Comparison:
    comparison, rows = Comparison(), []
    for one in case.meta["cases"]:
        name = one.get("file")
        if name is None:
            continue
        what = name.split(".")[1]
        fails = what in STRICTER or (one["outcome"] != "loaded" and what not in (*OF_POLICIES, *MILDER))
        try:
            found, failed = len(read(case.folder / name, AS_RECORDED).done), False
        except DemonstrationError as error:
            assert name in str(error)
            found, failed = -1, True
        assert failed == fails, (name, failed)
        if not failed and what not in MILDER:
            rows.append((found, one.get("buffer_rows", found)))
    ours, theirs = np.array(rows).T
    comparison.add("rows", ours, theirs)
    return comparison
