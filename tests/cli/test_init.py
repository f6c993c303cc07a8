"""Configurations that come with jaxrl: listed, copied, and trained by name or by environment."""

from __future__ import annotations

import argparse
import io
import logging
from collections.abc import Iterator

import pytest
from rich.console import Console

from jaxrl.cli import main, train
from jaxrl.cli.shipped import made_for, named, shipped
from jaxrl.types import JaxrlError
from tests.test_configs import CONFIGS, FILES


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process sets up jaxrl's logging, which is nothing to the next test."""
    logger = logging.getLogger("jaxrl")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)


def test_all_of_them(capsys):
    assert {one.path for one in shipped()} == set(FILES)
    assert main(["init"]) == 0
    printed = capsys.readouterr().out
    ours = [one for one in shipped() if not one.name.startswith("mlagents/")]
    assert all(one.name in printed for one in ours) and "mlagents/" not in printed
    assert main(["init", "mlagents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 39 and [line.split()[0] for line in lines] == [one.name for one in shipped()[len(ours) :]]


def test_a_copy_is_the_file_and_is_not_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "dungeon_escape"]) == 0
    written = tmp_path / "dungeon_escape.yaml"
    assert written.read_bytes() == (CONFIGS / "poca" / "dungeon_escape.yaml").read_bytes()
    assert "there is also coma/dungeon_escape, ppo/dungeon_escape" in capsys.readouterr().out
    written.write_text("mine")
    assert main(["init", "ppo/dungeon_escape"]) == 1 and written.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["init", "ppo/dungeon_escape", "--force"]) == 0
    assert written.read_bytes() == (CONFIGS / "ppo" / "dungeon_escape.yaml").read_bytes()
    assert main(["init", "basic", "--out", "a/b.yaml"]) == 0 and (tmp_path / "a" / "b.yaml").exists()
    assert main(["init", "basic", "--out", "a"]) == 1
    assert main(["init", "dungeon"]) == 1
    assert "dungeon: no configuration of jaxrl's has that name, did you mean dungeon_escape" in capsys.readouterr().err
    assert main(["init", "mlagents/ppo/Walkr"]) == 1 and "did you mean mlagents/ppo/Walker" in capsys.readouterr().err


def test_teams_are_trained_as_teams_unless_said_otherwise():
    assert [one.name for one in named("dungeon_escape")][:2] == ["poca/dungeon_escape", "coma/dungeon_escape"]
    assert [one.name for one in named("ppo/dungeon_escape")] == ["ppo/dungeon_escape"]
    assert [one.name for one in named("Worm")] == ["mlagents/ppo/Worm", "mlagents/sac/Worm"]
    assert [one.name for one in named("mlagents/sac/Worm")] == ["mlagents/sac/Worm"]
    assert made_for("jax:dungeon_escape")[0].name == "poca/dungeon_escape"  # the file names player:dungeon_escape
    assert [one.name for one in made_for("jax:hallway")] == ["ppo/hallway", "ppo/hallway_lessons"]
    assert [one.name for one in made_for("gymnasium:CartPole-v1")] == ["gymnasium/cartpole"]
    assert made_for("Build/Game.x86_64") == made_for("jax:probe_goal") == []


def configuration(given, env_path=None):
    overrides = {} if env_path is None else {"env_settings": {"env_path": env_path}}
    return train.configuration(given, overrides)[0]


def test_a_file_beats_a_name(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.chdir(tmp_path)
    assert configuration("hallway") == str(CONFIGS / "ppo" / "hallway.yaml")
    assert "Configuration: ppo/hallway, one of jaxrl's own" in caplog.text
    assert configuration(None, "jax:hallway") == str(CONFIGS / "ppo" / "hallway.yaml")
    assert configuration(None) is configuration(None, "jax:probe_goal") is configuration(None, "Game.x86_64") is None
    (tmp_path / "basic").mkdir()
    assert configuration("basic") == str(CONFIGS / "ppo" / "basic.yaml")
    (tmp_path / "hallway").write_text("behaviors: {}")
    assert configuration("hallway") == "hallway" and configuration("missing.yaml") == "missing.yaml"
    with pytest.raises(JaxrlError, match="did you mean hallway"):
        configuration("halway")
    (tmp_path / "config").mkdir()
    with pytest.raises(JaxrlError, match="config is a folder: name the configuration file in it"):
        configuration("config")


def test_a_run_by_name(tmp_path, capsys):
    """Refused for what comes after the file was found and read: the number of seeds."""
    flags = ["--results-dir", str(tmp_path), "--seeds", "2"]
    assert main(["train", "dungeon_escape", *flags]) == 1
    assert "env_settings.seeds: got 2" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_without_an_environment_it_says_what_it_waits_for():
    given = argparse.Namespace(config=None, **{"env_settings.timeout_wait": 3.0})
    printed = io.StringIO()
    train._checked(given, Console(file=printed, width=400), None)
    text = printed.getvalue()
    assert "waiting for the Unity Editor for up to 3 s" in text and "jaxrl train dungeon_escape" in text
