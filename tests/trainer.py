"""Whole training runs: a tiny configuration, a real player, and the trainer here or in a process of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.cli import main
from jaxrl.settings import BehaviorSettings, load_run_settings
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.saver import Saved
from jaxrl.types import BehaviorSpec
from tests.envs.countdown_player import SPEC
from tests.envs.processes import comes_true

ROOT = Path(__file__).parents[1]
ENVS = ROOT / "tests" / "envs"
BEHAVIOR = "Countdown"
ENDLESS = 100_000_000
MARKS = [
    pytest.mark.usefixtures("runs"),
    pytest.mark.timeout(400),  # the first run of a session compiles
    pytest.mark.skipif(os.name == "nt", reason="players here are shell scripts, and signals those of POSIX"),
]
TRACED_ONCE = pytest.mark.usefixtures("traced_once")
PLAYER, WORKER = "_player.py", "spawn_main"  # words of their command lines
AWKWARD = "My Games (old) é " + "long" * 20
"""A folder as people have them: spaces, brackets, no ASCII, and long."""
QUICK = {"*.trainer_type": "ppo"}
"""For tests of processes, to whom it is one what is learned: programs of half the size."""
OF_THE_LOOP = {"max_steps", "summary_freq", "checkpoint_interval", "keep_checkpoints"}
"""Settings that no program reads, where no schedule is linear."""
_MARK = "JAXRL_TEST_RUN"
_SETTINGS = {
    "behaviors": {
        BEHAVIOR: {
            "trainer_type": "poca",
            # constant: a schedule has max_steps in it, and runs of different lengths would compile different programs
            "hyperparameters": {
                "batch_size": 64, "buffer_size": 256, "learning_rate": 0.001, "learning_rate_schedule": "constant",
                "num_epoch": 2,
            },
            "network_settings": {"normalize": True, "hidden_units": 16, "num_layers": 1},
            "keep_checkpoints": 3, "checkpoint_interval": 500, "max_steps": 1200, "summary_freq": 300,
        }
    },
    "env_settings": {"num_areas": 4, "seed": 1},
}  # fmt: skip


def player(folder: Path, script: str = "countdown_player.py", arguments: str = "") -> Path:
    """An executable that runs one of the players in tests/envs."""
    path = folder / f"{Path(script).stem}.x86_64"
    words = [sys.executable, str(ENVS / script), *shlex.split(arguments)]
    if script != "scripted_player.py":  # a loaded machine may compile for longer than the script's own patience
        words += ["--answer-seconds", "600", "--connect-seconds", "100"]
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(ROOT))}\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return path


def config(folder: Path, changes: Mapping[str, Any] | None = None, behavior: str = BEHAVIOR) -> Path:
    """The tiny configuration with its player; `changes` are keys joined by dots, `*` stands for the behavior."""
    settings = yaml.safe_load(yaml.safe_dump(_SETTINGS))
    settings["behaviors"][behavior] = settings["behaviors"].pop(BEHAVIOR)
    changes = {"env_settings.env_path": str(player(folder)), **(changes or {})}
    for key, value in changes.items():
        *path, last = key.replace("*", f"behaviors.{behavior}").split(".")
        section = settings
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    path = folder / f"{uuid.uuid4().hex[:8]}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def free_ports(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody uses. Below the range that systems hand out to connections."""
    base = 10000 + 10 * (uuid.uuid4().int % 2000)
    with contextlib.ExitStack() as stack:
        try:
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("localhost", port))
        except OSError:
            return free_ports(count)
    return base


def arguments(configuration: Path, results: Path, *more: str, run_id: str = "run") -> list[str]:
    """The command line of a run on free ports."""
    ports = ["--base-port", str(free_ports(2))]
    return ["train", str(configuration), "--run-id", run_id, "--results-dir", str(results), *ports, *more]


def train(configuration: Path, results: Path, *more: str, run_id: str = "run") -> int:
    """Train in this process (the environments have their own); the exit code."""
    return main(arguments(configuration, results, *more, run_id=run_id))


def final_state(results: Path, run_id: str = "run") -> dict[str, np.ndarray]:
    """Every leaf of the last checkpoint: parameters, optimiser, normaliser, step, keys and the decision counter."""
    configuration = results / run_id / "configuration.yaml"
    path = require_latest(results / run_id / BEHAVIOR)
    return to_arrays(checkpoint.restore(path, template(configuration, BEHAVIOR, SPEC)))


