"""Strictness: JAX on the CPU, and no silent broadcasting of different ranks, the classic silent bug of RL code."""

from __future__ import annotations

import logging
import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxrl import compilation
from tests import quick_compilation
from tests.footprint import *  # noqa: F403, hooks and the measuring fixture
from tests.trainer import cache, runs, start, traced, traced_once  # noqa: F401, fixtures of the tests of whole runs

compilation.BY_DEFAULT = False  # nothing of a test goes to the cache of whoever runs it
quick_compilation.choose()  # before anything compiles
_kept = tempfile.TemporaryDirectory(prefix="jaxrl-tests-", ignore_cleanup_errors=True)  # of this process of tests
quick_compilation.keep(Path(_kept.name))

STRICT = ("algorithms", "learning", "networks", "rollout")
"""Folders whose code names every broadcast. Networks add biases [h] to [..., h]."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of its module, which compile as well."""
    quick_compilation.optimise(item.path.parent.name, slow=item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def rank_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Raise where arrays of different ranks meet."""
    folder = Path(request.path).parent.name
    with jax.numpy_rank_promotion("raise" if folder in STRICT else "allow"):
        yield


@pytest.fixture(autouse=True)
def untouched_log() -> None:
    """As where nobody has asked for a log: a command that ran in this process before leaves its handler and level."""
    logger = logging.getLogger("jaxrl")
    logger.handlers[:], logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
