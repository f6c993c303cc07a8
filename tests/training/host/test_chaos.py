"""Deaths at random while a run learns: it reaches the optimum all the same, and nothing is left over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import trainer


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_m17_r10_a_run_whose_workers_and_players_are_killed_all_the_time_learns_what_it_should():
    """JAXRL_CHAOS_SECONDS (60) seconds with a SIGKILL every 4: mean reward of 0.8 at least, of 0.93 at most."""
    seconds = os.environ.get("JAXRL_CHAOS_SECONDS", "60")
    words = [str(trainer.ROOT / "benchmarks" / "chaos.py"), "--seconds", seconds]
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=1700)
    assert ended.returncode == 0, ended.stdout + ended.stderr
