"""A reward signal of one's own: what it pays, what it learns, and every mistake in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import preparing
from jaxrl.algorithms.connected import deterministic
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.metrics.statistics import tag_of
from jaxrl.own_code import OwnCodeError
from jaxrl.rewards.signals import bind
from jaxrl.settings import BehaviorSettings, RunSettings, SettingsError, to_yaml
from tests.algorithms.team_rollouts import SMALL, SPEC, random_rollout
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import make_toy, quick_compilation
from tests.rewards.own_signals import KEYS, MADE, PLACE, GuessSettings
from tests.training.host import test_exact as exact

SIGNALS = {
    "extrinsic": {"gamma": 0.9},
    "first": {"type": f"{PLACE}:make_first", "gamma": 0.5, "strength": 2.0},
    "guess": {"type": f"{PLACE}:make_guess", "learning_rate": 0.25},
    "second_guess": {"type": f"{PLACE}:make_guess"},
}


def made(trainer: str, signals: Any = None, **overrides: Any) -> BehaviorSettings:
    return settings_of(trainer, {**SMALL, "reward_signals": SIGNALS if signals is None else signals, **overrides})


def guessed(rollout: Any, rate: float) -> tuple[np.ndarray, float]:
    """The guess after one step from zero, w = -rate · mean 2 (0 - Σx) x over the decisions, and the loss before it."""
    seen = np.asarray(rollout.obs[0])[np.asarray(rollout.acted)]  # [N, 3]
    total = seen.sum(-1)
    return rate * (2 * total[:, None] * seen).mean(0), float(np.square(total).mean())


def fresh(settings: BehaviorSettings) -> Any:
    """The signals' states."""
    return bind(SPEC, settings).init(jax.random.key(1))


@pytest.mark.parametrize("cooperative", [False, True])
def test_p10_several_streams_are_paid_discounted_and_learned(cooperative: bool) -> None:
    """Extrinsic, one without a state, and two of one type: each has rewards, a discount and a target of its own."""
    settings = made("poca" if cooperative else "ppo")
    rollout, state = random_rollout(3, t=8, a=3), fresh(settings)
    assert state["extrinsic"] == () == state["first"]
    signals = bind(SPEC, settings)
    paid = signals.rewards(state, rollout, cooperative=cooperative)
    seen, extra = np.asarray(rollout.obs[0]), 10.0 if cooperative else 0.0
    first, guess = seen[..., 0] + extra, np.square(seen.sum(-1))
    for name, expected in (("first", first), ("guess", guess), ("second_guess", guess)):
        np.testing.assert_allclose(paid[name], np.where(rollout.acted, expected, 0.0), rtol=1e-5)
    value: Any = np.broadcast_to(np.arange(4, dtype=np.float32), (*rollout.acted.shape, 4))  # V is 0, 1, 2, 3 by stream
    returns = np.asarray(preparing.stream_returns(rollout, value, settings, paid))
    over, cut = rollout.acted & rollout.terminated, rollout.acted & rollout.cut
    cut[-1] = False  # after the last state nothing is known
    assert over.any() and cut.any()
    np.testing.assert_allclose(returns[over][:, 1:], np.stack([2 * first, guess, guess], -1)[over], rtol=1e-5)
    np.testing.assert_allclose(returns[cut][:, 1], 2 * first[cut] + 0.5 * 1.0, rtol=1e-5)
    np.testing.assert_allclose(returns[cut][:, 3], guess[cut] + 0.99 * 3.0, rtol=1e-5)
    told = signals.told(state, rollout, cooperative=cooperative)
    assert list(told) == list(SIGNALS)[1:]
    np.testing.assert_allclose(told["first"], 2 * paid["first"], rtol=1e-6)


def test_p6_estimates_count_each_trajectory_once() -> None:
    """One decision of estimate 0 that ends, then three of 1: 0.5, where the mean over decisions were 0.75."""
    rollout = random_rollout(0, t=4, a=1)
    everybody = np.ones_like(rollout.acted)
    ends = everybody & (np.arange(4) == 0)[:, None, None]
    calm = dict.fromkeys(("truncated", "left", "cut"), ~everybody)
    estimate: Any = np.where(ends, np.float32(0), np.float32(1))[..., None]
    rollout = rollout._replace(acted=everybody, terminated=ends, **calm)
    found = preparing.by_stream("value_estimate", estimate, rollout, made("ppo", {"extrinsic": {}}))
    assert float(found["value_estimate/extrinsic"]) == pytest.approx(0.5)


def test_each_signal_learns_with_its_own_settings() -> None:
    settings, rollout = made("ppo"), random_rollout(3, t=8, a=3)
    after, metrics = bind(SPEC, settings).learn(fresh(settings), rollout, jax.random.key(2))
    for name, rate in (("guess", 0.25), ("second_guess", 0.5)):
        weight, loss = guessed(rollout, rate)
        np.testing.assert_allclose(after[name]["weight"], weight, rtol=1e-5)
        np.testing.assert_allclose(metrics[f"loss/{name}"], loss, rtol=1e-5)
        assert int(after[name]["steps"]) == 1


def test_statistics_have_ml_agents_tags() -> None:
    names = ["loss/guess", "steps/guess", "reward/guess", "value_estimate/guess"]
    tags = ["Losses/Guess Loss", "Policy/Guess Steps", "Policy/Guess Reward", "Policy/Guess Value Estimate"]
    assert [tag_of(name) for name in names] == tags