def template(configuration: Path, behavior: str, spec: BehaviorSpec) -> Saved:
    """What a checkpoint of the behavior looks like."""
    settings = load_run_settings(configuration, {}, HYPERPARAMETER_TYPES).behaviors[behavior]
    algorithm = ALGORITHMS[settings.trainer_type](spec, settings)
    fresh, _, _ = compile_programs(algorithm, settings.time_horizon).learner.start(algorithm, jax.random.key(0))
    return Saved(train=fresh, step=np.int64(0), decisions=np.int64(0))


def differing(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> list[str]:
    """Leaves that are not equal bit for bit."""
    assert first.keys() == second.keys()
    return [name for name in first if first[name].tobytes() != second[name].tobytes()]


def steps(results: Path, run_id: str = "run") -> list[int]:
    """Steps of the checkpoints on disk, in order."""
    return [found.step for found in checkpoints(results / run_id / BEHAVIOR)]


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the players' logs."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("Player-")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Trainer:
    """A trainer in a process group of its own, and everything that it starts."""

    def __init__(self, words: list[str], output: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._output = output
        output.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, _MARK: self._mark, "PYTHONPATH": str(ROOT)}
        with (output / "stdout").open("w") as out, (output / "stderr").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jaxrl.cli", *words],
                stdout=out, stderr=err, env=environment, start_new_session=True, cwd=output,
            )  # fmt: skip

    @property
    def stdout(self) -> str:
        return (self._output / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self._output / "stderr").read_text()

    def living(self, word: str = "") -> list[psutil.Process]:
        """Processes of this run, also adopted ones, whose command line contains `word`."""
        return [process for process in psutil.process_iter() if self._is_ours(process, word)]

    def one(self, word: str) -> psutil.Process:
        """The process of this run with `word` in its command line, as soon as it is there."""
        assert comes_true(lambda: bool(self.living(word)), 60), f"no {word} was started; {self.stdout}\n{self.stderr}"
        return self.living(word)[0]

    def says(self, text: str, seconds: float = 200.0) -> None:
        """Wait until `text` is on standard output."""
        comes_true(lambda: text in self.stdout or self.process.poll() is not None, seconds)
        assert text in self.stdout, f"{self.stdout}\n{self.stderr}"

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def leaves_nothing(self, seconds: float = 5.0) -> bool:
        """Whether all processes of the run are gone in time."""
        return comes_true(lambda: not self.living(), seconds)

    def clean_up(self) -> None:
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)

    def _is_ours(self, process: psutil.Process, word: str) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark and word in " ".join(process.cmdline())
        except psutil.Error:
            return False


@pytest.fixture(scope="session")
def cache() -> Path:
    """One folder of compiled programs for all runs of the session: that of this process of tests."""
    return Path(jax.config.jax_compilation_cache_dir).parent  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="module")
def runs(cache: Path) -> Iterator[None]:
    """Runs of this module share their programs; what they change of the logger is as before afterwards."""
    logger = logging.getLogger("jaxrl")
    logging_before = logger.handlers[:], logger.level, logger.propagate
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXRL_CACHE_DIR", str(cache))
        yield
    logger.handlers[:], logger.level, logger.propagate = logging_before


@pytest.fixture(scope="module")
def traced() -> dict[Any, Any]:
    """Programs of runs of this module, by what they depend on."""
    return {}


@pytest.fixture
def traced_once(traced: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of like settings, here in this process, trace, lower and load their programs once in a module.

    That takes three times as long as such a run itself. For tests that compare runs, not how programs are made.
    """
    made = Behaviors._alike

    def alike(self: Behaviors, spec: BehaviorSpec, settings: BehaviorSettings) -> Any:
        hyperparameters = settings.hyperparameters.model_dump()
        linear = any(key.endswith("_schedule") and value == "linear" for key, value in hyperparameters.items())
        key = spec, settings.model_dump_json(exclude=None if linear else OF_THE_LOOP), self._training
        if key not in traced:
            traced[key] = made(self, spec, settings)
        return traced[key]

    monkeypatch.setattr(Behaviors, "_alike", alike)


@pytest.fixture
def start(runs: None, tmp_path: Path) -> Iterator[Any]:
    """Starts trainers: `start(configuration, *flags)`; afterwards nothing of them is left. `command`: or learn."""
    trainers: list[Trainer] = []

    def begin(configuration: Path, *more: str, run_id: str = "run", command: str = "train") -> Trainer:
        words = arguments(configuration, tmp_path / "results", *more, run_id=run_id)
        trainers.append(Trainer([command, *words[1:]], tmp_path / f"output{len(trainers)}"))
        return trainers[-1]

    yield begin
    for trainer in trainers:
        trainer.clean_up()
