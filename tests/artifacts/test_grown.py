"""`--initialize-from` with other sensors: what fits is copied, and networks give what they gave before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import make_algorithm, make_settings
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.grown import KEPT_COUNT, _statistic, grown
from jaxrl.networks.entities import EMBEDDING
from jaxrl.networks.joint import JointCritic, JointValue
from jaxrl.networks.models import TeamCritic
from jaxrl.networks.normalizer import NormalizerState, init
from jaxrl.training import saver
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.jax_envs.toy_jax_env import quick_jit

VECTOR = ObservationSpec(name="VectorSensor_size3", shape=(3,))
GRID = ObservationSpec(name="grid", shape=(2, 20, 20))
FOOD = ObservationSpec(
    name="food", shape=(4, 3), dimension_property=(DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
)
OLD = (VECTOR, GRID, FOOD)
ACTION = ActionSpec(1, (3,))
NEW = (
    ObservationSpec(name="a new vector", shape=(2,)),  # ML-Agents sorts sensors by name: the others move
    ObservationSpec(name="VectorSensor_size5", shape=(5,)),
    GRID,
    ObservationSpec(name="second grid", shape=(1, 20, 20)),
    FOOD,
)
STACKED = (ObservationSpec(name="StackingSensor_size3_VectorSensor_size3", shape=(9,)), GRID, FOOD)


def settings(trainer: str, **more: Any) -> Any:
    network = {"hidden_units": 8, "num_layers": 1, "normalize": True, "vis_encode_type": "fully_connected"}
    return make_settings(trainer, network_settings=network, **more)


def learner(trainer: str, sensors: tuple[ObservationSpec, ...], seed: int, **more: Any) -> tuple[Any, TrainState]:
    """Its arrays are drawn, not initialised: nothing is compiled for them."""
    algorithm = make_algorithm(BehaviorSpec(sensors, ACTION), settings(trainer, **more))
    draw = np.random.default_rng(seed)

    def drawn(x: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        numbers = draw.normal(size=x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape)
        return jnp.asarray(numbers.astype(x.dtype))

    state = jax.tree.map(drawn, jax.eval_shape(algorithm.init, jax.random.key(seed)))
    seen = tuple(None if of is None else init(of.mean.shape[0]) for of in state.policy.normalizer)
    return algorithm, state.replace(policy=state.policy.replace(normalizer=seen))


def trained(state: TrainState) -> TrainState:
    """With statistics that are not those of a fresh one."""
    normalizer = tuple(
        None if of is None else NormalizerState(of.mean + 0.5, of.m2 * 3.0 * 2.0**20, of.count * 2.0**20)
        for of in state.policy.normalizer
    )
    return state.replace(policy=state.policy.replace(normalizer=normalizer))


def initialized(folder: Path, trainer: str, old: Any, new: Any, caplog: Any, **more: Any) -> tuple[Any, ...]:
    """Algorithm and learner before and after, and what was told."""
    before, state = learner(trainer, old, 0, **more)
    state = trained(state)
    described = saver.settings_of(settings(trainer, **more))
    contents, spec = {"train": state}, BehaviorSpec(old, ACTION)
    path = checkpoint.save(folder / "run" / "B", 10, contents, spec=spec, settings=described)
    after, fresh = learner(trainer, new, 1, **more)
    loaded, _ = saver.with_weights_of(path, fresh, BehaviorSpec(new, ACTION), settings(trainer, **more))
    return before, state, after, loaded, caplog.messages[-1], path


def seen(sensors: tuple[ObservationSpec, ...], members: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {sensor.name: draw.normal(size=(members, *sensor.shape)).astype(np.float32) for sensor in sensors}


def chosen(algorithm: Any, state: TrainState, obs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Sampled actions of agents in rows of one."""
    rows = tuple(jnp.asarray(x)[:, None] for x in obs)
    masks = jnp.ones((len(obs[0]), 1, 3), bool)
    action = quick_jit(lambda *given: algorithm.act(*given).action)(state.policy, rows, masks, (), jax.random.key(9))
    return tuple(np.asarray(x) for x in jax.tree.leaves(action))


