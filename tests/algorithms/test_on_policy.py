"""Returns by hand for every way in which a decision can end, and the update around a loss of our own."""

from __future__ import annotations

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, assert_close, quick_jit, random_rollout

from jaxrl.algorithms import ALGORITHMS, on_policy
from jaxrl.algorithms.interface import Batch
from jaxrl.rollout.trajectory import Rollout
from jaxrl.types import Action
from tests.helpers import poca_settings, ppo_settings, settings_of

HALVES = {"reward_signals__extrinsic__gamma": 0.5, "hyperparameters__lambd": 0.5}


def story(kinds: str, reward: list[float], group_reward: list[float] | None = None) -> Rollout:
    """One agent in one row, a letter per state: c(ontinues), t(erminated), i(nterrupted), l(eft), h(orizon reached),
    w(aiting), f(inal or kept: present without acting), - (absent)."""

    def flag(letters: str) -> np.ndarray:
        return np.array([kind in letters for kind in kinds])[:, None, None]

    def numbers(x: list[float]) -> np.ndarray:
        return np.array(x, np.float32).reshape(column)

    column = (len(kinds), 1, 1)
    return Rollout(
        obs=(),
        action_mask=np.zeros(column, bool),
        action=Action(continuous=np.zeros(column, np.float32), discrete=np.zeros(column, np.int32)),
        log_prob=np.zeros(column, np.float32),
        present=~flag("-"),
        acted=flag("ctilh"),
        waiting=flag("w"),
        reward=numbers(reward),
        group_reward=numbers(group_reward or [0.0] * len(kinds)),
        terminated=flag("t"),
        truncated=flag("i"),
        left=flag("l"),
        cut=flag("h"),
    )


def together(*stories: Rollout) -> Rollout:
    """Stories of the members of one team."""
    return jax.tree.map(lambda *x: np.concatenate(x, axis=2), *stories)


def returns(rollout: Rollout, value: list[float], *, cooperative: bool = False, **overrides) -> list:
    """γ = λ = ½; one value per state for the whole team. [T] for one member, [A][T] for several."""
    v = np.broadcast_to(np.array(value, np.float32).reshape(-1, 1, 1, 1), (*rollout.acted.shape, 1))
    settings = ppo_settings(**HALVES | overrides)
    found = quick_jit(partial(on_policy.stream_returns, settings=settings, cooperative=cooperative))(rollout, v)
    columns = np.asarray(found)[:, 0, :, 0].T.tolist()
    return columns[0] if len(columns) == 1 else columns


def test_kept_state_of_a_living_row_bootstraps() -> None:
    last = 2 + 0.5 * 40  # nothing but V is known of the kept state
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * last)
    assert returns(story("ccf", [1, 2, 99]), [10, 20, 40]) == [first, last, 0.0]
    assert (first, last) == (11.5, 22.0)


def test_terminated_has_nothing_after_it() -> None:
    """The state after it belongs to the next team."""
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * 2)
    assert returns(story("ctcf", [1, 2, 4, 0]), [10, 20, 1000, 40]) == [first, 2.0, 4 + 0.5 * 40, 0.0]
    assert first == 6.5


def test_truncated_bootstraps_from_the_final_state() -> None:
    """V of the final state is 40; the team after it has nothing to do with it."""
    last = 2 + 0.5 * 40
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * last)
    assert returns(story("cifcf", [1, 2, 0, 4, 0]), [10, 20, 40, 1000, 8]) == [first, last, 0.0, 4 + 0.5 * 8, 0.0]


def test_left_bootstraps_from_the_next_state_of_the_team_alone() -> None:
    """Also when the slot has a new owner there, whose return is its own."""
    assert returns(story("l--", [1, 0, 0]), [10, 20, 40]) == [1 + 0.5 * 20, 0.0, 0.0]
    assert returns(story("ltf", [1, 2, 0]), [10, 20, 40]) == [1 + 0.5 * 20, 2.0, 0.0]
    assert returns(story("lwf", [1, 0, 0]), [10, 20, 40])[0] == 1 + 0.5 * 40  # was still there, silent, in state 1


