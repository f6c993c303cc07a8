"""Parts of states in one array, and the keys of decisions."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.rollout.buffer.cells import Cells, Layout, blank, pack, unpack, width
from jaxrl.rollout.noise import noise_key, typed
from jaxrl.types import Action
from tests.helpers import make_spec

SENSORS = make_spec((2,), (3, 2), (4, 4, 3), continuous=2, branches=(3, 4))
CAMERA = SENSORS.observations[2]._replace(dtype="uint8")
SPEC = SENSORS._replace(observations=(*SENSORS.observations[:2], CAMERA))
LAYOUT = Layout(SPEC, (("log_prob", (4,)), ("value", ())))
LEAD = (5, 2, 3)


def test_everything_comes_back_bit_for_bit():
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=(*LEAD, *shape)).astype(np.float32)

    cells = Cells(
        obs=(numbers(2), numbers(3, 2), rng.integers(0, 255, (*LEAD, 4, 4, 3)).astype(np.uint8)),
        carry={"hidden": numbers(5)},
        action_mask=numbers(7) > 0,
        action=Action(continuous=numbers(2), discrete=rng.integers(0, 2**24, (*LEAD, 2), np.int32)),
        extras={"log_prob": numbers(4), "value": numbers()},
        begin=numbers() > 0,
        present=numbers() > 0,
        acted=numbers() > 0,
        outcome=numbers(4),
    )
    stored = pack(cells, LAYOUT)
    # 2 observed as columns, 7 of masks, 2 + 2 of actions, 4 log-probabilities, 1 value, 3 flags, 4 of the outcome: 25
    assert stored.columns.shape == (*LEAD, 25) and width(LAYOUT) == 25
    assert [x is None for x in stored.sensors] == [True, False, False]
    for before, after in zip(jax.tree.leaves(cells), jax.tree.leaves(unpack(stored, LAYOUT)), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    empty = blank(LAYOUT, {"hidden": np.zeros(5, np.float32)}, LEAD)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), empty) == jax.tree.map(lambda x: (x.shape, x.dtype), stored)


def test_neighbouring_decisions_and_runs_share_no_noise():
    """Uniform numbers have 23 bits: of 64 decisions with 64 each some 1 in 4000 meets another by chance."""

    @jax.jit
    def draw(key_data):
        return jax.random.uniform(typed(key_data), (64,))

    drawn = np.array([draw(noise_key((1, 2), n)) for n in range(64)])
    assert len(np.unique(drawn)) > 0.995 * drawn.size
    np.testing.assert_array_equal(drawn[3], draw(noise_key((1, 2), 3)))
    assert not np.isin(draw(noise_key((1, 3), 0)), drawn[:3]).any()
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * drawn.size)
    assert np.abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 4 / np.sqrt(drawn.size)
