"""Which runs are found, what state each is in, and that nothing outside the folder is seen."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time

import pytest

from jaxrl.artifacts import lock
from jaxrl.tools.dashboard.live_run import spread
from jaxrl.tools.dashboard.results import Results
from jaxrl.types import JaxrlError
from tests.tools.report.report_folders import write_run
from tests.tools.report.test_report_statistics import curve

HOLD = """
import sys, pathlib
from jaxrl.artifacts.lock import RunLock
with RunLock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts real processes that hold the lock of a folder."""
    started = []

    def hold(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def with_max_steps(run, max_steps):
    path = run / "configuration.yaml"
    before = path.read_text(encoding="utf-8").partition("default_settings:")[0]
    path.write_text(f"{before}default_settings: {{max_steps: {max_steps}}}\n", encoding="utf-8")
    return run


def states(results):
    return {row["name"]: row["state"] for row in results.table()}


def test_the_states_of_a_run(tmp_path, holder):
    results = Results(tmp_path)
    assert results.table() == []
    process = holder(tmp_path / "mine")
    assert states(results) == {"mine": "starting"}
    run = with_max_steps(write_run(tmp_path / "made", "mine"), 2000)
    shutil.copytree(run, tmp_path / "mine", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "made")
    (row,) = results.table()
    assert row["state"] == "running" and f"process {process.pid}" in row["why"] and row["age"] < 60
    assert row["behaviors"]["Walker"] == {
        "step": 2000,
        "max_steps": 2000,
        "seeds": 1,
        "speed": pytest.approx(row["behaviors"]["Walker"]["speed"]),
        "score": 0.5,
        "score_tag": "Group Cumulative Reward",
    }
    process.kill()
    process.wait()
    assert states(results) == {"mine": "died"}  # its lock file is still there
    (tmp_path / "mine" / lock.NAME).unlink()
    assert states(results) == {"mine": "finished"}
    with_max_steps(tmp_path / "mine", 9000)
    os.utime(tmp_path / "mine" / "configuration.yaml", (1, 1))
    assert states(results) == {"mine": "stopped"}
    status = {"Walker": {"checkpoints": [], "final_checkpoint": {"steps": 9001}}}
    (tmp_path / "mine" / "run_logs" / "training_status.json").write_text(json.dumps(status))
    (row,) = results.table()
    assert row["state"] == "finished" and row["behaviors"]["Walker"]["step"] == 2000  # its last summary is older
    for path in (tmp_path / "mine").rglob("events*"):
        path.write_bytes(b"")
    (row,) = results.table()
    assert row["state"] == "finished" and row["behaviors"]["Walker"]["step"] == 9001, "it had none"
    shutil.rmtree(tmp_path / "mine")
    assert results.table() == []


def test_a_run_on_another_machine_and_one_of_another_program(tmp_path):
    owner = {"process": 1, "host": platform.node() + "-2", "started": "yesterday", "command": "jaxrl train"}
    (write_run(tmp_path, "far") / lock.NAME).write_text(json.dumps(owner))
    foreign = write_run(tmp_path, "foreign")
    (foreign / "run_logs" / "timers.json").unlink()
    results = Results(tmp_path)
    assert states(results) == {"far": "elsewhere", "foreign": "running"}
    row = next(row for row in results.table() if row["name"] == "foreign")
    assert "written by another program" in row["why"]
    (events,) = (foreign / "Walker").iterdir()
    old = events.read_bytes()
    assert old and results._runs["foreign"].status(time.time() + 400.0)["state"] == "died"


def test_looking_at_a_lock_takes_it_from_nobody(tmp_path, holder):
    assert lock.look(tmp_path) is None
    process = holder(tmp_path)
    seen = lock.look(tmp_path)
    assert seen is not None and seen.held is True and seen.owner.process == process.pid
    mine = {"process": os.getpid(), "host": platform.node(), "started": "", "command": ""}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / lock.NAME).write_text(json.dumps(mine))
    seen = lock.look(tmp_path / "b")
    assert seen is not None and seen.held is False  # a number given anew: the process lives, the lock is free
    (tmp_path / "b" / lock.NAME).write_text("")
    assert lock.look(tmp_path / "b") == lock.Held(None, True)  # not written yet: a run that starts


def test_broken_files_are_told_and_end_nothing(tmp_path):
    run = write_run(tmp_path, "a")
    (run / "configuration.yaml").write_text("behaviors: [")
    (run / "run_logs" / "training_status.json").write_text("{")
    (events,) = (run / "Walker").iterdir()
    events.write_bytes(events.read_bytes() + b"\x07" * 40)
    (tmp_path / "half" / "run_logs").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    rows = {row["name"]: row for row in Results(tmp_path).table()}
    assert set(rows) == {"a", "half"} and rows["half"]["state"] == "empty"
    assert "wrong checksum" in rows["a"]["problem"] and rows["a"]["behaviors"]["Walker"]["step"] == 2000
    events.unlink()
    assert "configuration.yaml: cannot be read" in Results(tmp_path).table()[0]["problem"]


def test_runs_of_sweeps_lie_deeper_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    write_run(outside, "secret")
    root = tmp_path / "results"
    write_run(root / "sweep", "point-1")
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    results = Results(root)
    assert list(states(results)) == ["sweep/point-1"]
    assert results.curves("../outside/secret", -1) is None and results.curves("link", -1) is None
    videos = outside / "videos"
    videos.mkdir()
    (videos / "episode-000001.gif").write_bytes(b"GIF")
    (root / "sweep" / "point-1" / "videos").symlink_to(videos)
    assert results.film("sweep/point-1") is None
    (root / "sweep" / "point-1" / "Secret").symlink_to(outside / "secret" / "Walker")
    (events,) = (outside / "secret" / "Walker").iterdir()
    (root / "sweep" / "point-1" / "Walker" / (events.name + ".1")).symlink_to(events)
    (row,) = Results(root).table()
    assert set(row["behaviors"]) == {"Walker"} and row["problem"] is None
    assert list(states(Results(root / "sweep" / "point-1"))) == ["point-1"]  # one run is given itself


def test_curves_come_once_per_version(tmp_path):
    write_run(tmp_path, "a", seeds=3)
    results = Results(tmp_path)
    (row,) = results.table()
    answer = results.curves("a", -1)
    reward = answer["curves"][0]
    assert reward["title"] == "Group Cumulative Reward" and reward["first"] and reward["step"] == [1000, 2000]
    assert (reward["low"], reward["mean"], reward["high"]) == ([0.0, 0.5], [0.1, 0.6], [0.2, 0.7])
    assert row["behaviors"]["Walker"]["seeds"] == 3 and row["behaviors"]["Walker"]["score"] == pytest.approx(0.6)
    results.table()
    assert results.curves("a", answer["version"]) == {"name": "a", "version": answer["version"]}
    assert results.curves("b", -1) is None


def test_a_spread_has_the_steps_of_all_and_not_too_many():
    line = spread([curve({0: 0.0, 100: 1.0}), curve({100: 3.0, 200: 5.0})])
    assert line == {"step": [100], "mean": [2.0], "low": [1.0], "high": [3.0]}
    assert "low" not in spread([curve({0: float("nan")})]) and spread([curve({0: float("nan")})])["mean"] == [None]
    long = spread([curve({step: float(step) for step in range(5000)})])
    assert len(long["step"]) == 300 and (long["step"][0], long["step"][-1]) == (0, 4999)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(JaxrlError, match=r"nothing does not exist\. Give the folder"):
        Results(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(JaxrlError, match="file is a file, not a folder"):
        Results(tmp_path / "file")
