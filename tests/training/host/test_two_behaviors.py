"""Two behaviors in one environment, through the whole host loop: one is done first, one is not configured."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from jaxrl.settings import SettingsError
from jaxrl.training.host.loop import train
from tests.event_files import read_events
from tests.toy_runs import configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]


def summaries(folder: Path, tag: str) -> list[tuple[int, float]]:
    (path,) = folder.glob("events*")
    return [(e.step, v.simple_value) for e in read_events(path) for v in e.summary.value if v.tag == tag]


def test_b18_b23_one_that_is_done_goes_on_and_tells(tmp_path: Path) -> None:
    """Short has 200 steps, Long 600, and both decide equally often: both have six summaries.

    A29: both get what the environment tells.
    """
    with environment("Short?team=0", "Long?team=0") as started:
        train(configured(tmp_path, Short={"max_steps": 200}, Long={"max_steps": 600}), started=started)
    run = tmp_path / "results" / "two"
    steps = [100, 200, 300, 400, 500, 600]
    for name in ("Short", "Long"):
        assert (run / f"{name}.onnx").is_file() and summaries(run / name, "Toy/Clock")
        assert [step for step, _ in summaries(run / name, "Environment/Episode Length")] == steps
        assert [step for step, _ in summaries(run / name, "Policy/Entropy")] == steps
        assert summaries(run / name, "Policy/Extrinsic Value Estimate")[-1][0] == 600
    assert [s for s, _ in summaries(run / "Long", "Losses/Policy Loss")] == steps
    assert [s for s, _ in summaries(run / "Short", "Losses/Policy Loss")] == [100, 200], "no update after 200"
    (short,) = (path for path in (run / "Short").glob("Short-*") if path.is_dir())
    assert int(short.name.rpartition("-")[2]) > 600, "its counter went on"


def test_one_learns_in_a_thread_and_the_other_between_messages(tmp_path: Path) -> None:
    """The summaries of both are whole; staleness is told of the threaded one alone."""
    with environment("Apart?team=0", "Inside?team=0") as started:
        train(
            configured(tmp_path, Apart={"max_steps": 400, "threaded": True}, Inside={"max_steps": 400}), started=started
        )
    run = tmp_path / "results" / "two"
    for name in ("Apart", "Inside"):
        assert (run / f"{name}.onnx").is_file()
        assert [s for s, _ in summaries(run / name, "Policy/Entropy")] == [100, 200, 300, 400]
    assert [s for s, _ in summaries(run / "Inside", "Losses/Policy Loss")] == [100, 200, 300, 400]
    assert summaries(run / "Apart", "Policy/Staleness") and not summaries(run / "Inside", "Policy/Staleness")


def test_one_right_and_one_wrong_behavior_fail_before_anything_is_written(tmp_path: Path) -> None:
    settings = configured(tmp_path, Right={"max_steps": 200})
    with (
        environment("Right?team=0", "Wrong?team=0") as started,
        pytest.raises(SettingsError, match=r"behaviors\.Wrong"),
    ):
        train(settings, started=started)
    assert not list((tmp_path / "results").rglob("*.onnx")) and not list((tmp_path / "results").rglob("events*"))
    assert not (tmp_path / "results" / "two" / "configuration.yaml").exists()


def test_p22_u41_two_teams_of_one_behavior_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with environment("Game?team=0", "Game?team=1") as started, caplog.at_level(logging.WARNING, logger="jaxrl"):
        train(configured(tmp_path, Game={"max_steps": 100}), started=started)
    told = [record.message for record in caplog.records if "teams of one behavior" in record.message]
    assert len(told) == 1 and "Game?team=0" in told[0] and "Game?team=1" in told[0]
    assert (tmp_path / "results" / "two" / "Game.onnx").is_file()
