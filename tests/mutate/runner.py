"""Applies one mutation at a time to a copy of the project and runs the tests that claim its behaviour.

A mutation is caught when pytest runs and at least one test fails. A mutated file that cannot be imported proves
nothing, so an error while collecting counts as broken, not as caught. That the tests pass without the fault is the
ordinary suite's to show.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CARRIED = ("jaxrl", "tests", "configs", "examples", "zoo", "benchmarks", "docs", "pyproject.toml")
LIMIT_SECONDS = 600.0
PASSED, FAILED = 0, 1  # exit codes of pytest


class Mutation(NamedTuple):
    """One fault that somebody might make."""

    row: str  # of behaviours.md; its tests have to catch it
    file: str  # in jaxrl/
    before: str  # stands once in the file
    after: str
    tests: str = ""  # instead of all tests of the row: those of them with this in their names
    long: bool = False  # takes more than some 10 s of CPU time: never in a part


DOZEN = 12


def part_of(mutations: Sequence[Mutation], number: int) -> list[Mutation]:
    """Return about a dozen of the mutations that are not `long`; numbers that follow each other go through them all."""
    quick = [mutation for mutation in mutations if not mutation.long]
    parts = max(round(len(quick) / DOZEN), 1)
    return quick[number % parts :: parts]


class Verdict(Enum):
    """What became of a mutation."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


def tests_of(row: str, text: str) -> list[str]:
    """Tests that a row of behaviours.md cites, as pytest takes them."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [f"tests/{test}" for test in re.findall(r"`([\w/]+\.py::test_\w+(?:\[\w+\])?)`", line)]


def mutated(mutation: Mutation, source: str) -> str:
    """The file with the fault in it. Raises ValueError where the text to change is not there exactly once."""
    found = source.count(mutation.before)
    if found != 1:
        raise ValueError(f"{mutation.row}: {mutation.file} has {mutation.before!r} {found} times, expected once")
    return source.replace(mutation.before, mutation.after)


def chosen_tests(mutation: Mutation, text: str) -> list[str]:
    """What has to catch it. Raises ValueError where the row cites nothing of the kind."""
    tests = [test for test in tests_of(mutation.row, text) if mutation.tests in test]
    if not tests:
        raise ValueError(f"{mutation.row} cites no test with '{mutation.tests}' in its name")
    return tests


def run(mutation: Mutation, copy: Path, text: str) -> tuple[Verdict, str]:
    """Run the tests with the fault in `copy`, which is as it was before afterwards. Also what pytest printed last."""
    path = copy / "jaxrl" / mutation.file
    original = path.read_text()
    path.write_text(mutated(mutation, original))
    words = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-m",
        "not slow",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    try:
        done = subprocess.run(
            [*words, *chosen_tests(mutation, text)],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Verdict.BROKEN, f"no end within {LIMIT_SECONDS:g} s"
    finally:
        path.write_text(original)
    last = (done.stdout.strip().splitlines() or ["nothing printed"])[-1]
    if done.returncode == PASSED:
        return Verdict.SURVIVED, last
    if done.returncode == FAILED and re.search(r"\d+ failed", last):
        return Verdict.CAUGHT, last
    return Verdict.BROKEN, last


def run_all(mutations: Sequence[Mutation], folder: Path, jobs: int) -> Iterator[tuple[Mutation, Verdict, str]]:
    """Each with its verdict, in their order; `jobs` copies of the project are made in `folder`."""
    text = (ROOT / "tests" / "behaviours.md").read_text()
    copies: SimpleQueue[Path] = SimpleQueue()
    for i in range(jobs):
        copies.put(_copy(folder / str(i)))

    def one(mutation: Mutation) -> tuple[Mutation, Verdict, str]:
        copy = copies.get()
        try:
            return mutation, *run(mutation, copy, text)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(one, mutations)


def _copy(target: Path) -> Path:
    """Copy the project with its compiled modules: each knows by size and time whether it is that of its source."""
    for name in CARRIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        else:
            shutil.copy(source, target / name)
    return target
