"""Ctrl-C and SIGTERM before a run has begun: no traceback, nothing written, the exit codes of a shell."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.report.report_folders import write_run

ROOT = Path(__file__).parents[2]
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT_OF"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
sys.meta_path.insert(0, Finder())
"""


def run(folder: Path, module: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, which gets a signal when it imports `module`."""
    (folder / "sitecustomize.py").write_text(AT_IMPORT)
    place = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "AT_IMPORT_OF": module, "SIGNAL": str(int(number))}
    return subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *words],
        cwd=folder, env={**os.environ, **place}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "module", ["jaxrl.cli.commands", "argparse", "numpy", "pydantic", "rich", "yaml", "jaxrl.training.host.launch"]
)
def test_while_python_imports(tmp_path, module, number, code):
    ended = run(tmp_path, module, number, "train", "nothing.yaml")
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")
    assert [path.name for path in tmp_path.iterdir()] in (["sitecustomize.py"], ["sitecustomize.py", "__pycache__"])


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_while_jax_is_imported_of_a_compiled_run(tmp_path):
    """From here on the run owns the signals: the first ends it before it has compiled; nothing to save."""
    (tmp_path / "run.yaml").write_text("default_settings: {trainer_type: ppo}\n")
    ended = run(tmp_path, "jaxrl.training.compiled.trainer", signal.SIGTERM, "train", "run.yaml", "--env", "jax:basic")
    assert ended.returncode == 143, ended.stderr
    assert "nothing to save" in ended.stdout and "Traceback" not in ended.stdout + ended.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_of_another_command(tmp_path):
    ended = run(tmp_path, "jaxrl.jax_envs.served.launcher", signal.SIGINT, "make-player", "basic", str(tmp_path))
    assert ended.returncode == 130 and "Traceback" not in ended.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_report_that_is_ended_takes_back_what_it_began(tmp_path, monkeypatch):
    """SIGTERM while films are made: their folder is gone, and the report of before is whole."""
    write_run(tmp_path, "first")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "report.html").write_text("before")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    ended = run(tmp_path, "jaxrl.tools.watch.film", signal.SIGTERM, "report", "first", "--films")
    assert ended.returncode == 143 and "Traceback" not in ended.stderr
    assert not [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith("jaxrl-report-")]
    assert (tmp_path / "report.html").read_text() == "before"
