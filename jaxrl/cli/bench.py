"""`jaxrl bench`: run the benchmark scripts of a clone, print one table, and keep the numbers with where they come from.

A line of the JSON file: {"benchmark", "state", "seconds", "results", "message", "time" (of the end, seconds since
1970), "quick", "machine", "versions", "commit"}; see bench_script.py and machine.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from jaxrl.cli.bench_script import Benchmark, Outcome, run_script
from jaxrl.types import JaxrlError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK_SECONDS, FULL_SECONDS = 600.0, 3600.0  # of one script

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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--quick, --only, --json and --timeout."""
    names = ", ".join(benchmark.name.replace(" ", "_") for benchmark in BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="reduced sizes, to see that everything runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"run these alone, of: {names}")
    parser.add_argument(
        "--json", default="bench.jsonl", metavar="FILE", help="append a JSON line per benchmark (default: bench.jsonl)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"end a script after this time (default: {QUICK_SECONDS:.0f} with --quick, else {FULL_SECONDS:.0f})",
    )


def run(given: argparse.Namespace) -> None:
    """Run, append and print. Raises BenchError: no scripts, an unknown name or, after the table, failures."""
    seconds = given.timeout or (QUICK_SECONDS if given.quick else FULL_SECONDS)
    chosen = choose(BENCHMARKS, given.only)
    outcomes = run_all(chosen, FOLDER, Path(given.json), quick=given.quick, timeout=seconds)
    failed = [outcome.benchmark for outcome in outcomes if outcome.state == "failed"]
    if failed:
        raise BenchError(
            f"{len(failed)} of {len(outcomes)} benchmarks failed: {', '.join(failed)}. "
            f'What they printed is the "message" of their lines in {given.json}.'
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

    Raises BenchError when `folder` holds no scripts or `out` cannot be written, MachineError when JAX does not start.
    """
    import rich

    from jaxrl.artifacts.versions import versions
    from jaxrl.cli.bench_table import print_table
    from jaxrl.cli.machine import commit, machine

    if not any((folder / benchmark.script).exists() for benchmark in benchmarks):
        raise BenchError(
            f"{folder} does not hold the benchmark scripts: an installed package comes without them. Clone jaxrl's "
            "repository, install the clone with pip install -e ., and run jaxrl bench again."
        )
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
