"""A replay holds exactly the newest decisions with what followed them, stores what is seen once, and stays as it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.learning import replay
from jaxrl.rollout.rollout import Rollout, masked
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.algorithms import team_rollouts
from tests.algorithms.team_rollouts import quick_jit
from tests.helpers import make_spec

SPEC = make_spec((3,), continuous=1, branches=(2,))


def random_rollout(seed: int, *, t: int, b: int, a: int, spec: BehaviorSpec) -> Rollout:
    """Of an algorithm that notes nothing."""
    return team_rollouts.random_rollout(seed, t=t, b=b, a=a, spec=spec)._replace(extras={})


class Wanted(NamedTuple):
    """A decision, found by searching the rollout by hand."""

    obs: Any
    reward: float
    discount: float
    after: Any
    done: Any  # action and mask, one row


def decisions(rollout: Rollout) -> list[Wanted]:
    found, (time, rows, members) = [], rollout.acted.shape
    for t, b, a in np.ndindex(time, rows, members):
        if not rollout.acted[t, b, a]:
            continue
        later = [s for s in range(t + 1, time) if not rollout.waiting[s, b, a]] or [time - 1]
        over = bool(rollout.terminated[t, b, a] or rollout.left[t, b, a])
        seen = rollout.present[later[0], b, a] and not over
        paid = rollout.reward[t, b, a] + rollout.group_reward[t, b, a]
        obs = rollout.obs[0][:, b, a]
        done = np.concatenate([*(x[t, b, a] for x in rollout.action), rollout.action_mask[t, b, a]])
        found.append(Wanted(obs[t], float(paid), 0.0 if over else 1.0, obs[later[0]] if seen else None, done))
    return found


PUT, PUT_SEQUENCES = quick_jit(replay.add), quick_jit(replay.add_sequences)
READ = quick_jit(lambda store, numbers: replay.at(store, numbers, jnp.ones(numbers.shape, bool)))


def everything(store: replay.Replay):
    """All that is held, from the oldest on."""
    count, size = int(store.count) - int(store.oldest), len(store.kept.reward)
    found = READ(store, np.uint32(int(store.oldest)) + np.arange(size, dtype=np.uint32))
    return jax.tree.map(lambda x: np.asarray(x)[:count], found)


def assert_holds(store: replay.Replay, wanted: list[Wanted]) -> None:
    found = everything(store)
    assert len(found.reward) == len(wanted)
    for i, one in enumerate(wanted):
        np.testing.assert_array_equal(found.obs[0][i], np.float32(one.obs))
        assert (found.reward[i], found.discount[i]) == pytest.approx((one.reward, one.discount))
        assert bool(found.seen[i]) == (one.after is not None)
        later = one.obs if one.after is None else one.after  # in place of what nobody saw, what was before
        np.testing.assert_array_equal(found.next_obs[0][i], np.float32(later))
        done = np.concatenate([found.action.continuous[i], found.action.discrete[i], found.action_mask[i]])
        np.testing.assert_array_equal(done, np.float32(one.done))


@pytest.mark.parametrize("size", [5, 17, 200])
def test_the_newest_decisions_are_held_with_what_followed(size: int) -> None:
    """Against a search by hand, over rollouts with waiting, absent and ended members; the small ones overflow."""
    store, wanted = replay.empty(SPEC, size), []
    for seed in range(4):
        rollout = random_rollout(seed, t=6, b=2, a=2, spec=SPEC)
        store, wanted = PUT(store, rollout), wanted + decisions(rollout)
        assert_holds(store, wanted[-size:])
    assert 17 < len(wanted) < 200


def test_what_is_not_part_of_a_rollout_reaches_nobody() -> None:
    rollout = random_rollout(1, t=6, b=2, a=2, spec=SPEC)
    poisoned = rollout._replace(
        obs=tuple(np.where(rollout.present[..., None], x, np.nan) for x in rollout.obs),
        reward=np.where(rollout.acted, rollout.reward, np.nan),
    )
    put = quick_jit(lambda store, given: replay.add(store, masked(given)))
    first, second = (put(replay.empty(SPEC, 50), given) for given in (rollout, poisoned))
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(x, y)


def line(length: int, spec: BehaviorSpec, start: int = 0) -> Rollout:
    """One agent that decides in every state but the last, which it sees: state number n shows n, and pays n."""
    empty = random_rollout(0, t=length, b=1, a=1, spec=spec)
    there, no = np.ones((length, 1, 1), bool), np.zeros((length, 1, 1), bool)
    clock = np.arange(start, start + length, dtype=np.float32).reshape(length, 1, 1)
    return empty._replace(
        obs=tuple(
            np.broadcast_to(clock.reshape(-1, *[1] * (len(o.shape) + 2)), (length, 1, 1, *o.shape)).astype(o.dtype)
            for o in spec.observations
        ),
        present=there,
        acted=there & (clock < start + length - 1),
        begin=clock == start,
        reward=clock,
        group_reward=np.zeros_like(clock),
        **dict.fromkeys(("waiting", "terminated", "truncated", "left", "cut"), no),
    )


def test_an_observation_is_stored_once_in_its_own_dtype() -> None:
    """A rollout of 9 states is 8 decisions: 9 places, not 16. A large image leaves room for an eighth more."""
    image = ObservationSpec("camera", (3, 40, 40), dtype="uint8")
    spec = BehaviorSpec((image,), ActionSpec(1, (2,)))
    store = PUT(replay.empty(spec, 80), line(9, spec))
    assert (int(store.observed), int(store.count)) == (9, 8)
    assert store.obs[0].dtype == jnp.uint8 and store.obs[0].shape[0] == 90
    for turn in range(1, 30):
        store = PUT(store, line(9, spec, start=8 * turn))
    found = everything(store)  # 90 places are ten whole rollouts
    assert len(found.reward) == 80
    np.testing.assert_array_equal(found.next_obs[0][:, 0, 0, 0], found.obs[0][:, 0, 0, 0] + 1)
    assert float(found.reward[-1]) == 8 * 30 - 1


def test_observations_that_do_not_last_shorten_what_is_held() -> None:
    """Rollouts of one decision take two places each: of 45 places that is 22 decisions, and none shows another's."""
    spec = BehaviorSpec((ObservationSpec("camera", (3, 40, 40), dtype="uint8"),), ActionSpec(1, (2,)))
    store = replay.empty(spec, 40)
    for turn in range(100):
        store = PUT(store, line(2, spec, start=2 * turn))
        found = everything(store)
        np.testing.assert_array_equal(found.obs[0][:, 0, 0, 0], found.reward.astype(np.uint8))
        np.testing.assert_array_equal(found.next_obs[0][:, 0, 0, 0], found.reward.astype(np.uint8) + 1)
    assert len(found.reward) == 22
    drawn = replay.sample(store, jax.random.key(0), 400)
    assert set(np.asarray(drawn.reward).tolist()) == set(found.reward.tolist()), "of those that are held alone"


