"""Event files that grow, are cut, are damaged and begin anew: each poll sees what is there now, and reads it once."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter
from jaxrl.tools.dashboard.live_run import Follower
from jaxrl.tools.report import events
from tests.tools.report.report_folders import scalar, write_events

REWARD = tags.GROUP_CUMULATIVE_REWARD


def points(follower):
    if REWARD not in follower.tags:
        return {}
    return dict(zip(*(x.tolist() for x in follower.curve(REWARD)), strict=True))


def test_it_reads_on_where_it_was(tmp_path, monkeypatch):
    follower = Follower(tmp_path)
    assert not follower.poll() and follower.step == 0 and follower.speed is None
    clock = iter((100.0, 100.0, 101.0, 102.0, 104.0))
    monkeypatch.setattr("jaxrl.artifacts.metrics.tensorboard.time.time", lambda: next(clock))
    writer = TensorBoardWriter(tmp_path)
    writer.summaries(1000, {REWARD: scalar(0.25)})
    assert follower.poll() and points(follower) == {1000: 0.25} and follower.last_time == 101.0
    read = []
    monkeypatch.setattr(
        Follower, "_take", lambda self, event, take=Follower._take: (read.append(event), take(self, event))
    )
    assert not follower.poll() and read == []
    writer.summaries(2000, {REWARD: scalar(0.5)})
    writer.summaries(3000, {REWARD: scalar(0.75)})
    assert follower.poll() and len(read) == 2
    assert points(follower) == {1000: 0.25, 2000: 0.5, 3000: 0.75}
    assert follower.speed == pytest.approx(2000 / 3.0)  # from 101 to 104 seconds
    writer.close()


def test_half_a_record_waits_for_its_other_half(tmp_path):
    path = write_events(tmp_path, {1000: 0.25, 2000: 0.5})
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    follower = Follower(tmp_path)
    assert follower.poll() and follower.curve(tags.ENTROPY).value.tolist() == [1.0]
    assert follower.curve(tags.ENTROPY).step.tolist() == [1000] and not follower.poll()
    with path.open("ab") as file:
        file.write(whole[-10:])
    assert follower.poll() and follower.curve(tags.ENTROPY).step.tolist() == [1000, 2000]


def test_damage_is_told_and_what_was_read_stays(tmp_path):
    path = write_events(tmp_path, {1000: 0.25})
    follower = Follower(tmp_path)
    follower.poll()
    with path.open("ab") as file:
        file.write(b"\x07" * 40)
    follower.poll()
    assert "wrong checksum" in follower.problem and points(follower) == {1000: 0.25}
    path.write_bytes(path.read_bytes()[:-40])
    follower.poll()
    assert follower.problem is None


def test_a_run_that_begins_anew_or_is_deleted_is_read_anew(tmp_path):
    follower = Follower(tmp_path / "Walker")
    write_events(tmp_path / "Walker", {1000: 0.25, 2000: 0.5})
    follower.poll()
    shutil.rmtree(tmp_path / "Walker")
    assert follower.poll() and points(follower) == {} and not follower.poll()
    write_events(tmp_path / "Walker", {500: 0.125})
    assert follower.poll() and points(follower) == {500: 0.125}


def test_a_resumed_session_drops_what_came_after_its_checkpoint(tmp_path):
    write_events(tmp_path, {1000: 0.25, 2000: 0.5, 3000: 0.75})
    follower = Follower(tmp_path)
    follower.poll()
    write_events(tmp_path, {2500: 1.0}, resume_step=2000)
    assert follower.poll() and points(follower) == {1000: 0.25, 2000: 0.5, 2500: 1.0}
    assert follower.speed is None  # one summary in this session


def test_what_there_is_no_time_for_is_read_at_the_next_poll(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "CHUNK", 100)  # one or two records; those of an image are longer
    write_events(tmp_path, {1000 * (i + 1): float(i) for i in range(10)})
    writer = TensorBoardWriter(tmp_path)
    writer.images(10_000, {"Picture": np.zeros((50, 50, 3), np.uint8)})
    writer.summaries(11_000, {REWARD: scalar(10.0)})
    writer.close()
    follower, polls = Follower(tmp_path), 0
    while polls == 0 or follower.behind:
        follower.poll(deadline=0.0)  # has passed: one chunk each
        polls += 1
    assert polls > 5 and points(follower) == {1000 * (i + 1): float(i) for i in range(11)}
    assert not follower.poll() and follower.problem is None
