"""Signals that learn from every minibatch: when they move, what they pay, and that a stream may outlast an episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import preparing
from jaxrl.rewards.interface import RewardSignal
from jaxrl.rewards.normalized import normalized
from jaxrl.rewards.signals import Signals, bind
from jaxrl.rollout.transitions import outcome, transitions
from jaxrl.settings import BehaviorSettings
from tests.algorithms.team_rollouts import SMALL, SPEC, fresh, random_rollout
from tests.helpers import settings_of

TINY = {"hidden_units": 4, "num_layers": 1}
STREAMS: Any = {
    "extrinsic": {"gamma": 0.9},
    "curiosity": {"strength": 0.5, "gamma": 0.8, "network_settings": TINY},
    "rnd": {"strength": 2.0, "gamma": 0.7, "network_settings": {**TINY, "normalize": True}},
}


def made(trainer: str, **overrides: Any) -> BehaviorSettings:
    return settings_of(trainer, {**SMALL, "reward_signals": STREAMS, **overrides})


def test_streams_of_curiosity_and_rnd_go_on_where_an_episode_ends() -> None:
    """V is 1, 2, 3 by stream, so that what ends pays r + 0.8 · 2 and r + 0.7 · 3; the environment's own pays r."""
    settings, rollout = made("ppo"), random_rollout(3, t=8)
    signals = bind(SPEC, settings)
    assert signals.lasting == ["curiosity", "rnd"] == signals.in_minibatches
    paid = {name: jnp.where(rollout.acted, 1.0, 0.0) for name in STREAMS}
    value: Any = np.broadcast_to(np.arange(1, 4, dtype=np.float32), (*rollout.acted.shape, 3))
    found = preparing.stream_returns(rollout, value, settings, paid, lasting=signals.lasting)
    over = np.asarray(rollout.acted & rollout.terminated)
    assert over.any()
    expected = np.array([1.0, 0.5 + 0.8 * 2, 2.0 + 0.7 * 3])
    np.testing.assert_allclose(np.asarray(found)[over], np.broadcast_to(expected, (over.sum(), 3)), rtol=1e-6)


@pytest.mark.parametrize("trainer", [pytest.param("ppo", marks=pytest.mark.slow), "poca"])
def test_each_minibatch_moves_them_once(trainer: str) -> None:
    settings = made(trainer)
    algorithm, rollout = jaxrl.make_algorithm(SPEC, settings), random_rollout(3, t=8)
    before: Any = fresh(algorithm)
    after, told = jax.jit(algorithm.learn)(before, rollout)
    steps = int(jax.tree.leaves(after.optimizer)[0])
    assert steps > 1
    for name in ("curiosity", "rnd"):
        assert int(after.signals[name]["optimizer"].count) == steps
    assert {"forward_loss/curiosity", "inverse_loss/curiosity", "loss/rnd"} <= set(told)
    jax.tree.map(np.testing.assert_array_equal, after.signals["rnd"]["target"], before.signals["rnd"]["target"])
    statistics = after.signals["rnd"]["normalizer"][0]
    assert int(statistics.count) == 1 + int(rollout.acted.sum())  # each decision once, whatever minibatches there were


def test_signals_of_one_form_begin_apart() -> None:
    """Each by a key of its own; and RND's target is another network than its predictor, so that a fresh one pays."""
    drawn = RewardSignal(reward=lambda *_, **__: jnp.zeros(()), init=lambda key: jax.random.normal(key, (2,)))
    begun = Signals({"one": drawn, "two": drawn}, {}).init(jax.random.key(0))
    assert (begun["one"] != begun["two"]).all()
    signals, seen = bind(SPEC, made("ppo")), transitions(random_rollout(3, t=8))
    paid = signals.bound["rnd"].reward(signals.init(jax.random.key(0))["rnd"], seen, cooperative=False)
    assert (np.asarray(paid)[np.asarray(seen.valid)] > 0.0).all()


def test_every_signal_that_watches_follows_what_was_paid() -> None:
    """RND's statistics and what divides curiosity's rewards, side by side: each decision once."""
    streams = {**STREAMS, "curiosity": {"network_settings": TINY, "normalize_rewards": True}}
    signals, rollout = bind(SPEC, made("ppo", reward_signals=streams)), random_rollout(3, t=8)
    watched = signals.watch(signals.init(jax.random.key(0)), rollout)
    decided = int(rollout.acted.sum())
    assert int(watched["curiosity"]["paid"].count) == decided
    assert int(watched["rnd"]["normalizer"][0].count) == 1 + decided


