"""The command line in a process of its own, for tests of whole compiled runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.envs.processes import comes_true

ROOT = Path(__file__).parents[1]


class Command:
    """`jaxrl train config.yaml` in a process of its own, which works in the folder that the file lies in."""

    def __init__(self, folder: Path, run_id: str, *flags: str) -> None:
        self._output = folder / f"{run_id}{len(list(folder.glob('*.log')))}.log"
        words = ["train", "config.yaml", "--run-id", run_id, *flags]
        place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        fast = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of such a short run is compilation
        with self._output.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jaxrl.cli", *words],
                stdout=out, stderr=out, env={**os.environ, **place, **fast}, cwd=folder,
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._output.read_text()

    def says(self, text: str) -> None:
        """Wait for it."""
        comes_true(lambda: text in self.output or self.process.poll() is not None, 300)
        assert text in self.output, self.output

    def ends(self) -> int:
        """The exit code."""
        return self.process.wait(300)
