"""Returns of about the last 100 episodes, counted inside the program: by hand, and whatever chunks a run has."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl.algorithms import ALGORITHMS
from jaxrl.training.compiled.recent_returns import RecentReturns, counted, inherited, none_yet
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments
from jaxrl.training.compiled.trainer import make_jitted_trainer
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import make_toy, quick_compilation


def figures(counts: Any, totals: Any) -> EpisodeFigures:
    means = np.float32(totals) / np.maximum(np.float32(counts), 1)
    some, none = Moments(np.float32(counts), means, 0.0), Moments(np.zeros(2), np.zeros(2), 0.0)
    return EpisodeFigures(some, none, none, 0.0, 0.0, {})


def test_they_are_the_newest_hundred_or_more_of_each_seed_alone() -> None:
    recent = none_yet(2)
    assert np.isnan(recent.reward.mean()).all()
    for seed_0, seed_1 in ((60, 3), (60, 0), (30, 2)):
        recent = counted(recent, figures([seed_0, seed_1], [seed_0 * 1.0, seed_1 * 5.0]))
    np.testing.assert_allclose(recent.reward.mean(), [1.0, 5.0])
    recent = counted(recent, figures([80, 0], [80 * 4.0, 0.0]))  # 30 and 80 are a hundred: what came before is left out
    np.testing.assert_allclose(recent.reward.mean(), [(30 + 80 * 4.0) / 110, 5.0], rtol=1e-6)
    recent = counted(recent, figures([50, 1], [0.0, -5.0]))
    np.testing.assert_allclose(recent.reward.mean(), [(30 + 80 * 4.0) / 160, 20.0 / 6], rtol=1e-6)
    assert np.isnan(recent.group_reward.mean()).all()
    np.testing.assert_allclose(inherited(recent, np.array([1, 1])).reward.mean(), [20.0 / 6] * 2, rtol=1e-6)


def test_the_length_of_chunks_changes_nothing() -> None:
    env, settings = make_toy(), ppo_settings(network_settings__hidden_units=4, hyperparameters__buffer_size=256)
    with quick_compilation():
        trainer = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=8, seeds=2)
    found: list[RecentReturns] = []
    for chunks in ((6,), (1, 2, 3)):
        state, returns = trainer.init((3, 4)), []
        for count in chunks:
            state, log = trainer.run(state, count)
            returns.append(log.episodes.reward)
        found.append(jax.device_get(state.recent))
        episodes = sum(np.asarray(moments.count) for moments in returns)
        assert (episodes > found[-1].reward.newer_count + found[-1].reward.older_count).all()  # older ones are left out
    assert (found[0].reward.older_count >= 100).all()
    for one, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_array_equal(one, other)
