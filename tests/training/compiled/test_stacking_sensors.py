"""Images, entities and goals in the compiled loop: as the environment shows them, in the dtype of their sensor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.interface import Algorithm, Decision
from jaxrl.jax_envs.contract import JaxEnvError, check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.served.serve import make_served
from jaxrl.training.compiled.stacking import first_fault
from jaxrl.types import Action
from tests.jax_envs.sensor_toy import SENSORS, make_sensor_toy
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_jit
from tests.training.compiled.both_loops import Part, algorithm, play, told

KINDS = [x.dtype for x in SENSORS]


def coin(env: JaxEnv) -> Algorithm:
    """Chooses by the toss of a coin and looks at nothing: no encoder is needed."""

    def act(policy, obs, action_mask, carry, key) -> Decision:
        lead = action_mask.shape[:-1]
        chosen = jax.random.bernoulli(key, shape=(*lead, 1)).astype(jnp.int32)
        action = Action(continuous=jnp.zeros((*lead, 0)), discrete=chosen)
        return Decision(action=action, sent=action, extras={"log_prob": jnp.zeros((*lead, 1))}, carry=carry)

    return algorithm("ppo", make_toy().spec)._replace(act=act, noise=None)


@pytest.fixture(scope="module", params=[False, True], ids=["terminates", "truncates"])
def played(request: pytest.FixtureRequest) -> tuple[JaxEnv, list[Part]]:
    env = make_sensor_toy(ToySettings(members=3, length=7, die=True, spawn=True, truncates=request.param))
    return env, play(env, actor=coin(env))


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "agents"])
def test_all_sensors_equal_to_the_host_loop(played: tuple[JaxEnv, list[Part]], team_rows: bool) -> None:
    """What is trained on, by the number of the decision, bit for bit and in the sensor's dtype."""
    env, parts = played
    for part, (theirs, _) in zip(parts, told(env, parts, team_rows=team_rows), strict=True):
        ours = part.rollouts[team_rows]
        assert [x.dtype for x in ours.obs] == [x.dtype for x in theirs.obs] == KINDS
        assert [x.shape[3:] for x in ours.obs] == [sensor.shape for sensor in SENSORS]
        orders = [np.argsort(rollout.extras["log_prob"][rollout.acted][:, 0]) for rollout in (ours, theirs)]
        for i, sensor in enumerate(SENSORS):
            found, expected = (np.asarray(r.obs[i])[r.acted][o] for r, o in zip((ours, theirs), orders, strict=True))
            assert found.any() and len(found) == part.steps.alive.sum()
            np.testing.assert_array_equal(found, expected, err_msg=sensor.name)
            assert not np.asarray(ours.obs[i])[~ours.present].any()


def test_pixels_are_always_finite_and_other_numbers_are_looked_at(played: tuple[JaxEnv, list[Part]]) -> None:
    """Area 1, decision 2, first member: NaN in the grid, which comes after the image."""
    _, (part, _) = played
    fault = quick_jit(first_fault)
    assert np.asarray(fault(part.steps, part.last)).tolist() == [-1, -1, -1]
    assert part.steps.alive[2, 1, 0]
    grid = part.steps.obs[4].copy()
    grid[2, 1, 0, 6, 5, 4] = np.nan
    broken = part.steps._replace(obs=(*part.steps.obs[:4], grid))
    assert np.asarray(fault(broken, part.last)).tolist() == [2, 1, 0]
    only_images = part.steps._replace(obs=part.steps.obs[1:2], last_obs=part.steps.last_obs[1:2])
    last = part.last._replace(obs=part.last.obs[1:2])
    assert np.asarray(fault(only_images, last)).tolist() == [-1, -1, -1]


def test_sensors_of_another_dtype_are_refused() -> None:
    env = make_sensor_toy()
    check_jax_env(env)
    with pytest.raises(JaxEnvError, match=r"view that reset returns.obs\[1\] is uint8.*, asked for is float32"):
        check_jax_env(
            env._replace(spec=env.spec._replace(observations=tuple(s._replace(dtype="float32") for s in SENSORS)))
        )
    whole = SENSORS[4]._replace(dtype="int32")
    with pytest.raises(JaxEnvError, match="SensorToy: sensor 'grid' has dtype int32, asked for is float32, or uint8"):
        check_jax_env(env._replace(spec=env.spec._replace(observations=(*SENSORS[:4], whole))))


def test_a_served_environment_shows_all_sensors_in_their_dtype() -> None:
    env = make_sensor_toy(ToySettings(length=2))
    simulation = make_served(env).open(2, 0)
    values = {"red": np.ones(2, np.float32)}
    shown = [*simulation.reset(values)]
    action = Action(np.zeros((2, 2, 0), np.float32), np.zeros((2, 2, 1), np.int32))
    while not any(step.over.any() for step in shown):
        shown += simulation.step((action,), values)
    assert all([x.dtype for x in obs] == KINDS for step in shown for obs in (step.obs, step.last_obs))
    brightness = [int(step.last_obs[1][0, 0, 0, 0, 0]) for step in shown]
    assert brightness[:2] == [0, 127]  # 255 · 1 / 2, cut to a whole number; row 0 of the picture is not mixed
    assert not shown[-1].obs[1][shown[-1].over][:, :, 0, 0].any()  # a new episode is dark
