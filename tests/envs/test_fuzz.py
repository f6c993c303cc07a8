"""Whatever a player sends is a valid result or one of jaxrl's own errors: no other exception, and never without end."""

from __future__ import annotations

import logging

import pytest

from benchmarks.fuzz_protocol import Reading, check, fuzz, recorded
from jaxrl.envs.unity.communicator import parse
from jaxrl.envs.unity.decode import InvalidMessage


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_what_was_recorded_is_valid():
    reading, counts = Reading(), []
    for data in recorded():
        result = reading.read(data)
        check(result, reading.specs)
        counts.append(sum(len(s.ended.agent_id) + len(s.deciding.agent_id) for s in result.steps.values()))
    assert counts == [0, 8, 8, 8, 8]


@pytest.mark.parametrize("seed", [1, 2])
def test_2000_mutations(seed):
    outcomes = fuzz(2000, seed)
    assert outcomes["valid"] > 200 and outcomes["InvalidMessage"] > 500 and outcomes["InvalidData"] > 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200000_mutations():
    fuzz(200_000, seed=3)


def test_a_version_of_5000_digits_is_none():
    """Python itself refuses to read integers of more than 4,300 digits."""
    message = parse(recorded()[0])
    message.unity_output.rl_initialization_output.communication_version = "9" * 5000
    with pytest.raises(InvalidMessage, match="communication version"):
        Reading().read(message.SerializeToString())
