"""Two behaviors in one environment, through the whole host loop: one is done first, one is not configured."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.settings import SettingsError
from jaxrl.training.host import behaviors
from jaxrl.training.host.behaviors import SpecChangedError
from jaxrl.training.host.run import train
from jaxrl.types import EnvMessage
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.event_files import read_events
from tests.toy_runs import configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]


def summaries(folder: Path, tag: str) -> list[tuple[int, float]]:
    (path,) = folder.glob("events*")
    return [(e.step, v.simple_value) for e in read_events(path) for v in e.summary.value if v.tag == tag]


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_b18_b23_one_that_is_done_goes_on_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Short has 200 steps, Long 600, and both decide equally often: both have six summaries.

    A29: both get what the environment tells.
    """
    monkeypatch.setattr(behaviors, "MANY", 1)
    short = {"max_steps": 200, "connectors": [{"type": "normalize"}]}
    with environment("Short?team=0", "Long?team=0") as started, caplog.at_level("INFO", "jaxrl"):
        train(configured(tmp_path, Short=short, Long={"max_steps": 600}), started=started)
    (told,) = (place for place, text in enumerate(caplog.messages) if text.startswith("2 behaviors differ in"))
    assert told < caplog.messages.index("Short: compiling, once."), "said before it takes its time"
    took = [text for text in caplog.messages if re.search(r"the update is compiled, which took \d+\.\d s\.", text)]
    assert {text.partition(":")[0] for text in took} == {"Short", "Long"}, "and how much that was"
    run = tmp_path / "results" / "two"
    steps = [100, 200, 300, 400, 500, 600]
    for name in ("Short", "Long"):
        assert (run / f"{name}.onnx").is_file() and summaries(run / name, "Toy/Clock")
        assert [step for step, _ in summaries(run / name, "Environment/Episode Length")] == steps
        assert [step for step, _ in summaries(run / name, "Policy/Entropy")] == steps
        assert summaries(run / name, "Policy/Extrinsic Value Estimate")[-1][0] == 600
    assert [s for s, _ in summaries(run / "Long", "Losses/Policy Loss")] == steps
    assert [s for s, _ in summaries(run / "Short", "Losses/Policy Loss")] == [100, 200], "no update after 200"
    (last,) = (path for path in (run / "Short").glob("Short-*") if path.is_dir())
    assert int(last.name.rpartition("-")[2]) > 600, "its counter went on"
    (count,) = (x for path, x in checkpoint.read_arrays(last).items() if "connectors" in path and "count" in path)
    assert 200 < count < 300, "and what its connectors have learned of their input stays like its weights"

    before, other = written(run), {"network_settings": {"hidden_units": 8, "num_layers": 1}}
    again = {"checkpoint_settings": {"run_id": "two", "results_dir": str(tmp_path / "results"), "resume": True}}
    settings = configured(tmp_path, changes=again, Short=short | {"max_steps": 900}, Long={"max_steps": 900, **other})
    with (
        environment("Short?team=0", "Long?team=0") as started,
        pytest.raises(CheckpointError, match=r"hidden_units: 4 in the checkpoint, 8 now"),
    ):
        train(settings, started=started)
    assert written(run) == before, "Short fits, and nothing of it is touched"


def test_a_signal_ends_the_making_of_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two hundred took four minutes in which Ctrl-C was heard and not followed."""

    met: list[str] = []

    class Stop(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "compiling, once" in record.getMessage():
                met.append(record.getMessage())
                if len(met) == 1:
                    signal.raise_signal(signal.SIGINT)

    stop, few = Stop(), {"max_steps": 200}
    logging.getLogger("jaxrl.training.host.learner").addHandler(stop)
    try:
        with environment("One?team=0", "Two?team=0", "Three?team=0") as started, caplog.at_level("INFO", "jaxrl"):
            train(configured(tmp_path, One=few, Two=few, Three=few), started=started)
    finally:
        logging.getLogger("jaxrl.training.host.learner").removeHandler(stop)
    assert met == ["One: compiling, once."] and "Learning was interrupted" in caplog.text
    assert not list((tmp_path / "results" / "two").glob("*/events*"))


@pytest.mark.slow
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


def make_other(worker: int) -> ToyEnv:
    return ToyEnv(worker, ToySettings(observation_size=4 + worker))


def test_s6_workers_that_show_a_behavior_differently_end_the_run_before_anything_is_written(tmp_path: Path) -> None:
    with (
        environment(make=make_other, workers=2) as started,
        pytest.raises(
            SpecChangedError, match=r"Toy\?team=0: its observations or actions differ .*shape: \[4\] there, \[5\] here"
        ),
    ):
        train(configured(tmp_path, Toy={"max_steps": 200}), started=started)
    assert not list((tmp_path / "results").rglob("events*"))


class Late(ToyEnv):
    """Nobody hears of the second behavior before message 30 of worker 0, and 40 of worker 1."""

    messages = 0

    def _result(self, ended: Mapping[str, list[tuple]]) -> EnvMessage:
        message = super()._result(ended)
        self.messages += 1
        first = 30 + 10 * self.worker
        if self.messages < first:
            del self._asked["Late?team=0"]
        late = {name: self.spec for name in message.steps if self.messages == first or name in message.new_specs}
        shown = [name for name in message.steps if self.messages >= first or name != "Late?team=0"]
        return message._replace(
            steps={name: message.steps[name] for name in shown},
            new_specs={name: spec for name, spec in late.items() if name in shown},
        )


def make_late(worker: int) -> Late:
    return Late(worker, ToySettings(behaviors=("Early?team=0", "Late?team=0"), areas=1, living_reward=1.0))


def test_s30_u28_a_behavior_that_appears_late_learns_from_then_on(tmp_path: Path) -> None:
    """Two agents of each decide in both workers at every message.

    Late misses the first 29 messages of both workers, and 10 more of worker 1: 4 · 29 + 2 · 10 steps.
    """
    with environment(make=make_late, workers=2) as started:
        train(configured(tmp_path, Early={"max_steps": 200}, Late={"max_steps": 300}), started=started)
    run = tmp_path / "results" / "two"
    ends = {}
    for name in ("Early", "Late"):
        assert (run / f"{name}.onnx").is_file()
        (last,) = (path for path in (run / name).glob(f"{name}-*") if path.is_dir())
        ends[name] = int(last.name.rpartition("-")[2])
        shown = [step for step, _ in summaries(run / name, "Environment/Cumulative Reward")]
        assert shown == list(range(100, ends[name], 100))
        assert summaries(run / name, "Losses/Policy Loss")
    assert 300 < ends["Late"] <= 304 and ends["Early"] - ends["Late"] == 4 * 29 + 2 * 10


def test_s30_one_that_appears_late_and_is_not_configured_ends_the_run_which_is_saved(tmp_path: Path) -> None:
    with environment(make=make_late, workers=2) as started, pytest.raises(SettingsError, match=r"behaviors\.Late"):
        train(configured(tmp_path, Early={"max_steps": 1000}), started=started)
    assert (tmp_path / "results" / "two" / "Early.onnx").is_file()
