"""`connectors` in a configuration file: read, refused with the path of the key, and written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.connectors import MAKERS
from jaxrl.settings import RunSettings, SettingsError, load_run_settings, to_yaml
from jaxrl.settings.connectors import CONNECTORS, ClipSettings, FrameStackSettings
from jaxrl.settings.reading import read_yaml


def load(tmp_path: Path, text: str) -> RunSettings:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def of(tmp_path: Path, connectors: str, rest: str = "") -> RunSettings:
    return load(tmp_path, f"behaviors: {{A: {{trainer_type: ppo, {rest} connectors: {connectors}}}}}")


def test_every_type_has_settings_and_a_function() -> None:
    assert CONNECTORS.keys() == MAKERS.keys()


def test_in_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    connectors = (
        of(tmp_path, "[{type: frame_stack, frames: 4}, {type: clip, low: -5, high: 5}]").behaviors["A"].connectors
    )
    assert connectors == (FrameStackSettings(type="frame_stack", frames=4), ClipSettings(type="clip", low=-5, high=5))


@pytest.mark.parametrize(
    ("connectors", "problem"),
    [
        ("{type: clip}", "behaviors.A.connectors: got {'type': 'clip'}, expected a list of connectors"),
        ("[clip]", "behaviors.A.connectors[0]: got 'clip', expected a mapping with the key type"),
        (
            "[{type: flaten}]",
            "behaviors.A.connectors[0].type: got 'flaten', expected one of clip, flatten, frame_stack",
        ),
        ("[{type: [1]}]", "behaviors.A.connectors[0].type: got [1], expected one of clip"),
        ("[{type: frame_stack}]", "behaviors.A.connectors[0].frames: this key is required"),
        ("[{type: frame_stack, frames: 1}]", "behaviors.A.connectors[0].frames: got 1, expected a value greater"),
        (
            "[{type: flatten}, {type: clip, low: 3, high: 3}]",
            "behaviors.A.connectors[1].low: got 3, expected less than",
        ),
        ("[{type: clip, lo: 3, high: 3}]", "behaviors.A.connectors[0].lo: unknown key, did you mean low?"),
        (
            "[{type: clip, of: rewards, sensors: [a], low: 0, high: 1}]",
            "behaviors.A.connectors[0].sensors: has no meaning",
        ),
        (
            "[{type: unsquash, low: [0, 1], high: [1, 2, 3]}]",
            "behaviors.A.connectors[0].high: got 3 numbers, expected 2",
        ),
        (
            "[{type: unsquash, low: [0, 1], high: 1}]",
            "behaviors.A.connectors[0].low: got 1 for dimension 1, expected less",
        ),
    ],
)
def test_mistakes_are_named_by_their_path(tmp_path: Path, connectors: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        of(tmp_path, connectors)
    assert any(text.startswith(problem) for text in caught.value.problems), caught.value.problems


def test_two_normalisers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"A.connectors\[1\].type: network_settings.normalize standardizes the same"
    ):
        of(tmp_path, "[{type: flatten}, {type: normalize}]", "network_settings: {normalize: true},")


def test_files_without_connectors_are_what_they_were(tmp_path: Path) -> None:
    assert "connectors" not in to_yaml(load(tmp_path, "{default_settings: {}, behaviors: {A: {}}}"))


def test_written_and_read_again(tmp_path: Path) -> None:
    """Also where a behavior has none and `default_settings` has some."""
    settings = load(
        tmp_path,
        "default_settings: {connectors: [{type: unsquash, low: 0, high: [1, 2]}]}\n"
        "behaviors: {A: {connectors: []}, B: {}, C: {connectors: [{type: mask, sensors: [a], columns: [2]}]}}",
    )
    assert [len(settings.behaviors[name].connectors) for name in "ABC"] == [0, 1, 1]
    text = to_yaml(settings)
    assert load(tmp_path, text) == settings
    (tmp_path / "again.yaml").write_text(text)
    assert read_yaml(tmp_path / "again.yaml")["behaviors"]["A"]["connectors"] == []
