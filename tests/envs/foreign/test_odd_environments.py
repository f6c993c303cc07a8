"""Odd environments of others: `check-env` names what is odd, and what works trains and evaluates to the right value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.foreign.environment import area_seeds
from jaxrl.tools.check_host import check_host
from jaxrl.training.host.run import train
from tests.artifacts.test_csv_file import rows
from tests.envs.foreign import odd_environments
from tests.envs.foreign.odd_environments import CASES, MODULE, NOTES, Case
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.toy_runs import configured

AREAS, SEED = 2, 11
WORKING = [name for name, case in CASES.items() if not case.problem and case.odd != "grows"]
QUICK = ["tuple"]


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    """Programs run a few hundred times on little."""
    with quick_compilation():
        yield


def made(name: str) -> Any:
    """One copy of a case, as somebody would make it."""
    kind = CASES[name].kind
    if kind == "gymnasium":
        return gymnasium.make(f"{MODULE}:Odd-v0", case=name, disable_env_checker=True)
    return odd_environments.Shared({"case": name}) if kind == "rllib" else getattr(odd_environments, kind)(name)


@pytest.mark.parametrize("name", CASES)
def test_check_env_names_what_is_odd(name: str) -> None:
    case = CASES[name]
    found = check_host(case.address, [f"case='{name}'", *case.arguments], steps=24, inline=True)
    texts, others = (found.problems, found.remarks)[:: 1 if case.problem else -1]
    assert not others
    assert len(texts) == bool(case.check) and all(case.check in text for text in texts)
    assert found.episodes or case.problem or case.odd == "endless"
