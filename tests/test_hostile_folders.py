"""Damaged and hostile files in folders of runs: one sentence each, at once, with little memory, for that run alone."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] made at import
from tensorboardX.record_writer import masked_crc32c

from jaxrl.artifacts import lock
from jaxrl.cli import main
from jaxrl.envs.foreign.arguments import ArgumentsError, keyword_arguments
from jaxrl.tools.dashboard.results import Results
from jaxrl.tools.dashboard.server import Server
from jaxrl.tools.report.events import read_folder
from jaxrl.types import JaxrlError
from tests.tools.report.report_folders import write_events, write_run

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
PIPE, HOLE = object(), object()


def record(body: bytes, size: int | None = None) -> bytes:
    """One record of an event file, whose header may say another size."""
    head = struct.pack("<Q", len(body) if size is None else size)
    return head + struct.pack("<I", masked_crc32c(head)) + body + struct.pack("<I", masked_crc32c(body))


def scalar(step: int, value: float, wall_time: float = 1.0) -> bytes:
    event = Event(wall_time=wall_time, step=step)
    event.summary.value.add(tag="Environment/Cumulative Reward", simple_value=value)
    return record(event.SerializeToString())


LOCK, STATUS, CONFIGURATION, TIMERS = (
    "run.lock", "run_logs/training_status.json", "configuration.yaml", "run_logs/timers.json"
)  # fmt: skip
EVENTS = "Walker/events.out.tfevents.9.damaged"
KINDS = {  # the file, what is in it, and whether `report` and the dashboard tell of it
    "lock without sense": (LOCK, '{"process": [1], "host": 3, "started": {}, "command": null}', False),
    "lock of a process that cannot be": (LOCK, json.dumps(
        {"process": "1", "host": "x", "started": "", "command": ""}), False),
    "lock that is a pipe": (LOCK, PIPE, False),
    "status that is a list": (STATUS, "[1, 2]", False),
    "status with texts for numbers": (STATUS, '{"Walker": {"final_checkpoint": "x", "checkpoints": 3}}', False),
    "status that is a pipe": (STATUS, PIPE, False),
    "configuration with a bomb": (CONFIGURATION, BOMB, True),
    "configuration with a bomb of merges": (CONFIGURATION, MERGED, True),
    "configuration nested for ever": (CONFIGURATION, "[" * 100_000, True),
    "configuration that is a pipe": (CONFIGURATION, PIPE, True),
    "configuration of gigabytes": (CONFIGURATION, HOLE, True),
    "events with a record of gigabytes": (EVENTS, record(b"", 3 * 2**30), True),
    "events of gigabytes": (EVENTS, HOLE, True),
    "events with a damaged record": (EVENTS, record(b"\xff\xff"), True),
    "events at no time": (EVENTS, scalar(1, 1.0, float("nan")) + scalar(2, 1.0, float("inf")), False),
}  # fmt: skip
REPORT_ALONE = {
    "timers without sense": (TIMERS, '{"total": "x", "children": [1]}'),
    "timers with a child of the wrong kind": (TIMERS, '{"total": 1.0, "children": {"root": 3}}'),
    "events that are a pipe": (EVENTS, PIPE),
}


def damage(run: Path, name: str, content: object) -> None:
    path = run / name
    path.unlink(missing_ok=True)
    if content is PIPE:
        os.mkfifo(path)
    elif content is HOLE:
        with path.open("wb") as file:
            file.truncate(3 * 2**30)
    else:
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())


@pytest.mark.skipif(os.name == "nt", reason="named pipes and holes of POSIX")
def test_a_bad_run_shows_its_problem_and_no_other_is_touched(tmp_path, monkeypatch, capsys):
    for name, (file, content, _) in KINDS.items():
        damage(write_run(tmp_path, name), file, content)
    write_run(tmp_path, "good")
    (tmp_path / "cyclic" / "run_logs").mkdir(parents=True)
    (tmp_path / "cyclic" / "run_logs" / "loop").symlink_to(tmp_path / "cyclic")
    results, begin = Results(tmp_path), time.process_time()
    tracemalloc.start()
    rows = {row["name"]: row for row in results.table()}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(rows) == {*KINDS, "good", "cyclic"} and peak < 60e6
    assert rows["good"]["problem"] is None and rows["good"]["behaviors"]["Walker"]["step"] == 2000
    assert {name: bool(rows[name]["problem"]) for name in KINDS} == {name: told for name, (*_, told) in KINDS.items()}
    assert "more than 100,000 values" in rows["configuration with a bomb"]["problem"]
    assert "more than the 16,777,216 that" in rows["configuration of gigabytes"]["problem"]
    assert "a record of 3,221,225,472 bytes" in rows["events with a record of gigabytes"]["problem"]
    json.dumps(list(rows.values()), allow_nan=False)
    assert all(results.curves(name, -1)["curves"] for name in rows if name != "cyclic")
    for name, (file, content) in REPORT_ALONE.items():
        damage(write_run(tmp_path, name), file, content)
    for name in {*KINDS, *REPORT_ALONE} - {"events at no time"}:
        refused = name in REPORT_ALONE or KINDS[name][2]
        assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "a.html")]) == refused, name
        if refused:
            assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert time.process_time() - begin < 30  # a bomb alone took 20 s and more

    def broken(folder):
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr(lock, "look", broken)
    assert "what nobody thought of" in results.table()[0]["problem"]


def test_a_sweep_names_no_folder_outside_of_its_own(tmp_path, capsys):
    write_run(tmp_path, "secret")
    sweep = tmp_path / "sweep"
    write_run(sweep, "a=1")
    for name in ("../secret", str(tmp_path / "secret"), "a=1/../../secret", "..", "", 3, None, ["a=1"]):
        points = [{"scores": {"3": 1.0}, "runs": ["a=1", name]}]
        (sweep / "sweep.json").write_text(json.dumps({"points": points}))
        assert main(["report", str(sweep), "--out", str(tmp_path / "a.html")]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "sweep.json: cannot be read" in line and f"{name!r} is no folder in it" in line


def test_the_dashboard_asks_for_an_address(tmp_path):
    with pytest.raises(JaxrlError, match=r"--host: got nothing, .* 127\.0\.0\.1"):
        Server(Results(tmp_path), "", 0)


def test_every_reader_of_yaml_is_bounded(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text(BOMB)
    for words in (["train", str(path)], ["doctor", str(path), "--no-env"], ["upgrade-config", str(path)]):
        assert main(words) == 1 and "more than 100,000 values" in capsys.readouterr().err
    deep = "[" * 300 + "]" * 300
    with pytest.raises(ArgumentsError):
        keyword_arguments([f"x={deep}"])
    path.write_text("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\ne: [*x, *x]\n")  # aliases as people use them
    assert main(["train", str(path)]) == 1 and "more than" not in capsys.readouterr().err


def test_event_files_are_read_in_parts_as_they_were_at_once(tmp_path):
    """Less memory than the file has bytes, and the later of two values at a step, also over sessions."""
    folder = tmp_path / "Walker"
    write_events(folder, {step: float(step) for step in range(1, 4)}, "a")
    with next(folder.glob("events*")).open("ab") as file:
        file.write(b"".join(scalar(step, step / 2) for step in [*range(5_000), 5, 7]))
    size = next(folder.glob("events*")).stat().st_size
    tracemalloc.start()
    found = read_folder(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size < 2e6
    curve = found.curves["Environment/Cumulative Reward"]
    np.testing.assert_array_equal(curve.step, np.arange(5_000))
    np.testing.assert_allclose(curve.value, np.arange(5_000) / 2)
    write_events(folder, {1: 10.0, 3: 30.0}, "a", resume_step=1)
    again = read_folder(folder)
    assert again.begun_at == 1 and again.curves["a"].step.tolist() == [1, 3]
    assert again.curves["a"].value.tolist() == [10.0, 30.0]
    assert again.curves["Environment/Cumulative Reward"].step.tolist() == [0, 1]
