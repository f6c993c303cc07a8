"""The adapter against gymnax itself, step by step, in both of its releases' ways to end an episode."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.jax_envs.adapters import foreign
from jaxrl.jax_envs.adapters.gymnax import make_gymnax
from jaxrl.jax_envs.interface import TeamActions
from jaxrl.jax_envs.served.launcher import UnknownEnvironmentError
from jaxrl.types import ActionSpec, JaxrlError


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("gymnax")


def discrete(action) -> TeamActions:
    return TeamActions(continuous=jnp.zeros((1, 0)), discrete=jnp.asarray(action, jnp.int32).reshape(1, 1))


def test_random_cart_pole_is_theirs_up_to_each_end(package):
    env, (theirs, parameters) = make_gymnax("CartPole-v1"), package.make("CartPole-v1")
    assert (env.name, env.members, env.teams, env.truncates) == ("CartPole-v1", 1, 1, True)
    assert env.spec.action == ActionSpec(0, (2,)) and env.spec.observations[0].shape == (4,)

    @jax.jit
    def play(key):
        obs, _ = theirs.reset(key, parameters)

        def one(state, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.randint(action_key, (), 0, 2)
            step = env.step(jax.random.split(step_key)[0], state, discrete(action))[1]
            answer = theirs.step(step_key, state, action, parameters)  # five or six values, by release
            obs, after, reward, done = answer[0], answer[1], answer[2], jnp.any(jnp.stack(answer[3:-1]))
            raw = theirs.step_env(jax.random.split(step_key)[0], state, action, parameters)[0]
            return foreign.typed_as(after, after), (obs, raw, reward, done, step)

        keys = jax.random.split(key, 200)
        return obs, jax.lax.scan(one, env.reset(key, {})[0], keys)[1]

    first, (obs, raw, reward, done, step) = jax.tree.map(np.asarray, play(jax.random.key(2)))
    np.testing.assert_array_equal(env.reset(jax.random.key(2), {})[1].obs[0][0], first)
    assert done.sum() > 3  # a random cart falls after some 20 steps
    np.testing.assert_array_equal(step.view.obs[0][:, 0], raw)
    np.testing.assert_array_equal(step.view.obs[0][~done, 0], obs[~done])
    assert (step.view.obs[0][done, 0] != obs[done]).any(axis=1).all()  # theirs are first observations already
    np.testing.assert_array_equal(step.reward[:, 0], reward)
    np.testing.assert_array_equal(step.over, done)
    np.testing.assert_array_equal(step.terminated[:, 0], done)
    assert not step.truncated.any() and not step.group_reward.any()


@pytest.mark.parametrize(("angle", "terminated"), [(0.0, False), (1.0, True)])
def test_the_time_limit_truncates_unless_the_pole_falls_with_it(package, angle, terminated):
    env = make_gymnax("CartPole-v1")
    state, _ = env.reset(jax.random.key(0), {})
    last = state.replace(time=jnp.int32(499), theta=jnp.float32(angle))
    _, step = env.step(jax.random.key(1), last, discrete(1))
    assert step.over and step.terminated.tolist() == [terminated] and step.truncated.tolist() == [not terminated]
    assert not step.view.alive.any()
    assert not env.step(jax.random.key(1), last.replace(time=jnp.int32(498), theta=0.0), discrete(1))[1].over


def test_continuous_actions_cover_the_bounds(package):
    env, (theirs, parameters) = make_gymnax("Pendulum-v1"), package.make("Pendulum-v1")
    assert env.spec.action == ActionSpec(1, ())
    state, _ = env.reset(jax.random.key(0), {})
    half = TeamActions(continuous=jnp.full((1, 1), 0.5), discrete=jnp.zeros((1, 0), jnp.int32))
    ours = env.step(jax.random.key(1), state, half)[1]
    obs, _, reward, *_ = theirs.step_env(jax.random.key(1), state, jnp.array([1.0]), parameters)  # 0.5 of -2 .. 2
    np.testing.assert_allclose(ours.view.obs[0][0], obs, rtol=1e-6)
    np.testing.assert_allclose(ours.reward, np.ravel(reward), rtol=1e-6)


def test_arguments_are_those_of_the_constructor_and_the_parameters(package):
    small = make_gymnax("Catch-bsuite", rows=4, columns=3)
    assert small.spec.observations[0].shape == (12,)
    short = make_gymnax("CartPole-v1", max_steps_in_episode=1, gravity=1)
    state, _ = short.reset(jax.random.key(0), {})
    _, step = short.step(jax.random.key(1), state, discrete(1))
    assert step.over and step.truncated.tolist() == [True]
    theirs, parameters = package.make("CartPole-v1")
    obs, *_ = theirs.step_env(jax.random.key(1), state, 1, parameters.replace(gravity=1.0))
    np.testing.assert_allclose(step.view.obs[0][0], obs, rtol=1e-6)
    for arguments, text in [
        ({"gravty": 1.0}, "takes no argument gravty, did you mean gravity.* it takes .*max_steps_in_episode"),
        ({"gravity": "low"}, "argument gravity: got 'low', expected a number, such as 9.8"),
    ]:
        with pytest.raises(ArgumentsError, match=f"gymnax:CartPole-v1: {text}"):
            make_gymnax("CartPole-v1", **arguments)


def test_an_unknown_name_lists_the_nearest(package):
    with pytest.raises(UnknownEnvironmentError, match="gymnax:cartpole: no such environment, did you mean CartPole-v1"):
        make_gymnax("cartpole")


def test_a_missing_or_broken_package_is_named_with_its_extra(monkeypatch, tmp_path):
    with pytest.raises(JaxrlError, match=r"not_there is not installed: run  pip install 'jaxrl\[not_there\]'"):
        foreign.import_package("not_there")
    (tmp_path / "half_there.py").write_text("print('hello')\nimport not_there\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(JaxrlError, match=r"half_there is installed, but cannot be imported .*not_there"):
        foreign.import_package("half_there")


def box(low, high, shape):
    return type("Box", (), {"low": low, "high": high, "shape": shape, "dtype": np.float32})()


def test_actions_as_each_space_has_them():
    several = type("MultiDiscrete", (), {"num_categories": np.array([2, 3]), "dtype": np.int32})()
    assert foreign.action_spec("here", several) == ActionSpec(0, (2, 3))
    assert foreign.to_native(several, jnp.zeros(0), jnp.array([1, 2, 9])).tolist() == [1, 2]  # surplus is dropped
    mixed = box(np.array([0.0, -4.0]), np.array([10.0, 4.0]), (2,))
    assert foreign.action_spec("here", mixed) == ActionSpec(2, ())
    # 0 + (0.5 + 1) / 2 * 10 = 7.5; more than 1 is 1
    np.testing.assert_allclose(foreign.to_native(mixed, jnp.array([0.5, -0.25, 3.0]), jnp.zeros(0)), [7.5, -1.0])
    np.testing.assert_allclose(foreign.to_native(box(0.0, 1.0, (1, 2)), jnp.array([3.0, -1.0]), None), [[1.0, 0.0]])
    with pytest.raises(JaxrlError, match=r"here: action space .* is not supported"):
        foreign.action_spec("here", SimpleNamespace(n=3))


@pytest.mark.parametrize(("low", "high"), [(5.0, np.inf), (-np.inf, 5.0), (-np.inf, np.inf), (-3.4e38, 3.4e38)])
def test_a_box_without_a_bound_is_refused(low, high):
    """Its policies would be sent -1 to 1, which is outside of a space from 5 on, or NaN."""
    with pytest.raises(JaxrlError, match=r"here: action space .* has no bound on a side"):
        foreign.action_spec("here", box(low, high, (2,)))


def test_rounded_actions_stay_in_their_space():
    """-0.05 + (0.01 + 0.05) is more than 0.01 in float32."""
    low, high = np.float32(-0.05), np.float32(0.01)
    ends = [float(foreign.to_native(box(low, high, (1,)), jnp.array([end]), None)[0]) for end in (-1.0, 1.0)]
    assert ends == [low, high]


def test_observations_are_flat_and_states_keep_their_shapes():
    assert foreign.flat(np.array([[1, 2], [3, 4]], np.uint8), 5).tolist() == [1, 2, 3, 4, 0]
    state, after = (jax.ShapeDtypeStruct((n,), np.float32) for n in (3, 4))
    with pytest.raises(JaxrlError, match=r"here: a step changes the shape .*\(3,\) to \(4,\)"):
        foreign.unchanging("here", state, after)
    assert foreign.behavior_name("humanoid_9|8") == "humanoid_9_8"
