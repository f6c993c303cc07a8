"""Lessons of whole runs: when they advance, what reaches a real player, and what a resumed run goes on with."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxrl import Callbacks, Episode
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints, point_at, remove
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs.parameters import Draws
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.host.curricula import Curricula
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.run import train
from jaxrl.types import EnvMessage, ParameterValue
from tests import trainer
from tests.artifacts.test_csv_file import rows
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.toy_runs import configured, environment

pytestmark = trainer.MARKS
AREAS = 4
UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 1.5}}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


@pytest.fixture(autouse=True)
def cached(runs: None) -> None:
    """The programs of other tests' runs are taken from the cache, as on the command line."""
    enable_compilation_cache()


class Paid(Callbacks):
    """Of each episode that ends, in order: what its second member earned per decision, and whether it was cut."""

    def __init__(self) -> None:
        self.episodes: list[tuple[float, int, bool]] = []

    def on_episode_end(self, episode: Episode) -> None:
        self.episodes.append((episode.agents[1].own_return, episode.length, episode.truncated))

    @property
    def bonuses(self) -> list[float]:
        """What each whole episode of four steps paid beside 1."""
        return [total / 4 - 1 for total, length, _ in self.episodes if length == 4]


def countdown(folder: Path, *, resume: bool = False, max_steps: int = 480, **more: Any) -> RunSettings:
    """20 agents' episodes that pay more than 3; then, with the next quarter of the run, a sampler; then 3."""
    criteria = {"behavior": trainer.BEHAVIOR, "min_lesson_length": 20, "threshold": 3.0}
    quarter = {"behavior": trainer.BEHAVIOR, "measure": "progress", "threshold": 0.75, "require_reset": True}
    lessons = [
        {"name": "Nothing", "value": 0.0, "completion_criteria": criteria},
        {"name": "Drawn", "value": UNIFORM, "completion_criteria": quarter},
        {"name": "Three", "value": 3.0},
    ]
    changes = {
        "environment_parameters": {"bonus": {"curriculum": lessons}, "unknown": 7.0},
        "*.max_steps": max_steps, "*.summary_freq": 120, "*.checkpoint_interval": 10_000,
        "checkpoint_settings": {"run_id": "run", "results_dir": str(folder / "results"), "resume": resume} | more,
        "env_settings.base_port": trainer.free_ports(2),
    }  # fmt: skip
    return load_run_settings(trainer.config(folder, changes), {}, HYPERPARAMETER_TYPES)


def test_s9_s27_b20_u27_u45_lessons_of_a_real_run_and_its_continuation(tmp_path, log):
    """Four areas whose episodes have four steps; members earn 1 + bonus with each, for 2, 4 and 4 steps."""
    paid = Paid()
    train(countdown(tmp_path), callbacks=[paid])
    bonuses = np.array(paid.bonuses).reshape(-1, AREAS)
    # After two episodes of each area 24 agents have ended; the newest 20 earned 4 * 2 + 16 * 4, on average 3.6.
    # 0.75 * 3.6 = 2.7 with the message that ended them, 0.25 * 2.7 + 2.7 = 3.375 > 3 with the next: the third episodes
    # have begun, and the fourth are the first that are drawn, with seed 1 + 1: the sampler is the second value.
    assert (bonuses[:3] == 0.0).all()
    drawn = np.random.default_rng(2).uniform(0.5, 1.5, (len(bonuses), AREAS))
    cut = [index for index, (_, _, truncated) in enumerate(paid.episodes) if truncated and paid.episodes[index][1] < 4]
    before = int(np.argmax((bonuses == 3.0).all(1)))  # rounds before the third lesson
    assert before > 4
    np.testing.assert_allclose(bonuses[3:before], drawn[: before - 3], rtol=1e-5)
    # A round is 40 decisions: 20 are told of by its second message, 32 by its third, 40 by its fourth, which begins the
    # next. 0.75 * 480 = 360 are exceeded by the second message of round 10: the reset cuts four episodes.
    assert before == 9 and len(cut) == AREAS and {paid.episodes[index][1] for index in cut} == {1}
    assert (bonuses[before:] == 3.0).all() and len(bonuses) > before

    run = tmp_path / "results" / "run"
    table = rows(run / trainer.BEHAVIOR / "metrics.csv")
    shown = {tag: [float(v) for _, name, v in table if name == tag] for _, tag, _ in table}
    assert shown["Environment/Lesson Number/bonus"] == [1.0, 1.0, 1.0, 2.0]  # at 120, 240, 360 and 480
    assert shown["Environment/Lesson Number/unknown"] == [0.0] * 4
    saved = json.loads((run / "run_logs" / "training_status.json").read_text())
    assert (saved["bonus"]["lesson_num"], saved["unknown"]["lesson_num"]) == (2, 0)
    for line in (
        "Environment parameter bonus: lesson 'Nothing' (1 of 3). Float: value=0.0.",
        "Environment parameter bonus: lesson 'Drawn' begins. Uniform sampler: min=0.5, max=1.5.",
        "Environment parameter bonus: lesson 'Three' begins. Float: value=3.0. All environments begin anew.",
    ):
        assert log.text.count(line) == 1

    log.clear()
    paid = Paid()
    train(countdown(tmp_path, resume=True, max_steps=600), callbacks=[paid])
    assert len(paid.bonuses) >= AREAS and set(paid.bonuses) == {3.0}
    assert "Environment parameter bonus: lesson 'Three' (3 of 3). Float: value=3.0." in log.text


