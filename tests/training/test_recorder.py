"""The recorder's end: every file is attempted, and the first error is the one that is told. Faults are real ones."""

from __future__ import annotations

import io
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.ppo import make_ppo
from jaxrl.artifacts import lock
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.store import require_latest, restore
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.lock import RunLockedError
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import (
    CUMULATIVE_REWARD,
    ENTROPY,
    FINISHED_EPISODES,
    INTERNAL,
    STEPS_PER_SECOND,
    Summary,
    scene_tag,
)
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import make_environment
from jaxrl.settings import EVALUATED, EvaluationSettings, RunSettings, load_run_settings
from jaxrl.settings.records import CUT
from jaxrl.tools.report.events import read_folder
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.errors import DivergedError
from jaxrl.training.saver import Snapshot
from jaxrl.types import JaxrlError
from tests.event_files import read_events
from tests.helpers import settings_of

ROOT = Path(__file__).parents[2]
NAME = "SimpleSpread"
REWARD = EVALUATED[0]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def settings(folder: Path, **options: Any) -> RunSettings:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {NAME: {"trainer_type": "ppo"}}}))
    options = {"results_dir": str(folder / "results"), "run_id": "run", **options}
    return load_run_settings(path, {"checkpoint_settings": options}, HYPERPARAMETER_TYPES)


def recorder(folder: Path, *, seeds: tuple[int, ...] = (1, 2), **options: Any) -> JittedRecorder:
    run = settings(folder, **options)
    subject = Subject(NAME, make_environment("jax:simple_spread").spec, run.behaviors[NAME], seeds, 4)
    return JittedRecorder(run, RunFolder(folder / "results", "run"), subject, ProgressBar(Console(file=io.StringIO())))


def block(path: Path) -> None:
    """Nothing can be written to `path` any more, whoever tries: a folder is in its place."""
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def test_an_error_is_not_hidden_by_what_cannot_be_written_afterwards(tmp_path: Path, log: Any) -> None:
    with pytest.raises(JaxrlError, match="the environment gave up"), recorder(tmp_path) as files:
        files.begin(0)
        block(files.folder.timers)
        raise JaxrlError("the environment gave up")
    assert "timers.json: cannot be written" in log.text
    assert files.folder.status.is_file()


def test_a_full_disk_is_told_once(tmp_path: Path, log: Any) -> None:
    with pytest.raises(ArtifactError, match="no space"), recorder(tmp_path) as files:
        files.begin(0)
        block(files.folder.timers)
        raise ArtifactError("no space left for a checkpoint")
    assert "cannot be written" not in log.text


def test_every_file_is_attempted_and_the_first_error_raised(tmp_path: Path, log: Any) -> None:
    files = recorder(tmp_path)
    with pytest.raises(ArtifactError, match=r"timers\.json"), files:
        files.begin(0)
        block(files.folder.timers)
        files.folder.configuration.unlink()
    assert files.folder.configuration.is_file() and files.folder.status.is_file()


def snapshot(files: JittedRecorder, step: int, value: float = 0.5) -> Snapshot:
    """A tiny policy, and contents that are too large for the limit below."""
    tiny = {"hyperparameters": {}, "network_settings": {"hidden_units": 4, "num_layers": 1}}
    behavior, spec = settings_of("ppo", tiny), files.subject.spec
    train = make_ppo(spec, behavior).init(jax.random.key(0))
    noise = np.random.default_rng(step).normal(size=100_000) * value
    mask = np.ones((2, spec.action.mask_size), bool)
    obs = tuple(np.zeros((2, *sensor.shape), np.float32) for sensor in spec.observations)
    described = {"seeds": 2}
    return Snapshot(NAME, step, {"a": noise}, train.policy, noise, spec, behavior, described, (obs, mask))


def save(files: JittedRecorder, step: int, *, final: bool = False) -> None:
    """A checkpoint, and the wait for it that the next one would bring."""
    files.checkpoints.save(NAME, step, partial(snapshot, files, step), 1.0, final=final)
    files.checkpoints.save(NAME, step, lambda: pytest.fail("it is saved"), 1.0)


