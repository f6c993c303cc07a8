"""The list of benchmarks; run them, print one table, and keep the numbers with where they come from.

A line of the JSON file: {"benchmark", "state", "seconds", "results", "message", "time" (of the end, seconds since
1970), "quick", "machine", "versions", "commit"}; see script.py and machine.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import rich

from benchmarks.runner.machine import commit, machine
from benchmarks.runner.script import Benchmark, Outcome, run_script
from benchmarks.runner.table import print_table
from jaxrl.artifacts.versions import versions
from jaxrl.types import JaxrlError

FOLDER = Path(__file__).resolve().parents[1]

BENCHMARKS = (
    Benchmark(
        "update phase",
        "update_phase.py",
        ("trainer", "members"),
        {"prepare {} s": "prepare", "update {} s": "update"},
    ),
    Benchmark(
        "returns", "returns.py", ("steps", "trajectories"), {"{} us": "jaxrl_us", "{} x as fast as the loop": "ratio"}
    ),
    Benchmark("act latency", "act_latency.py", ("rows",), {"decide {} us": "decide.median", "act {} us": "act.median"}),
    Benchmark(
        "jitted loop",
        "jitted.py",
        ("trainer",),
        {"{} env steps/CPU-s": "env_steps_per_cpu_second", "{} additive": "additive", "compile {} s": "compile_s"},
    ),
    Benchmark("vmapped seeds", "seeds.py", ("seeds",), {"{} of single runs": "of_single_runs"}),
    Benchmark(
        "decode",
        "decode.py",
        ("message",),
        {"{} us": "jaxrl_us", "{} x as fast as mlagents-envs": "ratio"},
        mlagents=True,
    ),
    Benchmark(
        "host loop",
        "host_loop.py",
        ("workers",),
        {"{} env steps/s": "env_steps", "{} of the environment alone": "share"},
        mlagents=True,
    ),
)


class BenchError(JaxrlError):
    """The benchmarks cannot run, or some failed."""


def run(only: Sequence[str] | None, out: Path, *, quick: bool, timeout: float) -> None:
    """Run all or those named, `timeout` seconds each at most, and append their numbers to `out`.

    Raises BenchError: an unknown name, a file that cannot be written or, after the table, failures.
    """
    outcomes = run_all(choose(BENCHMARKS, only), FOLDER, out, quick=quick, timeout=timeout)
    failed = [outcome.benchmark for outcome in outcomes if outcome.state == "failed"]
    if failed:
        raise BenchError(
            f"{len(failed)} of {len(outcomes)} benchmarks failed: {', '.join(failed)}. "
            f'What they printed is the "message" of their lines in {out}.'
        )


def choose(benchmarks: Sequence[Benchmark], names: Sequence[str] | None) -> list[Benchmark]:
    """Those with these names, all without names; "update_phase" stands for "update phase". Raises BenchError."""
    if names is None:
        return list(benchmarks)
    wanted = [name.replace("_", " ") for name in names]
    known = [benchmark.name for benchmark in benchmarks]
    for name in wanted:
        if name not in known:
            listed = ", ".join(name.replace(" ", "_") for name in known)
            raise BenchError(f"--only: unknown benchmark {name!r}; expected some of: {listed}.")
    return [benchmark for benchmark in benchmarks if benchmark.name in wanted]


def run_all(benchmarks: Sequence[Benchmark], folder: Path, out: Path, *, quick: bool, timeout: float) -> list[Outcome]:
    """Run the scripts in `folder` one after the other; each appends a line to `out` as it ends. Prints the table.

    Raises BenchError when `out` cannot be written, MachineError when JAX does not start.
    """
    _append(out, "")  # fails now, not after an hour of measuring
    origin = {"quick": quick, "machine": machine(), "versions": versions(), "commit": commit(folder.parent)}
    outcomes = []
    for benchmark in benchmarks:
        rich.get_console().print(f"{benchmark.name} ...", highlight=False)
        outcome = run_script(benchmark, folder, quick=quick, timeout=timeout)
        _append(out, json.dumps({**outcome._asdict(), "time": time.time(), **origin}) + "\n")
        outcomes.append(outcome)
    print_table(benchmarks, outcomes, origin)
    return outcomes


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BenchError(
            f"--json {path}: cannot be written ({error.strerror or error}). Choose another file."
        ) from error
