"""Exact resume: a run that is stopped at a checkpoint and resumed equals the one that was never stopped, bit for bit.

The stop is that of kill -9 right after a checkpoint: everything later is taken out of a copy of the run's folder.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints, point_at, remove
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import read
from jaxrl.cli import main
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.host import behaviors, learner
from jaxrl.training.host.exact import environment_seeds, moment_of_run
from jaxrl.training.host.learner import compile_ahead
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.run import train
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import EnvMessage
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.trainer import config

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(400)]
WORKERS = 2
TOY = ToySettings(deaths=0.1, skips=0.2, interrupted_every=3, living_reward=0.5, group_reward=1.0, stats=True)
BEHAVIOR = {
    "trainer_type": "poca",
    "hyperparameters": {"batch_size": 16, "buffer_size": 48, "num_epoch": 1, "learning_rate_schedule": "constant"},
    "network_settings": {"hidden_units": 4, "num_layers": 1, "normalize": True},
    "summary_freq": 50,
    "checkpoint_interval": 150,
    "keep_checkpoints": 0,
    "max_steps": 400,
}


class TeamToy(ToyEnv):
    """Whose areas have one team of all behaviors: nobody dies, so that they begin and end together."""

    def _result(self, ended: Mapping[str, list[tuple]]) -> EnvMessage:
        for first, *others in zip(*self._areas.values(), strict=True):
            for area in others:
                area.group_id = first.group_id
        return super()._result(ended)


def make_toy(settings: ToySettings, make: type[ToyEnv], worker: int) -> ToyEnv:
    return make(worker, settings)


@contextlib.contextmanager
def environment(toy: ToySettings, make: type[ToyEnv] = ToyEnv) -> Iterator[tuple[Interrupt, EnvPool]]:
    factory = partial(make_toy, toy, make)
    with Interrupt() as interrupt, EnvPool(factory, WORKERS, inline=True, wait=False) as pool:
        yield interrupt, pool


def run(
    results: Path,
    *,
    resume: bool = False,
    exact: bool = True,
    toy: ToySettings = TOY,
    changes: Any = None,
    parameters: Any = None,
    make: type[ToyEnv] = ToyEnv,
) -> Path:
    """Train in this process; the run's folder. `changes` are keys of every behavior, `parameters` the environment's."""
    names = [behavior.partition("?")[0] for behavior in toy.behaviors]
    written: dict[str, Any] = {
        "behaviors": {name: BEHAVIOR | {"max_steps": 400 + 60 * i} | (changes or {}) for i, name in enumerate(names)},
        "env_settings": {"seed": 3, "num_envs": WORKERS, "env_path": "jax:toy"},
        "checkpoint_settings": {"run_id": "run", "results_dir": str(results), "exact": exact, "resume": resume},
        "environment_parameters": parameters,
    }
    enable_compilation_cache()  # of the session: the resumed run compiles nothing
    results.mkdir(exist_ok=True)
    (results / "run.yaml").write_text(yaml.safe_dump(written))
    with environment(toy, make) as started:
        train(settings_of(results / "run.yaml"), started=started)
    return results / "run"


def settings_of(path: Path) -> RunSettings:
    settings = load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    several = settings.env_settings.model_copy(update={"num_envs": WORKERS})
    return settings.model_copy(update={"env_settings": several})


def stopped(whole: Path, results: Path, keep: int, more: Mapping[str, int] | None = None) -> Path:
    """A copy of the run as it was after its first `keep` checkpoints, and `more` of some behaviors."""
    shutil.copytree(whole.parent, results)
    for folder in (path for path in (results / "run").glob("*/") if checkpoints(path)):
        *_, last = kept = checkpoints(folder)[: keep + (more or {}).get(folder.name, 0)]
        for item in checkpoints(folder)[len(kept) :]:
            remove(item)
        point_at(last.path, last.step)
    return results / "run"


def diff(first: Path, second: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    main(["diff", str(first), str(second)])
    return capsys.readouterr().out.splitlines()


EQUAL = ["settings: equal", "versions: equal", "statistics: equal", "parameters: equal"]
TWO = replace(TOY, behaviors=("Toy?team=0", "Other?team=0"), group_reward=0.0)


@pytest.mark.usefixtures("traced_once")
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, capsys):
    whole = run(tmp_path / "whole")
    steps = [item.step for item in checkpoints(whole / "Toy")]
    assert len(steps) >= 3 and steps[0] > 150  # after the update that follows the interval
    again = stopped(whole, tmp_path / "stopped", 1)
    assert diff(whole, again, capsys)[3] != EQUAL[3]
    run(tmp_path / "stopped", resume=True)
    assert diff(whole, again, capsys) == EQUAL


def lesson(threshold: float) -> dict[str, Any]:
    criteria = {"measure": "progress", "behavior": "Other", "threshold": threshold, "min_lesson_length": 1}
    return {"name": f"to {threshold}", "value": threshold, "completion_criteria": criteria}


def test_behaviors_go_on_from_one_moment_after_a_kill_between_their_checkpoints(tmp_path, capsys, caplog, monkeypatch):
    """Both are saved together, whoever's interval it was: one has its newest, the other not yet, as a kill leaves them.

    The status tells of later lessons than those of that moment. Both have the same observations and settings, and so
    one set of programs, and one compiled update.
    """
    made, compiled = [], []
    monkeypatch.setattr(behaviors, "compile_programs", lambda *of: made.append(of) or compile_programs(*of))
    monkeypatch.setattr(learner, "compile_ahead", lambda *of: compiled.append(of) or compile_ahead(*of))
    lessons = {"unknown": {"curriculum": [*map(lesson, (0.4, 0.6, 0.8)), {"name": "last", "value": 1.0}]}}
    arguments = {"toy": TWO, "changes": {"trainer_type": "ppo", "max_steps": 400}, "parameters": lessons}
    whole = run(tmp_path / "whole", **arguments)
    assert len(checkpoints(whole / "Toy")) == len(checkpoints(whole / "Other")) >= 4
    assert (len(made), len(compiled)) == (1, 1)
    again = stopped(whole, tmp_path / "stopped", 2, {"Toy": 1})
    folder = RunFolder(again.parent, "run")
    moment = moment_of_run(folder)
    assert moment.steps == {name: checkpoints(whole / name)[1].step for name in ("Toy", "Other")}, "the newest of both"
    noted = moment.lessons or {}
    lesson_then = noted["parameters"]["unknown"]["lesson_num"]
    assert lesson_then < read(folder.status)["unknown"]["lesson_num"]
    run(tmp_path / "stopped", resume=True, **arguments)
    assert diff(whole, again, capsys) == EQUAL
    assert any("of a later moment" in text for text in caplog.messages)
    for name, kept in (("Toy", 0), ("Other", 1)):
        for item in checkpoints(again / name):
            if item != checkpoints(whole / name)[kept]._replace(path=item.path):
                remove(item)
    with pytest.raises(CheckpointError, match="are of different moments, and none is left"):
        moment_of_run(folder)


def test_lessons_go_on_exactly_from_a_run_that_was_not(tmp_path, caplog):
    """Its checkpoints note no lessons: those of the status are gone on from."""
    ends = {"measure": "progress", "behavior": "Toy", "threshold": 0.1, "min_lesson_length": 1}
    first = {"name": "first", "value": 0.0, "completion_criteria": ends}
    lessons = {"unknown": {"curriculum": [first, {"name": "last", "value": 1.0}]}}
    arguments = {"changes": {"max_steps": 100, "trainer_type": "ppo"}, "parameters": lessons}
    with caplog.at_level("INFO", "jaxrl"):
        begun = run(tmp_path / "run", exact=False, **arguments)
        assert moment_of_run(RunFolder(begun.parent, "run")).lessons is None
        assert sum("lesson 'last' begins" in text for text in caplog.messages) == 1
        caplog.clear()
        run(tmp_path / "run", resume=True, **arguments | {"changes": {"max_steps": 160, "trainer_type": "ppo"}})
    assert any("lesson 'last' (2 of 2)" in text for text in caplog.messages)
    assert not any("begins" in text for text in caplog.messages)


@pytest.mark.slow
def test_without_it_the_resumed_run_is_another(tmp_path, capsys):
    whole = run(tmp_path / "whole", exact=False)
    again = stopped(whole, tmp_path / "stopped", 1)
    run(tmp_path / "stopped", resume=True, exact=False)
    assert diff(whole, again, capsys)[3] != EQUAL[3]


def test_seeds_depend_on_run_worker_and_every_step(tmp_path):
    seeds = environment_seeds(3, {"A": 100, "B": 200}, 2)
    assert seeds == environment_seeds(3, {"B": 200, "A": 100}, 3)[:2]
    others = [
        environment_seeds(4, {"A": 100, "B": 200}, 2),
        environment_seeds(3, {"A": 100, "B": 201}, 2),
        environment_seeds(3, {"A": 100}, 2),
        environment_seeds(3, {}, 2),
    ]
    every = [seed for drawn in (seeds, *others) for seed in drawn]
    assert len(set(every)) == len(every) and all(0 <= seed < 2**31 for seed in every)
    assert moment_of_run(RunFolder(tmp_path, "none")).steps == {}


def test_players_of_unity_are_refused(tmp_path, capsys):
    assert main(["train", str(config(tmp_path)), "--exact", "--results-dir", str(tmp_path / "results")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("checkpoint_settings.exact: got true, expected false with env_path ")
    assert len(error.splitlines()) == 1 and not (tmp_path / "results").exists()
    with pytest.raises(EnvironmentFailure, match="a seed at its start alone"):
        UnityHostEnv.reset(None, None, 5)  # type: ignore[arg-type]  # before anything of the player is touched
