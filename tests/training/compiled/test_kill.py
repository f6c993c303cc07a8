"""`kill -9` of a real training run at random moments: nothing older is lost, and the end is that of a quiet run.

Once, at one moment, `test_jitted_run.py::test_no_interruption_shows` asserts all of it in the fast tests.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.artifacts.checkpoint.document import verify
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.artifacts.checkpoint.store import read_info
from tests.jitted_command import Command
from tests.training.compiled.arrays import arrays_of

NAME = "SimpleSpread"
FLAGS = ("--env", "jax:simple_spread")
MAX_STEPS, KILLS = 12_000, 8
SETTINGS = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 256, "num_epoch": 1},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
            "max_steps": MAX_STEPS, "checkpoint_interval": 500, "summary_freq": 1000, "keep_checkpoints": 3,
        }
    },
    "env_settings": {"num_areas": 4, "seed": 5},
}  # fmt: skip
MINUTES = ("--checkpoint-minutes", "0.001")  # after every chunk of iterations
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kill")
    (path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    return path


@pytest.fixture(scope="module")
def quiet(folder: Path) -> Path:
    """The behavior's folder of a run that nobody disturbed."""
    command = Command(folder, "quiet", *FLAGS)
    assert command.ends() == 0, command.output
    return folder / "results" / "quiet" / NAME


def killed(command: Command, delay: float) -> None:
    """`kill -9` so many seconds after the run has saved for the first time, or said where it goes on from."""
    try:
        command.says("Exported")
        time.sleep(delay)
    finally:
        command.process.kill()
        command.process.wait(10)


def assert_only_whole(behavior: Path, last: int) -> int:
    """The step that a run is continued from, which is not before `last`; nothing looks whole that is not."""
    for found in checkpoints(behavior):
        verify(found.path)
    step = read_info(require_latest(behavior)).step
    assert step >= last
    return step


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_never_was(
    folder: Path, quiet: Path, caplog: Any
) -> None:
    run_id, draw, last = "killed", random.Random(KILLS), 0
    behavior = folder / "results" / run_id / NAME
    codes = []
    for attempt in range(KILLS):
        command = Command(folder, run_id, *FLAGS, *MINUTES, *(["--resume"] if attempt else []))
        killed(command, draw.uniform(0.0, 0.6))
        codes.append(command.process.returncode)
        assert "Traceback" not in command.output
        last = assert_only_whole(behavior, last)
    assert codes[0] == -9  # in the middle of it
    command = Command(folder, run_id, *FLAGS, *MINUTES, "--resume")
    assert command.ends() == 0 and "Traceback" not in command.output, command.output
    assert_only_whole(behavior, MAX_STEPS)
    assert not [path for path in behavior.parent.rglob("*") if path.suffix in (".partial", ".tmp", ".old")]
    assert not caplog.records
    found, expected = (arrays_of(require_latest(path)) for path in (behavior, quiet))
    assert found.keys() == expected.keys() and len(found) > 20
    assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []
