"""Every example configuration can be read, is trained by jaxrl, and is what it says: reading changes no value.

Those that describe ML-Agents' example scenes are tested in test_mlagents_configs.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.envs.address import Kind, parse_address
from jaxrl.settings import behavior_settings_for, load_run_settings, remarks, to_yaml
from jaxrl.settings.reading import read_yaml

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
OURS = [path for path in FILES if path.relative_to(CONFIGS).parts[0] != "mlagents"]


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, tree


def test_there_are_configs():
    names = {str(path.relative_to(CONFIGS)) for path in FILES}
    assert {"poca/dungeon_escape.yaml", "ppo/dungeon_escape.yaml", "poca/dungeon_escape_unity.yaml"} <= names


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_config(path, tmp_path):
    before = path.read_bytes()
    settings = load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert remarks(settings) == []
    again = tmp_path / "configuration.yaml"
    again.write_text(to_yaml(settings), encoding="utf-8")
    written, read = yaml.safe_load(before), dict(leaves(read_yaml(again)))
    assert {where: read[where] for where, _ in leaves(written)} == dict(leaves(written))
    for name, behavior in written["behaviors"].items():
        trainer_type = {**written.get("default_settings", {}), **behavior}["trainer_type"]
        assert behavior_settings_for(settings, name).trainer_type == trainer_type
    where = parse_address(settings.env_settings.env_path).kind
    folder = where if where in (Kind.GYMNASIUM, Kind.PETTINGZOO) else trainer_type
    assert folder == path.parent.name
    assert load_run_settings(again, {}, HYPERPARAMETER_TYPES) == settings
    assert path.read_bytes() == before


def test_the_two_dungeons_differ_in_the_trainer_alone():
    poca, ppo = (yaml.safe_load((CONFIGS / kind / "dungeon_escape.yaml").read_text()) for kind in ("poca", "ppo"))
    assert poca["env_settings"] == ppo["env_settings"]
    assert poca["env_settings"]["env_path"] == "player:dungeon_escape"
    differing = {key for key, value in leaves(poca) if value != dict(leaves(ppo)).get(key)}
    assert differing == {("behaviors", "DungeonEscape", "trainer_type")}
