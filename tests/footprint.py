"""What each test file costs: peak resident memory, what of it stays, and CPU seconds with those of child processes.

`python -m pytest --footprint FILE` appends a line per test file: megabytes at the peak and afterwards, seconds, name.
Every file gives back what was compiled for it, and a process of tests that grows beyond LIMIT fails in the file where
it does.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import psutil
import pytest

LIMIT = 2 * 2**30
"""Bytes that one process of tests may hold: four side by side fit beside everything else on a machine with 16 GB."""
RISE = 512 * 2**20
"""What the programs of a file may take before they are dropped between two of its tests."""
FIRST = ("tests/parity/", "tests/training/", "tests/algorithms/")
"""Folders with the longest files, which xdist would leave for the end: there a process waits for the other."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_TESTS = str(Path(__file__).parent)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--footprint", metavar="FILE", help="append peak MB, MB left, CPU s and name of every file")


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: tests of whole runs wait for environments, signals and time limits of their own."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", (os.cpu_count() or 1) + 1))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection_finish() -> None:
    """What was imported by now stays: the collections of garbage to come need not look through it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def footprint(request: pytest.FixtureRequest) -> Iterator[int]:
    """Measure the file, then drop compiled programs: they are 10 MB each, and no other file runs them again."""
    _restart_peak()
    begun = _cpu_seconds()
    yield resident()
    peak = _peak()
    forget()
    give_back()
    if request.config.option.footprint:
        with open(request.config.option.footprint, "a", encoding="utf-8") as file:
            sizes = f"{peak / 2**20:6.0f} {resident() / 2**20:6.0f}"
            file.write(f"{sizes} {_cpu_seconds() - begun:7.1f} {request.node.nodeid}\n")
    slow = "slow" in request.config.option.markexpr and "not" not in request.config.option.markexpr
    assert slow or peak < LIMIT, f"this process of tests came to {peak / 2**20:.0f} MB in {request.node.nodeid}"


@pytest.fixture(autouse=True)
def between(footprint: int) -> Iterator[None]:
    """Drop what JAX keeps where the tests of a file so far compiled much: few of those after them run it again."""
    yield
    if resident() > footprint + RISE:
        give_back()


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


def resident() -> int:
    """Bytes of this process in memory."""
    return psutil.Process().memory_info().rss


def forget() -> None:
    """Empty what functions of tests remember by `functools.cache`: trainers and programs of the file that ends."""
    for module in list(sys.modules.values()):
        ours = (getattr(module, "__file__", None) or "").startswith(_TESTS)
        for value in list(vars(module).values()) if ours else ():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def give_back() -> None:
    """Drop compiled programs and return freed memory: glibc keeps it in the arenas of the threads that compiled."""
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