def of_spec(sensors: tuple[ObservationSpec, ...], values: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(values[sensor.name] for sensor in sensors)


def test_a_policy_with_more_sensors_acts_as_before_whatever_they_show(tmp_path: Path, caplog: Any) -> None:
    """Sensors are inserted in front and between, a vector grows; actions are those of the old policy."""
    before, state, after, loaded, told, path = initialized(tmp_path, "ppo", OLD, NEW, caplog)
    values = seen(OLD)
    old = chosen(before, state, of_spec(OLD, values))
    for scale in (0.0, 1.0, -50.0):
        more = {name: scale * x for name, x in seen(NEW).items()}
        longer = np.concatenate([values[VECTOR.name], more["VectorSensor_size5"][:, 3:]], axis=1)
        shown = more | values | {"VectorSensor_size5": longer}
        for was, now in zip(old, chosen(after, loaded, of_spec(NEW, shown)), strict=True):
            np.testing.assert_allclose(was, now, atol=1e-5)
    assert "found again: VectorSensor_size5 [5], grid [2, 20, 20], food [4, 3]" in told
    assert "new: a new vector [2], second grid [1, 20, 20]; left out: none" in told
    counts = [float(of.count) for of in loaded.policy.normalizer if of is not None]
    assert counts == [1.0, KEPT_COUNT] and float(loaded.step) == 0
    _, other = learner("ppo", NEW, 1)
    with pytest.raises(CheckpointError, match=r"number of sensors: 3 in the .*--initialize-from=run from the weights"):
        checkpoint.restore(path, {"train": other}, spec=BehaviorSpec(NEW, ACTION))


def test_a_vector_grows_before_anything_was_seen_of_it() -> None:
    """With `normalize_from_data` the count is 0 then, and stays so."""
    nothing = init(2, from_data=True)
    for name in ("mean", "m2", "count"):
        found = _statistic(name, np.asarray(getattr(nothing, name)), np.asarray(nothing.count), [0, 1, -1])
        np.testing.assert_array_equal(found, 0.0)


def test_sensors_are_left_out_and_frames_are_aligned_at_the_newest(tmp_path: Path, caplog: Any) -> None:
    """A stack of three: its newest frame has the old weights. Without what is left out the rest is as it was."""
    before, state, after, loaded, _, _ = initialized(tmp_path, "ppo", OLD, STACKED, caplog)
    values = seen(OLD)
    frames = np.concatenate([np.full((4, 6), 7.0, np.float32), values[VECTOR.name]], axis=1)
    shown = of_spec(STACKED, values | {STACKED[0].name: frames})
    for was, now in zip(chosen(before, state, of_spec(OLD, values)), chosen(after, loaded, shown), strict=True):
        np.testing.assert_allclose(was, now, atol=1e-5)


def test_sensors_that_change_places_take_their_weights_along(tmp_path: Path, caplog: Any) -> None:
    """By name; what is left out in front of one moves it, too, and its statistics. Goals choose a layer's weights."""
    goals = [ObservationSpec(name, (2,), observation_type=ObservationType.GOAL_SIGNAL) for name in ("here", "there")]
    old = (VECTOR, ObservationSpec(name="side", shape=(2,)), *goals)
    values = seen(old) | {VECTOR.name: np.full((4, 3), 0.5, np.float32)}  # which the normaliser makes 0
    for number, new in enumerate([old[::-1], old[1:]]):
        before, state, after, loaded, _, _ = initialized(tmp_path / str(number), "ppo", old, new, caplog)
        was = chosen(before, state, of_spec(old, values))
        for one, other in zip(was, chosen(after, loaded, of_spec(new, values)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_actions_that_q_reads_keep_their_place_and_the_first_entities_begin_at_zero() -> None:
    network, width = "train/critic/q1/params/", 8
    old, new = (BehaviorSpec(sensors, ActionSpec(2, ())) for sensors in ((VECTOR,), (NEW[1], FOOD)))
    kernel = np.arange(1.0, 5 * width + 1, dtype=np.float32).reshape(5, width)
    shapes = {"body/layer_0/kernel": [5 + EMBEDDING + 2, width], "encoder/entities/attention/out_bias": [EMBEDDING]}
    wanted = {network + name: {"dtype": "float32", "shape": shape} for name, shape in shapes.items()}
    path, entities = wanted
    saved = {path: {"dtype": "float32", "shape": [5, width]}}
    found = grown(saved, {path: kernel}, wanted, old, new, settings("sac").network_settings)
    assert found.anew == {entities} and found.leaves[path] == wanted[path]
    np.testing.assert_array_equal(found.arrays[path][[0, 1, 2, -2, -1]], kernel)
    assert not found.arrays[path][3:-2].any()


CRITICS = {"poca": TeamCritic, "mappo": JointValue, "coma": JointCritic}


@pytest.mark.parametrize("trainer", CRITICS)
def test_critics_of_teams_value_what_they_valued_before(tmp_path: Path, caplog: Any, trainer: str) -> None:
    members = {} if trainer == "poca" else {"hyperparameters": {"team_capacity": 3}}
    _, state, _, loaded, _, _ = initialized(tmp_path, trainer, OLD[:1], NEW[:2], caplog, **members)
    teams = {name: x.reshape(2, 3, -1) for name, x in seen(NEW[:2], members=6).items()}
    rest = () if trainer == "mappo" else (jnp.ones((2, 3, 4)),)
    there = jnp.ones((2, 3), bool), *(() if trainer == "mappo" else (jnp.float32(3.0),))
    values = []
    for sensors, learned in ((OLD[:1], state), (NEW[:2], loaded)):
        shape, capacity = settings(trainer, **members).network_settings, () if trainer == "poca" else (3,)
        critic = CRITICS[trainer](BehaviorSpec(sensors, ACTION), shape, ("extrinsic",), *capacity)
        teams |= {VECTOR.name: teams["VectorSensor_size5"][..., :3]}
        values.append(quick_jit(critic.apply)(learned.critic, of_spec(sensors, teams), *rest, *there))
    for was, now in zip(*map(jax.tree.leaves, values), strict=True):
        np.testing.assert_allclose(was, now, atol=1e-5)