def test_only_a_resumed_run_is_in_the_lessons_of_its_status(tmp_path):
    logs = tmp_path / "results" / "run" / "run_logs"
    logs.mkdir(parents=True)
    (logs / "training_status.json").write_text(json.dumps({"bonus": {"lesson_num": 2}, "metadata": {}}))
    shutil.copytree(logs.parent, logs.parents[1] / "other")
    found = []
    ways: list[dict[str, Any]] = [{"resume": True}, {}, {"run_id": "new", "initialize_from": "other"}]
    for options in ways:
        settings = countdown(tmp_path, **options)
        folder = RunFolder(settings.checkpoint_settings.results_dir, settings.checkpoint_settings.run_id)
        with HostRecorder(settings, folder, ProgressBar(Console())) as recorder:
            found.append(Curricula(settings, recorder).lessons.values()["bonus"])
    assert found == [3.0, 0.0, 0.0]


class PaidToy(ToyEnv):
    """Pays the parameter `pay` of its episode with each action, and tells it as a statistic."""

    def __init__(self, worker: int) -> None:
        self.draws = Draws()
        super().__init__(worker, ToySettings(deaths=0.1, skips=0.2, interrupted_every=3))

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        self.draws.set(parameters or {}, seed)
        return super().reset(parameters, seed)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        self.draws.set(parameters)

    def _begin(self, area: Any) -> None:
        super()._begin(area)
        area.pay = self.draws.next().get("pay", 0.0)

    def _reward(self, area: Any, *arguments: Any) -> float:
        return super()._reward(area, *arguments) + area.pay


class Keeping(Callbacks):
    """Copies the status as it is with the first checkpoint."""

    def __init__(self, run: Path) -> None:
        self.status, self.copy = run / "run_logs" / "training_status.json", run.parent / "status.json"

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        if not self.copy.exists():
            shutil.copy(self.status, self.copy)


