"""`Policy/<Name> Reward` is what a signal has paid over an episode: to the number, over updates, pages and pauses."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import jax
import numpy as np

import jaxrl
from jaxrl.algorithms import ALGORITHMS
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, keep, learn
from jaxrl.training.signal_rewards import PAID, EpisodeSums, Paid, episode_sums
from tests.algorithms.team_rollouts import quick_jit
from tests.helpers import decision_steps, make_spec, message, settings_of, terminal_steps
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation
from tests.rewards.own_signals import PLACE

SIGNALS = {"extrinsic": {"strength": 0.5}, "paid": {"type": f"{PLACE}:make_paid", "strength": 0.5}}
TINY: dict[str, Any] = {"network_settings": {"hidden_units": 4, "num_layers": 1}, "reward_signals": SIGNALS}


def paid(rewards: Any, *, acted: Any = 1, begin: Any = 0, over: Any = 0) -> Paid:
    """Of rows with one agent each: lists of T numbers per row, or a number for all."""
    reward = np.array(rewards, np.float32)

    def table(x: Any) -> np.ndarray:
        return np.broadcast_to(np.array(x, bool), reward.shape).T[..., None]

    return Paid({"paid": reward.T[..., None]}, table(acted), table(begin), table(over))


FIRST = paid([[1, 2, 4, 8], [10, 20, 40, 80]], begin=[[1, 0, 0, 1], [1, 0, 0, 0]], over=[[0, 0, 1, 0], [0, 0, 0, 0]])
"""Row 0: an episode of 1 + 2 + 4, and the first decision of another; row 1: 150 of one that goes on."""
SECOND = paid([[16, 3, 5, 9], [70, 7, 90, 6]], acted=[[1, 1, 0, 1], [1, 1, 0, 1]],
              begin=[[0, 1, 0, 0], [0, 0, 0, 1]], over=[[1, 0, 0, 1], [0, 1, 0, 0]])  # fmt: skip
"""Row 0: 8 + 16, then 3 + 9, as the 5 is of no decision. Row 1: 150 + 70 + 7, then 6 goes on."""


def test_an_episode_is_told_with_its_end_over_several_rollouts() -> None:
    host, rows, before = EpisodeSums(), np.arange(2), {"paid": np.zeros((2, 1), np.float32)}
    for rollout, told in ((FIRST, [7.0]), (SECOND, [24.0, 227.0, 12.0])):
        host.add({PAID: rollout}, rows)
        assert host.take() == {"paid": told} and host.take() == {}
        sums, after = episode_sums(before, rollout)
        assert np.asarray(sums["paid"])[rollout.over].tolist() == told
        before = {"paid": np.asarray(after["paid"])}
    assert before["paid"].tolist() == [[12.0], [6.0]]


def test_a_row_goes_on_over_its_pages_and_an_end_that_nobody_saw_is_no_end() -> None:
    """Pages of rows 0, 1, 0, 0: row 0 gets 1 + 2, 4 + 8, 16 and then ends with 32; row 1 begins anew without an end."""
    pages = paid([[1, 2], [5, 6], [4, 8], [16, 32]], begin=[[1, 0], [1, 1], [0, 0], [0, 0]],
                 over=[[0, 0], [0, 1], [0, 0], [0, 1]])  # fmt: skip
    sums = EpisodeSums()
    sums.add({PAID: pages}, np.array([0, 1, 0, 0]))
    assert sums.take() == {"paid": [6.0, 63.0]}
    sums.add({}, np.arange(2))
    assert sums.take() == {}


def still(algorithm: Any) -> Any:
    """It is paid and told as ever, and learns nothing, which compiles in no time."""
    return algorithm._replace(learn=lambda state, store: (state, {"loss": np.float32(0)}))


def test_in_the_compiled_loop_it_is_what_the_environment_paid() -> None:
    """A signal that pays what the environment pays: the same sums, with agents that pause, leave and replace others."""
    env = make_toy(ToySettings(length=7, truncates=True, pause=True, spawn=True))
    settings = settings_of("ppo", {**TINY, "hyperparameters": {"buffer_size": 32, "batch_size": 16}})
    with quick_compilation():
        run = jaxrl.make_jitted_trainer(
            env, still(jaxrl.make_algorithm(env.spec, settings)), settings, areas=2, seeds=2
        )
    state, _ = run.run(run.init([1, 2]), 3)  # episodes lie in several iterations
    assert np.any(state.paid["paid"])
    _, log = run.run(state, 5)
    found, episodes = log.episodes.stats["Policy/Paid Reward"], log.episodes
    assert run.steps % 7 and (np.asarray(found.count) > 10).all()
    np.testing.assert_array_equal(found.count, episodes.reward.count)
    environment = 0.5 * (np.asarray(episodes.reward.total) + np.asarray(episodes.received))
    np.testing.assert_allclose(found.total, environment, rtol=1e-5)


def test_in_the_host_loop_it_is_what_the_environment_paid() -> None:
    """Agent 0 is nine times as fast as the others, so that it has several pages; each is paid numbers of its own.

    SAC keeps what comes before its `buffer_init_steps`, and adds that up as well.
    """
    sizes = {"buffer_size": 48, "batch_size": 16, "buffer_init_steps": 99}
    settings, spec = settings_of("sac", {**TINY, "hyperparameters": sizes}), make_spec((2,), branches=(2,))
    algorithm = still(ALGORITHMS["sac"](spec, settings))
    actor = ActorPrograms(
        decide=quick_jit(partial(decide, algorithm, settings.time_horizon), donate_argnums=1),
        turn=quick_jit(trajectory.turn),
    )
    kept = quick_jit(partial(keep, algorithm))
    learner = LearnerPrograms(learn=quick_jit(partial(learn, algorithm)), keep=lambda _, *rest: kept(*rest))
    crowd = make_behavior(
        "Crowd", spec, settings, algorithm, Programs(actor, learner), jax.random.key(0), training=True
    )
    expected, told = play(crowd, spec)
    assert crowd.updates >= 3
    assert len(expected) - 4 <= len(told) and len(told) > 20  # those that ended last may lie in the buffer still
    assert not Counter(told) - Counter(expected)


def play(crowd: Behavior, spec: Any) -> tuple[list[float], list[float]]:
    """400 messages, updates as they come: what each episode was paid, and what is told of them, in order."""
    source, draw = Source(0, "Crowd?team=0"), np.random.default_rng(0)
    sums: dict[int, float] = {}
    expected, told = [], []
    for number in range(400):
        asking = [0] if number % 9 else [0, 1, 2]
        paid = {agent: float(draw.integers(1, 1000)) for agent in asking}
        over = [agent for agent in asking if agent in sums and draw.random() < 0.1]
        for agent in asking:
            if agent in sums:
                sums[agent] += 0.5 * paid[agent]
        expected += [sums[agent] for agent in over]
        sums |= dict.fromkeys(set(asking) - set(sums) | set(over), 0.0)
        ended = terminal_steps(spec, over, reward=[paid[agent] for agent in over]) if over else None
        here = [0.0 if agent in over else paid[agent] for agent in asking]
        crowd.act({source: message(spec, ended, decision_steps(spec, asking, reward=here))})
        if crowd.due():
            crowd.learn()
            told += crowd.learner.earned.take().get("paid", [])
    return expected, told
