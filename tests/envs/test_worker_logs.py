"""Worker processes log as their trainer does: at its level, in its form, with their number (S29)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping

import pytest
from rich.console import Console

from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import EnvMessage, ParameterValue
from tests.envs.toy_env import ToyEnv

logger = logging.getLogger("jaxrl.envs.talking")


class Talking(ToyEnv):
    """Says at its reset what its worker is, once for each level."""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None, seed: int | None = None) -> EnvMessage:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logger.log(level, "I am %d", self.worker)
        return super().reset(parameters, seed)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    ours = logging.getLogger("jaxrl")
    before = ours.handlers[:], ours.level, ours.propagate
    yield
    ours.handlers[:], ours.level, ours.propagate = before


def said(capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    with EnvPool(Talking, 2) as pool:
        pool.reset()
        pool.recv(2)
    return capfd.readouterr().err


def test_s29_workers_log_at_the_trainers_level_with_their_number(capfd: pytest.CaptureFixture[str]) -> None:
    setup_logging(Console(stderr=True))
    lines = sorted(said(capfd).splitlines())
    expected = [f"[{level}] Worker {worker}: I am {worker}" for level in ("INFO", "WARNING") for worker in (0, 1)]
    assert lines == expected, "nothing of level DEBUG, and no line twice"


def test_s29_under_debug_they_tell_when_and_where(capfd: pytest.CaptureFixture[str]) -> None:
    setup_logging(Console(stderr=True), debug=True)
    text = said(capfd)
    for worker in (0, 1):
        form = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d DEBUG \[%s:\d+\] Worker " + f"{worker}: "
        assert re.search(form % r"test_worker_logs\.py" + f"I am {worker}$", text, re.MULTILINE), text
        assert re.search(
            form % r"worker\.py" + r"process \d+ built its environment in \d+\.\d s\.$", text, re.MULTILINE
        )
        assert re.search(form % r"worker\.py" + r"process \d+ closes its environment\.$", text, re.MULTILINE)


def test_s29_a_program_without_a_log_hears_warnings_alone(capfd: pytest.CaptureFixture[str]) -> None:
    ours = logging.getLogger("jaxrl")
    ours.handlers[:], ours.level, ours.propagate = [], logging.NOTSET, True
    assert sorted(said(capfd).splitlines()) == [f"[WARNING] Worker {worker}: I am {worker}" for worker in (0, 1)]