def paid_toy(folder: Path, *, resume: bool = False) -> Path:
    """A run that takes up a lesson each 30 agents' episodes; its folder."""
    criteria = {"behavior": "Toy", "min_lesson_length": 30, "threshold": -9.0, "require_reset": True}
    values = [0.0, UNIFORM, 3.0, UNIFORM, 5.0]
    changes = {
        "environment_parameters": {
            "pay": {
                "curriculum": [
                    {"name": str(i), "value": value, "completion_criteria": criteria | {"require_reset": i % 2 == 0}}
                    for i, value in enumerate(values[:-1])
                ] + [{"name": "last", "value": values[-1]}]
            }
        },
        "env_settings": {"env_path": "jax:toy"},
        "checkpoint_settings": {
            "run_id": "two", "results_dir": str(folder / "results"), "exact": True, "resume": resume,
        },
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    toy = {"checkpoint_interval": 150, "keep_checkpoints": 0, "max_steps": 400}
    with environment(make=PaidToy) as started:
        train(configured(folder, "two", changes, Toy=toy), started=started, callbacks=[Keeping(folder / "results/two")])
    return folder / "results" / "two"


class Reporting(Callbacks):
    """A number of each episode, and one of each update."""

    def on_run_start(self, run: Any) -> None:
        self.run = run

    def on_episode_end(self, episode: Episode) -> None:
        episode.custom_metrics["two"] = 2.0

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        self.run.report("Mine/Three", 3.0)


def once(measure: str, threshold: float, behavior: str = "Toy", **more: Any) -> dict[str, Any]:
    """Two lessons, the first of which is over as soon as the measure exceeds the threshold."""
    criteria = {"behavior": behavior, "measure": measure, "threshold": threshold, "signal_smoothing": False, **more}
    return {"curriculum": [{"name": "a", "value": 0.0, "completion_criteria": criteria}, {"name": "b", "value": 1.0}]}


class Begun(Callbacks):
    """Episodes in the order in which they began."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_episode_created(self, episode: Episode) -> None:
        self.episodes.append(episode)


def test_a_lesson_that_resets_with_the_first_messages_ends_the_episodes_that_they_began(tmp_path):
    """The toy tells its clock with its first message, and any clock ends the first lesson: all begin anew at once."""
    begun, lesson = Begun(), once("Toy/Clock", -1.0, min_lesson_length=0, require_reset=True)
    changes = {"environment_parameters": {"x": lesson}, "env_settings": {"env_path": "jax:toy"}}
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, "two", changes, Toy={"max_steps": 30}), started=started, callbacks=[begun])
    ended = [(episode.length, episode.over, episode.truncated) for episode in begun.episodes[:4]]
    assert ended == [(0, True, True)] * 2 + [(5, True, False)] * 2


@pytest.mark.slow
def test_lessons_are_measured_by_group_rewards_and_by_what_environments_and_callbacks_report(tmp_path, log):
    """Each decides just below what it measures, and not at it: teams earn 1, the toy tells its clock, 0 to 4."""
    measures = {"group_reward": 1.0, "Custom/two": 2.0, "Mine/Three": 3.0, "Toy/Clock": 4.0, "Nobody/Knows": 0.0}
    parameters = {}
    for number, (measure, value) in enumerate(measures.items()):
        parameters |= {f"below{number}": once(measure, value - 0.5), f"at{number}": once(measure, value)}
    with environment("Toy?team=0", group_reward=1.0) as started:
        settings = configured(tmp_path, "two", {"environment_parameters": parameters}, Toy={"max_steps": 560})
        train(settings, started=started, callbacks=[Reporting()])
    run = tmp_path / "results" / "two"
    saved = json.loads((run / "run_logs" / "training_status.json").read_text())
    found = {name: saved[name]["lesson_num"] for name in parameters}
    assert found == {name: int(name.startswith("below") and name != "below4") for name in parameters}
    mine = [float(value) for _, tag, value in rows(run / "Toy" / "metrics.csv") if tag == "Mine/Three"]
    assert mine and set(mine) == {3.0}
    (missed,) = [line for line in log.messages if "nobody has reported 'Nobody/Knows'" in line]
    assert missed.startswith("environment_parameters.at4.curriculum[0].completion_criteria.measure: nobody has")
    assert missed.endswith("Reported were: Custom/two, Mine/Three, Toy/Clock.")


@pytest.mark.slow
@pytest.mark.parametrize("threaded", [False, True])
def test_several_behaviors_judge_lessons_of_their_own(tmp_path, threaded):
    """Short stops at 150 decisions, Long at 400: progress is that of the behavior that the lesson names."""
    half = {name: once("progress", 0.5, name) for name in ("Short", "Long")}
    whole = {f"{name}_over": once("progress", 1.0, name) for name in ("Short", "Long")}
    never = {"other": once("group_reward", 1.0, "Long"), "both": once("reward", -99.0, "Long", min_lesson_length=20)}
    changes = {"environment_parameters": {**half, **whole, **never}}
    behaviors = {"Short": {"max_steps": 150, "threaded": threaded}, "Long": {"max_steps": 400, "threaded": threaded}}
    with environment("Short?team=0", "Long?team=0") as started:
        train(configured(tmp_path, "two", changes, **behaviors), started=started)
    run = tmp_path / "results" / "two"
    saved = json.loads((run / "run_logs" / "training_status.json").read_text())
    found = {name: saved[name]["lesson_num"] for name in changes["environment_parameters"]}
    assert found == {"Short": 1, "Long": 1, "Short_over": 1, "Long_over": 1, "other": 0, "both": 1}
    for name in behaviors:  # every behavior shows them all
        table = rows(run / name / "metrics.csv")
        shown = {step: value for step, tag, value in table if tag == "Environment/Lesson Number/Long"}
        assert float(shown["100"]) == 0.0 and float(shown["300"]) == 1.0


@pytest.mark.slow
def test_an_exactly_resumed_run_is_in_the_lessons_of_its_checkpoint(tmp_path):
    """Also in what they are measured by: without it the next lesson begins later."""
    whole = paid_toy(tmp_path / "whole")
    first, *_, last = checkpoints(whole / "Toy")
    at_first = json.loads((whole.parent / "status.json").read_text())
    at_last = json.loads((whole / "run_logs" / "training_status.json").read_text())
    assert at_first["pay"]["lesson_num"] == 1 and at_last["pay"]["lesson_num"] >= 3
    assert 0 < len(at_first["Toy"]["lessons"]["returns"]) < 30 and at_first["pay"]["smoothed"] != 0.0
    again = {}
    for forgotten in (False, True):
        folder = tmp_path / f"stopped-{forgotten}"
        shutil.copytree(whole.parents[1], folder)
        run = folder / "results" / "two"
        for item in checkpoints(run / "Toy")[1:]:
            remove(item)
        point_at(run / "Toy" / first.path.name, first.step)
        shutil.copy(whole.parent / "status.json", run / "run_logs" / "training_status.json")
        if forgotten:
            document = run / "Toy" / first.path.name / "checkpoint.json"  # where an exact run looks
            noted = json.loads(document.read_text())
            of = noted["settings"]["lessons"][0]["behaviors"]["Toy"]
            assert of["returns"]
            of["returns"] = []
            document.write_text(json.dumps(noted))
            (document.parent / manifest.MANIFEST).unlink()
            manifest.write(document.parent)
        again[forgotten] = checkpoints(paid_toy(folder, resume=True) / "Toy")[-1]
    assert again[False].step == last.step
    template = trainer.template(whole / "configuration.yaml", "Toy", ToyEnv().spec)
    weights = [to_arrays(checkpoint.restore(item.path, template)) for item in (last, again[False], again[True])]
    assert trainer.differing(weights[0], weights[1]) == []
    assert trainer.differing(weights[0], weights[2]) != []
