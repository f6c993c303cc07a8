"""Settings with demonstrations of no use: one sentence with the key, the value, what was expected; nothing written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli import main
from jaxrl.settings import RunSettings, SettingsError, load_run_settings
from jaxrl.training.checks import check_run, warn_of_cloning
from tests.demonstrations.test_demonstrations import episode, written
from tests.parity.__main__ import FIXTURES

GAIL, CLONING = "behaviors.Walker.reward_signals.gail", "behaviors.Walker.behavioral_cloning"


def gail(path: Any) -> dict[str, Any]:
    return {"reward_signals": {"gail": {"demo_path": str(path)}}}


def checked(folder: Path, section: dict[str, Any] | str) -> RunSettings:
    """A configuration file with this behavior, as the command line checks it."""
    file = folder / "walker.yaml"
    file.write_text(section if isinstance(section, str) else yaml.safe_dump({"behaviors": {"Walker": section}}))
    settings = load_run_settings(file, {}, HYPERPARAMETER_TYPES)
    check_run(settings, str(file))
    return settings


def refused(folder: Path, section: dict[str, Any] | str) -> str:
    with pytest.raises(SettingsError) as caught:
        checked(folder, section)
    return str(caught.value)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("truncated_in_message", "it is cut off at byte 1400: pair 8 would have 167 bytes, of which 83 are there"),
        ("text", "is it a .demo file of Unity's Demonstration Recorder?"),
        ("empty", "it is empty; is it a .demo file of Unity's Demonstration Recorder?"),
        ("version_2", "version 2, expected 0 or 1"),
        ("steps_more", "it ends after 9 of 14 pairs: it was cut off"),
    ],
)
def test_a_file_that_cannot_be_read_names_its_key(tmp_path, file, words):
    path = FIXTURES / f"i_demo_broken.{file}.demo"
    assert f"{GAIL}.demo_path: {path}: " in (text := refused(tmp_path, gail(path))) and words in text
    assert f"{CLONING}.demo_path: {path}: " in refused(tmp_path, {"behavioral_cloning": {"demo_path": str(path)}})


def test_what_else_is_refused(tmp_path):
    (tmp_path / "two").mkdir()
    for name, behavior in (("a", "Walker"), ("b", "Runner")):
        written(tmp_path / "two" / f"{name}.demo", episode(3), behavior=behavior)
    (tmp_path / "none").mkdir()
    undecided = written(tmp_path / "end.demo", iter(list(episode(9))[-1:]), episode(0))
    for path, words in (
        (tmp_path / "none", "there is no .demo file in this folder, expected at least one"),
        (tmp_path / "none.demo", "there is no such file or folder of demonstrations"),
        (
            tmp_path / "two",
            "demonstrations of two behaviors, 'Walker' and 'Runner' (b.demo): a folder has those of one",
        ),
        (undecided, "there is no decision in it"),
        ("demo:pyramid", "jaxrl has no such demonstrations, only ball3d, crawler, hallway, push_block, pyramids"),
    ):
        assert f"{GAIL}.demo_path: {path}: {words}" in refused(tmp_path, gail(path))
    assert f"{GAIL}.demo_path: this key is required" in refused(tmp_path, {"reward_signals": {"gail": {}}})
    for signals in (["rnd"], ["curiosity", "rnd"]):
        text = refused(tmp_path, {"reward_signals": {name: {"strength": 0} for name in signals}})
        assert f"reward_signals.{signals[0]}.strength: got 0, expected another number: nothing else pays" in text
    twice = "behaviors: {Walker: {reward_signals: {rnd: {strength: 1}, rnd: {strength: 2}}}}"
    assert "key 'rnd' twice" in refused(tmp_path, twice)
    below = {"behavioral_cloning": {"demo_path": "demo:hallway", "steps": -1}}
    assert f"{CLONING}.steps: got -1, expected a value greater than or equal to 0" in refused(tmp_path, below)


@pytest.mark.parametrize(("steps", "told"), [(2000, True), (1000, False), (0, False)])
def test_cloning_that_outlasts_the_run_is_told(tmp_path, caplog, steps, told):
    with caplog.at_level(logging.WARNING, "jaxrl"):
        cloning = {"demo_path": "demo:hallway", "steps": steps}
        warn_of_cloning(checked(tmp_path, {"max_steps": 1000, "behavioral_cloning": cloning}))
    sentence = f"{CLONING}.steps: got {steps}, expected at most max_steps, which is 1000: the run ends before"
    assert [text.startswith(sentence) for text in caplog.messages] == [True] * told


@pytest.mark.parametrize("key", ["reward_signals.gail", "behavioral_cloning"])
def test_demonstrations_of_another_agent_are_refused_before_anything_is_written(tmp_path, capsys, monkeypatch, key):
    """Hallway's, for Basic: the sentence names the key, the file, what it holds and what the agent has."""
    monkeypatch.chdir(tmp_path)
    section: Any = {"demo_path": "demo:hallway"}
    for part in reversed(key.split(".")):
        section = {part: section}
    Path("basic.yaml").write_text(yaml.safe_dump({"behaviors": {"Basic": section}}))
    assert main(["train", "basic.yaml", "--env", "jax:basic", "--run-id=one"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    got = "recorded with actions of 0 numbers and branches [4], expected actions of 0 numbers and branches [3]"
    assert f"{key}.demo_path: demo:hallway: {got}, as the agent has: record this agent, or" in told
    assert sorted(x.name for x in tmp_path.iterdir()) == ["basic.yaml"]
