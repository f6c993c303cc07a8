"""Lessons of the compiled loop: each seed goes on by its own episodes, in one program, however the run is cut."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.artifacts.checkpoint.store import read_info
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import EnvironmentParameter, RunSettings, SettingsError, load_run_settings
from jaxrl.training.compiled.checks import check_parameters, refuse_curricula
from jaxrl.training.compiled.lessons import SeedLessons, go_on, parameters_at_start
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recent_returns import _last
from jaxrl.training.compiled.run import train
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.state import Report, SceneState
from jaxrl.training.compiled.sweep_points import programs
from jaxrl.training.compiled.trainer import make_scene_trainer
from jaxrl.training.trained_policy import load_trained
from jaxrl.types import SamplerSpec
from tests.artifacts.test_csv_file import rows
from tests.helpers import settings_of
from tests.jax_envs.shown_parameters import NAME, SIZE, make_shown
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.training.compiled.arrays import arrays_of

PARAMETERS = TypeAdapter(dict[str, EnvironmentParameter])
SEEDS, AREAS, STEPS = (3, 4), 4, 8  # decisions of an iteration in each area
RANGES = {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[1, 2], [5, 6]]}}
TINY = {
    "hyperparameters": {
        "batch_size": 16,
        "buffer_size": AREAS * STEPS,
        "num_epoch": 1,
        "learning_rate_schedule": "constant",
        "beta_schedule": "constant",
        "epsilon_schedule": "constant",
    },
    "network_settings": {"hidden_units": 4, "num_layers": 1},
}
LUCKY = {"behavior": NAME, "min_lesson_length": 6, "threshold": 0.6, "signal_smoothing": False}
"""The mean of the last six episodes, whose returns are uniform in [0, 1), exceeds 0.6: one chance in five."""


def curriculum(*values: Any, **criteria: Any) -> dict[str, Any]:
    ends = [{**LUCKY, **criteria}] * (len(values) - 1) + [None]
    lessons = zip(values, ends, strict=True)
    return {
        "curriculum": [
            {"name": f"lesson{i}", "value": value, **({"completion_criteria": end} if end else {})}
            for i, (value, end) in enumerate(lessons)
        ]
    }


def lessons_of(parameters: dict[str, Any], max_steps: int = 10**6) -> SeedLessons:
    subject = Subject(NAME, make_shown().spec, settings_of("ppo", {**TINY, "max_steps": max_steps}), SEEDS, AREAS)
    return SeedLessons(PARAMETERS.validate_python(parameters), [subject])


class Counted:
    """The environment, and how often its functions were traced."""

    def __init__(self) -> None:
        self.traces = 0
        plain = make_shown()

        def reset(*arguments: Any) -> Any:
            self.traces += 1
            return plain.reset(*arguments)

        self.env: JaxEnv = plain._replace(reset=reset)


SAMPLED = {"size": curriculum(2.5, RANGES, {"sampler_type": "gaussian", "sampler_parameters": {"mean": 9}})}


@cache
def made() -> tuple[Counted, SceneTrainer]:
    """A program of two seeds whose `size` may be a number or any sampler of up to two intervals."""
    counted, settings = Counted(), settings_of("ppo", {**TINY, "max_steps": 10**6})
    lessons = lessons_of(SAMPLED)
    with quick_compilation():
        trainer = make_scene_trainer(
            counted.env,
            {NAME: ALGORITHMS["ppo"](counted.env.spec, settings)},
            {NAME: settings},
            areas=AREAS,
            seeds=len(SEEDS),
            parameters=parameters_at_start(counted.env, [lessons]),
            newest=lessons.newest,
        )
    return counted, trainer


def sizes(state: SceneState) -> np.ndarray:
    """What the episodes under way were drawn with, [S, E]."""
    return np.asarray(state.of(NAME).play.view.obs[0][:, :, 0, 0])


def ran() -> tuple[SceneTrainer, SceneState, Report]:
    """One iteration."""
    _, trainer = made()
    state, logs = trainer.run(trainer.init(SEEDS), 1)
    return trainer, state, trainer.report(state, logs)[NAME]


def look(lessons: SeedLessons, report: Report, step: Any, frozen: Any = (False, False)) -> dict[int, bool]:
    """With other steps."""
    return lessons.look({NAME: report._replace(step=np.array(step), frozen=np.array(frozen))})


def test_the_last_episodes_newest_first():
    values = jnp.arange(12.0).reshape(3, 4)
    mask = jnp.array([[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]], bool)  # 0, 2, 7, 9
    for kept, expected, count in ((2, [9, 7], 2), (4, [9, 7, 2, 0], 4), (6, [9, 7, 2, 0, 0, 0], 4)):
        last, found = _last(kept, values, mask)
        assert last.tolist() == expected and int(found) == count


def test_each_seed_goes_on_by_its_own_episodes_and_nothing_is_compiled_again():
    counted, trainer = made()
    lessons = lessons_of(SAMPLED)
    state = trainer.init(SEEDS)
    traced = None
    own: list[list[float]] = [[], []]  # returns since the last change, the oldest first
    numbers, history = np.zeros(2, int), []
    assert (sizes(state) == 2.5).all()
    for _ in range(40):
        state, logs = trainer.run(state, 1)
        reports = trainer.report(state, logs)
        newest = reports[NAME].newest
        for seed in range(2):
            returns = newest.reward[seed][: newest.rewards[seed]][::-1]
            np.testing.assert_allclose(2 * returns, newest.group_reward[seed][: len(returns)][::-1])
            own[seed] += returns.tolist()
            last = own[seed][-LUCKY["min_lesson_length"] :]
            enough = len(last) == LUCKY["min_lesson_length"]
            if numbers[seed] < 2 and enough and sum(last) / len(last) > LUCKY["threshold"]:
                numbers[seed] += 1
                own[seed] = []
        state = go_on(trainer, state, lessons, 0, reports)
        assert [lessons.entries()["size"]["lesson_num"]] == [numbers.tolist()]
        traced = counted.traces if traced is None else traced
        history.append(tuple(numbers))
    assert history[-1] == (2, 2) and not lessons.open
    assert any(first != second for first, second in history)
    assert counted.traces == traced  # neither a number, nor intervals, nor a mean is in the program
    state, _ = trainer.run(state, 3)
    drawn = sizes(state)
    assert ((drawn > 4) & (drawn < 14)).all() and len(np.unique(drawn)) == drawn.size  # about 9, each its own


def test_a_seed_that_asks_for_it_begins_anew_and_the_other_plays_on():
    lessons = lessons_of({"size": curriculum(2.5, RANGES, min_lesson_length=0, require_reset=True)})
    trainer, state, report = ran()
    newest = report.newest._replace(
        reward=np.array([[1.0] * 6, [0.0] * 6]), rewards=np.array([6, 6])
    )  # the first seed has done well, the second has not
    before = jax.device_get(state.of(NAME).play)
    with quick_compilation():
        state = go_on(trainer, state, lessons, 0, {NAME: report._replace(newest=newest)})
    after = jax.device_get(state.of(NAME).play)
    assert lessons.entries() == {"size": {"lesson_num": [1, 0]}}
    drawn = sizes(state)
    assert (((drawn[0] >= 1) & (drawn[0] <= 2)) | ((drawn[0] >= 5) & (drawn[0] <= 6))).all()
    assert (after.view.obs[0][0, :, 0, 2] == 0).all() and (after.areas.state.clock[0] == 0).all()  # the clock
    assert (after.sums.reward[0] == 0).all() and (after.sums.length[0] == 0).all()
    second = [jax.tree.map(lambda x: x[1], (play.view, play.sums, play.areas.state)) for play in (before, after)]
    jax.tree.map(np.testing.assert_array_equal, *second)
    assert lessons.open  # the second seed's may go on


def test_a_point_of_a_sweep_that_asks_for_it_begins_anew_and_the_one_before_it_plays_on():
    """A point's lessons count its own seeds from 0, wherever these stand in the program."""
    parameters = {"size": curriculum(2.5, RANGES, min_lesson_length=0, require_reset=True)}
    subject = Subject(NAME, make_shown().spec, settings_of("ppo", {**TINY, "max_steps": 10**6}), SEEDS[1:], AREAS)
    second = SeedLessons(PARAMETERS.validate_python(parameters), [subject])
    trainer, state, report = ran()
    told = jax.tree.map(lambda x: np.asarray(x)[1:], report)
    told = told._replace(newest=told.newest._replace(reward=np.ones((1, 6), np.float32), rewards=np.array([6])))
    before = jax.device_get(state.of(NAME).play)
    with quick_compilation():
        state = go_on(trainer, state, second, 1, {NAME: told})
    after = jax.device_get(state.of(NAME).play)
    assert second.entries() == {"size": {"lesson_num": 1}}
    assert (sizes(state)[1] != 2.5).all() and (sizes(state)[0] == 2.5).all()
    assert (after.areas.state.clock[1] == 0).all() and (after.sums.length[1] == 0).all()
    first = [jax.tree.map(lambda x: x[0], (play.view, play.sums, play.areas.state)) for play in (before, after)]
    jax.tree.map(np.testing.assert_array_equal, *first)


