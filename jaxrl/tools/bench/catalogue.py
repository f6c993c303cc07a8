"""Lists the benchmarks by name: the numbers their scripts write, which of them count, and packages they need.

Other scripts of `benchmarks/` are run by hand: they train many runs, take hours, or measure no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxrl.types import JaxrlError


class Figure(NamedTuple):
    """A number of the table."""

    text: str  # with {} for the number
    key: str  # where the script writes it, with dots into objects
    better: Literal["lower", "higher", ""] = "lower"  # empty: it is shown, and never compared
    on: Literal["cpu", "accelerator", ""] = ""  # the devices on which it is meaningful; empty: all

    @property
    def name(self) -> str:
        """The text without a number."""
        return " ".join(self.text.format("").split())


class Benchmark(NamedTuple):
    """A script that takes `--json FILE`, to which it appends one object per case, and `--quick` for a reduced size."""

    name: str
    script: str
    case: tuple[str, ...] = ()  # keys that tell its cases apart
    figures: tuple[Figure, ...] = ()
    packages: tuple[str, ...] = ()  # modules it imports that jaxrl does not require


BENCHMARKS = (
    Benchmark(
        "update phase",
        "update_phase.py",
        ("trainer", "members"),
        (Figure("prepare {} s", "prepare"), Figure("update {} s", "update")),
    ),
    Benchmark(
        "returns",
        "returns.py",
        ("steps", "trajectories"),
        (Figure("{} us", "jaxrl_us"), Figure("{} x as fast as the loop", "ratio", "")),
    ),
    Benchmark(
        "act latency",
        "act_latency.py",
        ("rows",),
        (Figure("decide {} us", "decide.median"), Figure("act {} us", "act.median")),
    ),
    Benchmark(
        "jitted loop",
        "jitted.py",
        ("trainer",),
        (
            Figure("{} env steps/CPU-s", "env_steps_per_cpu_second", "higher", "cpu"),
            Figure("{} env steps/s", "env_steps_per_second", "higher", "accelerator"),
            Figure("{} additive", "additive", "", "cpu"),
            Figure("compile {} s", "compile_s"),
        ),
    ),
    Benchmark(
        "vmapped seeds",
        "seeds.py",
        ("seeds",),
        (
            Figure("{} s an iteration", "all_s"),
            Figure("{} of single runs", "of_single_runs", ""),
            Figure("{} of one run", "of_one_run", "", "accelerator"),
        ),
    ),
    Benchmark(
        "accelerator",
        "accelerator.py",
        ("what",),
        (
            Figure("{} ms", "measured_ms"),
            Figure("predicted {} ms", "predicted_ms", ""),
            Figure("{} agent steps/s", "agent_steps_per_second", "higher", "accelerator"),
        ),
    ),
    Benchmark(
        "environments",
        "environments.py",
        ("name", "areas"),
        (
            Figure("{} env steps/CPU-s", "env_steps_per_s", "higher", "cpu"),
            Figure("{} env steps/s", "env_steps_per_s", "higher", "accelerator"),
        ),
    ),
    Benchmark(
        "convolutions",
        "convolutions.py",
        ("encoder",),
        (Figure("{} ms", "jaxrl"), Figure("XLA's own {} ms", "XLA", "")),
    ),
    Benchmark(
        "memory",
        "memory.py",
        ("trainer", "seeds", "areas", "units"),
        (Figure("measured {} bytes", "measured"), Figure("formula {} bytes", "formula", "")),
    ),
    Benchmark(
        "decode",
        "decode.py",
        ("message",),
        (Figure("{} us", "jaxrl_us"), Figure("{} x as fast as mlagents-envs", "ratio", "")),
        packages=("mlagents_envs",),
    ),
    Benchmark(
        "host loop",
        "host_loop.py",
        ("workers",),
        (Figure("{} env steps/s", "env_steps", "higher"), Figure("{} of the environment alone", "share", "")),
        packages=("mlagents_envs", "psutil"),
    ),
    Benchmark(
        "camera",
        "camera.py",
        ("side",),
        (Figure("{} agent steps/s", "agent_steps_per_second", "higher"), Figure("decode {} us", "decode_us")),
        packages=("mlagents_envs", "psutil"),
    ),
)


ACCELERATOR = ("accelerator", "act_latency", "host_loop")
"""Benchmarks that tell most about a GPU or TPU."""


def choose(benchmarks: Sequence[Benchmark], names: Sequence[str] | None) -> list[Benchmark]:
    """Return the benchmarks with these names, or all; "update_phase" stands for "update phase". Raises JaxrlError."""
    if names is None:
        return list(benchmarks)
    wanted = [name.replace("_", " ") for name in names]
    known = [benchmark.name for benchmark in benchmarks]
    for name in wanted:
        if name not in known:
            listed = ", ".join(name.replace(" ", "_") for name in known)
            raise JaxrlError(f"--only: unknown benchmark {name!r}; expected some of: {listed}.")
    return [benchmark for benchmark in benchmarks if benchmark.name in wanted]