def test_each_decision_is_drawn_as_often_as_any_other() -> None:
    store = replay.empty(SPEC, 8)
    for turn in range(3):
        store = PUT(store, line(6, SPEC, start=10 * turn))
    drawn = np.asarray(replay.sample(store, jax.random.key(0), 8000).reward)
    rewards, counts = np.unique(drawn, return_counts=True)
    assert rewards.tolist() == [12, 13, 14, 20, 21, 22, 23, 24]  # the newest 8
    assert counts.min() > 850 and counts.max() < 1150  # 1000 ± 5 deviations


def test_nothing_is_valid_where_nothing_is_held() -> None:
    assert not np.asarray(replay.sample(replay.empty(SPEC, 8), jax.random.key(0), 4).valid).any()


def test_sequences_go_on_in_time_with_the_memory_before_them() -> None:
    """8 decisions of one agent in sequences of 3: 3, 3 and 2, each with its memory; the last 4 are held."""
    store = replay.no_sequences(SPEC, 12, 3, (("actor", (2,)),))
    for turn in range(2):
        rollout = line(9, SPEC, start=100 * turn)
        memory = np.repeat(rollout.reward[..., None], 2, axis=-1) + 0.5
        store = PUT_SEQUENCES(store, rollout._replace(carry={"actor": memory}))
    kept = store.pieces
    assert int(store.count) == 6 and kept.valid.shape == (4, 3) and int(replay.held(store)) == 4
    assert int(store.observed) == 18  # 8 decisions and what was seen last, twice: nothing stands there twice
    order = [4, 5, 2, 3]  # number n stands in place n modulo 4: 2 of the first turn, 3 to 5 of the second
    first = {2: 6.0, 3: 100.0, 4: 103.0, 5: 106.0}
    for place, number in enumerate(order):
        length = 2 if number in (2, 5) else 3
        np.testing.assert_array_equal(kept.valid[place], np.arange(3) < length)
        np.testing.assert_array_equal(kept.kept.reward[place, :length], first[number] + np.arange(length))
        np.testing.assert_array_equal(kept.carry["actor"][place], np.full(2, first[number] + 0.5))
    drawn = replay.sample_sequences(store, jax.random.key(1), 30)
    assert drawn.valid.shape == (10, 3)
    memory, paid = np.asarray(drawn.carry["actor"]), np.asarray(drawn.reward)
    assert {float(x) for x in paid[:, 0]} == set(first.values())
    np.testing.assert_array_equal(drawn.obs[0][..., 0], np.where(drawn.valid, paid, 0))  # a state shows what it pays
    np.testing.assert_array_equal(drawn.next_obs[0][..., 0], np.where(drawn.valid, paid + 1, 0))
    np.testing.assert_array_equal(memory[:, 0, 0], np.asarray(drawn.reward[:, 0]) + 0.5)
    assert not memory[:, 1:].any()


