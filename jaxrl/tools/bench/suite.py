"""Runs benchmarks, keeps their numbers with their origin (lines.py), and prints one table."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import rich

import jaxrl
from jaxrl import platforms
from jaxrl.artifacts.files import carried
from jaxrl.artifacts.versions import versions
from jaxrl.tools.bench.catalogue import BENCHMARKS, Benchmark, choose
from jaxrl.tools.bench.lines import Line
from jaxrl.tools.bench.machine import commit, installed_commit, machine, variables_for
from jaxrl.tools.bench.table import print_run
from jaxrl.types import JaxrlError

_TAIL = 2000  # characters of a failed script's output that are kept


def run(only: Sequence[str] | None, out: Path, **how: Any) -> None:
    """Call `run_all` with all benchmarks or those named in `only`; the other arguments are passed on.

    Raises JaxrlError for an unknown name and, after the table, for failures; also as `run_all`.
    """
    lines = run_all(choose(BENCHMARKS, only), carried("benchmarks"), out, **how)
    failed = sorted({line.benchmark for line in lines if line.state == "failed"})
    if failed:
        count = len({line.benchmark for line in lines})
        raise JaxrlError(
            f"{len(failed)} of {count} benchmarks failed: {', '.join(failed)}. "
            f'What they printed is the "message" of their lines in {out}.'
        )


def run_all(
    benchmarks: Sequence[Benchmark],
    folder: Path,
    out: Path,
    *,
    quick: bool,
    timeout: float,
    repeat: int = 1,
    device: str | None = None,
) -> list[Line]:
    """Run the scripts in `folder` one after the other; each appends a line to `out` as it ends. Prints the table.

    Args:
      timeout: seconds for each at most.
      repeat: rounds of all of them: the variation of a number between rounds is its noise.
      device: as in `variables_for`.

    Raises JaxrlError if `out` cannot be written. MachineError: JAX has no such device, or does not start on it.
    """
    _append(out, "")  # fails now, not after an hour of measuring
    variables = variables_for(device)
    place, source = machine(device), commit(folder.parent) or installed_commit()
    lines = []
    for turn in range(repeat):
        for benchmark in benchmarks:
            before, busy = f"round {turn + 1} of {repeat}: " if repeat > 1 else "", platforms.load()
            rich.get_console().print(f"{before}{benchmark.name} ...", highlight=False)
            outcome = run_script(benchmark, folder, quick=quick, timeout=timeout, variables=variables)
            line = Line(
                **outcome._asdict(),
                time=time.time(),
                quick=quick,
                machine=place,
                versions=versions(),
                commit=source,
                load=busy,
            )
            _append(out, line.model_dump_json() + "\n")
            lines.append(line)
    print_run(benchmarks, lines)
    return lines


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise JaxrlError(
            f"--json {path}: cannot be written ({error.strerror or error}). Choose another file."
        ) from error


class Outcome(NamedTuple):
    """Result of one benchmark."""

    benchmark: str
    state: str  # "ok", "failed" or "skipped"
    seconds: float  # wall time of the process
    results: list[dict[str, Any]]  # objects that it wrote, also when it failed later
    message: str  # reason of a failure or a skip


def run_script(
    benchmark: Benchmark,
    folder: Path,
    *,
    quick: bool,
    timeout: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Run the script in `folder`, `timeout` in seconds, `variables` of its environment besides those of this process.

    Never raises for errors of the script.
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
    """Return why the script cannot be run here, or nothing."""
    if not script.exists():
        return f"there is no {script.name} in {script.parent}"
    missing = [name.replace("_", "-") for name in benchmark.packages if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(missing)}, not installed here" if missing else ""


def _problem(code: int | None, output: str, timeout: float) -> str:
    if code is None:
        return f"{output}\nno end after {timeout:g} s".strip()
    return (output or f"exit code {code}") if code else ""


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a script, which imports this very jaxrl."""
    root = Path(jaxrl.__file__).parents[1]
    installed = root.name in ("site-packages", "dist-packages")  # found there, and after the standard library
    paths = [*([] if installed else [str(root)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def _run(command: list[str], folder: str, environment: dict[str, str], timeout: float) -> tuple[int | None, str]:
    """Return exit code (None: time-out) and end of the output. Ends the children too: they would disturb others."""
    with tempfile.TemporaryFile() as log:
        process = platforms.begin(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            platforms.end_session(process, kill=True)
            process.wait()
        log.seek(0)
        return code, log.read().decode("utf-8", "replace").strip()[-_TAIL:]