def test_its_keys_are_its_own() -> None:
    """`fold_in` with a small number gives what `split` gives: neither those of the learner nor of another signal."""
    settings = made("ppo", {name: {"type": f"{PLACE}:make_keys"} for name in ("one", "other")})
    KEYS.clear()
    signals, key = bind(SPEC, settings), jax.random.key(1)
    signals.learn(signals.init(key), random_rollout(0, a=1), key)
    theirs = [tuple(key) for key in KEYS]
    learners = jax.random.key_data(jax.random.split(key, 8)).tolist()
    assert len(set(theirs)) == 4 and not set(theirs) & {tuple(key) for key in learners}


def test_a_signal_is_made_once_and_not_at_all_where_nobody_learns() -> None:
    settings = made("ppo")
    MADE.clear()
    algorithm, rollout = jaxrl.make_algorithm(SPEC, settings), random_rollout(0, a=1)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    for _ in range(2):
        jax.eval_shape(lambda s, r: (algorithm.learn(s, r), algorithm.estimate(s, r)), state, rollout)
    deterministic(SPEC, settings)
    assert [settings.reward_signals["guess"], settings.reward_signals["second_guess"]] == MADE


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_compiled_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """The signals' parameters are part of the checkpoint, and the guess improves."""
    env = make_toy()
    settings = made("poca", network_settings__hidden_units=4, hyperparameters__num_epoch=1)
    with quick_compilation():
        algorithm = jaxrl.make_algorithm(env.spec, settings)
        trainer = jaxrl.make_jitted_trainer(env, algorithm, settings, areas=3, seeds=1)
    state, log = trainer.run(trainer.init([0]), 1)
    before = float(log.metric("loss/guess")[0])
    trainer.save(state, tmp_path)
    whole, _ = trainer.run(state, 2)
    again, log = trainer.run(trainer.restore(tmp_path), 2)
    for x, y in zip(jax.tree.leaves(to_arrays(whole)), jax.tree.leaves(to_arrays(again)), strict=True):
        np.testing.assert_array_equal(x, y)
    assert int(again.train.signals["guess"]["steps"][0]) == 3 and np.abs(again.train.signals["guess"]["weight"]).all()
    assert 0 < float(log.metric("loss/guess")[0]) < before


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_resumed_run_of_the_host_loop_equals_one_that_was_never_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"type": f"{PLACE}:make_guess", "learning_rate": 1e-5}  # the toy shows large numbers
    changes = {"reward_signals": {"extrinsic": {}, "guess": slow}}
    MADE.clear()
    whole = exact.run(tmp_path / "whole", changes=changes)
    assert len(MADE) == 1
    again = exact.stopped(whole, tmp_path / "stopped", 1)
    exact.run(tmp_path / "stopped", resume=True, changes=changes)
    assert exact.diff(whole, again, capsys) == exact.EQUAL
    _, losses = jaxrl.read_metrics(whole).array("Losses/Guess Loss")
    assert losses.shape[1] > 2 and np.isfinite(losses).all()


def test_its_settings_are_its_own_class_and_are_written_back() -> None:
    settings = made("ppo")
    guess = settings.reward_signals["guess"]
    assert isinstance(guess, GuessSettings) and guess.learning_rate == 0.25 and guess.gamma == 0.99
    text = to_yaml(RunSettings(behaviors={"A": settings}))
    assert f"type: {PLACE}:make_guess" in text and "learning_rate: 0.25" in text


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ({"guess": {"type": f"{PLACE}:make_guess", "rate": 1}}, "reward_signals.guess.rate: unknown key"),
        ({"guess": {"type": f"{PLACE}:make_guess", "gamma": 2}}, "reward_signals.guess.gamma: got 2, expected a value"),
        ({"guess": {"type": f"{PLACE}:make_gess"}}, "reward_signals.guess.type: .*no function make_gess, did you mean"),
        ({"guess": {"type": "mine.py:make"}}, "reward_signals.guess.type: mine.py:make: there is no file"),
        ({"guess": {"type": "novelty"}}, "reward_signals.guess.type: novelty: no installed package offers it"),
        ({"guess": {"type": f"{PLACE}:not_callable"}}, r"is a int, expected a function \(spec, settings\)"),
        ({f"{PLACE}:make_guess": {}}, r"a stream has a name, .* write NAME: \{type: tests"),
        (
            {"My guess": {"type": f"{PLACE}:make_guess"}},
            "reward_signals.My guess: expected small letters, digits and _",
        ),
        ({"curiousity": {}}, "unknown key, did you mean curiosity.*a signal of your own is NAME: {type:"),
        ({"curiosity": {"type": f"{PLACE}:make_guess"}}, "reward_signals.curiosity.type: unknown key"),
    ],
)
def test_what_a_file_cannot_say(signals: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        jaxrl.make_settings("ppo", reward_signals=signals)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("make_flat", r"reward gives \(5, 4\), expected \(T, B, A\) = \(5, 4, 1\)"),
        ("make_growing", r"learn gives a state of the form float32\[3\], it was float32\[2\]"),
        ("make_vector_metric", r"learn: metric loss has the shape \(2,\), expected a scalar"),
        ("make_raises", r"raised ValueError: out of luck \(.*own_signals.py, line \d+\)"),
        ("make_nothing", r"returns a NoneType, expected a jaxrl.RewardSignal"),
    ],
)
def test_what_a_function_cannot_do(function: str, said: str) -> None:
    settings = made("ppo", {"mine": {"type": f"{PLACE}:{function}"}})
    with pytest.raises(OwnCodeError, match=rf"reward_signals.mine: {PLACE}:{function}:? {said}"):
        signals, rollout = bind(SPEC, settings), random_rollout(0, a=1)
        state = signals.init(jax.random.key(1))
        signals.rewards(state, rollout, cooperative=False)
        signals.learn(state, rollout, jax.random.key(2))