def test_what_is_saved_is_the_moment_of_the_call(tmp_path: Path) -> None:
    """The loop overwrites its arrays while they are written."""
    with recorder(tmp_path) as files:
        files.begin(0)
        kept, slow = snapshot(files, 1), threading.Event()
        handed = kept._replace(contents={"a": kept.contents["a"].copy()})
        files.checkpoints.writer.begin("slow disk", lambda: slow.wait(60) and None)  # the next one waits for its turn
        files.checkpoints.save(NAME, 1, lambda: handed, 1.0)
        handed.contents["a"][:] = 7.0
        handed.samples[0][0][:] = np.nan  # would fail the comparison of the exported policy
        slow.set()
    path = require_latest(files.folder.behavior(NAME))
    np.testing.assert_array_equal(restore(path, kept.contents)["a"], kept.contents["a"])
    assert files.timers.root.children["write_checkpoint"].total > 0.0


def test_a_summary_stays_as_it_was_handed_to_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that work in threads read it later; what the console is told besides stands in a mapping of its own."""
    with recorder(tmp_path, seeds=(1,)) as files:
        files.begin(0)
        handed: list[dict[str, Any]] = []
        monkeypatch.setattr(files.files, "summaries", lambda name, step, taken: handed.extend(taken))
        files.write_summary(NAME, 7, training=True)
    assert handed == [{}]


def test_minutes_are_counted_from_the_last_checkpoint(tmp_path: Path) -> None:
    with recorder(tmp_path, checkpoint_minutes=0.3 / 60) as files:
        files.begin(0)
        assert not files.checkpoints.are_old(NAME)
        time.sleep(0.35)
        assert files.checkpoints.are_old(NAME)
        save(files, 1)
        files.checkpoints.save(NAME, 2, partial(snapshot, files, 2), 1.0)
        assert not files.checkpoints.are_old(NAME)
    with recorder(tmp_path, force=True) as files:
        files.begin(0)
        assert not files.checkpoints.are_old(NAME)


def test_numbers_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    with recorder(tmp_path) as files:
        files.begin(0)
        save(files, 1)
        with pytest.raises(DivergedError, match="not finite at step 2"):
            files.checkpoints.save(NAME, 2, partial(snapshot, files, 2, np.nan), 1.0)
    assert require_latest(files.folder.behavior(NAME)).name == f"{NAME}-1"


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_run_that_normalizes_is_not_told_to(normalizes: bool) -> None:
    settings = settings_of("ppo", {"network_settings": {"normalize": normalizes}})
    text = str(DivergedError(NAME, "value loss is nan", settings))
    rate = settings.hyperparameters.learning_rate
    assert f"Lower hyperparameters.learning_rate (now {rate:g}), or " in text and "large rewards" in text
    assert ("set network_settings.normalize: true" in text) is not normalizes


class Summaries:
    """Statistics of two seeds in which something has always happened."""

    group_rewards = False
    of_seeds: Sequence[dict[str, Summary]] = ({ENTROPY: Summary.of(1.0)},) * 2

    def take(self) -> list[dict[str, Summary]]:
        return list(self.of_seeds)

    def mean_reward(self) -> float | None:
        return None

    def result_line(self, name: str) -> str | None:
        return None


def test_what_is_for_the_console_alone_is_in_no_file(tmp_path: Path) -> None:
    """Names that an environment may use as well."""
    with recorder(tmp_path, seeds=(1,)) as files:
        files.begin(0)
        taken = Summaries().take()[0] | dict.fromkeys(INTERNAL, Summary.of(1.0))
        files.files.summaries(NAME, 7, [taken])
    table = (files.folder.behavior(NAME) / "metrics.csv").read_text()
    assert ",Policy/Entropy," in table and not any(f",{tag}," in table for tag in INTERNAL)


def test_finished_episodes_and_speed_are_curves(tmp_path: Path) -> None:
    """Of each seed its own episodes, 3 of one and none of the other; 100 steps in 4 s; nothing of a frozen seed."""
    episodes = Summary(value=2.0, mean=2.0, std=0.0, sum=6.0, count=3, histogram=None)
    summaries = {ENTROPY: Summary.of(1.0)}
    with recorder(tmp_path) as files:
        files.begin(1000)
        track = files._tracks[NAME]
        assert track.summed_up[0] == 1000
        track.statistics = Summaries()
        track.statistics.of_seeds = [summaries | {CUMULATIVE_REWARD: episodes}, summaries]
        track.summed_up = 1000, time.monotonic() - 4.0
        files.write_summary(NAME, 1100, training=True)
        assert track.summed_up[0] == 1100
        assert track.with_pace(1200, [{}, summaries])[0] == {}
        assert STEPS_PER_SECOND not in track.with_pace(1200, [summaries])[0]
    for seed, count in (("seed_1", 3.0), ("seed_2", 0.0)):
        curves = read_folder(files.folder.behavior(NAME) / seed).curves
        assert curves[FINISHED_EPISODES].value.tolist() == [count]
        assert curves[STEPS_PER_SECOND].value.tolist() == [pytest.approx(25.0, rel=0.2)]


def test_names_that_are_the_trainers_are_said_once(tmp_path: Path, log: Any) -> None:
    files = recorder(tmp_path)
    for _ in range(2):
        files.notice_moved_names([scene_tag(name) for name in ("Step", "Environment/Goals", "Scene/Mine", "Losses/x")])
    named = [line for line in log.text.splitlines() if "sends a statistic named" in line]
    assert ["'Step'" in line and "'Scene/Step'" in line for line in named] == [True, False]
    assert "'Losses/x'" in named[1]


def test_evaluation_episodes_that_are_cut_are_named_once(tmp_path: Path, log: Any) -> None:
    with recorder(tmp_path, seeds=(1,)) as files:
        options = EvaluationSettings(interval=10, episodes=16, max_length=200)
        files.subject = files.subject._replace(settings=settings_of("ppo", {"evaluation": options}))
        files.begin(0)
        for cut in (0.0, 3.0, 4.0):
            files.write_evaluation(NAME, 7, [{REWARD: Summary.of(0.5), CUT: Summary.of(cut)}])
    (said,) = [line for line in log.text.splitlines() if "evaluation.max_length" in line]
    assert f"{NAME}: of 16 evaluation episodes 3 were not over after 200 steps (evaluation.max_length)" in said
    table = (files.folder.behavior(NAME) / "metrics.csv").read_text()
    assert [line.rpartition(",")[2] for line in table.splitlines() if CUT in line] == ["0.0", "3.0", "4.0"]


FULL = """
import logging, resource, sys
from pathlib import Path
from jaxrl.types import JaxrlError
from tests.training import test_recorder as here

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s", force=True)
logging.getLogger("jaxrl").propagate = True
logging.getLogger("jaxrl").setLevel(logging.INFO)

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

