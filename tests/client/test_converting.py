"""`jaxrl demo convert` and `view`: what goes through another format comes back, and is what others read there."""

from __future__ import annotations

import io
import os
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.cli import main
from jaxrl.demonstrations import Pair, read, write
from jaxrl.demonstrations.episodes import episodes
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.demonstrations.test_demonstrations import episode, written

IMAGE = BehaviorSpec((ObservationSpec("eye", (3, 8, 6), dtype="uint8"),), ActionSpec(0, (2, 3)))


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return pytest.importorskip("minari")


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    """One episode that is over, one that is cut off by time, and one of which the recording stops."""
    open_ = list(episode(4, 20.0))[:3]
    return written(tmp_path / "walk.demo", episode(3), episode(2, 10.0, interrupted=True), iter(open_))


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Pictures, one brighter than the other."""
    pictures = [np.full((3, 8, 6), 10 * i, np.uint8) + np.arange(6, dtype=np.uint8) for i in range(5)]
    pairs = [Pair([x], (), (i % 2, i % 3), reward=float(i)) for i, x in enumerate(pictures[:4])]
    write(tmp_path / "seen.demo", "Eye", IMAGE, [*pairs, Pair([pictures[4]], reward=4.0, done=True)])
    return tmp_path / "seen.demo"


def same(first: Path, second: Path) -> None:
    for one, other in zip(episodes([first]), episodes([second]), strict=True):
        assert one[4:] == other[4:]
        for x, y in zip([*one.obs, *one.action, *one[2:4]], [*other.obs, *other.action, *other[2:4]], strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert read(first).behavior == read(second).behavior
    assert spec_to_json(read(first).spec) == spec_to_json(read(second).spec)


@pytest.mark.parametrize("name", ["walk", "seen"])
def test_npz_and_back(request, tmp_path, name, capsys):
    demo, npz, back = request.getfixturevalue(name), str(tmp_path / "new" / "x.npz"), tmp_path / "back.demo"
    assert main(["demo", "convert", str(demo), npz]) == 0
    assert main(["demo", "convert", npz, str(back)]) == 0
    same(demo, back)
    if name == "walk":
        assert f"{npz}: behavior 'Walker', 3 episodes of 7 decisions" in capsys.readouterr().out
        with np.load(npz) as file:
            assert file["observation_0"][:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 20, 21, 22]
            assert file["reward"].tolist() == [0, 1, 2, 10, 11, 20, 21] and file["group_reward"].tolist() == [5] * 7
            assert file["length"].tolist() == [3, 2, 2]
            assert file["terminated"].tolist() == [True, False, False]
            assert file["truncated"].tolist() == [False, True, False]
    else:
        assert read(back).obs[0].dtype == np.uint8
    before = back.read_bytes()
    assert main(["demo", "convert", npz, str(back)]) == 1 and back.read_bytes() == before
    assert "is there already: --force" in capsys.readouterr().err
    for ending in (".demo", ".npz"):  # below a file there is no folder
        assert main(["demo", "convert", npz, str(back / f"x{ending}")]) == 1
        assert f"x{ending}: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["walk", "seen"])
def test_minari_and_back(request, tmp_path, minari, name, capsys):
    demo, back = request.getfixturevalue(name), tmp_path / "back.demo"
    assert main(["demo", "convert", str(demo), "minari:own/walk-v0"]) == 0
    dataset = minari.load_dataset("own/walk-v0")
    first = next(iter(dataset.iterate_episodes()))
    if name == "walk":
        assert first.observations["vec"][:, 0].tolist() == [0, 1, 2, 3] and first.rewards.tolist() == [0, 1, 2]
        assert first.actions["discrete"].tolist() == [0, 1, 2] and first.terminations.tolist() == [False, False, True]
        assert dataset.total_episodes == 3 and dataset.total_steps == 7
        assert dataset[1].truncations.tolist() == [False, True]
    else:
        assert first.observations.dtype == np.uint8 and first.actions[:, 1].tolist() == [0, 1, 2, 0]
    assert main(["demo", "convert", "minari:own/walk-v0", str(back)]) == 0
    if name == "seen":  # Minari has no episode without an end
        same(demo, back)
    assert main(["demo", "convert", str(demo), "minari:own/walk-v0"]) == 1
    assert "there is such a data set: take another name, or `minari delete" in capsys.readouterr().err


def test_a_data_set_of_others_becomes_what_gymnasium_shows(tmp_path, minari):
    """A Box action from 0 to 4 is -1 to 1, Discrete from 5 on begins with 0, a Discrete observation is one-hot."""
    ends = [False, False, True]
    buffer = minari.data_collector.EpisodeBuffer(
        observations={"at": np.float32([[1], [2], [3], [4]]), "kind": np.array([0, 1, 2, 0])},
        actions=(np.float32([[0.0], [2.0], [4.0]]), np.array([5, 6, 5])),
        rewards=[1.0, 2.0, 3.0],
        terminations=[False] * 3,
        truncations=ends,
    )
    with warnings.catch_warnings():  # of no author, ...
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            "other/game-v0",
            buffer=[buffer],
            observation_space=spaces.Dict({"at": spaces.Box(-9, 9, (1,)), "kind": spaces.Discrete(3)}),
            action_space=spaces.Tuple((spaces.Box(0, 4, (1,)), spaces.Discrete(2, start=5))),
        )
    out = tmp_path / "game.demo"
    assert main(["demo", "convert", "minari:other/game-v0", str(out), "--behavior", "Game"]) == 0
    found = read(out)
    assert found.behavior == "Game" and found.interrupted.tolist() == ends
    assert found.obs[0][:, 0].tolist() == [1, 2, 3] and found.obs[1].tolist() == np.eye(3).tolist()
    assert found.action.continuous[:, 0].tolist() == [-1, 0, 1] and found.action.discrete[:, 0].tolist() == [0, 1, 0]
    assert found.reward.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "name", ["{}/x-v0", "../x-v0", "a/../../x-v0", "a//x-v0", ".a/x-v0", "x", "x-v", "-v0", "x-v0/"]
)
def test_a_data_set_lies_below_minaris_folder(tmp_path, walk, minari, capsys, name):
    before = sorted(tmp_path.rglob("*"))
    out = "minari:" + name.format(tmp_path / "elsewhere")
    assert main(["demo", "convert", str(walk), out]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{out}: is no name of a data set, expected minari:NAME-v0 or minari:GROUP/NAME-v0")
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "minari"] == before


def test_a_hostile_npz_is_one_sentence_and_costs_no_memory(tmp_path, walk, capsys):
    path, header = tmp_path / "x.npz", io.BytesIO()
    assert main(["demo", "convert", str(walk), str(path)]) == 0
    with np.load(path) as file:
        good = {name: file[name] for name in file.files}
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**42,)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("reward.npy", header.getvalue())
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("reward.npy", header.getvalue() + bytes(2**28))
    for name, value, words in (
        ("length", np.array([3.0, 2.0, 2.0]), "length: expected a positive whole number"),
        ("length", np.array(7), "length: expected a positive whole number"),
        ("length", np.array([9, 0, -2]), "length: expected a positive whole number"),
        ("length", np.array([3, 2, 3]), "expected numbers [11, "),
        ("reward", np.array(["1"] * 7), "reward: got <U1[7], expected numbers [7]"),
        ("discrete", np.zeros((7, 5)), "discrete: got float64[7, 5], expected numbers [7, "),
        ("document", np.array("{"), "document cannot be read"),
        ("document", np.array('{"behavior": "a", "spec": {"observations": [3]}}'), "document cannot be read"),
    ):
        np.savez(path, **good | {name: value})
        assert main(["demo", "convert", str(path), str(tmp_path / "y.demo")]) == 1
        assert words in capsys.readouterr().err
    tracemalloc.start()
    for name in ("huge", "bomb"):
        assert main(["demo", "convert", str(tmp_path / f"{name}.npz"), str(tmp_path / "y.demo")]) == 1
        assert "claims 4,398,046,511,104 numbers of float32" in capsys.readouterr().err
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.npz")
        assert main(["demo", "convert", str(tmp_path / "pipe.npz"), str(tmp_path / "y.demo")]) == 1
        assert "it is no file" in capsys.readouterr().err


def test_what_cannot_be_converted(tmp_path, walk, minari, capsys):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text.npz").write_text("no zip")
    for source, out, words in (
        (walk, "x.txt", "x.txt: expected FILE.demo, FILE.npz or minari:ID"),
        ("none.npz", "x.demo", "none.npz: there is no such file"),
        (tmp_path / "other.npz", "x.demo", "is no .npz file of demonstrations as jaxrl writes them"),
        (tmp_path / "text.npz", "x.demo", "is no .npz file of demonstrations as jaxrl writes them"),
        ("minari:none-v0", "x.demo", "minari:none-v0: there is no such data set here"),
        ("none", "x.npz", "none: there is no such file or folder"),
    ):
        assert main(["demo", "convert", str(source), str(tmp_path / out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line and not (tmp_path / out).exists()
    walk.write_bytes(walk.read_bytes()[:-4])
    assert main(["demo", "convert", str(walk), str(tmp_path / "x.npz")]) == 1
    assert "it is cut off" in capsys.readouterr().err and not (tmp_path / "x.npz").exists()


def test_tables_and_films(tmp_path, walk, seen, capsys):
    assert main(["demo", "view", str(walk)]) == 0
    rows = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [
        ["1", "3", "3.000", "15.000", "over"],
        ["2", "2", "21.000", "10.000", "cut"],
        ["3", "2", "41.000", "10.000", "open"],
    ]
    assert main(["demo", "view", str(walk), "--episode", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "       0     10.000      5.000  1 0; 10 -10; 1"
    assert main(["demo", "view", str(walk), "--out", str(tmp_path / "walk.gif")]) == 1
    assert "no sensor is a camera" in capsys.readouterr().err and not (tmp_path / "walk.gif").exists()
    assert main(["demo", "view", str(walk), "--episode", "4"]) == 1
    assert capsys.readouterr().err == "--episode: got 4, but there are 3\n"
    assert main(["demo", "view", str(seen), "--out", str(tmp_path / "seen.gif")]) == 0
    from PIL import Image

    with Image.open(tmp_path / "seen.gif") as film:
        assert film.n_frames == 5
