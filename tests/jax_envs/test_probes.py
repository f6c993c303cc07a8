"""Probes: digits as sensors show them, rewards by hand, and that nobody with a sensor hidden reaches the optimum."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import JaxEnv, TeamActions
from jaxrl.jax_envs.probes import Sensor, entities, image, make_probe, make_probe_roles, vector
from tests.jax_envs.toy_jax_env import quick_jit

MANY = 2000


def shown(sensor: Sensor, digit: int, count: int = 200) -> np.ndarray:
    """Observations of one digit, [count, *shape]."""
    keys = jax.random.split(jax.random.key(digit), count)
    return np.asarray(_showing(sensor)(keys, np.int32(digit)))


@cache
def _showing(sensor: Sensor):
    return quick_jit(jax.vmap(sensor.show, (0, None)))


@cache
def of_many(reset: Callable, step: Callable):
    """The same for many areas."""
    return quick_jit(jax.vmap(reset, (0, None))), quick_jit(jax.vmap(step))


def returns(env: JaxEnv, answer, parameters: dict | None = None, steps: int = 1) -> np.ndarray:
    """Mean return of an agent, its own and its team's; `answer` makes actions [N, A, D] of the first observations."""
    begin, act = of_many(env.reset, env.step)
    keys = jax.random.split(jax.random.key(0), MANY)
    state, view = begin(keys, parameters or {})
    actions = TeamActions(jnp.zeros((MANY, env.members, 0)), jnp.asarray(answer(view.obs, state), jnp.int32))
    total = np.zeros(2)
    for clock in range(steps):
        state, step = act(keys, state, actions)
        assert bool(step.over.all()) == bool(step.terminated.all()) == (clock == steps - 1)
        assert not any(np.asarray(x).any() for x in step.view.obs)  # nothing is shown twice
        total += float(step.reward.mean()), float(step.group_reward.mean())
    return total


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name.startswith("probe_") and name != "probe_roles"])
def test_registered_probes_keep_the_contract(name):
    """Shapes and dtypes as the sensors say; who knows the answers earns 1."""
    env = ENVIRONMENTS[name]()
    check_jax_env(env)
    steps = int(env.parameters["delay"]) + 1
    assert returns(env, lambda obs, state: state.answer, steps=steps).sum() == 1.0
    blind = returns(env, lambda obs, state: jnp.zeros_like(state.answer), steps=steps).sum()
    chances = [1 / choices for choices in env.spec.action.discrete_branches]
    assert blind == pytest.approx(np.prod(chances), abs=0.04)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_an_image_has_one_bright_quarter(dtype):
    sensor = image("camera", (3, 7, 6), dtype=dtype)
    assert sensor.values == 4 and sensor.spec.dtype == dtype
    for digit in range(4):
        pictures = shown(sensor, digit) / (255.0 if dtype == "uint8" else 1.0)
        assert shown(sensor, digit).dtype == dtype
        rows, columns = slice(4, 7) if digit >= 2 else slice(0, 4), slice(3, 6) if digit % 2 else slice(0, 3)
        lit = pictures[:, :, rows, columns]
        assert lit.min() >= 0.59 and lit.max() <= 1.0
        assert (pictures > 0.31).sum() == lit.size and pictures.std() > 0.05  # dim everywhere else


def test_a_grid_has_one_lit_cell_whose_channel_counts():
    sensor = image("grid", (5, 3, 4), by="channel", dtype="float32")
    assert sensor.values == 5
    for digit in range(5):
        grids = shown(sensor, digit)
        assert (grids.sum(axis=(1, 2, 3)) == 1.0).all() and (grids[:, digit].sum(axis=(1, 2)) == 1.0).all()
        assert (grids[:, digit].sum(axis=0) > 0).all()  # every place some time


def test_entities_are_none_or_some_of_which_one_is_not_grey():
    sensor = entities("buffer", capacity=3, colours=2)
    assert sensor.values == 3 and sensor.spec.shape == (3, 3)
    assert not shown(sensor, 0).any()
    for digit in (1, 2):
        rows = shown(sensor, digit)
        there = rows.any(axis=-1)
        assert set(there.sum(axis=1)) == {1, 2, 3} and there.mean(axis=0).min() > 0.5  # any row may be empty
        assert (rows[there].sum(axis=-1) == 1.0).all()  # one-hot, so never taken for absent
        assert (rows[..., digit - 1].sum(axis=1) == 1.0).all() and not rows[..., 2 - digit].any()
        assert (rows[..., 2].sum(axis=1) == there.sum(axis=1) - 1).all()


GOAL_ENV = make_probe("Goal", (vector("sight", 3), vector("wish", 2, goal=True), vector("other", 2)))


@cache
def goal_episodes():
    return quick_jit(jax.vmap(GOAL_ENV.reset, (0, None)))(jax.random.split(jax.random.key(1), MANY), {})


