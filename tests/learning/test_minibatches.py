"""Each valid row once per epoch, invalid rows never, one program for any number of valid rows."""

from __future__ import annotations

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.learning import minibatches

ROWS = 24


def collect(valid: np.ndarray, *, size: int, epochs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """How often each row was seen, the rows of every minibatch in order (−1: none), and the mean of the metric."""

    def step(carry, rows):
        counts, log, at = carry
        log = jax.lax.dynamic_update_slice(log, rows["index"][None], (at, 0))
        return (counts.at[rows["index"]].add(1), log, at + 1), {"sum": rows["index"].sum().astype(jnp.float32)}

    width = min(size, len(valid))
    carry = jnp.zeros(len(valid), int), jnp.full((epochs * len(valid), width), -1), 0
    batch = {"index": jnp.arange(len(valid)), "pair": jnp.zeros((len(valid), 2))}
    run = jax.jit(partial(minibatches.run, step, size=size, epochs=epochs))
    (counts, log, at), metrics = run(carry, batch, jnp.asarray(valid), jax.random.key(seed))
    return np.asarray(counts), np.asarray(log[:at]), float(metrics["sum"])


def some(count: int, rows: int = ROWS) -> np.ndarray:
    valid = np.zeros(rows, bool)
    valid[np.random.default_rng(count).permutation(rows)[:count]] = True
    return valid


@pytest.mark.parametrize("count", [4, 12, 24])
def test_every_valid_row_exactly_once_per_epoch_when_divisible(count: int) -> None:
    valid = some(count)
    counts, log, _ = collect(valid, size=4, epochs=3)
    np.testing.assert_array_equal(counts, 3 * valid)
    assert log.shape == (3 * count // 4, 4)
    for epoch in np.split(log, 3):
        assert sorted(epoch.ravel()) == np.flatnonzero(valid).tolist()


def test_remainder_is_dropped_and_invalid_rows_never_seen() -> None:
    """11 valid rows in minibatches of 4: floor(11 / 4) = 2 minibatches, 3 rows left out, other ones each epoch."""
    valid = some(11)
    counts, log, _ = collect(valid, size=4, epochs=40)
    assert log.shape == (2 * 40, 4)
    assert counts[~valid].tolist() == [0] * 13
    assert counts.sum() == 40 * 8
    assert all(len(set(epoch.ravel())) == 8 for epoch in np.split(log, 40))
    assert counts[valid].min() > 15, "40 · 8 / 11 = 29 on average: nobody is always left out"


def test_fewer_valid_rows_than_a_minibatch_are_all_in_one_that_is_filled_up() -> None:
    valid = some(3)
    counts, log, _ = collect(valid, size=8, epochs=2)
    assert log.shape == (2, 8)
    assert counts[valid].tolist() == [2, 2, 2]
    assert all(set(np.flatnonzero(valid)) <= set(epoch) and len(set(epoch)) == 8 for epoch in log)


def test_minibatch_larger_than_the_batch_takes_all_of_it() -> None:
    counts, log, _ = collect(np.ones(5, bool), size=100, epochs=2)
    assert log.shape == (2, 5)
    assert counts.tolist() == [2] * 5


def test_metrics_are_means_over_minibatches() -> None:
    """All 24 rows: each epoch sums to 0 + ... + 23 = 276 over 6 minibatches, 46 each."""
    assert collect(np.ones(ROWS, bool), size=4, epochs=3)[2] == pytest.approx(46.0)


def test_order_follows_from_the_key_alone_and_differs_between_epochs() -> None:
    valid = some(24)
    first, again, other = (collect(valid, size=4, epochs=2, seed=seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[:6] != first[6:]).any()


def test_number_of_valid_rows_does_not_compile_again() -> None:
    def step(carry, rows):
        return carry + rows.sum(), {"rows": rows.sum()}

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(valid, key):
        return minibatches.run(step, jnp.zeros(()), jnp.ones(ROWS), valid, key, size=4, epochs=2)[0]

    totals = [float(run(jnp.asarray(some(count)), jax.random.key(0))) for count in (0, 3, 4, 11, 24)]
    assert totals == [8.0, 8.0, 8.0, 16.0, 48.0]


def test_shuffle_is_fair() -> None:
    """Each of 4 valid rows comes first about equally often: 600 epochs, 150 ± 5 standard deviations of 10.6."""
    _, log, _ = collect(some(4), size=1, epochs=600)
    first = log[::4, 0]
    assert np.bincount(first)[np.unique(first)] == pytest.approx([150] * 4, abs=53)


@pytest.mark.parametrize("rows", [1, 5, 1 << 16, (1 << 16) + 1])
def test_shuffle_is_a_permutation_with_the_valid_rows_in_front(rows: int) -> None:
    """Also where row numbers no longer leave room for random bits beside them."""
    valid = np.random.default_rng(rows).random(rows) < 0.5
    order = np.asarray(jax.jit(minibatches.shuffle)(jax.random.key(rows), jnp.asarray(valid)))
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))
    assert valid[order[: valid.sum()]].all()
    assert order.dtype == np.int32
    if rows > 5:
        assert abs(np.corrcoef(order[: valid.sum()], np.arange(valid.sum()))[0, 1]) < 0.03
