"""The results of a sweep: what a point is worth."""

from __future__ import annotations

import json
from pathlib import Path

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.settings.sweep import Point
from jaxrl.tools.report.sweep import curves_of, seeds_of, worth, write_results
from tests.tools.report.report_folders import write_events


def test_a_point_is_worth_the_mean_over_its_behaviors(tmp_path: Path) -> None:
    """The last behavior alone decided. Each is judged by its own statistic: teams by what they earn together."""
    returns = {"low": (8.0, 2.0), "high": (32.0, 0.5)}  # of teams of A, of agents of B
    for name, (team, own) in returns.items():
        for number, more in ((3, 0.0), (4, 1.0)):
            write_events(tmp_path / name / "A" / f"seed_{number}", {1000: team + more})
            write_events(tmp_path / name / "A" / f"seed_{number}", {1000: 0.0}, tag=tags.CUMULATIVE_REWARD)
            write_events(tmp_path / name / "B" / f"seed_{number}", {500: own}, tag=tags.CUMULATIVE_REWARD)
    write_events(tmp_path / "high" / "A" / "seed_5", {1000: 99.0})  # its B has no episode yet
    lines = write_results(tmp_path, [(Point(name, {}), [name]) for name in returns])
    told = json.loads((tmp_path / "sweep.json").read_text())
    assert [(p["point"], p["scores"], p["mean"], p["steps"]) for p in told["points"]] == [
        ("high", {"3": 16.25, "4": 16.75}, 16.5, 500),
        ("low", {"3": 5.0, "4": 5.5}, 5.25, 500),
    ]
    both = f"{tags.GROUP_CUMULATIVE_REWARD} and {tags.CUMULATIVE_REWARD}, mean over A, B"
    assert told["statistic"] == both and both in lines[0] and lines[1].startswith("high")
    _, (of_trial,) = curves_of([seeds_of([tmp_path / "low"])])
    assert {number: worth(curves) for number, curves in of_trial.items()} == {"3": 5.0, "4": 5.5}
