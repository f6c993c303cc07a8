"""`jaxrl.read_metrics`: numbers of event files by tag and seed, and what is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import jaxrl
from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.tools.report.events import ReportError
from tests.tools.report.report_folders import write_events, write_run

TAG = tags.GROUP_CUMULATIVE_REWARD


def test_numbers_by_tag_and_seed(tmp_path: Path) -> None:
    found = jaxrl.read_metrics(write_run(tmp_path, "many", scores=(0.25, 0.5), seeds=2))
    assert (found.run, found.behaviors, found.tags) == ("many", ("Walker",), tuple(sorted((TAG, tags.ENTROPY))))
    curves = found.by_seed(TAG)
    assert list(curves) == ["0", "1"] and curves["1"].step.tolist() == [1000, 2000]
    np.testing.assert_allclose(curves["1"].value, [0.35, 0.6])
    frame = found.frame()
    assert list(frame.columns) == ["behavior", "tag", "seed", "step", "value"] and len(frame) == 2 * 2 * 2
    rows = frame[(frame["tag"] == TAG) & (frame["seed"] == "1")]
    np.testing.assert_allclose(rows["value"], [0.35, 0.6])
    assert rows["step"].tolist() == [1000, 2000]


def test_seeds_that_differ_in_their_steps_are_aligned(tmp_path: Path) -> None:
    write_events(tmp_path / "run" / "Walker" / "seed_3", {100: 1.0, 300: 2.0}, TAG)
    write_events(tmp_path / "run" / "Walker" / "seed_12", {100: 3.0, 200: 4.0}, TAG)
    steps, values = jaxrl.read_metrics(tmp_path / "run").array(TAG)
    assert steps.tolist() == [100, 200, 300]
    np.testing.assert_allclose(values, [[1.0, np.nan, 2.0], [3.0, 4.0, np.nan]])


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = jaxrl.read_metrics(write_run(tmp_path, "one", seed=7))
    assert list(found.by_seed(TAG)) == ["7"]
    with pytest.raises(ReportError, match="did you mean Environment/Group Cumulative Reward"):
        found.array("Environment/Group Cumulative Rewards")
    with pytest.raises(ReportError, match="has no behavior Runner, it has Walker"):
        found.by_seed(TAG, "Runner")
    with pytest.raises(ReportError, match="does not exist"):
        jaxrl.read_metrics(tmp_path / "none")
    write_events(tmp_path / "one" / "Runner", {100: 1.0}, TAG)
    with pytest.raises(ReportError, match="several behaviors, say which: Runner, Walker"):
        jaxrl.read_metrics(tmp_path / "one").array(TAG)
    frame, parquet = found.frame(), tmp_path / "metrics.parquet"
    found.to_parquet(parquet)
    read = pyarrow.parquet.read_table(parquet)
    assert read.schema.names == list(frame.columns) and [str(t) for t in read.schema.types[3:]] == ["int64", "double"]
    assert read.to_pylist() == frame.to_dict("records")
    with pytest.raises(ReportError, match=r"gone/a.parquet: cannot be written"):
        found.to_parquet(tmp_path / "gone" / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReportError, match=r"to_parquet: needs pyarrow .*pip install 'jaxrl\[parquet\]'"):
        found.to_parquet(parquet)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ReportError, match=r"frame: needs pandas .*pip install pandas"):
        found.frame()