try:
    with here.recorder(Path(sys.argv[1])) as files:
        files.begin(0)
        files._tracks[here.NAME].statistics = here.Summaries()
        here.save(files, 1)
        files.write_summary(here.NAME, 1, training=True)
        room(50)
        for step in (2, 3):
            files.write_summary(here.NAME, step, training=True)
            files.checkpoints.save(here.NAME, step, here.partial(here.snapshot, files, step), 1.0)
        files.checkpoints.settle(here.NAME)
        room(resource.RLIM_INFINITY)
        files.write_summary(here.NAME, 4, training=True)
        here.save(files, 4)
        room(50 if sys.argv[2] == "full" else resource.RLIM_INFINITY)
        here.save(files, 5, final=True)
        room(resource.RLIM_INFINITY)
except JaxrlError as error:
    print("RAISED", error)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs setrlimit")
@pytest.mark.parametrize("end", ["room", "full"])
def test_a_run_goes_on_without_what_a_full_disk_cannot_take(tmp_path: Path, end: str) -> None:
    """Told once of each kind; written again when there is room; only the final save is an error."""
    command = [sys.executable, "-c", FULL, str(tmp_path), end]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert result.returncode == 0, result.stderr
    lines = [line.replace(str(tmp_path), "") for line in result.stdout.splitlines()]
    errors = [line for line in lines if line.startswith("ERROR")]
    assert len(errors) == 2, lines
    assert "tfevents" in errors[0] and "goes on without this summary" in errors[0]
    assert f"{NAME}-2: the checkpoint cannot be written" in errors[1] and f"{NAME}-1, is intact" in errors[1]
    assert "goes on without this checkpoint and tries again with the next one" in errors[1]
    again = [line for line in lines if "written again" in line]
    assert again == [
        f"INFO A {kind} could be written again; 2 before it could not." for kind in ("summary", "checkpoint")
    ]
    raised = [line for line in lines if line.startswith("RAISED")]
    folder = tmp_path / "results" / "run" / NAME
    steps = [found.step for found in checkpoints(folder)]
    if end == "room":
        assert steps == [1, 4, 5] and not raised
    else:
        assert steps == [1, 4]
        assert f"{NAME}-5: the checkpoint cannot be written" in raised[0] and "Then continue with --resume" in raised[0]
    assert require_latest(folder).name == f"{NAME}-{steps[-1]}"
    assert not [path for path in folder.iterdir() if path.name.endswith((".partial", ".tmp"))]
    for seed in ("seed_1", "seed_2"):
        events = read_events(next((folder / seed).glob("events.*")))
        assert list(dict.fromkeys(event.step for event in events if event.summary.value)) == [0, 1, 4]
        lines = (folder / seed / "metrics.csv").read_text().splitlines()
        assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == ["step", "1", "4"]