def test_horizon_restarts_the_return_from_the_value() -> None:
    assert returns(story("hct", [1, 2, 4]), [10, 20, 40]) == [
        1 + 0.5 * 20,
        2 + 0.5 * (0.5 * 40 + 0.5 * 4),
        4.0,
    ]


def test_waiting_states_are_passed_through() -> None:
    """States 1 and 2 belong to mates only: V of 3 follows state 0."""
    last = 2 + 0.5 * 80
    first = 1 + 0.5 * (0.5 * 40 + 0.5 * last)
    assert returns(story("cwwcf", [1, 0, 0, 2, 0]), [10, 1000, 2000, 40, 80]) == [first, 0.0, 0.0, last, 0.0]


def test_m11_members_share_the_value_and_in_poca_the_rewards_of_who_acted_with_them() -> None:
    """State 0: both act, rewards 1 and 2, group 8. State 1: the second waits, its reward comes with its own state."""
    team = together(story("ctf", [1, 4, 0], [8, 8, 0]), story("twf", [2, 0, 0], [8, 0, 0]))
    value = [10, 20, 40]
    assert returns(team, value, cooperative=True) == [
        [1 + 2 + 8 + 0.5 * (0.5 * 20 + 0.5 * (4 + 8)), 4 + 8, 0.0],
        [1 + 2 + 8, 0.0, 0.0],
    ]
    assert returns(team, value) == [[1 + 8 + 0.5 * (0.5 * 20 + 0.5 * 12), 12, 0.0], [2 + 8, 0.0, 0.0]]


def test_strength_scales_the_reward_and_not_the_value() -> None:
    found = returns(story("cf", [1, 0]), [10, 20], reward_signals__extrinsic__strength=3.0)
    assert found[0] == 3 * 1 + 0.5 * 20


def test_alone_a_poca_agent_has_the_return_of_ppo() -> None:
    """A = 1: there are no mates whose rewards could count."""
    rollout = random_rollout(3, a=1)
    value = np.random.default_rng(0).normal(size=(*rollout.acted.shape, 1)).astype(np.float32)
    settings = ppo_settings(**HALVES), poca_settings(**HALVES)
    ppo, poca = (
        quick_jit(partial(on_policy.stream_returns, settings=s, cooperative=c))(rollout, value)
        for s, c in zip(settings, (False, True), strict=True)
    )
    np.testing.assert_array_equal(ppo, poca)


def plain_batch(acted: np.ndarray) -> Batch:
    n, a = acted.shape
    nothing = np.zeros((n, a, 1), np.float32)
    return Batch(
        obs=(nothing,),
        action_mask=np.ones((n, a, 0), bool),
        action=Action(continuous=nothing, discrete=np.zeros((n, a, 0), np.int32)),
        log_prob=nothing,
        present=acted,
        acted=acted,
        advantage=np.zeros((n, a), np.float32),
        returns=nothing,
        baseline=nothing,
    )


