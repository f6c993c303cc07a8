"""When lessons are over, by ML-Agents' rule: the arithmetic of the measures is written beside each number."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from jaxrl.settings import EnvironmentParameter
from jaxrl.training.lessons import Lessons, present_values, value_text
from jaxrl.types import SamplerSpec

PARAMETERS = TypeAdapter(dict[str, EnvironmentParameter])


def lessons_of(parameters: dict[str, Any], seed: int = 100) -> Lessons:
    return Lessons(PARAMETERS.validate_python(parameters), seed)


def curriculum(*values: Any, **criteria: Any) -> dict[str, Any]:
    """Lessons "0", "1" ... of these values; all but the last end by the criteria, of behavior A."""
    ends = [{"behavior": "A", **criteria}] * (len(values) - 1) + [None]
    return {
        "curriculum": [
            {"name": str(number), "value": value, **({"completion_criteria": end} if end else {})}
            for number, (value, end) in enumerate(zip(values, ends, strict=True))
        ]
    }


def uniform(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"sampler_type": "uniform", "sampler_parameters": {"min_value": low, "max_value": high, **more}}


def advanced(lessons: Lessons, progress: float = 0.0) -> list[tuple[str, int]]:
    return [(change.parameter, change.number) for change in lessons.advance({"A": progress})]


def test_the_smoothed_mean_of_the_last_episodes_must_exceed_the_threshold():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, threshold=0.8, min_lesson_length=2)})
    lessons.episodes("A", [1.0])
    assert advanced(lessons) == []  # one of two episodes
    lessons.episodes("A", [1.0])
    assert advanced(lessons) == []  # 0.25 * 0 + 0.75 * 1 = 0.75
    lessons.episodes("A", [0.5])  # the last two: (0.5 + 1) / 2 = 0.75
    assert advanced(lessons) == []  # 0.25 * 0.75 + 0.75 * 0.75 = 0.75
    lessons.episodes("A", [1.0, 1.0])
    (change,) = lessons.advance({"A": 0.0})  # 0.25 * 0.75 + 0.75 * 1 = 0.9375
    assert (change.parameter, change.number, change.name, change.value) == ("size", 1, "1", 2.0)
    assert change.line == "Environment parameter size: lesson '1' begins. Float: value=2.0."
    assert lessons.values() == {"size": 2.0} and lessons.numbers == {"size": 1} and lessons.finished


def test_the_measure_is_smoothed_anew_with_each_result_although_no_episode_has_ended():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, threshold=0.95)})
    lessons.episodes("A", [1.0])
    assert [advanced(lessons) for _ in range(3)] == [[], [], [("size", 1)]]  # 0.75, 0.9375, 0.984375


def test_without_smoothing_the_mean_itself_counts_and_equality_is_not_enough():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, threshold=1.0, signal_smoothing=False, min_lesson_length=2)})
    lessons.episodes("A", [0.5, 1.5])
    assert advanced(lessons) == []  # 1.0
    lessons.episodes("A", [0.75])
    assert advanced(lessons) == [("size", 1)]  # (0.75 + 1.5) / 2 = 1.125


def test_progress_counts_beside_the_number_of_episodes():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, measure="progress", threshold=0.3, min_lesson_length=1)})
    assert advanced(lessons, 0.9) == []  # no episode
    lessons.episodes("A", [math.nan])
    assert advanced(lessons, 0.3) == []
    assert lessons.advance({"B": 1.0}) == []  # another behavior's
    assert advanced(lessons, 0.31) == [("size", 1)]


def test_an_advance_empties_all_buffers_after_everybody_was_looked_at_and_keeps_what_is_smoothed():
    half = curriculum(1.0, 2.0, 3.0, threshold=0.5)
    more = curriculum(1.0, 2.0, threshold=0.8)
    lessons = lessons_of({"half": half, "more": more, "last": curriculum(5.0)})
    lessons.episodes("A", [1.0])
    assert advanced(lessons) == [("half", 1)]  # 0.75 > 0.5, but not > 0.8
    assert advanced(lessons) == []  # nothing to look at
    lessons.episodes("A", [0.8])  # both go on from 0.75: 0.1875 + 0.75 * 0.8 = 0.7875
    assert advanced(lessons) == [("half", 2)]
    lessons.episodes("A", [0.85])  # 0.25 * 0.7875 + 0.75 * 0.85 = 0.834
    assert advanced(lessons) == [("more", 1)]
    assert lessons.numbers == {"half": 2, "more": 1, "last": 0} and lessons.finished
    lessons.episodes("A", [9.0])
    assert advanced(lessons, 1.0) == []  # the last lesson never ends


def test_as_many_episodes_are_kept_as_the_longest_lesson_of_the_behavior_asks_for():
    short, long = (curriculum(1.0, 2.0, threshold=2.0, min_lesson_length=n, signal_smoothing=False) for n in (1, 3))
    lessons = lessons_of({"short": short, "long": long})
    lessons.episodes("A", [9.0, 1.0, 2.0, 2.5])
    assert lessons.state()["behaviors"]["A"]["returns"] == [2.5, 2.0, 1.0]  # the newest first
    assert advanced(lessons) == []  # 5.5 / 3 for both, however short the lesson
    lessons.episodes("B", [9.0] * 3)
    lessons.episodes("A", [3.0])
    assert advanced(lessons) == [("short", 1), ("long", 1)]  # 7.5 / 3


def test_group_rewards_are_a_measure():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, measure="group_reward", threshold=0.5, min_lesson_length=2)})
    lessons.episodes("A", [9.0] * 4, [1.0])
    assert advanced(lessons) == []  # one team
    lessons.episodes("A", [], [0.5])
    assert advanced(lessons) == [("size", 1)]  # 0.75 * (1 + 0.5) / 2 = 0.5625


def test_a_statistic_is_measured_by_its_mean_since_the_last_look():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, 3.0, measure="Goal/Correct", threshold=0.5)})
    lessons.statistic("Goal/Wrong", 9.0)
    assert advanced(lessons) == []  # no value
    lessons.statistic("Goal/Correct", 0.25)
    lessons.statistic("Goal/Correct", 0.75)
    assert advanced(lessons) == []  # 0.75 * 0.5 = 0.375
    assert advanced(lessons) == []  # nothing since: not smoothed anew
    lessons.statistic("Goal/Correct", 0.5)
    assert advanced(lessons) == []  # 0.25 * 0.375 + 0.75 * 0.5 = 0.46875
    lessons.statistic("Goal/Correct", 1.0)
    assert advanced(lessons) == [("size", 1)]  # 0.25 * 0.46875 + 0.75 = 0.867
    late = lessons_of({"size": curriculum(1.0, 2.0, measure="Goal", threshold=0.5, min_lesson_length=1)})
    late.statistic("Goal", 1.0)
    assert advanced(late) == []  # no episode yet: not looked at
    late.episodes("A", [0.0])
    assert advanced(late) == [("size", 1)]


def test_values_that_are_no_numbers_end_no_lesson():
    lessons = lessons_of({"size": curriculum(1.0, 2.0, threshold=-1.0)})
    lessons.episodes("A", [math.nan])
    assert advanced(lessons) == []
    lessons.episodes("A", [0.0])
    assert advanced(lessons) == [("size", 1)]  # what is smoothed has not become NaN


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    parameters = {
        "size": curriculum(1.0, uniform(1, 2), 3.0, threshold=0.9, min_lesson_length=2),
        "goal": curriculum(0.0, 1.0, measure="Goal", threshold=0.5),
    }
    lessons, resumed = lessons_of(parameters), lessons_of(parameters)
    lessons.episodes("A", [1.0, 0.3], [math.inf])
    assert advanced(lessons) == []  # 0.75 * 0.65 = 0.4875
    lessons.statistic("Goal", 0.6)
    resumed.restore(json.loads(json.dumps(lessons.state(), allow_nan=False)))
    for each in (lessons, resumed):
        each.episodes("A", [1.7])  # 0.25 * 0.4875 + 0.75 * (0.3 + 1.7) / 2 = 0.871875
        assert advanced(each) == []  # 0.75 * 0.6 = 0.45
        each.statistic("Goal", 0.6)
        assert advanced(each) == [
            ("size", 1),
            ("goal", 1),
        ]  # 0.25 * 0.871875 + 0.75 = 0.968; 0.25 * 0.45 + 0.45 = 0.5625
    assert lessons.state() == resumed.state()
    assert present_values(PARAMETERS.validate_python(parameters), 100, resumed.state()) == lessons.values()


def test_a_saved_state_knows_the_rating():
    """No game has to end after it: a resumed run waited for one, and smoothed the rating less often."""
    parameters = {"size": curriculum(1.0, 2.0, measure="elo", threshold=1150.0)}
    lessons, resumed = lessons_of(parameters), lessons_of(parameters)
    lessons.episodes("A", [0.0])
    lessons.rated("A", 1200.0)
    assert advanced(lessons) == []  # 0.75 * 1200 = 900
    resumed.restore(json.loads(json.dumps(lessons.state(), allow_nan=False)))
    for each in (lessons, resumed):
        assert advanced(each) == []  # 0.25 * 900 + 0.75 * 1200 = 1125
        assert advanced(each) == [("size", 1)]  # 0.25 * 1125 + 900 = 1181.25
    assert lessons.state() == resumed.state()


def test_lesson_numbers_alone_are_restored_too(caplog):
    lessons = lessons_of({"size": curriculum(1.0, 2.0, 3.0), "mass": 4.0})
    lessons.restore({"parameters": {"size": {"lesson_num": 1}, "gone": {"lesson_num": 7}}})
    assert lessons.numbers == {"size": 1, "mass": 0} and not caplog.records
    lessons.restore({"parameters": {"size": {"lesson_num": 3}}})
    assert lessons.numbers["size"] == 2
    assert "environment_parameters.size: the run was in lesson 3, and there are 3 now: it is in" in caplog.text


def test_samplers_without_a_seed_get_the_runs_plus_their_number():
    gaussian = {"sampler_type": "gaussian", "sampler_parameters": {"mean": 2, "st_dev": 0.5}}
    ranges = {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[1, 2], [4, 6]]}}
    parameters = {"a": uniform(0, 1), "b": 7, "c": uniform(0, 1, seed=5), "d": curriculum(gaussian, ranges)}
    lessons = lessons_of(parameters, seed=2**31 - 2)
    # Numbers count as samplers (b), seeded ones do not (c): 2^31 - 2, -, 5, 2^31 begins anew at 0, 1.
    assert lessons.values() == {
        "a": SamplerSpec("uniform", (0.0, 1.0), 2**31 - 2, each_worker=True),
        "b": 7.0,
        "c": SamplerSpec("uniform", (0.0, 1.0), 5),
        "d": SamplerSpec("gaussian", (2.0, 0.5), 0, each_worker=True),
    }
    assert advanced(lessons) == []
    lessons.episodes("A", [1.0])
    (change,) = lessons.advance({"A": 0.0})
    assert change.value == SamplerSpec("multirangeuniform", (1.0, 2.0, 4.0, 6.0), 1, each_worker=True)


@pytest.mark.parametrize(
    "resolved",
    [7.0, {"sampler_type": "constant", "sampler_parameters": {"seed": 3, "value": 7.0}}],
    ids=["number", "sampler"],
)
def test_a_constant_that_is_written_as_one_lesson_is_the_constant(resolved):
    lessons = lessons_of({"mass": {"curriculum": [{"name": "mass", "value": resolved, "completion_criteria": None}]}})
    assert lessons.values() == {"mass": 7.0} and lessons.numbers == {"mass": 0}
    assert lessons.finished and lessons.lines() == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5, "Float: value=2.5"),
        (SamplerSpec("uniform", (0.5, 2.0), 1), "Uniform sampler: min=0.5, max=2.0"),
        (SamplerSpec("gaussian", (1.0, 0.5), 1), "Gaussian sampler: mean=1.0, stddev=0.5"),
        (
            SamplerSpec("multirangeuniform", (1.0, 2.0, 4.0, 6.0), 1),
            "MultiRangeUniform sampler: intervals=[(1.0, 2.0), (4.0, 6.0)]",
        ),
    ],
)
def test_values_in_words(value, text):
    assert value_text(value) == text
    lessons = lessons_of({"size": curriculum(2.5, 1.0)})
    assert lessons.lines() == ["Environment parameter size: lesson '0' (1 of 2). Float: value=2.5."]
