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
    """Rows of one member: how often each was seen, the rows of every minibatch in order, and the mean of the metric.

    The rows of a minibatch pass through its gradient, which is exact where it is one chunk.
    """

    def gradient(_carry, rows):
        return rows["index"].astype(jnp.float32), {"sum": rows["index"].sum().astype(jnp.float32)}

    def apply(carry, gradient):
        counts, log, at = carry
        index = gradient.astype(int)
        return counts.at[index].add(1), jax.lax.dynamic_update_slice(log, index[None], (at, 0)), at + 1

    width = min(size, len(valid))
    carry = jnp.zeros(len(valid), int), jnp.full((epochs * len(valid), width), -1), 0
    batch = {"index": jnp.arange(len(valid)), "pair": jnp.zeros((len(valid), 2))}
    run = jax.jit(partial(minibatches.run, gradient, apply, size=size, epochs=epochs))
    (counts, log, at), metrics = run(carry, batch, jnp.asarray(valid)[:, None], jax.random.key(seed))
    return np.asarray(counts), np.asarray(log[:at]), float(metrics["sum"])


def shares(acted: np.ndarray, *, size: int, epochs: int = 1, spoilt: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Each minibatch's mean over its members that acted of [n, a] = 1 where it is row n's member a: [S, N, A].

    So 1 / (members of the minibatch) for each of them, 0 elsewhere. And the number of rows of every chunk, [S].

    `spoilt`: NaN in whatever belongs to members that did not act.
    """
    n, a = acted.shape

    def gradient(_carry, rows):
        own = jnp.zeros((n, a)).at[rows["index"]].add(jnp.where(rows["acted"], rows["one"], 0.0))
        mean = own / jnp.maximum(rows["acted"].sum(), 1)
        return (mean, jnp.float32(rows["index"].shape[0])), {"members": mean.sum()}

    def apply(carry, gradient):
        log, chunk, at = carry
        mean, width = gradient
        return jax.lax.dynamic_update_slice(log, mean[None], (at, 0, 0)), chunk.at[at].set(width), at + 1

    one = np.where(acted, np.float32(1), np.float32(np.nan if spoilt else 1))
    carry = jnp.zeros((epochs * n, n, a)), jnp.zeros(epochs * n), 0
    batch = {"index": jnp.arange(n), "acted": jnp.asarray(acted), "one": jnp.asarray(one)}
    run = jax.jit(partial(minibatches.run, gradient, apply, size=size, epochs=epochs))
    (log, chunk, at), metrics = run(carry, batch, jnp.asarray(acted), jax.random.key(0))
    assert float(metrics["members"]) == pytest.approx(1.0 if acted.any() else 0.0, abs=1e-5)
    return np.asarray(log[:at]), np.asarray(chunk[:at])


def teams(rows: int, living: tuple[int, ...], members: int = 16, empty: float = 0.25) -> np.ndarray:
    """bool [N, A]: numbers of members that acted are drawn from `living`; a share of `empty` of the rows has none."""
    rng = np.random.default_rng(rows + len(living))
    count = rng.choice(living, rows) * (rng.random(rows) >= empty)
    return rng.permuted(np.arange(members) < count[:, None], axis=1)


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
    """Without a member that acted there is one minibatch whose mean is 0."""

    def gradient(_carry, rows):
        return rows.sum(), {"rows": rows.sum()}

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(valid, key):
        carry = jnp.zeros(()), 0
        apply = lambda carry, gradient: (carry[0] + gradient, carry[1] + 1)  # noqa: E731, one line of arithmetic
        return minibatches.run(gradient, apply, carry, jnp.ones(ROWS), valid[:, None], key, size=4, epochs=2)[0]

    found = [run(jnp.asarray(some(count)), jax.random.key(0)) for count in (0, 3, 4, 11, 24)]
    assert [float(total) for total, _ in found] == [0.0, 8.0, 8.0, 16.0, 48.0]
    assert [int(steps) for _, steps in found] == [2, 2, 2, 4, 12]


@pytest.mark.parametrize("living", [(2,), (1, 2, 3), (16, 1), (5,)], ids=str)
def test_teams_with_dead_members_fill_a_minibatch_with_members(living: tuple[int, ...]) -> None:
    """96 of 16 places each: 6 rows hold far fewer than 96 members. Within a third of it, not the eighth of before."""
    acted = teams(1024, living)
    log, chunk = shares(acted, size=96, epochs=2)
    members = (log > 0).sum((1, 2))
    np.testing.assert_allclose(chunk, 6, rtol=1e-5)
    assert np.abs(members.mean() - 96) <= 32
    if living != (16, 1):  # where one row has as many as sixteen others, minibatches differ
        assert np.abs(members - 96).max() <= 32
    rows = (log > 0).any(-1).sum(-1)
    assert (rows == rows[0]).all()
    assert len(log) == 2 * (acted.any(-1).sum() // rows[0])


@pytest.mark.parametrize("living", [(2,), (1, 2, 3), (16, 1)], ids=str)
def test_each_member_has_the_same_share_in_a_minibatch_of_several_chunks(living: tuple[int, ...]) -> None:
    """The mean over the whole minibatch, also where its chunks hold different numbers of members."""
    acted = teams(96, living)
    log, _ = shares(acted, size=64, epochs=3)
    for mean in log:
        rows = (mean > 0).any(-1)
        np.testing.assert_array_equal(mean > 0, acted & rows[:, None])  # whole rows
        np.testing.assert_allclose(mean[mean > 0], 1 / acted[rows].sum(), rtol=1e-5)
    for epoch in np.split(log > 0, 3):
        assert epoch.sum(0).max() == 1  # nobody twice in an epoch


@pytest.mark.parametrize(("rows", "members", "size"), [(24, 1, 4), (50, 3, 12), (50, 3, 13), (7, 4, 64)])
def test_full_teams_are_minibatches_of_one_chunk_as_they_were(rows: int, members: int, size: int) -> None:
    """size // A rows in the order of `shuffle`, and the gradient is that of the chunk to the last bit."""
    everybody, numbers = np.ones((rows, members), bool), np.random.default_rng(0).normal(size=rows).astype(np.float32)
    width = min(size // members, rows)

    def apply(carry, gradient):
        log, at = carry
        return jax.lax.dynamic_update_slice(log, gradient[None], (at, 0)), at + 1

    @jax.jit
    def found(key):
        start = jnp.zeros((2 * rows, width)), 0
        given = start, jnp.asarray(numbers), jnp.asarray(everybody), key
        (log, at), _ = minibatches.run(lambda _, x: (x, {}), apply, *given, size=size, epochs=2)
        return log, at

    log, at = found(jax.random.key(5))
    valid, count = jnp.ones(rows, bool), max(rows // width, 1)
    orders = [np.asarray(minibatches.shuffle(key, valid)) for key in jax.random.split(jax.random.key(5), 2)]
    expected = np.concatenate([numbers[order[: count * width]].reshape(count, width) for order in orders])
    np.testing.assert_array_equal(log[:at], expected)


def test_nan_of_members_that_did_not_act_reaches_no_minibatch() -> None:
    """Also in the rows that fill up the last one."""
    for acted in (teams(96, (1, 2, 3)), teams(24, (2,), empty=0.9)):
        clean, spoilt = (shares(acted, size=64, epochs=2, spoilt=spoilt)[0] for spoilt in (False, True))
        np.testing.assert_array_equal(clean, spoilt)
        assert np.isfinite(spoilt).all()


def test_few_members_are_one_minibatch_with_all_of_them() -> None:
    """Fewer rows than `size` members ask for."""
    acted = teams(20, (2,))
    log, _ = shares(acted, size=1024, epochs=2)
    assert len(log) == 2
    np.testing.assert_array_equal(log > 0, np.stack([acted, acted]))


@pytest.mark.parametrize(("size", "sequences"), [(2, 1), (4, 1), (11, 2)])
def test_p14_a_minibatch_is_whole_sequences_one_at_least(size: int, sequences: int) -> None:
    """8 sequences of 4 decisions: minibatches of 2, 4 and 11 are 1, 1 and 2 of them."""
    log, chunk = shares(np.ones((8, 4), bool), size=size)
    members = log > 0
    assert len(log) == 8 // sequences and chunk.tolist() == [sequences] * len(log)
    np.testing.assert_array_equal(members.any(-1), members.all(-1))
    np.testing.assert_array_equal(members.sum(0), np.ones((8, 4)))


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


def test_shuffle_of_many_rows_keeps_no_order() -> None:
    """100,000 rows: neighbours go up as often as down, within 5 of 91 (the deviation is √(N / 12)); none stays near.

    With the 14 random bits that there is room for beside a row's number alone, 6 rows of each of 16,384 keys stood in
    order: 92,000 of 100,000 steps up.
    """
    rows = 100_000
    order = np.asarray(jax.jit(minibatches.shuffle)(jax.random.key(3), jnp.ones(rows, bool)))
    up = (np.diff(order) > 0).sum()
    assert abs(up - rows / 2) < 5 * np.sqrt(rows / 12)
    assert abs(np.corrcoef(order, np.arange(rows))[0, 1]) < 5 / np.sqrt(rows)
