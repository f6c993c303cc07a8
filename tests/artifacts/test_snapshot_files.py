"""Files of a self-play pool from a stranger: one sentence each, at once, with the memory of the policy alone."""

from __future__ import annotations

import hashlib
import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.artifacts.checkpoint import earlier
from jaxrl.artifacts.checkpoint.document import CheckpointError

POLICY = {"network": {"kernel": jnp.arange(12.0).reshape(4, 3), "bias": jnp.ones(3)}, "none": jnp.zeros((2, 0))}
HUGE = 2**44


def zipped(*entries: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


KERNEL, BIAS = "network/kernel.npy", "network/bias.npy"
CONTENTS: dict[str, Callable[[], bytes]] = {
    "no zip": lambda: b"PK, but none",
    "another policy": lambda: earlier.pack({"network": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(3)}})[1],
    "a bomb": lambda: zipped((KERNEL, bytes(2**28)), compression=zipfile.ZIP_DEFLATED),
    "a header of 16 TiB": lambda: zipped((KERNEL, header((HUGE,)) + bytes(48)), (BIAS, npy(np.zeros(12, np.uint8)))),
    "80,000 entries": lambda: zipped(*((f"{i}", b"") for i in range(80_000))),
    "a missing array": lambda: zipped((KERNEL, npy(np.zeros(48, np.uint8)))),
    "an array twice": lambda: zipped(*[(KERNEL, npy(np.zeros(48, np.uint8)))] * 2),
    "too few bytes": lambda: zipped((KERNEL, header((48,)) + bytes(8)), (BIAS, npy(np.zeros(12, np.uint8)))),
    "another shape": lambda: zipped((KERNEL, npy(np.zeros((6, 8), np.uint8))), (BIAS, npy(np.zeros(12, np.uint8)))),
    "numbers": lambda: zipped((KERNEL, npy(np.zeros(12, np.float32))), (BIAS, npy(np.zeros(3, np.float32)))),
    "objects": lambda: zipped((KERNEL, npy(np.array([None] * 48))), (BIAS, npy(np.zeros(12, np.uint8)))),
    "no array": lambda: zipped((KERNEL, b"text"), (BIAS, b"text")),
}


def written(folder: Path, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest() + earlier.ENDING
    earlier.write(folder, {name: content})
    return name


def refusal(folder: Path, name: str) -> str:
    """The one sentence, which costs little memory."""
    tracemalloc.start()
    with pytest.raises(CheckpointError) as error:
        earlier.read(folder, name, POLICY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6 and "this snapshot of the self-play pool" in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def test_a_snapshot_comes_back_as_it_was(tmp_path: Path) -> None:
    name, content = earlier.pack(POLICY)
    earlier.write(tmp_path, {name: content})
    back = earlier.read(tmp_path, name, POLICY)
    assert np.array_equal(back["network"]["kernel"], POLICY["network"]["kernel"]) and back["none"].shape == (2, 0)
    assert back["network"]["bias"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", CONTENTS)
def test_other_content_does_not_fit(tmp_path: Path, kind: str) -> None:
    assert "(" in refusal(tmp_path, written(tmp_path, CONTENTS[kind]()))


@pytest.mark.skipif(os.name == "nt", reason="named pipes and holes of POSIX")
def test_what_is_no_file_or_a_large_one_is_not_read(tmp_path: Path) -> None:
    pool = tmp_path / earlier.FOLDER
    pool.mkdir()
    for letter, what in (("a", "it is no file"), ("b", "3,221,225,472 bytes"), ("c", "it is no file")):
        path = pool / (64 * letter + earlier.ENDING)
        if letter == "a":
            os.mkfifo(path)
        elif letter == "b":
            with path.open("wb") as file:
                file.truncate(3 * 2**30)
        else:
            path.mkdir()
        assert what in refusal(tmp_path, path.name)


def test_files_that_jaxrl_did_not_write_stay(tmp_path: Path) -> None:
    """The folder may be a link to another one, whose files have other names."""
    mine, documents = tmp_path / "Duel", tmp_path / "documents"
    documents.mkdir()
    mine.mkdir()
    (documents / "thesis.txt").write_text("years")
    (documents / ("f" * 64 + earlier.ENDING)).write_text("no checkpoint names it")
    (mine / earlier.FOLDER).symlink_to(documents)
    earlier.prune(mine)
    assert [path.name for path in documents.iterdir()] == ["thesis.txt"]
