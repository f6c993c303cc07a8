"""Tests compile thousands of small programs and run most of them once, so they trade speed of the code for that of XLA.

The flag is set in the environment before anything compiles: for this process, the workers of xdist and trainers that
tests start. The cache is that of this process alone: each file drops what JAX holds, and finds it again on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax

FLAG = "--xla_cpu_use_fusion_emitters=false"
"""XLA's older way to write kernels: the update of a tiny MA-POCA compiles in 1.5 instead of 3.5 s of CPU time."""


def choose() -> None:
    """Add FLAG to XLA_FLAGS, if this version of XLA knows it: one that does not would end every process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "PYTEST_XDIST_WORKER" in os.environ or FLAG in flags:
        return  # the parent has chosen
    wanted = f"{flags} {FLAG}".strip()
    program = [sys.executable, "-c", "import jax; jax.numpy.zeros(1)"]
    tried = subprocess.run(program, env=os.environ | {"XLA_FLAGS": wanted}, capture_output=True, check=False)
    if tried.returncode == 0:
        os.environ["XLA_FLAGS"] = wanted


OPTIMISED = ("algorithms",)
"""Whose tests are compiled as users' programs are: they run as long as they compile. All others compile large programs
and run them a few times on little: a fifth to a half less CPU time."""
SWITCH = "JAX_DISABLE_MOST_OPTIMIZATIONS"


def optimise(folder: str, *, slow: bool) -> None:
    """How the test that begins is compiled, here and in processes that it starts. What is slow runs more than that."""
    quick = folder not in OPTIMISED and not slow
    jax.config.update("jax_disable_most_optimizations", quick)
    os.environ[SWITCH] = str(int(quick))


def keep(folder: Path) -> None:
    """Keep compiled programs below `folder`, where `jaxrl` looks for them if its cache is there (`tests.trainer`).

    Not in the environment: JAX writes entries in place, and a trainer that a test kills would leave half of one.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