def test_seeds_that_are_frozen_or_done_stay_in_their_lessons():
    _, _, report = ran()
    report = report._replace(
        newest=report.newest._replace(reward=np.ones((2, 6), np.float32), rewards=np.array([6, 6]))
    )
    frozen = lessons_of(SAMPLED)
    assert look(frozen, report, [32, 32], [True, False]) == {1: False}
    assert frozen.reached().tolist() == [0, 1] and frozen.open
    done = lessons_of(SAMPLED, max_steps=100)
    assert look(done, report, [101, 64]) == {0: False, 1: False}  # it ends with it
    assert look(done, report, [101, 96]) == {1: False}
    assert done.reached().tolist() == [1, 2] and not done.open


def test_progress_and_statistics_are_measures():
    _, _, report = ran()
    progress = lessons_of({"size": curriculum(1, 2, measure="progress", threshold=0.5, min_lesson_length=0)}, 100)
    assert look(progress, report, [51, 50]) == {0: False}
    stats = report.log.episodes.stats
    assert (stats[SIZE].total == 2.5 * stats[SIZE].count).all()
    for threshold, passed in ((2.49, {0: False, 1: False}), (2.5, {})):
        sized = lessons_of({"size": curriculum(1, 2, measure=SIZE, threshold=threshold)})
        assert look(sized, report, [32, 32]) == passed