def test_curiosity_pays_once_it_has_learned_and_only_for_what_was_seen() -> None:
    settings, rollout = made("ppo"), random_rollout(3, t=8)
    algorithm, signals = jaxrl.make_algorithm(SPEC, settings), bind(SPEC, settings)
    before: Any = fresh(algorithm)
    nothing = signals.rewards(before.signals, rollout, cooperative=False)["curiosity"]
    assert not np.asarray(nothing).any()
    after, _ = jax.jit(algorithm.learn)(before, rollout)
    paid = np.asarray(signals.rewards(after.signals, rollout, cooperative=False)["curiosity"])
    seen = np.asarray(outcome(rollout)[2])
    assert (paid[seen] > 0.0).all() and not paid[~seen].any()
    assert paid.max() <= 1.0 / 0.5


def test_curiosity_learns_nothing_from_what_was_not_seen() -> None:
    """Whatever stands in the place of a last observation that nobody saw, gradient and losses are the same."""
    signals, found = bind(SPEC, made("ppo")), transitions(random_rollout(3, t=8))
    curiosity = signals.bound["curiosity"]
    unseen = np.asarray(found.valid & ~found.seen)
    assert unseen.any() and np.asarray(found.valid & found.seen).any() and curiosity.gradient is not None
    other = tuple(jnp.where(unseen.reshape(*unseen.shape, *[1] * (x.ndim - 3)), x + 7.0, x) for x in found.next_obs)
    state, gradient = curiosity.init(jax.random.key(0)), jax.jit(curiosity.gradient)
    clean, dirty = (gradient(state, found._replace(next_obs=x), jax.random.key(1)) for x in (found.next_obs, other))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)


def test_each_signal_draws_with_a_key_of_its_own() -> None:
    """Three signals that note their keys: at the start, from a minibatch, and once per update."""

    def noting(_state: Any, _seen: Any, key: jax.Array) -> Any:
        return jax.random.key_data(key), {}

    signal = RewardSignal(
        reward=lambda _state, seen, cooperative: jnp.zeros(seen.valid.shape),
        init=jax.random.key_data,
        gradient=noting,
        learn=noting,
    )
    names, rollout, key = ("a", "b", "c"), random_rollout(3, t=8), jax.random.key(0)
    signals = Signals(dict.fromkeys(names, signal), {})
    states = signals.init(key)
    learned, _ = signals.learn(states, rollout, key)
    gradients, _ = signals.gradients(states, transitions(rollout), key)
    for keys in (states, gradients, learned):
        assert len({np.asarray(keys[name]).tobytes() for name in names}) == 3


def test_what_nobody_decided_on_changes_nothing() -> None:
    """NaN in all cells that masks leave out: the same numbers, bit for bit."""
    algorithm, rollout = jaxrl.make_algorithm(SPEC, made("poca")), random_rollout(3, t=8)
    gone = ~np.asarray(rollout.present)
    assert gone.any()
    poisoned = tuple(jnp.where(gone.reshape(*gone.shape, *[1] * (x.ndim - 3)), jnp.nan, x) for x in rollout.obs)
    learn = jax.jit(algorithm.learn)
    clean, dirty = (learn(fresh(algorithm), x)[0].signals for x in (rollout, rollout._replace(obs=poisoned)))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)


@pytest.mark.parametrize("trainer", ["ppo", "poca", "mappo", "coma"])
def test_they_are_traced_with_memory_too(trainer: str) -> None:
    """Sequences [N, L, A] in the place of states [N, A]; a signal remembers nothing itself."""
    memory = {"memory": {"memory_size": 4, "sequence_length": 4}}
    capacity = {"hyperparameters__team_capacity": 3} if trainer in ("mappo", "coma") else {}
    settings = made(trainer, network_settings={**TINY, **memory}, **capacity)
    algorithm = jaxrl.make_algorithm(SPEC, settings)
    rollout = random_rollout(3, t=8)
    carry = {name: jnp.zeros((*rollout.acted.shape, *axes)) for name, axes in algorithm.memories}
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    after, _ = jax.eval_shape(algorithm.learn, state, rollout._replace(carry=carry))
    assert jax.tree.structure(after.signals) == jax.tree.structure(state.signals)


