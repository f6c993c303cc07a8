"""metrics.csv: whole lines, that survive resuming, kills and full disks."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.metrics import statistics as metrics
from jaxrl.artifacts.metrics.statistics import StatsAggregator, Summary
from jaxrl.artifacts.metrics.writers import Place, open_writers
from jaxrl.artifacts.metrics.writers.csv_file import CsvWriter
from jaxrl.types import Aggregation


def summaries(**values: float) -> dict[str, Summary]:
    stats = StatsAggregator()
    for tag, value in values.items():
        stats.add(tag, value)
    return stats.take()


def rows(path: Path) -> list[list[str]]:
    """Step, tag and value of each line."""
    with path.open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["step", "wall_time", "tag", "value"]
    return [[step, tag, value] for step, _, tag, value in lines]


def test_a_line_for_each_value(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path / "Walker")
    writer.hyperparameters({"trainer_type": "poca"}, 0)
    assert rows(writer.path) == []  # it is there from the beginning
    stats = StatsAggregator()
    stats.extend(metrics.CUMULATIVE_REWARD, [1.0, 2.0], Aggregation.HISTOGRAM)
    stats.add('odd, "tag"\nof two lines', 1 / 3)
    begun = time.time()
    writer.summaries(500, stats.take())
    writer.images(500, {"picture": np.zeros((1, 1, 3), np.uint8)})
    writer.close()
    writer.close()
    assert rows(writer.path) == [
        ["500", "Environment/Cumulative Reward", "1.5"],
        ["500", 'odd, "tag" of two lines', repr(1 / 3)],
    ]
    wall = float(writer.path.read_text().splitlines()[1].split(",")[1])
    assert begun - 0.01 <= wall <= time.time() + 0.01


def test_a_table_of_a_stranger_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for content in (b"step,wall_time,tag,value\n5,1.0,a,2.0\n" + b"9" * 5000 + b",1,a,2\n7,1.0,a,3.0\n6,", None):
        path.write_bytes(content or b"5,1.0,a,2.0\n")
        if content is None:
            with path.open("r+b") as file:
                file.truncate(3 * 2**30)
        tracemalloc.start()
        writer = CsvWriter(tmp_path, resume_step=6)
        writer.summaries(7, summaries(b=1.0))
        writer.close()
        assert tracemalloc.get_traced_memory()[1] < 3e6
        tracemalloc.stop()
        assert rows(path) == [["5", "a", "2.0"], ["7", "b", "1.0"]]


def test_tags_may_come_later(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path)
    writer.summaries(1, summaries(a=1.0))
    writer.summaries(2, summaries(a=2.0, b=5.0))
    writer.close()
    assert rows(writer.path) == [["1", "a", "1.0"], ["2", "a", "2.0"], ["2", "b", "5.0"]]


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    first = CsvWriter(tmp_path)
    for step in (1000, 2000, 3000):
        first.summaries(step, summaries(a=float(step)))
    first.close()
    with first.path.open("ab") as file:
        file.write(b"2100,17")  # killed in the middle of a line
    second = CsvWriter(tmp_path, resume_step=2000)
    second.hyperparameters({}, 2000)
    kept = [["1000", "a", "1000.0"], ["2000", "a", "2000.0"]]  # the second was written before the checkpoint
    assert rows(second.path) == kept
    second.summaries(2500, summaries(a=7.0))
    second.close()
    assert rows(second.path) == [*kept, ["2500", "a", "7.0"]]


def test_a_run_from_before_there_were_tables_can_be_resumed(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path, resume_step=2000)
    writer.summaries(2500, summaries(a=7.0))
    writer.close()
    assert rows(writer.path) == [["2500", "a", "7.0"]]


def test_a_new_run_has_no_lines_of_another(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,wall_time,tag,value\n1,1,old,1\n")
    writer = CsvWriter(tmp_path)
    writer.summaries(5, summaries(a=1.0))
    writer.close()
    assert rows(writer.path) == [["5", "a", "1.0"]]


def test_what_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(ArtifactError, match=r"metrics\.csv: cannot be written"):
        CsvWriter(tmp_path).hyperparameters({}, 0)


FULL_DISK = """
import resource, sys
from pathlib import Path
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.metrics.writers.csv_file import CsvWriter
from tests.artifacts.test_csv_file import summaries
writer = CsvWriter(Path(sys.argv[1]))
for step, limit in ((1, 1000), (2, 100), (3, 1000)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, 1000))
    try:
        writer.summaries(step, summaries(a=1.0, a_rather_long_tag_for_which_there_is_no_room=2.0))
    except ArtifactError as error:
        print(step, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_loses_whole_summaries(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    (error,) = result.stdout.splitlines()
    assert error.startswith("2 ") and "metrics.csv" in error and "File too large" in error
    assert [(row[0], row[2]) for row in rows(tmp_path / "metrics.csv")] == [
        ("1", "1.0"), ("1", "2.0"), ("3", "1.0"), ("3", "2.0"),
    ]  # fmt: skip


def test_every_run_has_events_and_a_table(tmp_path: Path) -> None:
    place = Place("run", "Walker", "", tmp_path / "Walker", tmp_path / "logs", None, "", {}, set())
    writers: list[Any] = open_writers(None, place)
    for writer in writers:
        writer.hyperparameters({"a": 1}, 0)
        writer.summaries(3, summaries(a=1.0))
        writer.close()
    names = sorted(path.name.split(".")[0] for path in (tmp_path / "Walker").iterdir())
    assert names == ["events", "metrics"] and not (tmp_path / "logs").exists()