def run_settings(folder: Path, run_id: str, parameters: Any, seeds: int = 2, **changes: Any) -> RunSettings:
    options = {"run_id": run_id, "results_dir": str(folder / "results"), **changes.pop("options", {})}
    behavior = {"trainer_type": "ppo", **TINY, "max_steps": 1500, "summary_freq": 150, "checkpoint_interval": 1000}
    written = {
        "behaviors": {NAME: {**behavior, **changes}},
        "env_settings": {
            "env_path": "tests.jax_envs.shown_parameters:make_shown", "num_areas": AREAS, "seed": SEEDS[0],
            "seeds": seeds,
        },
        "environment_parameters": parameters,
    }  # fmt: skip
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written, sort_keys=False))
    return load_run_settings(path, {"checkpoint_settings": options}, HYPERPARAMETER_TYPES)


RUN = {
    "size": curriculum(2.5, RANGES, 7, threshold=0.75),
    "mass": {"sampler_type": "uniform", "sampler_parameters": {}},
}


def test_a_run_leaves_its_lessons_in_every_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    with quick_compilation():
        train(run_settings(tmp_path, "run", RUN))
    run = tmp_path / "results" / "run"
    status = json.loads((run / "run_logs" / "training_status.json").read_text())
    latest = require_latest(run / NAME)
    told = read_info(latest).settings["lessons"]
    numbers = [of_seed["parameters"]["size"]["lesson_num"] for of_seed in told]
    assert status["size"] == {"lesson_num": numbers} and status["mass"] == {"lesson_num": [0, 0]}
    assert sum(numbers) > 0
    assert "Environment parameter mass: Uniform sampler: min=0.0, max=1.0." in caplog.text
    for seed, number in zip(SEEDS, numbers, strict=True):
        table = rows(run / NAME / f"seed_{seed}" / "metrics.csv")
        curve = [float(value) for _, tag, value in table if tag == "Environment/Lesson Number/size"]
        assert curve == sorted(curve) and curve[0] < number == curve[-1]
        lines = [f"Seed {seed}: Environment parameter size: lesson 'lesson{i}' begins" for i in range(1, number + 1)]
        assert [line in caplog.text for line in lines] == [True] * number
        sized = [float(value) for _, tag, value in table if tag == SIZE]
        assert sized[0] == 2.5 or curve[0] > 0
        assert number < 2 or sized[-1] == 7
    for seed, number in zip(SEEDS, numbers, strict=True):  # whoever plays with the policy is in its lesson
        found = load_trained(run, seed=seed).parameters
        expected = (2.5, SamplerSpec("multirangeuniform", (1.0, 2.0, 5.0, 6.0), seed + 1, True), 7.0)[number]
        assert found["size"] == expected and isinstance(found["mass"], SamplerSpec)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, seeds: int) -> None:
    """Cut in every lesson: arrays, lessons and the numbers of every summary are the same, bit for bit."""
    with quick_compilation():
        train(run_settings(tmp_path, "whole", RUN, seeds))
        for steps in (200, 500, 900, 1500):
            resume = {"resume": steps > 200}
            train(run_settings(tmp_path, "cut", RUN, seeds, max_steps=steps, options=resume))
    whole, cut = (require_latest(tmp_path / "results" / name / NAME) for name in ("whole", "cut"))
    first, second = arrays_of(whole), arrays_of(cut)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].tobytes() != second[name].tobytes()] == []
    lessons = [read_info(path).settings["lessons"] for path in (whole, cut)]
    assert lessons[0] == lessons[1] and len(lessons[0]) == seeds
    assert sum(of_seed["parameters"]["size"]["lesson_num"] for of_seed in lessons[0]) > 0


