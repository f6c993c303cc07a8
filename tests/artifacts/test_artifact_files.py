"""Atomic small files."""

import json
import os
import subprocess
import sys

import pytest

from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError


def test_a_write_replaces_the_content_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 2}
    assert os.listdir(path.parent) == ["a.json"]


def test_nan_is_refused_because_other_programs_cannot_read_it(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"a": float("nan")})


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
def test_an_unreadable_file_is_named(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ArtifactError, match=r"a\.json"):
        files.read_json(path)


def test_a_parent_that_is_a_file_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="--results-dir"):
        files.write_text(tmp_path / "file" / "a.json", "x")


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    code = (
        "import resource, sys; from pathlib import Path; from jaxrl.artifacts import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: files.write_json(Path(sys.argv[1]), {'a': 'x' * 5000})\n"
        "except files.ArtifactError as error: print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert "File too large" in output.stdout and "MiB free" in output.stdout, output
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_disk_that_takes_no_more_files_is_told_from_a_full_one(tmp_path):
    """A real file system with room for 8 inodes, in a namespace of its own where the system lets us make one."""
    program = (
        "import pathlib, sys\n"
        "from jaxrl.artifacts import files\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "for i in range(20):\n"
        "    files.write_text(folder / str(i), 'x')\n"
    )
    mount = f'mount -t tmpfs -o size=8m,nr_inodes=8 none {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", mount, program], capture_output=True, text=True, check=False)
    if "ArtifactError" not in done.stderr:
        pytest.skip(f"no file system of one's own: {done.stderr[-200:]}")
    assert "No space left on device; 8.0 MiB free on that disk, but no inodes: it takes no more files" in done.stderr
    assert "Delete files on that disk, many small ones rather than large ones, check the folder's" in done.stderr
    assert not files.lacks_inodes(tmp_path) and files.remedy(tmp_path) == "Free disk space"
