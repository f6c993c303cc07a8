"""Damaged checkpoints are named and passed over for the one before; the same of the pointer to the latest."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.artifacts.checkpoint import folder as folders
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError, DamagedError, verify
from jaxrl.artifacts.checkpoint.loop import NOTED
from jaxrl.artifacts.checkpoint.notes import Notes
from jaxrl.artifacts.run_folder import RunFolder
from tests.helpers import make_spec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no pipes in folders")
SETTINGS = {"trainer_type": "ppo", "network_settings": {"hidden_units": 4}}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a behavior with the checkpoints of steps 1 and 2."""
    path = tmp_path / "run" / "Walker"
    for step in (1, 2):
        checkpoint.save(path, step, state(step), spec=make_spec((3,), branches=(2,)), settings=SETTINGS)
    return path


def state(step: int) -> dict[str, Any]:
    """Noise, which no compression makes small."""
    return {"params": {"a": np.random.default_rng(step).normal(size=(20, 30))}, "step": np.int64(step)}


def assert_restored(path: Path, step: int) -> None:
    restored, expected = checkpoint.restore(path, state(0)), state(step)
    assert np.array_equal(restored["params"]["a"], expected["params"]["a"]) and restored["step"] == step


def chunk(path: Path) -> Path:
    """The largest file of the arrays."""
    return max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def edited(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Damage by somebody with an editor: checkpoint.json is changed, or becomes what `change` gives."""

    def damage(path: Path) -> None:
        document = json.loads((path / "checkpoint.json").read_text())
        result = change(document)
        (path / "checkpoint.json").write_text(json.dumps(document if result is None else result))

    return damage


def pipe(file: Path) -> None:
    """Whoever opens it waits for ever."""
    file.unlink()
    os.mkfifo(file)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of an array flipped": lambda path: flip(chunk(path / "arrays")),
    "an array cut short": lambda path: os.truncate(chunk(path / "arrays"), 10),
    "an array emptied": lambda path: os.truncate(chunk(path / "arrays"), 0),
    "an array longer": lambda path: os.truncate(chunk(path / "arrays"), 10**6),
    "an array's file gone": lambda path: chunk(path / "arrays").unlink(),
    "all arrays gone": lambda path: shutil.rmtree(path / "arrays"),
    "a file that became a folder": lambda path: (chunk(path / "arrays").unlink(), (path / "arrays" / "d").touch()),
    "no checkpoint.json": lambda path: (path / "checkpoint.json").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "a manifest that is null": lambda path: (path / "manifest.json").write_text("null"),
    "a manifest without files": lambda path: (path / "manifest.json").write_text("{}"),
    "a manifest of another size": lambda path: (path / "manifest.json").write_text('{"files": {"a": {"size": "1"}}}'),
    "checkpoint.json null": edited(lambda document: []),
    "checkpoint.json empty": lambda path: (path / "checkpoint.json").write_text(""),
    "checkpoint.json not UTF-8": lambda path: (path / "checkpoint.json").write_bytes(b'{"format": "\xff"}'),
    "checkpoint.json nested without end": lambda path: (path / "checkpoint.json").write_text("[" * 200_000),
    "a pipe for checkpoint.json": lambda path: pipe(path / "checkpoint.json"),
    "another step": edited(lambda document: document.update(step=7)),
    "no leaves": edited(lambda document: document.pop("leaves")),
    "leaves that are null": edited(lambda document: document.update(leaves=None)),
    "a shape in words": edited(lambda document: document["leaves"]["params/a"].update(shape="20 x 30")),
    "settings that are a list": edited(lambda document: document.update(settings=[1])),
    "format null": edited(lambda document: document.update(format=None)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder: Path, log: Any, damage: str) -> None:
    DAMAGES[damage](folder / "Walker-2")
    path = checkpoint.require_latest(folder)
    assert path == folder / "Walker-1"
    assert_restored(path, 1)
    (record,) = log.records
    text = record.getMessage()
    assert record.levelname == "WARNING" and "\n" not in text and len(text) < 500
    assert text.startswith(f"{folder / 'Walker-2'}: the checkpoint is damaged (") and text.endswith("; using Walker-1.")


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_none_is_left_one_error_names_all(folder: Path, log: Any, damage: str) -> None:
    for step in (1, 2):
        DAMAGES[damage](folder / f"Walker-{step}")
    with pytest.raises(CheckpointError, match=r"Walker-2: .*damaged.*Walker-1: .*damaged.*No other.*--force") as caught:
        checkpoint.require_latest(folder)
    assert "\n" not in str(caught.value) and not log.records
    with pytest.raises(CheckpointError, match="Walker-2"):
        RunFolder(folder.parents[1], "run").check(resume=True)


def test_what_differs_is_told(folder: Path) -> None:
    file = chunk(folder / "Walker-2" / "arrays")
    name, size = file.relative_to(folder / "Walker-2").as_posix(), file.stat().st_size
    content = file.read_bytes()
    for change, text in (
        (lambda: flip(file), f"the content of {name} has changed"),
        (lambda: os.truncate(file, 3), f"{name} has 3 bytes instead of {size}"),
        (lambda: file.unlink(), f"{name} is missing"),
    ):
        change()
        with pytest.raises(DamagedError) as caught:
            verify(folder / "Walker-2")
        assert caught.value.why == text
        file.write_bytes(content)
    verify(folder / "Walker-2")
    (folder / "Walker-2" / "notes.txt").write_text("the user's own")
    verify(folder / "Walker-2")


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{}", b'{"folder": null}', b'{"folder": "../x"}', b"\xff"])
def test_a_damaged_pointer_stands_for_the_newest(folder: Path, log: Any, content: bytes) -> None:
    (folder / "checkpoint").write_bytes(content)
    assert checkpoint.require_latest(folder) == folder / "Walker-2"
    assert "does not name a complete checkpoint; using Walker-2." in log.text and len(log.records) == 1


def test_one_that_the_user_names_is_not_replaced_by_another(folder: Path, log: Any) -> None:
    flip(chunk(folder / "Walker-2" / "arrays"))
    run = RunFolder(folder.parents[1], "new")
    with pytest.raises(CheckpointError, match=r"Walker-2: the checkpoint is damaged"):
        run.initial_checkpoint("Walker", None, str(folder / "Walker-2"))
    run.check(initialize_from="run", behaviors={"Walker": None})
    assert not log.records  # told when it is loaded
    assert run.initial_checkpoint("Walker", "run") == folder / "Walker-1"
    assert len(log.records) == 1


def test_what_lies_ahead_of_the_run_is_neither_counted_nor_removed(folder: Path, log: Any) -> None:
    """A run that went back behind a damaged checkpoint keeps as many good ones as it was told to."""
    shutil.copytree(folder / "Walker-2", folder / "Walker-90")
    flip(chunk(folder / "Walker-90" / "arrays"))
    folders.point_at(folder / "Walker-90", 90)
    for step in (3, 4):
        checkpoint.save(folder, step, state(step), keep=2)
    assert [item.step for item in folders.checkpoints(folder)] == [3, 4, 90]
    assert checkpoint.require_latest(folder) == folder / "Walker-4" and not log.records
    checkpoint.save(folder, 90, state(90), keep=2)  # it has arrived there
    assert [item.step for item in folders.checkpoints(folder)] == [4, 90]
    assert checkpoint.require_latest(folder) == folder / "Walker-90"


def test_a_newer_format_is_no_damage(folder: Path) -> None:
    edited(lambda document: document.update(format=3, versions=["9.9"]))(folder / "Walker-2")
    with pytest.raises(CheckpointError, match=r"format 3, this jaxrl reads format 2.*jaxrl unknown"):
        checkpoint.require_latest(folder)


def crafted(folder: Path, change: Callable[[Path], None], **more: Any) -> Path:
    """A checkpoint of step 3 by a stranger, who changes it and describes it anew."""
    path = checkpoint.save(folder, 3, state(3) | more, settings=SETTINGS)
    change(path)
    (path / "manifest.json").unlink()
    manifest.write(path)
    return path


def hole(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(3 * 2**30)


def unlisted(name: str) -> Callable[[Path], None]:
    return edited(lambda document: document["leaves"].pop(name) and None)


def claims(shape: list[int]) -> Callable[[Path], None]:
    return edited(lambda document: document["leaves"]["params/a"].update(shape=shape))


CRAFTED: dict[str, tuple[Callable[[Path], None], dict[str, Any], str]] = {
    "an array that nobody lists": (unlisted("huge"), {"huge": np.zeros(2**24)}, "huge"),
    "an array of another shape": (claims([30, 20]), {}, "params/a"),
    "an array that is not stored": (claims([2, 300]), {}, "params/a"),
    "an array of terabytes": (claims([2**40]), {}, "params/a"),
    "a pipe": (lambda path: pipe(path / "arrays" / "_METADATA"), {}, "_METADATA is no file"),
    "a hole": (lambda path: hole(chunk(path)), {}, "bytes"),
    "lessons of nobody": (edited(lambda document: document["settings"].update(lessons=[{}, {}])), {}, "lessons"),
    "no window": (
        edited(lambda document: document["settings"].update(self_play={"league": 1})),
        {},
        "self_play.window",
    ),
    "no seeds": (edited(lambda document: document["settings"].update(seeds="four")), {}, "settings.seeds"),
    "a moment of texts": (edited(lambda document: document["settings"].update(moment={"a": ["1"]})), {}, "moment"),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_whole_checkpoint_by_a_stranger_is_read_within_bounds(folder: Path, kind: str) -> None:
    change, more, words = CRAFTED[kind]
    path, begin = crafted(folder, change, **more), time.process_time()
    with pytest.raises(DamagedError, match=words):
        verify(path)
        checkpoint.read_arrays(path)
    assert time.process_time() - begin < 1.0, "3 GB take longer"


def test_every_note_beside_the_settings_has_its_bounds() -> None:
    assert set(NOTED) <= Notes.model_fields.keys()


def test_arrays_are_read_as_they_are_asked_for(folder: Path) -> None:
    path = checkpoint.save(folder, 3, state(3) | {"huge": np.zeros(10)}, settings=SETTINGS)
    assert checkpoint.read_arrays(path).keys() == {"params/a", "step", "huge"}
    (array,) = checkpoint.read_arrays(path, ["params/a"]).values()
    assert np.array_equal(array, state(3)["params"]["a"])