def test_a_sweep_keeps_what_fits_into_one_program_together(tmp_path: Path) -> None:
    env = make_shown()
    two = {"size": curriculum(2.5, {**RANGES, "sampler_parameters": {"intervals": [[3, 4], [8, 9]]}})}
    one = {"size": {"sampler_type": "uniform", "sampler_parameters": {"max_value": 3}}}
    of = [{"size": curriculum(2.5, RANGES)}, two, one, {"size": 4.0}, {"size": 5.0}]
    runs = [run_settings(tmp_path, f"point{i}", parameters) for i, parameters in enumerate(of)]
    groups = programs(runs, env)
    assert [[runs.index(run) for run in group] for group in groups] == [[0, 1], [2], [3, 4]]
    together = [
        SeedLessons(run.environment_parameters, [Subject(NAME, env.spec, runs[0].behaviors[NAME], SEEDS, 4)])
        for run in runs[:2]
    ]
    found = parameters_at_start(env, together)["size"]
    assert found.mean.tolist() == [2.5] * 4 and found.low.shape == (4, 2)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"sise": RANGES}, r"environment_parameters\.sise: Shown has no such parameter, did you mean size"),
        ({"sise": curriculum(1, 2)}, r"environment_parameters\.sise: Shown has no such parameter, did you mean size"),
        (
            {"size": curriculum(1, 2, behavior="Other")},
            r"size\.curriculum\[0\]\.completion_criteria\.behavior: got 'Other', expected Shown",
        ),
        (
            {"size": curriculum(1, 2, measure="Environment/Sise")},
            r"completion_criteria\.measure: got 'Environment/Sise', expected one of reward, .*, Environment/Size",
        ),
    ],
)
def test_what_could_have_no_effect_is_refused(tmp_path: Path, parameters: Any, words: str) -> None:
    run = run_settings(tmp_path, "bad", {"size": 1.0})
    typed = run.model_copy(update={"environment_parameters": PARAMETERS.validate_python(parameters)})
    with pytest.raises(SettingsError, match=words):
        check_parameters(typed, make_shown())


def test_whoever_is_compared_by_returns_has_no_curriculum(tmp_path: Path) -> None:
    refuse_curricula(run_settings(tmp_path, "fine", {"size": RANGES, "mass": curriculum(3.0)}), "members")
    with pytest.raises(SettingsError, match=r"size\.curriculum: members .* write a number or a sampler"):
        refuse_curricula(run_settings(tmp_path, "bad", {"size": curriculum(1, 2)}), "members of a population")
