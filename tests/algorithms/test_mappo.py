"""MAPPO: advantages by hand, PPO's numbers for a team of one, members by place, what is masked, seeds side by side."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe_learner import Learner
from team_rollouts import (
    SMALL,
    SPEC,
    Steps,
    assert_close,
    fresh,
    members,
    now_of,
    pad_members,
    params_of,
    poison_unused,
    quick_jit,
    random_rollout,
    steps_of,
)

from jaxrl.algorithms import HYPERPARAMETER_TYPES, mappo, ppo
from jaxrl.algorithms.parts import loss_of
from jaxrl.networks.joint import TeamCapacityError
from jaxrl.settings import SettingsError, load_run_settings
from tests.helpers import ppo_settings, settings_of
from tests.probe_envs import SacrificeEnv

ORDER = np.array([2, 0, 1])


@cache
def parts(capacity: int, **overrides):
    """Algorithm, a learner, and jitted prepare and loss with gradient."""
    settings = settings_of("mappo", SMALL | {"hyperparameters__team_capacity": capacity} | overrides)
    algorithm = mappo.make_mappo(SPEC, settings)
    steps = steps_of("mappo", settings)
    return algorithm, fresh(algorithm), quick_jit(steps.prepare), graded_of(steps)


def graded_of(steps: Steps):
    return quick_jit(jax.value_and_grad(partial(loss_of, steps.parts), has_aux=True))


def learn_once(rollout, state, prepare, graded):
    """(loss, metrics), gradient, and batch."""
    state, batch, _ = prepare(state, rollout)
    return *graded(params_of(state), batch, now_of(state)), batch


def test_returns_and_advantages_by_hand() -> None:
    """γ = λ = ½, V = 10. Both act twice, then all is over; each has its own reward and the group's, V is one for both.

    R of the last decisions: 3 + 4 = 7 and 5 + 4 = 9. Before: 1 + ½ (½ · 10 + ½ · 7) = 5.25 and 2 + ½ (5 + 4.5) = 6.75.
    Less V: -4.75, -3.25, -3, -1; mean -3, deviation sqrt((1.75² + 0.25² + 0 + 2²) / 4) = sqrt(1.78125).
    """
    halves = {"reward_signals__extrinsic__gamma": 0.5, "hyperparameters__lambd": 0.5}
    _, state, prepare, _ = parts(2, **halves)
    critic = jax.tree.map(np.zeros_like, state.critic)
    critic["params"]["values"]["bias"] += np.float32(10)
    rollout = random_rollout(0, t=3, b=1, a=2)
    acting = np.array([True, True, False]).reshape(3, 1, 1) & np.ones((3, 1, 2), bool)
    over = acting & (np.arange(3) == 1).reshape(3, 1, 1)
    rollout = rollout._replace(
        present=acting,
        acted=acting,
        reward=np.array([[1, 2], [3, 5], [0, 0]], np.float32)[:, None],
        group_reward=np.array([[0, 0], [4, 4], [0, 0]], np.float32)[:, None],
        terminated=over,
        **dict.fromkeys(("truncated", "left", "cut", "waiting"), ~acting & acting),
    )
    _, batch, metrics = prepare(state.replace(critic=critic), rollout)
    np.testing.assert_allclose(batch.returns[..., 0], [[5.25, 6.75], [7, 9], [0, 0]])
    np.testing.assert_allclose(batch.advantage[:2], np.array([[-1.75, -0.25], [0, 2]]) / 1.78125**0.5, rtol=1e-6)
    assert float(metrics["value_estimate/extrinsic"]) == 10.0


def test_a_team_of_one_is_ppo() -> None:
    """The same parameters but for the flag, whose weights are 0; who left is followed by V, as with PPO."""
    settings = ppo_settings(**SMALL)
    state = fresh(ppo.make_ppo(SPEC, settings))
    rollout = random_rollout(1, a=1)
    steps = steps_of("ppo", settings)
    alone = learn_once(rollout, state, quick_jit(steps.prepare), graded_of(steps))
    weights = state.critic["params"]
    kernel = np.pad(weights["body"]["layer_0"]["kernel"], [(0, 1), (0, 0)])
    body = {"layer_0": weights["body"]["layer_0"] | {"kernel": kernel}}
    _, _, prepare, graded = parts(1, hyperparameters__posthumous_credit="value")
    team = learn_once(rollout, state.replace(critic={"params": weights | {"body": body}}), prepare, graded)
    assert_close((alone[0], alone[1]["actor"], alone[2]), (team[0], team[1]["actor"], team[2]))


def test_order_of_the_members_matters_to_the_critic_alone() -> None:
    """With equal weights for all places, other order gives the same advantages in other order; else it does not."""
    _, state, prepare, graded = parts(3)
    layer = state.critic["params"]["body"]["layer_0"]
    equal = np.tile(np.asarray(layer["kernel"]).reshape(3, -1, 8)[:1], (3, 1, 1)).reshape(-1, 8)
    symmetric = jax.tree.map(np.asarray, state.critic)
    symmetric["params"]["body"]["layer_0"]["kernel"] = equal
    rollout = random_rollout(2)
    shuffled = members(rollout, lambda x: x[:, :, ORDER])
    found = {}
    for name, critic in (("equal", symmetric), ("places", state.critic)):
        first, second = (learn_once(r, state.replace(critic=critic), prepare, graded) for r in (rollout, shuffled))
        found[name] = np.abs(np.asarray(first[2].advantage)[:, ORDER] - second[2].advantage).max()
        if name == "equal":
            assert_close((first[0], first[1]["actor"]), (second[0], second[1]["actor"]))
    assert found["equal"] < 1e-4 < 1e-2 < found["places"]


def test_rewards_of_the_mates_are_not_counted() -> None:
    """Of those that live. One that ended is credited with the mean return of the members that live on."""
    _, state, prepare, _ = parts(3, hyperparameters__posthumous_credit="value")
    rollout = random_rollout(3)
    more = rollout._replace(
        reward=rollout.reward + np.array([5, 0, 0], np.float32) * rollout.acted,
        mates_reward=rollout.mates_reward + np.array([0, 5, 5], np.float32) * rollout.acted,
    )
    first, second = (np.asarray(prepare(state, r)[1].returns) for r in (rollout, more))
    np.testing.assert_array_equal(first[:, 1:], second[:, 1:])
    assert (first[:, 0] != second[:, 0]).any()


def test_absent_members_and_room_to_spare_do_not_matter() -> None:
    _, state, prepare, graded = parts(3)
    rollout = random_rollout(4, a=2)
    first, second = (learn_once(r, state, prepare, graded) for r in (rollout, pad_members(rollout, 1)))
    assert_close(first[:2], second[:2])
    assert_close(first[2].advantage, second[2].advantage[:, :2])


def test_nan_in_masked_elements_changes_neither_loss_nor_gradient() -> None:
    _, state, prepare, graded = parts(3)
    state, batch, _ = prepare(state, random_rollout(5))
    first, second = (graded(params_of(state), b, now_of(state)) for b in (batch, poison_unused(batch)))
    assert_close(first, second, 0.0)


def test_larger_teams_and_a_missing_capacity_are_named(tmp_path) -> None:
    algorithm, state, *_ = parts(3)
    with pytest.raises(TeamCapacityError, match=r"hyperparameters.team_capacity: 3, .*teams of 4 members"):
        jax.eval_shape(algorithm.learn, state, random_rollout(0, a=4))
    path = tmp_path / "c.yaml"
    path.write_text("behaviors: {A: {trainer_type: mappo}}")
    with pytest.raises(SettingsError, match=r"behaviors.A.hyperparameters.team_capacity"):
        load_run_settings(path, {}, HYPERPARAMETER_TYPES)


@pytest.mark.slow
def test_seeds_side_by_side_learn_as_each_alone() -> None:
    """`vmap` over learners whose buffers are filled to different degrees: 3 and 1 minibatches per epoch."""
    _, state, prepare, _ = parts(3)
    full, half = random_rollout(0, t=8), random_rollout(1, t=8)
    half = half._replace(acted=half.acted & (np.arange(8) < 3)[:, None, None])
    pairs = [prepare(s, r)[:2] for s, r in ((state, full), (state.replace(key=jax.random.key(7)), half))]
    update = steps_of("mappo", settings_of("mappo", SMALL | {"hyperparameters__team_capacity": 3})).update
    together = quick_jit(jax.vmap(update))(*jax.tree.map(lambda *x: jnp.stack(x), *pairs))
    alone = quick_jit(update)
    for i, pair in enumerate(pairs):
        after, metrics = alone(*pair)
        mine = jax.tree.map(lambda x, i=i: x[i], (params_of(together[0]), together[1]))
        assert_close(mine, (params_of(after), metrics), 1e-4)


def test_a_hero_is_credited_through_the_value_of_its_team() -> None:
    """Dying is worth -0.2 + γ · 1 with a joint value; PPO, whose value ends with the agent, never learns it."""
    learner = Learner("mappo", SacrificeEnv(), updates=25)
    assert learner.policy(1, 0, 0)[1][1] > 0.9
    assert learner.value(0, 1, 1, place=1) == pytest.approx(1.0, abs=0.15)