def test_an_evaluation_writes_nothing(tmp_path: Path, log: Any) -> None:
    with recorder(tmp_path) as files:
        files.begin(0)
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}
    log.clear()
    with recorder(tmp_path, resume=True, inference=True) as files:
        files.begin(0)
        files.write_summary(NAME, 500, training=False)
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()} == before
    assert "only evaluates it" in log.text and f"{NAME} (2 seeds). Step: 500." in log.text


def test_a_run_whose_folder_is_deleted_goes_on_in_a_new_one(tmp_path: Path, log: Any) -> None:
    """Said once; checkpoints, events, tables and configuration are written anew, also of a moment already saved."""
    folder = RunFolder(tmp_path / "results", "run")
    with folder.claimed(settings(tmp_path).checkpoint_settings), recorder(tmp_path) as files:
        files.begin(0)
        files._tracks[NAME].statistics = Summaries()
        files.write_summary(NAME, 1, training=True)
        save(files, 1)
        folder.path.rename(tmp_path / "deleted")  # at once: the lock is watched by a thread that makes the folder anew
        shutil.rmtree(tmp_path / "deleted")
        files.write_summary(NAME, 2, training=True)
        assert folder.configuration.exists() and (folder.logs / "manifest.json").exists(), "also if it is killed now"
        files.checkpoints.save(NAME, 1, partial(snapshot, files, 1), 1.0, final=True)
        files.write_summary(NAME, 3, training=True)
    assert log.text.count("was deleted while the run goes on") == 1 and "cannot be written" not in log.text
    assert [found.step for found in checkpoints(folder.behavior(NAME))] == [1] and folder.status.exists()
    for seed in ("seed_1", "seed_2"):
        events = read_events(next((folder.behavior(NAME) / seed).glob("events.*")))
        assert list(dict.fromkeys(event.step for event in events if event.summary.value)) == [2, 3]
        lines = (folder.behavior(NAME) / seed / "metrics.csv").read_text().splitlines()
        assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == ["step", "2", "3"]


def test_nothing_is_written_into_a_deleted_folder_that_another_run_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LOOK_SECONDS", 60.0)  # whoever is faster: here the other one
    folder = RunFolder(tmp_path / "results", "run")
    script = "import sys; from pathlib import Path; from jaxrl.artifacts.lock import RunLock\n"
    script += "with RunLock(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    command, options = [sys.executable, "-c", script, str(folder.path)], settings(tmp_path).checkpoint_settings
    with pytest.raises(RunLockedError), folder.claimed(options), recorder(tmp_path) as files:
        files.begin(0)
        files._tracks[NAME].statistics = Summaries()
        shutil.rmtree(folder.path)
        other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        files.write_summary(NAME, 2, training=True)
    assert [path.name for path in folder.path.iterdir()] == ["run.lock"]
    other.communicate(b"", timeout=60)