@pytest.mark.parametrize(("acting", "steps"), [(24, 3 * 4), (23, 3 * 3), (3, 3 * 1)])
def test_update_takes_batch_size_over_members_states_per_step(acting: int, steps: int) -> None:
    """batch_size 12 and A = 2: 6 states. A loss with slope 1 moves Adam by the learning rate each step."""
    settings = poca_settings(
        hyperparameters__batch_size=12, hyperparameters__learning_rate=0.1, hyperparameters__num_epoch=3
    )

    def loss(params, _batch, _epsilon, _beta):
        return params["actor"]["w"] - params["critic"]["v"], {}

    params = {"actor": {"w": jnp.ones(())}, "critic": {"v": jnp.ones(())}}
    state = on_policy.init_state(params, SPEC, settings, jax.random.key(0))
    batch = plain_batch(np.arange(24)[:, None] < [acting, 0])
    after, metrics = quick_jit(partial(on_policy.update, loss, settings))(state, batch)
    assert float(after.policy.params["w"]) == pytest.approx(1 - 0.1 * steps, abs=1e-4)
    assert float(after.critic["v"]) == pytest.approx(1 + 0.1 * steps, abs=1e-4)
    assert int(after.optimizer.count) == steps
    assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
        {"learning_rate": 0.1, "epsilon": 0.2, "beta": 5e-3}
    )
    assert not np.array_equal(jax.random.key_data(after.key), jax.random.key_data(state.key))


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_coefficients_follow_their_schedules_without_compiling_again(trainer: str) -> None:
    """At step 250 of 1000: minimum + ¾ (initial − minimum), minima 1e-10, 0.1, 1e-5. A constant one stays."""
    overrides = SMALL | {"max_steps": 1000, "hyperparameters__beta_schedule": "constant"}
    settings = settings_of(trainer, overrides)
    algorithm = ALGORITHMS[trainer](SPEC, settings)
    state = quick_jit(algorithm.init)(jax.random.key(0))
    rollout = random_rollout(0, a=1 if trainer == "ppo" else 3)
    state, batch, _ = quick_jit(algorithm.prepare)(state, rollout)
    chex.clear_trace_counter()  # it goes by place in this file, which both trainers share

    @quick_jit
    @chex.assert_max_traces(n=1)
    def update(state, batch):
        return algorithm.update(state, batch)

    for step, fraction in [(0, 1.0), (250, 0.75), (1000, 0.0), (5000, 0.0)]:
        state, metrics = update(state.replace(step=jnp.int32(step)), batch)
        assert float(metrics["learning_rate"]) == pytest.approx(1e-10 + fraction * (3e-4 - 1e-10))
        assert float(metrics["epsilon"]) == pytest.approx(0.1 + fraction * 0.1)
        assert float(metrics["beta"]) == pytest.approx(5e-3)


def test_m27_observe_counts_trained_decisions_and_normalises_by_them_alone() -> None:
    rollout = random_rollout(1)
    algorithm = ALGORITHMS["poca"](SPEC, poca_settings(**SMALL))
    fresh = quick_jit(algorithm.init)(jax.random.key(0))
    observe = quick_jit(on_policy.observe)
    state = observe(fresh, rollout)
    seen = rollout.obs[0][rollout.acted]
    assert int(state.step) == len(seen) == int(rollout.acted.sum())
    mean = state.policy.normalizer[0]
    assert float(mean.count) == 1 + len(seen)
    np.testing.assert_allclose(mean.mean, seen.sum(0) / (1 + len(seen)), rtol=1e-5)
    spoilt = tuple(np.where(rollout.acted[..., None], o, np.float32(np.nan)) for o in rollout.obs)
    assert_close(observe(fresh, rollout._replace(obs=spoilt)).policy, state.policy)


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_acting_is_reproducible_and_deterministic_on_demand(trainer: str) -> None:
    make = partial(ALGORITHMS[trainer], SPEC)
    algorithm = make(settings_of(trainer, SMALL))
    state = quick_jit(algorithm.init)(jax.random.key(0))
    obs, mask = random_rollout(0, t=1).obs, random_rollout(0, t=1).action_mask
    act = quick_jit(algorithm.act)
    with jax.debug_key_reuse(True):
        acts = [act(state.policy, obs, mask, jax.random.key(seed)) for seed in (1, 1, 2)]
    assert_close(acts[0], acts[1], 0.0)
    assert (acts[0][0].continuous != acts[2][0].continuous).any()
    settled = make(settings_of(trainer, SMALL | {"network_settings__deterministic": True}))
    modes = [quick_jit(settled.act)(state.policy, obs, mask, jax.random.key(seed)) for seed in (1, 2)]
    assert_close(modes[0], modes[1], 0.0)
