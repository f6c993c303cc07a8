"""One benchmark script as a process of its own: what it costs when it fails or hangs is its own row alone."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_TAIL = 2000  # characters of a failed script's output that are kept


class Benchmark(NamedTuple):
    """A script that takes `--json FILE`, to which it appends one object per case, and `--quick` for a reduced size."""

    name: str
    script: str
    case: tuple[str, ...] = ()  # keys that tell its cases apart
    figures: Mapping[str, str] = {}  # what the table shows: text with {} to dotted key; empty: every number
    mlagents: bool = False  # whether it needs mlagents-envs


class Outcome(NamedTuple):
    """What became of one benchmark."""

    benchmark: str
    state: str  # "ok", "failed" or "skipped"
    seconds: float  # wall time of the process
    results: list[dict[str, Any]]  # what it wrote, also when it failed later
    message: str  # why it failed or was skipped


def run_script(benchmark: Benchmark, folder: Path, *, quick: bool, timeout: float) -> Outcome:
    """Run the script in `folder`, `timeout` in seconds. Never raises for what the script does."""
    script = folder / benchmark.script
    if not script.exists():
        return Outcome(benchmark.name, "skipped", 0.0, [], f"there is no {script.name} in {folder}")
    if benchmark.mlagents and importlib.util.find_spec("mlagents_envs") is None:
        return Outcome(benchmark.name, "skipped", 0.0, [], "needs mlagents-envs, which is not installed")
    with tempfile.TemporaryDirectory() as name:
        numbers = Path(name) / "numbers.jsonl"
        command = [sys.executable, str(script), "--json", str(numbers), *(["--quick"] if quick else [])]
        begun = time.perf_counter()
        code, output = _run(command, folder.parent, timeout)
        seconds = time.perf_counter() - begun
        written = numbers.read_text(encoding="utf-8").splitlines() if numbers.exists() else []
    try:
        results = [json.loads(line) for line in written]
    except ValueError as error:
        return Outcome(benchmark.name, "failed", seconds, [], f"{output}\nits numbers are no JSON lines: {error}")
    problem = _problem(code, output, timeout) or ("" if results else "it wrote no numbers")
    return Outcome(benchmark.name, "failed" if problem else "ok", seconds, results, problem)


def _problem(code: int | None, output: str, timeout: float) -> str:
    if code is None:
        return f"{output}\nno end after {timeout:g} s".strip()
    return (output or f"exit code {code}") if code else ""


def _run(command: list[str], folder: Path, timeout: float) -> tuple[int | None, str]:
    """Exit code (None: time-out) and the end of what it printed. Ends its children too: they would disturb others."""
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        log.seek(0)
        return code, log.read().decode("utf-8", "replace").strip()[-_TAIL:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and, but for Windows, of the session it leads."""
    if os.name == "nt":
        process.kill()
    else:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # nothing is left
    process.wait()
