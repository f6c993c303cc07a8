"""The recorder's end: every file is attempted, and the first error is the one that is told. Faults are real ones."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import make_environment
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.saver import Subject
from jaxrl.types import JaxrlError

NAME = "SimpleSpread"


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


def recorder(folder: Path, **options: Any) -> CompiledRecorder:
    run = settings(folder, **options)
    subject = Subject(NAME, make_environment("jax:simple_spread").spec, run.behaviors[NAME], (1, 2), 4)
    return CompiledRecorder(
        run, RunFolder(folder / "results", "run"), subject, ProgressBar(Console(file=io.StringIO()))
    )


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


def test_an_evaluation_writes_nothing(tmp_path: Path, log: Any) -> None:
    with recorder(tmp_path) as files:
        files.begin(0)
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}
    log.clear()
    with recorder(tmp_path, resume=True, inference=True) as files:
        files.begin(0)
        files.summary(500)
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()} == before
    assert "only evaluates it" in log.text and f"{NAME} (2 seeds). Step: 500." in log.text
