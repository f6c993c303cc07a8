"""What each test file costs: peak resident memory, and CPU seconds with those of its child processes.

`python -m pytest --footprint` prints it at the end, the dearest first. Every file gives back what JAX compiled for it,
and a process of tests that grows beyond LIMIT fails in the file where it does.
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
_found: list[tuple[str, int, float]] = []  # file, bytes, seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--footprint", action="store_true", help="print peak memory and CPU seconds of every test file")


@pytest.fixture(scope="module", autouse=True)
def footprint(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measure the file, then drop compiled programs: they are 10 MB each, and no other file runs them again."""
    _restart_peak()
    begun = _cpu_seconds()
    yield
    peak = _peak()
    jax.clear_caches()
    gc.collect()
    _give_back()
    _found.append((request.node.nodeid, peak, _cpu_seconds() - begun))
    slow = "slow" in request.config.option.markexpr and "not" not in request.config.option.markexpr
    assert slow or peak < LIMIT, f"this process of tests came to {peak / 2**20:.0f} MB in {request.node.nodeid}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers of xdist hand what they found to the process that prints it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["footprint"] = _found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    _found.extend(map(tuple, getattr(node, "workeroutput", {}).get("footprint", [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--footprint"):
        return
    terminalreporter.section("footprint of the test files")
    terminalreporter.write_line("  peak MB   CPU s")
    for file, peak, seconds in sorted(_found, key=lambda each: -each[2]):
        terminalreporter.write_line(f"{peak / 2**20:9.0f} {seconds:7.1f}  {file}")
    terminalreporter.write_line(f"{max(each[1] for each in _found) / 2**20:9.0f} {sum(e[2] for e in _found):7.1f}  all")


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


def _give_back() -> None:
    """Return freed memory to the system: glibc keeps it in the arenas of the threads that compiled."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
