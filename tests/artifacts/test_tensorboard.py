"""Event files: what TensorBoard reads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl.artifacts.metrics import statistics as metrics
from jaxrl.artifacts.metrics.statistics import StatsAggregator
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter
from jaxrl.types import Aggregation
from tests.event_files import read_events


def some_summaries():
    stats = StatsAggregator()
    stats.extend(metrics.CUMULATIVE_REWARD, [1.0, 2.0, 6.0], Aggregation.HISTOGRAM)
    stats.add(metrics.ENTROPY, 0.5)
    return stats.take()


def test_scalars_histograms_and_text_with_the_tags_of_ml_agents(tmp_path):
    writer = TensorBoardWriter(tmp_path / "Walker")
    writer.hyperparameters({"trainer_type": "poca"})
    writer.summaries(5000, some_summaries())
    values = {value.tag: (event.step, value) for event in read_events(writer.path) for value in event.summary.value}
    assert set(values) == {
        "Hyperparameters/text_summary",
        "Environment/Cumulative Reward",  # with its blank, unlike tensorboardX's own writer
        "Environment/Cumulative Reward_hist",
        "Policy/Entropy",
    }
    step, scalar = values["Environment/Cumulative Reward"]
    assert step == 5000 and scalar.simple_value == 3.0
    histogram = values["Environment/Cumulative Reward_hist"][1].histo
    assert (histogram.num, histogram.min, histogram.max, histogram.sum) == (3, 1.0, 6.0, 9.0)
    assert sum(histogram.bucket) == 3
    assert values["Hyperparameters/text_summary"][1].tensor.string_val[0].startswith(b"\ttrainer_type:\tpoca")
    writer.close()
    writer.close()


@pytest.mark.parametrize("values", [[0.0], [3.0] * 5, [1.0, 1.0 + 1e-16], [-1e300, 1e300], [np.nan, np.inf], [1e-30]])
def test_odd_histograms_do_not_stop_the_training(tmp_path, values):
    stats = StatsAggregator()
    stats.extend("reward", values, Aggregation.HISTOGRAM)
    writer = TensorBoardWriter(tmp_path)
    with np.errstate(over="ignore"):
        writer.summaries(1, stats.take())
    assert any(value.tag == "reward" for event in read_events(writer.path) for value in event.summary.value)
    writer.close()


def test_a_resumed_run_appends_a_file_that_discards_later_points(tmp_path):
    first = TensorBoardWriter(tmp_path)
    second = TensorBoardWriter(tmp_path, resume_step=4000)
    for writer in (first, second):
        writer.hyperparameters({"trainer_type": "poca"})
        writer.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    starts = [(event.step, event.session_log.status) for event in read_events(second.path) if event.session_log.status]
    assert starts == [(4001, 1)]  # SessionLog.START, which drops what is at its step


def test_tensorboard_itself_reads_the_files(tmp_path):
    code = (
        "import sys; from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload(); tag = 'Environment/Cumulative Reward'\n"
        "print([(e.step, e.value) for e in events.Scalars(tag)], len(events.Histograms(tag + '_hist')))\n"
    )
    if subprocess.run([sys.executable, "-c", "import tensorboard"], capture_output=True, timeout=60).returncode:
        pytest.skip("tensorboard is not installed")
    first = TensorBoardWriter(tmp_path)
    for step in (1000, 2000, 3000):
        first.summaries(step, some_summaries())
    first.close()
    second = TensorBoardWriter(tmp_path, resume_step=2000)
    second.summaries(4000, some_summaries())
    second.close()
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "[(1000, 3.0), (2000, 3.0), (4000, 3.0)]" in result.stdout, result


FULL_DISK = """
import resource, sys
from pathlib import Path
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter
from jaxrl.artifacts.files import ArtifactError
writer = TensorBoardWriter(Path(sys.argv[1]))
writer.hyperparameters({"x": "x" * 1000}, 1)
for step, limit in ((2, 3000), (3, 3000), (4, 20_000)):  # room for one more, for none, and room again
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, 20_000))
    try:
        writer.hyperparameters({"x": "x" * (1000 if step < 3 else 2000)}, step)
    except ArtifactError as error:
        print(step, error)
print(writer.path)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_loses_whole_summaries_and_nothing_that_follows(tmp_path):
    """Nothing hangs; half a record would make everything after it unreadable."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (error, path) = result.stdout.splitlines()
    assert error.startswith("3 ") and "File too large" in error and "tfevents" in error
    assert [event.step for event in read_events(Path(path)) if event.summary.value] == [1, 2, 4]