def test_a_goal_shifts_every_answer():
    """Branches of 3 and 2: (digit + goal) modulo 3, and modulo 2."""
    env = GOAL_ENV
    assert env.spec.action.discrete_branches == (3, 2)

    def read(obs, state):
        sight, wish, other = (jnp.argmax(x, axis=-1) for x in obs)
        return jnp.stack([(sight + wish) % 3, (other + wish) % 2], axis=-1)

    assert returns(env, read)[0] == 1.0

    def without_goal(obs, state):
        return jnp.stack([jnp.argmax(obs[0], axis=-1), jnp.argmax(obs[2], axis=-1)], axis=-1)

    assert returns(env, without_goal)[0] == pytest.approx(1 / 2, abs=0.04)  # right whenever the goal is 0

    def without_sight(obs, state):
        wish, other = jnp.argmax(obs[1], axis=-1), jnp.argmax(obs[2], axis=-1)
        return jnp.stack([wish, (other + wish) % 2], axis=-1)

    assert returns(env, without_sight)[0] == pytest.approx(1 / 3, abs=0.04)  # right whenever the digit is 0


def best_without(hidden: int) -> float:
    """The most that is possible with one sensor hidden: the best of all answers to what the others show."""
    state, view = goal_episodes()
    seen = [np.asarray(x).reshape(MANY, -1) for i, x in enumerate(view.obs) if i != hidden]
    table: dict[bytes, dict[bytes, int]] = {}
    for row, answer in zip(np.concatenate(seen, axis=1), np.asarray(state.answer), strict=True):
        answers = table.setdefault(row.tobytes(), {})
        answers[answer.tobytes()] = answers.get(answer.tobytes(), 0) + 1
    return sum(max(answers.values()) for answers in table.values()) / MANY


@pytest.mark.parametrize(("hidden", "most"), [(None, 1.0), (0, 1 / 3), (1, 1 / 2), (2, 1 / 2)])
def test_nobody_is_better_than_chance_with_a_sensor_hidden(hidden, most):
    """Of 3 digits 1 / 3, of two 1 / 2, without the goal one of two answers: counted over all that can be seen."""
    assert best_without(-1 if hidden is None else hidden) == pytest.approx(most, abs=0.04)


MEMORY_ENV = make_probe("Memory", (vector("sight", 2),))


@pytest.mark.parametrize("delay", [0.0, 1.0, 6.0])
def test_only_the_last_decision_counts_and_the_cue_is_shown_once(delay):
    env = MEMORY_ENV
    steps = int(delay) + 1
    found = returns(env, lambda obs, state: jnp.argmax(obs[0], axis=-1)[..., None], {"delay": delay}, steps)
    assert found.tolist() == [1.0, 0.0]
    begin, act = of_many(env.reset, env.step)
    keys = jax.random.split(jax.random.key(0), MANY)
    state, _ = begin(keys, {"delay": delay})
    for clock in range(steps):
        right = state.answer if clock == steps - 1 else 1 - state.answer
        state, step = act(keys, state, TeamActions(np.zeros((MANY, 1, 0), np.float32), right))
    assert (step.reward == 1.0).all() and step.over.all()


def test_a_team_earns_the_share_of_its_members_that_are_right():
    env = make_probe("Team", (vector("sight", 2),), members=2)
    begin, act = of_many(env.reset, env.step)
    keys = jax.random.split(jax.random.key(0), MANY)
    state, _ = begin(keys, {})
    for wrong, share in (([0, 0], 1.0), ([1, 0], 0.5), ([1, 1], 0.0)):
        answer = state.answer ^ np.array(wrong, np.int32)[:, None]
        _, step = act(keys, state, TeamActions(np.zeros((MANY, 2, 0), np.float32), answer))
        assert (step.group_reward == share).all() and not step.reward.any()
        assert (step.stats["Environment/Right"] == share).all()
    answers = np.asarray(state.answer)
    assert len(set(map(tuple, answers[..., 0].tolist()))) == 4  # members see digits of their own


def test_goals_alone_ask_nothing():
    with pytest.raises(ValueError, match="Vain: all 1 sensors are goals"):
        make_probe("Vain", (vector("wish", goal=True),))


def test_roles_are_paid_where_all_choose_differently():
    """Of three members 3! of 3^3 choices, and what one sees all see."""
    env = make_probe_roles(3)
    check_jax_env(env)
    choices = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(27, 3, 1).astype(np.int32)
    begin, act = of_many(env.reset, env.step)
    state, view = begin(jax.random.split(jax.random.key(0), 27), {})
    assert (np.asarray(view.obs[0]) == 1.0).all() and view.alive.all()
    _, step = act(
        jax.random.split(jax.random.key(1), 27), state, TeamActions(np.zeros((27, 3, 0), np.float32), choices)
    )
    different = [len(set(chosen)) == 3 for chosen in choices[..., 0].tolist()]
    assert sum(different) == 6 and step.group_reward[:, 0].tolist() == different
    assert step.over.all() and not step.reward.any() and not step.view.obs[0].any()
