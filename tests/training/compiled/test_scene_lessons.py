"""Lessons of a scene: one behavior's progress decides about one parameter, the other's returns about another."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.artifacts.checkpoint.store import read_info
from jaxrl.compilation import enable_compilation_cache
from jaxrl.settings import EnvironmentParameter, RunSettings, SettingsError, load_run_settings
from jaxrl.training.compiled.checks import check_parameters
from jaxrl.training.compiled.lessons import SeedLessons, go_on, parameters_at_start
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recent_returns import NewestEpisodes
from jaxrl.training.compiled.run import train
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.trainer import make_scene_trainer
from jaxrl.training.trained_policy import load_trained
from tests.artifacts.test_csv_file import rows
from tests.helpers import settings_of
from tests.jax_envs.probe_scene import LENGTH, PARTS, make_rare_dial
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.training.compiled.arrays import arrays_of

PARAMETERS = TypeAdapter(dict[str, EnvironmentParameter])
SEEDS, AREAS = (3, 4), 4
TINY = {
    "hyperparameters": {"batch_size": 16, "buffer_size": 32, "num_epoch": 1, "learning_rate_schedule": "constant"},
    "network_settings": {"hidden_units": 4, "num_layers": 1},
}
RANGE = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2.0, "max_value": 3.0}}
ROOT = Path(__file__).parents[3]
ENV = f"{ROOT / 'tests/jax_envs/probe_scene.py'}:make_probe_scene"


def curriculum(*values: Any, **criteria: Any) -> dict[str, Any]:
    ends = [{"min_lesson_length": 6, "signal_smoothing": False, **criteria}] * (len(values) - 1) + [None]
    return {
        "curriculum": [
            {"name": f"lesson{i}", "value": value, **({"completion_criteria": end} if end else {})}
            for i, (value, end) in enumerate(zip(values, ends, strict=True))
        ]
    }


CURRICULA = {
    "luck": curriculum(1.5, RANGE, 7.0, behavior="Lamp", measure="progress", threshold=0.4),
    "hope": curriculum(1.0, 2.0, 3.0, behavior="Dial", measure="reward", threshold=-3.0),
}


def lessons_of(parameters: Any = CURRICULA, **max_steps: int) -> SeedLessons:
    subjects = [
        Subject(name, part.spec, settings_of("ppo", {**TINY, "max_steps": max_steps.get(name, 400)}), SEEDS, AREAS)
        for name, part in PARTS.items()
    ]
    return SeedLessons(PARAMETERS.validate_python(parameters), subjects)


@cache
def made() -> tuple[list[None], SceneTrainer]:
    """Two seeds; Dial, which is there in every second episode alone, learns every second iteration."""
    traces: list[None] = []
    scene = make_rare_dial()

    def reset(*arguments: Any) -> Any:
        traces.append(None)
        return plain(*arguments)

    plain, lessons = scene.reset, lessons_of()
    by_name = dict.fromkeys(PARTS, settings_of("ppo", {**TINY, "max_steps": 10**6}))
    scene = scene._replace(reset=reset)
    with quick_compilation():
        trainer = make_scene_trainer(
            scene,
            {name: ALGORITHMS["ppo"](PARTS[name].spec, of) for name, of in by_name.items()},
            by_name,
            areas=AREAS,
            seeds=len(SEEDS),
            parameters=parameters_at_start(scene, [lessons]),
            newest=lessons.newest,
        )
    return traces, trainer


def test_each_seed_goes_on_by_the_progress_of_one_and_the_returns_of_the_other_behavior() -> None:
    traces, trainer = made()
    assert trainer.every["Lamp"] == 1 and trainer.every["Dial"] > 1
    lessons, state, traced = lessons_of(), trainer.init(SEEDS), None
    assert lessons.newest == {"Lamp": 6, "Dial": 6}
    own: list[list[float]] = [[], []]  # Dial's returns since the last change, the oldest first
    lamps = np.zeros(2, int)  # episodes of Lamp since then
    numbers, history = {"luck": np.zeros(2, int), "hope": np.zeros(2, int)}, []
    for iteration in range(1, 41):
        state, logs = trainer.run(state, 1)
        reports = trainer.report(state, logs)
        newest: NewestEpisodes = reports["Dial"].newest
        told = np.asarray(logs["Dial"].episodes.reward.count)
        assert (newest.rewards == np.minimum(told, 6)).all()  # nothing twice: none where no rollout was completed
        assert iteration % trainer.every["Dial"] == 0 or not told.any()
        for seed in range(2):
            own[seed] += newest.reward[seed][: newest.rewards[seed]][::-1].tolist()
            lamps[seed] += int(logs["Lamp"].episodes.reward.count[seed])
            progress = 2 * AREAS * trainer.steps * iteration / 400  # two lamps decide in each area
            far = numbers["luck"][seed] < 2 and lamps[seed] >= 6 and progress > 0.4
            last = own[seed][-6:]
            good = numbers["hope"][seed] < 2 and len(last) == 6 and sum(last) / 6 > -3.0
            numbers["luck"][seed] += far
            numbers["hope"][seed] += good
            if far or good:
                own[seed], lamps[seed] = [], 0
        state = go_on(trainer, state, lessons, 0, reports)
        found = {name: of["lesson_num"] for name, of in lessons.entries().items()}
        assert found == {name: of.tolist() for name, of in numbers.items()}
        history.append((tuple(numbers["luck"]), tuple(numbers["hope"])))
        traced = len(traces) if traced is None else traced
    assert history[-1] == ((2, 2), (2, 2)) and not lessons.open
    assert len(traces) == traced  # nothing was compiled again
    state, _ = trainer.run(state, 2 * LENGTH)
    drawn = state.areas.state["parameters"]
    assert (np.asarray(drawn["luck"]) == 7.0).all() and (np.asarray(drawn["hope"]) == 3.0).all()


def test_seeds_may_be_in_different_lessons_and_the_frozen_and_the_done_stay() -> None:
    _, trainer = made()
    state, logs = trainer.run(trainer.init(SEEDS), trainer.every["Dial"])
    whole, six = trainer.report(state, logs), np.full(2, 6, np.int32)
    newest = {name: of.newest._replace(rewards=six) for name, of in whole.items()}
    good = np.array([[0.0] * 6, [-9.0] * 6], np.float32)
    newest["Dial"] = newest["Dial"]._replace(reward=good)  # the first seed has done well, the second has not
    none, steps = np.zeros(2, bool), {"Lamp": np.array([64, 192]), "Dial": np.array([32, 32])}

    def look(lessons: SeedLessons, steps: dict[str, np.ndarray], dial: np.ndarray) -> bool:
        told = {"Lamp": whole["Lamp"]._replace(newest=newest["Lamp"], step=steps["Lamp"], frozen=none)}
        told["Dial"] = whole["Dial"]._replace(newest=newest["Dial"], step=steps["Dial"], frozen=dial)
        return bool(lessons.look(told))

    lessons = lessons_of()
    assert look(lessons, steps, none)
    assert lessons.entries() == {"luck": {"lesson_num": [0, 1]}, "hope": {"lesson_num": [1, 0]}}
    values = lessons.values({"luck": 1, "hope": 0})
    assert values["luck"].low.tolist() == [[0.0], [2.0]] and values["hope"].tolist() == [2.0, 1.0]  # pyright: ignore

    frozen = lessons_of()
    first = np.array([True, False])
    assert look(frozen, steps, first)  # Dial tells nothing of the first seed
    assert frozen.entries() == {"luck": {"lesson_num": [0, 1]}, "hope": {"lesson_num": [0, 0]}} and frozen.open

    done = lessons_of(Lamp=50, Dial=30)
    passed = {"Lamp": np.array([64, 64]), "Dial": np.array([32, 16])}
    assert look(done, passed, none)
    assert done.entries()["luck"] == {"lesson_num": [1, 1]} and done.open  # the second's Dial still learns
    assert look(done, passed, none)
    assert done.entries()["luck"] == {"lesson_num": [1, 2]}


def test_a_statistic_counts_with_the_rollouts_of_the_behavior_that_is_named() -> None:
    _, trainer = made()
    state, logs = trainer.run(trainer.init(SEEDS), 1)
    luck, reports = "Environment/Luck", trainer.report(state, logs)
    told_six = {name: of.newest._replace(rewards=np.full(2, 6, np.int32)) for name, of in reports.items()}
    told = {name: {luck: logs[name].episodes.stats[luck].count.tolist()} for name in PARTS}
    assert told["Lamp"][luck][0] > 0 and told["Dial"][luck] == [0, 0]
    for behavior, threshold, passed in (("Lamp", 1.49, True), ("Lamp", 1.5, False), ("Dial", 1.49, False)):
        judged = lessons_of({"luck": curriculum(1.5, 2.0, behavior=behavior, measure=luck, threshold=threshold)})
        mine = {
            name: of._replace(newest=told_six[name] if judged.newest[name] else (), step=np.full(2, 32))
            for name, of in reports.items()
        }
        assert bool(judged.look(mine)) == passed, (behavior, threshold)


LONG = {"behavior": "Lamp", "measure": "reward", "threshold": 0.0, "min_lesson_length": 80}
RUN = {
    "luck": curriculum(1.5, 2.5, 7.0, behavior="Lamp", measure="progress", threshold=0.5),
    "hope": curriculum(1.0, 2.0, 3.0, behavior="Dial", measure="reward", threshold=-5.0),
}
RUN["luck"]["curriculum"][1]["completion_criteria"] = LONG
"""Lamp learns no more after iteration 10; it has told of 80 episodes since the fifth in the 15th at the earliest."""


def run_settings(folder: Path, run_id: str, parameters: Any = RUN, dial: int = 600, **options: Any) -> RunSettings:
    behavior = {"trainer_type": "ppo", **TINY, "summary_freq": 100, "checkpoint_interval": 10000}
    written = {
        "behaviors": {"Lamp": {**behavior, "max_steps": 300}, "Dial": {**behavior, "max_steps": dial}},
        "env_settings": {"env_path": ENV, "num_areas": AREAS, "seed": SEEDS[0], "seeds": 2},
        "environment_parameters": parameters,
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder / "results"), **options},
    }
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written, sort_keys=False))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


@pytest.mark.slow
def test_a_run_notes_its_lessons_everywhere_and_a_resumed_one_equals_it(
    tmp_path: Path, runs: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable_compilation_cache()  # one program for all three
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    with quick_compilation():
        train(run_settings(tmp_path, "whole"))
        text = caplog.text
        train(run_settings(tmp_path, "cut", dial=200))  # 13 iterations
        train(run_settings(tmp_path, "cut", resume=True))
    whole, cut = (tmp_path / "results" / name for name in ("whole", "cut"))
    status = json.loads((whole / "run_logs" / "training_status.json").read_text())
    assert status["luck"] == {"lesson_num": [2, 2]} and status["hope"]["lesson_num"] == [2, 2]
    for seed in SEEDS:
        for name in CURRICULA:
            for number in (1, 2):
                line = f"Seed {seed}: Environment parameter {name}: lesson 'lesson{number}' begins"
                assert text.count(line) == 1  # not once for each behavior
    for name in PARTS:
        noted = [read_info(require_latest(run / name)).settings["lessons"] for run in (whole, cut)]
        assert noted[0] == noted[1] and len(noted[0]) == 2
        first, second = (arrays_of(require_latest(run / name)) for run in (whole, cut))
        assert first.keys() == second.keys()
        assert [leaf for leaf in first if first[leaf].tobytes() != second[leaf].tobytes()] == []
        table = rows(whole / name / "seed_4" / "metrics.csv")
        for parameter in CURRICULA:
            curve = [float(value) for _, tag, value in table if tag == f"Environment/Lesson Number/{parameter}"]
            assert curve == sorted(curve) and curve[-1] == 2
            assert (name, parameter) != ("Lamp", "luck") or curve[:2] == [0, 1]  # steps 100 and 200 of it
        luck = [float(value) for _, tag, value in table if tag == "Environment/Luck"]
        assert luck[-1] == 7.0 and (name == "Dial" or luck[0] == 1.5)
        assert load_trained(whole, behavior=name, seed=4).parameters == {"luck": 7.0, "hope": 3.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"behavior": "Lamb"},
            r"luck\.curriculum\[0\]\.completion_criteria\.behavior: got 'Lamb', expected one of Lamp",
        ),
        ({"measure": "Environment/Lock"}, "measure: got 'Environment/Lock', expected one of .*, Environment/Luck"),
    ],
)
def test_what_could_have_no_effect_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    criteria = {"behavior": "Lamp", "measure": "progress", "threshold": 0.4, **changes}
    typed = PARAMETERS.validate_python({"luck": curriculum(1.0, 2.0, **criteria)})
    run = run_settings(tmp_path, "bad", {}).model_copy(update={"environment_parameters": typed})
    with pytest.raises(SettingsError, match=words):
        check_parameters(run, make_rare_dial())