def test_a_stream_ends_or_goes_on_as_its_key_says() -> None:
    """V is 1 and 2: where an episode ends, rnd that shall end pays 2, the environment's own goes on, 1 + 0.9 · 1."""
    streams = {"extrinsic": {"gamma": 0.9, "episodic": False}, "rnd": {"strength": 2.0, "gamma": 0.7, "episodic": True}}
    settings, rollout = made("ppo", reward_signals=streams), random_rollout(3, t=8)
    signals = bind(SPEC, settings)
    assert signals.lasting == ["extrinsic"]
    paid = {name: jnp.where(rollout.acted, 1.0, 0.0) for name in streams}
    value: Any = np.broadcast_to(np.arange(1, 3, dtype=np.float32), (*rollout.acted.shape, 2))
    found = preparing.stream_returns(rollout, value, settings, paid, lasting=signals.lasting)
    over = np.asarray(rollout.acted & rollout.terminated)
    assert over.any()
    np.testing.assert_allclose(np.asarray(found)[over], np.broadcast_to([1.9, 2.0], (over.sum(), 2)), rtol=1e-6)


def test_streams_of_a_member_that_left_by_who_is_paid() -> None:
    """λ = 1/2 and V = 10: its team goes on to earn 4 alone; what it earns itself ends with it, or has V for ever."""
    signal = {"gamma": 0.5, "strength": 1.0}
    streams = {"extrinsic": signal, "rnd": {**signal, "episodic": True}, "curiosity": signal}
    settings = made("poca", reward_signals=streams, hyperparameters__lambd=0.5)
    signals, blank = bind(SPEC, settings), random_rollout(0, t=2, b=1, a=2)
    acted = np.array([[[True, True]], [[True, False]]])
    left, ends = np.zeros_like(acted), np.zeros_like(acted)
    left[0, 0, 1] = ends[1, 0, 0] = True
    flags = dict.fromkeys(("waiting", "truncated", "cut"), np.zeros_like(acted))
    rollout = blank._replace(acted=acted, present=acted, left=left, terminated=ends, **flags)
    paid = {name: jnp.where(acted, jnp.array([[[1.0, 2.0]], [[4.0, 0.0]]]), 0.0) for name in streams}
    value: Any = np.full((2, 1, 2, 3), 10.0, np.float32)
    forms = {"lasting": signals.lasting, "shared": signals.shared}
    assert forms == {"lasting": ["curiosity"], "shared": ["extrinsic"]}
    last = (4.0, 4.0, 4.0 + 0.5 * 10)
    for posthumous, gone in (
        (True, (2 + 0.5 * (0.5 * 10 + 0.5 * last[0]), 2.0, 2 + 0.5 * 10)),
        (False, (2 + 0.5 * 10,) * 3),
    ):
        found = np.asarray(preparing.stream_returns(rollout, value, settings, paid, posthumous=posthumous, **forms))
        lives = [1 + 0.5 * (0.5 * 10 + 0.5 * rest) for rest in last]
        np.testing.assert_allclose(found, [[[lives, gone]], [[last, (0, 0, 0)]]], rtol=1e-6)


def test_rewards_are_divided_by_the_deviation_of_all_that_was_paid() -> None:
    """r / std of what was paid up to now; `watch` keeps count, and what is not valid does not count."""
    square = normalized(RewardSignal(reward=lambda _, seen, cooperative: jnp.square(seen.obs[0][..., 0])))
    state, paid = square.init(jax.random.key(0)), []
    for seed in (3, 4):
        rollout = random_rollout(seed, t=8)
        seen, raw = transitions(rollout), np.square(np.asarray(rollout.obs[0], np.float64)[..., 0])
        paid += raw[rollout.acted].tolist()
        np.testing.assert_allclose(square.reward(state, seen, cooperative=False), raw / np.std(paid), rtol=1e-4)
        state = square.watch(state, seen)
    assert float(state["paid"].count) == pytest.approx(len(paid))
    np.testing.assert_allclose(state["paid"].mean, np.mean(paid), rtol=1e-4)


def test_divided_rewards_of_nothing_are_nothing() -> None:
    """As those of curiosity before it has learned; and what has no deviation is left as it is."""
    seen = transitions(random_rollout(3, t=8))
    for constant in (0.0, 0.5, 0.1):  # of the last no mean is exact: rounding is no deviation
        same = normalized(RewardSignal(reward=lambda _, seen, cooperative, x=constant: jnp.full(seen.valid.shape, x)))
        state = same.init(jax.random.key(0))
        for _ in range(3):
            found = np.asarray(same.reward(state, seen, cooperative=False))
            assert (found == np.float32(constant)).all()
            state = same.watch(state, seen)


@pytest.mark.parametrize("name", ["rnd", "curiosity"])
def test_the_key_that_divides_is_off_by_default(name: str) -> None:
    for written, expected in (({}, False), ({"normalize_rewards": True}, True)):
        signals = bind(SPEC, made("ppo", reward_signals={name: {"network_settings": TINY, **written}}))
        assert ("paid" in jax.eval_shape(signals.init, jax.random.key(0))[name]) is expected
        assert signals.in_minibatches == signals.lasting == [name]
