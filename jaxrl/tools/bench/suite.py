"""Runs benchmarks, keeps their numbers with where they come from (lines.py), and prints one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import rich

from jaxrl.artifacts.carried import carried
from jaxrl.artifacts.versions import versions
from jaxrl.tools.bench.catalogue import BENCHMARKS, Benchmark, choose
from jaxrl.tools.bench.lines import BenchError, Line
from jaxrl.tools.bench.machine import commit, installed_commit, load, machine, variables_for
from jaxrl.tools.bench.script import run_script
from jaxrl.tools.bench.table import print_run


def run(
    only: Sequence[str] | None, out: Path, *, quick: bool, timeout: float, repeat: int = 1, device: str | None = None
) -> None:
    """Run all or those named, `timeout` seconds each at most, and append their numbers to `out`.

    `repeat` rounds of all of them: what a number varies by from one round to the next is its noise. `device` as in
    `variables_for`.

    Raises BenchError: an unknown name, a file that cannot be written or, after the table, failures. MachineError: JAX
    has no such device, or does not start on it.
    """
    lines = run_all(
        choose(BENCHMARKS, only),
        carried("benchmarks"),
        out,
        quick=quick,
        timeout=timeout,
        repeat=repeat,
        device=device,
    )
    failed = sorted({line.benchmark for line in lines if line.state == "failed"})
    if failed:
        count = len({line.benchmark for line in lines})
        raise BenchError(
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

    Raises BenchError when `out` cannot be written, MachineError as `machine`.
    """
    _append(out, "")  # fails now, not after an hour of measuring
    variables = variables_for(device)
    place, source = machine(device), commit(folder.parent) or installed_commit()
    lines = []
    for turn in range(repeat):
        for benchmark in benchmarks:
            before, busy = f"round {turn + 1} of {repeat}: " if repeat > 1 else "", load()
            if not benchmark.by_hand:
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
        raise BenchError(
            f"--json {path}: cannot be written ({error.strerror or error}). Choose another file."
        ) from error
