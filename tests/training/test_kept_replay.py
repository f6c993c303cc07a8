"""What a checkpoint keeps of an algorithm's store, in both loops: a resumed run goes on with it, or says why not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES, make_settings
from jaxrl.artifacts.checkpoint import replay
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import REPLAY, REPLAY_BEFORE, checkpoints, point_at, remove
from jaxrl.artifacts.checkpoint.store import read_info
from jaxrl.compilation import enable_compilation_cache
from jaxrl.settings import load_run_settings
from jaxrl.training import saver
from jaxrl.training.compiled import run as compiled
from jaxrl.training.host import run as host
from tests.helpers import make_spec
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.toy_runs import environment
from tests.trainer import contents
from tests.training.compiled.arrays import arrays_of

pytestmark = [pytest.mark.usefixtures("runs", "traced_once"), pytest.mark.timeout(400)]
LOOPS = ["host", "compiled"]
NAMES = {"host": "Toy", "compiled": "Basic"}
OWN = Path(__file__).parents[1] / "algorithms" / "replay_algorithm.py"


def trained(
    results: Path,
    loop: str,
    make: str = "make_kept",
    *,
    ring: int = 300,
    steps: int = 160,
    names: Any = (),
    **options: Any,
) -> Path:
    """A run of `steps` decisions, saved every 80; the folder of its behavior, or of the first of several."""
    names = names or [NAMES[loop]]
    results.mkdir(exist_ok=True)
    behavior = {
        "trainer_type": f"{OWN}:{make}",
        "hyperparameters": {"batch_size": 16, "buffer_size": ring},
        "max_steps": steps, "summary_freq": 80, "checkpoint_interval": 80, "keep_checkpoints": 0,
    }  # fmt: skip
    exact = loop == "host"  # without it what is open at a checkpoint is not known afterwards
    written = {
        "behaviors": dict.fromkeys(names, behavior),
        "env_settings": {"seed": 3, "env_path": "jax:basic", "num_areas": 2},
        "checkpoint_settings": {"run_id": "run", "results_dir": str(results), "exact": exact} | options,
    }
    (results / "run.yaml").write_text(yaml.safe_dump(written))
    settings = load_run_settings(results / "run.yaml", {}, HYPERPARAMETER_TYPES)
    enable_compilation_cache()
    with quick_compilation():
        if loop == "compiled":
            compiled.train(settings)
        else:
            with environment(*(f"{name}?team=0" for name in names), continuous=0, branches=(3,)) as started:
                host.train(settings, started=started)
    return results / "run" / names[0]


def stopped(whole: Path, results: Path, count: int = 1, *, kept: bool = True) -> Path:
    """A copy of the run as it was after `count` checkpoints, with the replay of the first one if that is `kept`."""
    shutil.copytree(whole.parents[1], results)
    folder = results / "run" / whole.name
    for item in checkpoints(folder)[count:]:
        remove(item)
    point_at(checkpoints(folder)[-1].path, checkpoints(folder)[-1].step)
    if (whole / REPLAY).exists():
        shutil.rmtree(folder / REPLAY)
    if kept:
        shutil.copytree(whole.parents[2] / f"replay-{checkpoints(whole)[0].step}", folder / REPLAY)
    return folder


def assert_equal(one: Path, other: Path) -> None:
    """The newest checkpoints and replays, bit for bit."""
    (*_, first), (*_, second) = checkpoints(one), checkpoints(other)
    assert first.step == second.step
    found, wanted = arrays_of(second.path), arrays_of(first.path)
    assert found.keys() == wanted.keys() and not any(name.startswith("store") for name in found)
    assert [name for name in wanted if found[name].tobytes() != wanted[name].tobytes()] == []
    names = sorted(path.name for path in (one / REPLAY).iterdir() if path.suffix != ".json")
    assert len(names) == 6 and (one / REPLAY / "0").stat().st_size > 300
    for name in names:
        assert (one / REPLAY / name).read_bytes() == (other / REPLAY / name).read_bytes(), name


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory, runs: None) -> dict[str, Path]:
    """By loop, a run that was never stopped; above its results a copy of the replay of each of its checkpoints."""
    install, found = replay.Staged.install, {}

    def noted(staged: replay.Staged, checkpoint: Path) -> CheckpointError | None:
        lost = install(staged, checkpoint)
        shutil.copytree(staged.path, staged.path.parents[3] / f"replay-{read_info(checkpoint).step}")
        return lost

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay.Staged, "install", noted)
        for loop in LOOPS:
            found[loop] = trained(tmp_path_factory.mktemp(loop) / "whole", loop)
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_a_resumed_run_goes_on_with_its_replay_bit_for_bit(
    loop: str, wholes: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = wholes[loop]
    assert len(checkpoints(whole)) >= 2 and len([path for path in whole.iterdir() if REPLAY in path.name]) == 1
    again = stopped(whole, whole.parents[2] / "again")
    trained(again.parents[1], loop, resume=True)
    assert_equal(whole, again)
    assert "the replay" not in caplog.text and "belongs to" not in caplog.text


@pytest.mark.parametrize("loop", ["host", pytest.param("compiled", marks=pytest.mark.slow)])
def test_one_that_is_not_kept_begins_empty_and_says_so(
    loop: str, wholes: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole = trained(tmp_path / "whole", loop, "make_forgotten")
    assert not (whole / REPLAY).exists()
    again = stopped(whole, tmp_path / "again", kept=False)
    caplog.clear()
    trained(again.parents[1], loop, "make_forgotten", resume=True)
    assert f"{NAMES[loop]}: the replay begins empty." in caplog.messages
    trained(stopped(wholes[loop], tmp_path / "anew").parents[1], loop, "make_forgotten", force=True)
    assert not (tmp_path / "anew" / "run" / NAMES[loop] / REPLAY).exists()
    if loop == "host":  # an exact run has given it up as well
        (*_, first), (*_, second) = checkpoints(whole), checkpoints(again)
        found, wanted = arrays_of(second.path), arrays_of(first.path)
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    caplog.clear()
    again = stopped(wholes[loop], tmp_path / "gone", kept=False)
    trained(again.parents[1], loop, resume=True)
    assert f"{NAMES[loop]}: the replay begins empty: {again / REPLAY} does not exist." in caplog.messages


def test_the_key_that_keeps_a_replay_is_named(caplog: Any) -> None:
    caplog.set_level("INFO")
    saver.tell_empty("B", make_settings("sac"))
    assert caplog.messages == ["B: the replay begins empty (hyperparameters.save_replay_buffer keeps it)."]


@pytest.mark.parametrize("loop", LOOPS)
def test_one_of_another_moment_is_told_and_taken(
    loop: str, wholes: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed when the second checkpoint was complete and its replay was not, and the first is not kept."""
    first, second, *_ = (item.step for item in checkpoints(wholes[loop]))
    again = stopped(wholes[loop], tmp_path / "again", 2)
    remove(checkpoints(again)[0])
    trained(again.parents[1], loop, resume=True, exact=False)
    told = [text for text in caplog.messages if "belongs to" in text]
    assert len(told) == 1 and str(again / REPLAY) in told[0]
    assert f"of step {first}, and the run goes on from another, of step {second}" in told[0]
    assert not any("begins empty" in text for text in caplog.messages)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_that_repeats_goes_back_to_the_moment_of_its_replay(
    loop: str, wholes: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = stopped(wholes[loop], tmp_path / "again", 2)
    trained(again.parents[1], loop, resume=True)
    assert_equal(wholes[loop], again)
    words = {"host": "than a replay: all go on from the moment before", "compiled": "to which the replay belongs"}
    assert sum(words[loop] in text for text in caplog.messages) == 1 and "belongs to the" not in caplog.text


def test_so_do_all_behaviors_together(tmp_path: Path) -> None:
    """Killed when Toy was saved at the last moment with its replay, and Other with none of this."""
    names = "Toy", "Other"
    whole = trained(tmp_path / "whole", "host", names=names, steps=230)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    other = tmp_path / "again" / "run" / "Other"
    *_, before, last = checkpoints(other)
    remove(last)
    point_at(before.path, before.step)
    shutil.rmtree(other / REPLAY)
    (other / REPLAY_BEFORE).rename(other / REPLAY)
    again = trained(tmp_path / "again", "host", names=names, steps=230, resume=True)
    assert_equal(whole, again)
    assert_equal(whole.with_name("Other"), other)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_cannot_be_used_is_one_sentence_and_nothing_is_written(
    loop: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    again = stopped(wholes[loop], tmp_path / "again")
    before = contents(again.parents[1])
    words = r"replay: the replay does not fit this run \(hyperparameters\.buffer_size: 300 in the checkpoint, 200 now\)"
    with pytest.raises(CheckpointError, match=words):
        trained(again.parents[1], loop, ring=200, resume=True)
    assert contents(again.parents[1]).keys() == before.keys()
    (again / REPLAY / "0").write_bytes(b"gone")
    with pytest.raises(CheckpointError, match=r"replay is damaged \(0 has 4 bytes instead of .* delete this folder"):
        trained(again.parents[1], loop, resume=True)
    assert contents(again.parents[1]).keys() == before.keys()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: (file.unlink(), os.mkfifo(file)), r"it is no file"),
        (lambda file: file.write_bytes(b"short"), r"cannot reshape array of size 5"),
        (lambda file: file.unlink(), r"No such file"),
    ],
)
def test_files_that_the_manifest_of_a_stranger_does_not_list_are_looked_at(
    damage: Any, words: str, tmp_path: Path
) -> None:
    folder, store = tmp_path / "Walker", {"flags": jnp.ones((3, 4), bool)}
    first = checkpoint.save(folder, 1, {"a": np.zeros(1)}, spec=make_spec((4,), branches=(2,)))
    assert replay.stage(folder, store).install(first) is None
    damage(folder / REPLAY / "0")
    manifest = folder / REPLAY / "manifest.json"
    listed = json.loads(manifest.read_text())["files"]
    manifest.write_text(json.dumps({"files": {name: of for name, of in listed.items() if name != "0"}}))
    with pytest.raises(CheckpointError, match=rf"the replay is damaged \(.*{words}.*delete this folder"):
        replay.restore(folder, store, first, spec=make_spec((4,), branches=(2,)), settings={})