def test_sequences_go_when_what_they_saw_goes() -> None:
    """Rollouts of 2 decisions, which see 3 states: of 45 places that is 15 sequences, and none shows another's."""
    spec = BehaviorSpec((ObservationSpec("camera", (3, 40, 40), dtype="uint8"),), ActionSpec(1, (2,)))
    store = replay.no_sequences(spec, 40, 2, ())
    for turn in range(60):
        store = PUT_SEQUENCES(store, line(3, spec, start=2 * turn)._replace(carry={}))
    assert int(replay.held(store)) == 15
    drawn = replay.sample_sequences(store, jax.random.key(0), 400)
    shown, paid = np.asarray(drawn.obs[0][:, :, 0, 0, 0]), np.asarray(drawn.reward)
    np.testing.assert_array_equal(shown, paid.astype(np.uint8))
    np.testing.assert_array_equal(drawn.next_obs[0][:, :, 0, 0, 0], paid.astype(np.uint8) + 1)
    assert sorted(set(paid[:, 0].tolist())) == [2.0 * turn for turn in range(45, 60)]


def test_sequences_are_those_of_a_search_by_hand() -> None:
    """Random single agents that wait, are absent, die and are cut off; room for 10 sequences of 4."""
    store, wanted = replay.no_sequences(SPEC, 40, 4, (("actor", (1,)),)), []
    for seed in range(8):
        rollout = random_rollout(seed, t=9, b=3, a=1, spec=SPEC)
        store = PUT_SEQUENCES(store, rollout._replace(carry={"actor": np.zeros((*rollout.acted.shape, 1))}))
        wanted += decisions(rollout)
    assert int(replay.held(store)) == 10 and len(wanted) > 60
    drawn = jax.tree.map(np.asarray, replay.sample_sequences(store, jax.random.key(0), 400))
    by_reward = {one.reward: one for one in wanted}
    places = [tuple(place) for place in np.argwhere(drawn.valid)]
    for place in places:
        one = by_reward[min(by_reward, key=lambda paid: abs(paid - float(drawn.reward[place])))]
        assert float(drawn.reward[place]) == pytest.approx(one.reward, abs=1e-6)
        np.testing.assert_array_equal(drawn.obs[0][place], np.float32(one.obs))
        assert bool(drawn.seen[place]) == (one.after is not None) and float(drawn.discount[place]) == one.discount
        if one.after is not None:
            np.testing.assert_array_equal(drawn.next_obs[0][place], np.float32(one.after))
    assert len({float(drawn.reward[place]) for place in places}) > 10


def test_adding_is_traced_once_however_full() -> None:
    traces = []

    def put(store: replay.Replay, rollout: Rollout) -> replay.Replay:
        traces.append(0)
        return replay.add(store, rollout)

    step, store = jax.jit(put, donate_argnums=0), replay.empty(SPEC, 16)
    for turn in range(10):
        store = step(store, line(5, SPEC, start=10 * turn))
    assert len(traces) == 1 and int(replay.held(store)) == 16


def test_seeds_side_by_side_hold_what_each_holds_alone() -> None:
    rollouts = [random_rollout(seed, t=6, b=2, a=1, spec=SPEC) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *rollouts)
    many = jax.tree.map(lambda x: jnp.stack([x] * 3), replay.empty(SPEC, 7))
    together = quick_jit(jax.vmap(replay.add))(many, stacked)
    for seed, rollout in enumerate(rollouts):
        alone = PUT(replay.empty(SPEC, 7), rollout)
        for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(x[seed], y)
