"""Reading event files back: what the writer wrote, resumed runs, and damage."""

import pytest

from jaxrl.artifacts.metrics.statistics import ENTROPY, GROUP_CUMULATIVE_REWARD
from jaxrl.tools.report.events import ReportError, read_folder
from tests.tools.report.report_folders import write_events


def points(folder):
    curve = read_folder(folder).curves[GROUP_CUMULATIVE_REWARD]
    return dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))


def test_what_was_written_is_read(tmp_path):
    write_events(tmp_path, {1000: 0.25, 2000: 0.5})
    events = read_folder(tmp_path)
    assert points(tmp_path) == {1000: 0.25, 2000: 0.5}
    assert set(events.curves) == {GROUP_CUMULATIVE_REWARD, ENTROPY}
    assert (events.last_step, events.begun_at) == (2000, 0)


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path):
    write_events(tmp_path, {1000: 0.1, 2000: 0.2, 3000: 0.3})
    write_events(tmp_path, {2500: 0.7}, resume_step=2000)  # the interrupted run was at 3,000, its checkpoint at 2,000
    assert points(tmp_path) == pytest.approx({1000: 0.1, 2000: 0.2, 2500: 0.7})
    assert read_folder(tmp_path).begun_at == 2000
    write_events(tmp_path, {3500: 0.9})  # ML-Agents does not say where it goes on
    assert read_folder(tmp_path).begun_at == 2500


def test_the_incomplete_last_record_of_a_killed_run_does_not_count(tmp_path):
    path = write_events(tmp_path, {1000: 0.25, 2000: 0.5})
    whole = path.read_bytes()
    for lost in (1, 10, 30):  # the last record, an entropy, is lost
        path.write_bytes(whole[:-lost])
        assert points(tmp_path) == {1000: 0.25, 2000: 0.5}
        assert read_folder(tmp_path).curves[ENTROPY].step.tolist() == [1000]


@pytest.mark.parametrize("at", [3, 40, -6])  # in a length, in the first event, in the last
def test_a_damaged_file_is_named(tmp_path, at):
    path = write_events(tmp_path, {1000: 0.25})
    content = bytearray(path.read_bytes())
    content[at] ^= 0x20
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"tfevents.*wrong checksum at byte \d+.*delete it"):
        read_folder(tmp_path)