def test_one_of_another_run_at_the_same_step_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copied from beside, or left there by a run that was begun anew: the step alone does not tell."""
    store, spec = {"flags": jnp.ones((3, 4), bool)}, make_spec((4,), branches=(2,))
    mine, other = (checkpoint.save(tmp_path / run / "Walker", 5, {"a": np.zeros(1)}, spec=spec) for run in "mo")
    assert replay.stage(other.parent, store).install(other) is None
    assert replay.belongs_to(other.parent, read_info(other))
    shutil.copytree(other.parent / REPLAY, mine.parent / REPLAY)
    assert not replay.belongs_to(mine.parent, read_info(mine))
    assert replay.restore(mine.parent, store, mine, spec=spec, settings={}) is not None
    assert "belongs to the checkpoint of step 5, and the run goes on from another, of step 5" in caplog.text


def test_every_array_comes_back_and_a_full_disk_costs_the_replay_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PIECE_BYTES", 64)
    draw = np.random.default_rng(0)
    store = {
        "images": jnp.asarray(draw.integers(0, 256, (2, 3, 5, 7), np.uint8)),
        "half": jnp.asarray(draw.normal(size=(3, 50)), jnp.bfloat16),
        "flags": jnp.asarray(draw.random(101) < 0.5),
        "nothing": jnp.zeros((4, 0)),
        "count": jnp.int32(7),
        "key": jax.random.split(jax.random.key(3), 2),
    }
    folder, spec = tmp_path / "Walker", make_spec((4,), branches=(2,))
    first, second = (checkpoint.save(folder, step, {"a": np.zeros(1)}, spec=spec) for step in (1, 2))
    assert replay.stage(folder, store).install(first) is None
    monkeypatch.setattr(replay.files, "free_bytes", lambda _: 0)
    text = str(replay.stage(folder, store).install(second))
    assert "replay: the replay cannot be written (it needs about 1.0 MiB" in text and "Walker-2 is complete" in text
    monkeypatch.undo()
    found = replay.restore(folder, jax.tree.map(jnp.zeros_like, store), first, spec=spec, settings={})
    assert trees.leaves_of(found) == trees.leaves_of(store)
    one, other = trees.to_arrays(found), trees.to_arrays(store)
    assert [name for name in other if one[name].tobytes() != other[name].tobytes()] == []
