"""What each test file costs: peak resident memory, and CPU seconds with those of its child processes.

`python -m pytest --footprint FILE` appends a line per test file: megabytes, seconds, name. Every file gives back what
JAX compiled for it, and a process of tests that grows beyond LIMIT fails in the file where it does.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

LIMIT = 2 * 2**30
"""Bytes that one process of tests may hold: four side by side fit beside everything else on a machine with 16 GB."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--footprint", metavar="FILE", help="append peak MB, CPU seconds and name of every test file")


@pytest.fixture(scope="module", autouse=True)
def footprint(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measure the file, then drop compiled programs: they are 10 MB each, and no other file runs them again."""
    _restart_peak()
    begun = _cpu_seconds()
    yield
    peak = _peak()
    give_back()
    if request.config.option.footprint:
        with open(request.config.option.footprint, "a", encoding="utf-8") as file:
            file.write(f"{peak / 2**20:6.0f} {_cpu_seconds() - begun:7.1f} {request.node.nodeid}\n")
    slow = "slow" in request.config.option.markexpr and "not" not in request.config.option.markexpr
    assert slow or peak < LIMIT, f"this process of tests came to {peak / 2**20:.0f} MB in {request.node.nodeid}"


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _restart_peak() -> None:
    """Linux can count the peak anew; elsewhere it is that of the process so far."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def _peak() -> int:
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Drop compiled programs and return freed memory: glibc keeps it in the arenas of the threads that compiled."""
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
