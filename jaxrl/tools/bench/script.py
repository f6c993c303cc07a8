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
from types import MappingProxyType
from typing import Any, NamedTuple

import jaxrl
from jaxrl.tools.bench.catalogue import Benchmark

_TAIL = 2000  # characters of a failed script's output that are kept


class Outcome(NamedTuple):
    """What became of one benchmark."""

    benchmark: str
    state: str  # "ok", "failed" or "skipped"
    seconds: float  # wall time of the process
    results: list[dict[str, Any]]  # what it wrote, also when it failed later
    message: str  # why it failed or was skipped


def run_script(
    benchmark: Benchmark,
    folder: Path,
    *,
    quick: bool,
    timeout: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Run the script in `folder`, `timeout` in seconds, `variables` of its environment besides those of this process.

    Never raises for what the script does.
    """
    script = folder / benchmark.script
    reason = _unfit(benchmark, script)
    if reason:
        return Outcome(benchmark.name, "skipped", 0.0, [], reason)
    with tempfile.TemporaryDirectory() as name:
        numbers = Path(name) / "numbers.jsonl"
        command = [sys.executable, str(script), "--json", str(numbers), *(["--quick"] if quick else [])]
        begun = time.perf_counter()
        code, output = _run(command, name, _environment(variables), timeout)
        seconds = time.perf_counter() - begun
        written = numbers.read_text(encoding="utf-8").splitlines() if numbers.exists() else []
    try:
        results = [json.loads(line) for line in written]
    except ValueError as error:
        return Outcome(benchmark.name, "failed", seconds, [], f"{output}\nits numbers are no JSON lines: {error}")
    problem = _problem(code, output, timeout) or ("" if results else "it wrote no numbers")
    return Outcome(benchmark.name, "failed" if problem else "ok", seconds, results, problem)


def _unfit(benchmark: Benchmark, script: Path) -> str:
    """Why it cannot be run here, or nothing."""
    if benchmark.by_hand:
        return f"{benchmark.by_hand}; by hand, in a clone: python benchmarks/{benchmark.script}"
    if not script.exists():
        return f"there is no {script.name} in {script.parent}"
    missing = [name.replace("_", "-") for name in benchmark.packages if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(missing)}, not installed here" if missing else ""


def _problem(code: int | None, output: str, timeout: float) -> str:
    if code is None:
        return f"{output}\nno end after {timeout:g} s".strip()
    return (output or f"exit code {code}") if code else ""


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Of a script, which imports this very jaxrl."""
    root = Path(jaxrl.__file__).parents[1]
    installed = root.name in ("site-packages", "dist-packages")  # found there, and after the standard library
    paths = [*([] if installed else [str(root)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def _run(command: list[str], folder: str, environment: dict[str, str], timeout: float) -> tuple[int | None, str]:
    """Exit code (None: time-out) and the end of what it printed. Ends its children too: they would disturb others."""
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
