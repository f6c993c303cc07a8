"""Remarks after the first minute: names that do not fit, episodes that do not end; each once, in either loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import load_run_settings
from jaxrl.training import first_look
from jaxrl.training.first_look import DECISIONS, SECONDS, FirstLook
from jaxrl.training.host.run import train
from tests.toy_runs import SMALL, configured, environment

LESSON = {
    "name": "easy",
    "value": 1.0,
    "completion_criteria": {"behavior": "Walkr", "measure": "progress", "threshold": 0.5},
}
PARAMETERS = {"wall": {"curriculum": [LESSON, {"name": "hard", "value": 2.0}]}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a look takes the time to be."""
    now = [100.0]
    monkeypatch.setattr(first_look, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    return now


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The remarks since the last call."""
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.WARNING, "jaxrl")

    def read() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return texts

    return read


def settings_with(*behaviors: str, default: bool = True, **sections: Any) -> Any:
    written = {"behaviors": {name: {} for name in behaviors}, **sections}
    if default:
        written["default_settings"] = {}
    return load_run_settings(None, written, HYPERPARAMETER_TYPES)


def test_names_that_do_not_fit_are_said_once(clock: list[float], said: Any) -> None:
    look = FirstLook(settings_with("Walker", "Crawler", environment_parameters=PARAMETERS))
    look.met(["Walkr2", "Crawler"])
    look.look()
    clock[0] += SECONDS - 0.1
    look.met(["Worm"])
    look.look()
    said()
    clock[0] += 0.1
    look.look()
    assert said() == [
        "behaviors.Walker: no such behavior has come so far; did you mean Walkr2? there are Crawler, Walkr2, Worm",
        "Walkr2: is trained by default_settings, because behaviors does not list it",
        "Worm: is trained by default_settings, because behaviors does not list it",
        "environment_parameters.wall.curriculum[0].completion_criteria.behavior: no behavior Walkr has come so far, "
        "and the lesson goes on until it does; did you mean Walkr2? there are Crawler, Walkr2, Worm",
    ]
    clock[0] += SECONDS
    look.look()
    assert said() == []


def test_nothing_is_said_where_all_is_as_written(clock: list[float], said: Any) -> None:
    for settings in (settings_with("Walker", default=False), settings_with()):
        look = FirstLook(settings)
        look.met(["Walker"])
        look.acted("Walker", 10 * DECISIONS, 1)
        look.look()
        clock[0] += SECONDS
        said()
        look.look()
        assert said() == []


def test_episodes_that_do_not_end_are_said_after_enough_decisions(clock: list[float], said: Any) -> None:
    look = FirstLook(settings_with())
    look.met(["A", "B", "C"])
    look.look()
    for name, decisions, episodes in (("A", DECISIONS - 1, 0), ("B", 5, 0), ("B", 5, 1), ("C", DECISIONS, 0)):
        look.acted(name, decisions, episodes)
    clock[0] += SECONDS
    said()
    look.look()
    (text,) = said()
    assert text.startswith(f"C: no episode has ended in the first {DECISIONS} decisions, so there is no Mean Reward")
    look.acted("A", 1, 0)
    look.acted("C", DECISIONS, 0)
    look.look()
    assert [text.partition(":")[0] for text in said()] == ["A"]
    look.acted("A", DECISIONS, 0)
    look.acted("B", DECISIONS, 0)
    look.look()
    assert said() == []


@pytest.mark.timeout(300)
def test_a_run_of_the_host_loop_is_looked_at(tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose file lists a name with a slip of the pen."""
    monkeypatch.setattr(first_look, "SECONDS", 0.0)
    monkeypatch.setattr(first_look, "DECISIONS", 8)
    changes = {"default_settings": SMALL | {"max_steps": 100}}
    with environment("Toy?team=0", episode_length=50) as started:
        train(configured(tmp_path, "run", changes, Toys={}), started=started)
    texts = said()
    assert texts.count("behaviors.Toys: no such behavior has come so far; did you mean Toy? there are Toy") == 1
    assert texts.count("Toy: is trained by default_settings, because behaviors does not list it") == 1
    assert sum(text.startswith("Toy: no episode has ended in the first 8 decisions") for text in texts) == 1


def test_samplers_that_draw_the_same_in_all_workers_are_remarked(said: Any) -> None:
    def sampler(kind: str, **parameters: Any) -> dict[str, Any]:
        return {"sampler_type": kind, "sampler_parameters": parameters}

    lessons = [LESSON | {"value": sampler("gaussian", seed=5)}, {"name": "hard", "value": sampler("uniform")}]
    parameters = {
        "own": sampler("uniform", seed=3),
        "usual": sampler("uniform"),
        "constant": sampler("constant", seed=3, value=1.0),
        "wall": {"curriculum": lessons},
    }
    for workers, names in ((1, []), (4, ["own", "wall.curriculum[0].value"])):
        settings_with("Walkr", environment_parameters=parameters, env_settings={"num_envs": workers, "env_path": "a"})
        texts = [text for text in said() if "draw the same numbers" in text]
        paths = [f"environment_parameters.{name}.sampler_parameters.seed" for name in names]
        assert [text.partition(": ")[0] for text in texts] == paths
        assert all(f"all {workers} environments draw the same numbers: leave it out" in text for text in texts)
