"""Checkpoints beside the training: in turn, waited for, and nothing that goes wrong is lost."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.files import ArtifactError
from jaxrl.training import checkpoints
from jaxrl.training.checkpoints import CheckpointWriter
from jaxrl.training.errors import LostWrites


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def fail(error: Exception) -> None:
    raise error


def test_the_caller_goes_on_and_saves_are_written_one_at_a_time() -> None:
    writer, release, said = CheckpointWriter(LostWrites()), threading.Event(), []

    def write(name: str) -> None:
        said.append(f"{name} begins")
        release.wait(60)
        said.append(f"{name} ends")

    writer.begin("A", lambda: write("A"))
    writer.begin("B", lambda: write("B"))
    time.sleep(0.05)
    assert len(said) == 1  # both have been handed over, one is being written
    release.set()
    assert [writer.settle(name)[1] for name in "AB"] == [None, None]
    first, second = said[0][0], said[2][0]
    assert said == [f"{first} begins", f"{first} ends", f"{second} begins", f"{second} ends"]
    assert writer.settle("A") == (0.0, None)  # nothing is under way any more


def test_a_full_disk_is_told_once_and_when_there_is_room_again(log: Any) -> None:
    writer = CheckpointWriter(LostWrites())
    for attempt in range(3):
        writer.begin("A", lambda: fail(ArtifactError("no space.")))
        assert str(writer.settle("A")[1]) == "no space.", attempt
    assert [record.getMessage() for record in log.records] == [
        "no space. The run goes on without this checkpoint and tries again with the next one."
    ]
    for _ in range(2):
        writer.begin("A", lambda: None)
        assert writer.settle("A")[1] is None
    assert [record.getMessage() for record in log.records[1:]] == [
        "A checkpoint could be written again; 3 before it could not."
    ]


def test_a_final_save_that_fails_is_not_told_here_but_returned(log: Any) -> None:
    writer = CheckpointWriter(LostWrites())
    writer.begin("A", lambda: fail(ArtifactError("no space.")), final=True)
    assert writer.settle("A")[1] is not None and not log.records


def test_any_other_error_is_raised_where_the_run_looks_next() -> None:
    writer = CheckpointWriter(LostWrites())
    writer.begin("A", lambda: fail(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        writer.settle("A")
    writer.begin("A", lambda: fail(ValueError("a bug")))
    deadline = time.monotonic() + 60
    with pytest.raises(ValueError, match="a bug"):
        while time.monotonic() < deadline:
            writer.raise_errors()
    writer.raise_errors()  # once


def test_a_disk_that_does_not_answer_is_told_and_given_up(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SAY_SECONDS", 0.02)
    monkeypatch.setattr(checkpoints, "GIVE_UP_SECONDS", 0.1)
    writer, release = CheckpointWriter(LostWrites()), threading.Event()
    writer.begin("A", lambda: release.wait(60) and None)
    with pytest.raises(CheckpointError, match=r"A: its checkpoint is being written since .*--results-dir"):
        writer.settle("A")
    assert "A: waiting for its checkpoint, which is being written since" in log.text
    assert writer.settle("A") == (0.0, None)  # whoever closes the run does not wait again
    release.set()
