"""Observations that an exported policy is checked on."""

from __future__ import annotations

import numpy as np

from jaxrl.rollout.booking.slots import Slots, Source
from tests.helpers import decision_steps, make_spec, message

SPEC = make_spec((2,), branches=(3,))
SOURCE = Source(0, "Push?team=0")


def test_the_number_of_rows_never_changes_and_all_are_of_living_agents():
    slots = Slots(SPEC, team_rows=True, rows=2, members=2)
    ((nobody,), masks) = slots.recorded()
    assert nobody.shape == (4, 2) and masks.shape == (4, 3)
    seen = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    slots.ingest({SOURCE: message(SPEC, None, decision_steps(SPEC, [1, 2, 3], groups=[7, 7, 8], obs=[seen]))})
    ((obs,), masks) = slots.recorded()
    np.testing.assert_array_equal(obs, seen[[0, 1, 2, 0]])  # three agents live: the first comes twice
    assert masks.shape == (4, 3)
