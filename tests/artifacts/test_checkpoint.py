"""Save and restore of a training state, mismatches, and which checkpoints are kept."""

import json
import logging
from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from jaxrl.artifacts.checkpoint import folder as checkpoint_folder
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import CheckpointError
from jaxrl.training import saver
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

OPTIMIZER = optax.adam(optax.linear_schedule(1e-2, 1e-4, 100))


@flax.struct.dataclass
class TrainState:
    params: dict
    optimizer: optax.OptState
    normalizer: dict
    key: jax.Array
    agent_steps: np.int64
    lesson: int = 0
    name: str = flax.struct.field(pytree_node=False, default="static")


def make_state(hidden=4, inputs=3, seed=0):
    key, actor_key, critic_key = jax.random.split(jax.random.key(seed), 3)
    params = {
        "actor": {"Dense_0": {"kernel": jax.random.normal(actor_key, (inputs, hidden)), "bias": jnp.zeros(hidden)}},
        "critic": {"Dense_0": {"kernel": jax.random.normal(critic_key, (inputs, 1))}},
        "no_actions": jnp.zeros((0, hidden)),
    }
    return TrainState(
        params=params,
        optimizer=OPTIMIZER.init(params),
        normalizer={"mean": jnp.zeros(inputs), "half": jnp.ones(2, jnp.bfloat16), "count": jnp.int32(1)},
        key=key,
        agent_steps=np.int64(2**40),  # beyond int32, which JAX would cut
        lesson=2,
    )


@jax.jit
def update(params, optimizer, key):
    key, noise_key = jax.random.split(key)
    x = jax.random.normal(noise_key, (8, 3))

    def loss(params):
        actor, critic = params["actor"]["Dense_0"], params["critic"]["Dense_0"]
        return jnp.mean((jnp.tanh(x @ actor["kernel"] + actor["bias"][None])) ** 2) + jnp.mean(
            (x @ critic["kernel"]) ** 2
        )

    updates, optimizer = OPTIMIZER.update(jax.grad(loss)(params), optimizer)
    return optax.apply_updates(params, updates), optimizer, key


def train_step(state):
    params, optimizer, key = update(state.params, state.optimizer, state.key)
    return state.replace(params=params, optimizer=optimizer, key=key, agent_steps=state.agent_steps + np.int64(8))


def plain(state):
    """Leaves as numpy, keys as their data."""
    is_key = lambda leaf: hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(state)]


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(plain(a), plain(b), strict=True):
        assert left.dtype == right.dtype and left.shape == right.shape
        assert left.tobytes() == right.tobytes()


def spec(size=3, branches=(2,)):
    return BehaviorSpec(
        observations=(ObservationSpec(name="Rays", shape=(size,)),),
        action=ActionSpec(continuous_size=0, discrete_branches=branches),
    )


def settings(hidden=4):
    return {"trainer_type": "poca", "network_settings": {"hidden_units": hidden}, "hyperparameters": {"beta": 0.1}}


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "Walker"


def test_every_kind_of_leaf_comes_back_bit_for_bit(folder):
    state = make_state()
    path = checkpoint.save(folder, 100, state)
    again = checkpoint.restore(path, make_state(seed=1))
    assert_same(state, again)
    assert again.agent_steps.dtype == np.int64 and isinstance(again.lesson, int)
    assert jnp.issubdtype(again.key.dtype, jax.dtypes.prng_key)
    assert again.params["no_actions"].shape == (0, 4)


def test_what_is_captured_or_rebuilt_has_memory_of_its_own():
    """Numpy leaves are overwritten by whoever had them; JAX shares memory that begins at a multiple of 64 bytes."""
    state = {"x": np.zeros(4, np.float32)}
    captured, copied = checkpoint.capture(state), saver._copy(state)
    state["x"][:] = 7.0
    assert not captured.arrays["x"].any() and not copied["x"].any()
    room = np.zeros(64 * 4 + 64, np.uint8)
    first = -room.ctypes.data % 64
    source = room[first : first + 64 * 4].view(np.float32)
    template = {"x": jnp.ones(64)}
    rebuilt = trees.rebuild(template, {"x": source}, trees.leaves_of(template))
    source[:] = 9.0
    assert not np.asarray(rebuilt["x"]).any()


def test_a_key_comes_back_with_its_own_generator():
    state = {"key": jax.random.key(3, impl="rbg")}
    template = {"key": jax.random.key(4, impl="rbg")}
    again = trees.rebuild(template, trees.to_arrays(state), trees.leaves_of(state))
    assert again["key"].dtype == state["key"].dtype
    np.testing.assert_array_equal(jax.random.key_data(again["key"]), jax.random.key_data(state["key"]))


def test_two_halves_equal_one_run(folder):
    whole = make_state()
    for _ in range(6):
        whole = train_step(whole)
    half = make_state()
    for _ in range(3):
        half = train_step(half)
    half = checkpoint.restore(checkpoint.save(folder, 3, half), make_state(seed=5))
    for _ in range(3):
        half = train_step(half)
    assert_same(whole, half)


def test_the_json_says_what_the_arrays_are(folder):
    path = checkpoint.save(folder, 100, make_state(), spec=spec(), settings=settings())
    info = checkpoint.read_info(path)
    assert (info.behavior, info.step) == ("Walker", 100)
    assert info.spec["observations"] == [{"name": "Rays", "shape": [3], "type": "default"}]
    assert info.spec["discrete_branches"] == [2]
    assert info.settings == settings()
    assert info.versions["jaxrl_version"]
    assert info.leaves["params/actor/Dense_0/kernel"] == {"dtype": "float32", "shape": [3, 4]}
    assert json.loads((folder / "checkpoint").read_text()) == {"folder": "Walker-100", "step": 100}


def test_orbax_alone_can_open_it(folder):
    path = checkpoint.save(folder, 100, make_state())
    with ocp.PyTreeCheckpointer() as checkpointer:
        arrays = checkpointer.restore(path / "arrays")
    assert np.array_equal(
        arrays["params"]["critic"]["Dense_0"]["kernel"], make_state().params["critic"]["Dense_0"]["kernel"]
    )


def test_a_changed_environment_and_network_are_named(folder):
    path = checkpoint.save(folder, 100, make_state(), spec=spec(), settings=settings())
    with pytest.raises(CheckpointError) as caught:
        now = settings(hidden=8) | {"hyperparameters": {"beta": 0.2}}
        checkpoint.restore(path, make_state(hidden=8, inputs=5), spec=spec(5, (3,)), settings=now)
    text = str(caught.value)
    assert "observation 0 (Rays) shape: [3] in the checkpoint, [5] now" in text
    assert "action size (discrete branches): [2] in the checkpoint, [3] now" in text
    assert "network_settings.hidden_units: 4 in the checkpoint, 8 now" in text
    assert "params/actor/Dense_0/kernel: float32[3, 4] in the checkpoint, float32[5, 8] now" in text
    assert "beta" not in text and "--run-id" in text


def test_of_another_algorithm_no_array_is_listed(folder):
    path = checkpoint.save(folder, 100, make_state(), spec=spec(), settings=settings() | {"trainer_type": "sac"})
    with pytest.raises(CheckpointError) as caught:
        now = settings() | {"trainer_type": "ppo"}
        checkpoint.restore(path, {"params": {"other": np.zeros(2)}}, spec=spec(), settings=now)
    assert "Changed: trainer_type: sac in the checkpoint, ppo now. To continue" in str(caught.value)
    assert "Arrays" not in str(caught.value)


def test_reward_signals_in_another_order_are_named(folder):
    """All arrays fit, and the critic's outputs would each be taken for the other signal's."""
    one, other = {"reward_signals": {"extrinsic": {}, "rnd": {}}}, {"reward_signals": {"rnd": {}, "extrinsic": {}}}
    path = checkpoint.save(folder, 100, make_state(), settings=one)
    checkpoint.restore(path, make_state(), settings=one)
    text = r"Walker-100: the order of reward_signals: extrinsic, rnd in the checkpoint, rnd, extrinsic now\. Write them"
    for restore in (checkpoint.restore, checkpoint.restore_params_only):
        with pytest.raises(CheckpointError, match=text):
            restore(path, make_state(), settings=other)
    checkpoint.restore(path, make_state(), settings=other, part=True)  # of a policy alone


def test_other_actions_of_as_many_columns_are_named(folder):
    """All arrays fit, and each output of the policy would be taken for another choice."""
    path = checkpoint.save(folder, 100, make_state(), spec=spec(branches=(2, 3)))
    text = r"Walker-100: action size \(discrete branches\): \[2, 3\] in the checkpoint, \[3, 2\] now\."
    for restore in (checkpoint.restore, checkpoint.restore_params_only, partial(checkpoint.restore, part=True)):
        with pytest.raises(CheckpointError, match=text):
            restore(path, make_state(), spec=spec(branches=(3, 2)))


def test_params_only_takes_no_values_of_other_reward_signals(folder, log):
    """A critic has an output for each signal, by its place; what each signal has learned itself is its own."""
    one, other = ({"reward_signals": {"extrinsic": {}, name: {}}} for name in ("curiosity", "rnd"))

    def state(number, name):
        networks = {"policy": {"w": np.full(1, number)}, "critic": {"values": np.full(2, number)}}
        return {"train": networks | {"signals": {"mine": np.full(1, number), name: np.full(1, number)}}}

    path = checkpoint.save(folder, 100, state(1, "curiosity"), settings=one)
    found = checkpoint.restore_params_only(path, state(0, "rnd"), fields=("train",), settings=other)["train"]
    assert (found["policy"]["w"], found["signals"]) == (1, {"mine": 1, "rnd": 0}) and not found["critic"][
        "values"
    ].any()
    assert "new weights for train/critic, train/signals/curiosity, train/signals/rnd." in log.text


def test_missing_and_surplus_leaves_are_named(folder):
    path = checkpoint.save(folder, 1, {"params": {"a": np.zeros(2)}, "key": jax.random.key(0)})
    with pytest.raises(CheckpointError, match=r"params/b: not in the checkpoint.*params/a: .*not used now"):
        checkpoint.restore(path, {"params": {"b": np.zeros(2)}, "key": jax.random.key(0)})
    with pytest.raises(CheckpointError, match=r"key: key<fry>\[2\] in the checkpoint, key<rbg>\[4\] now"):
        checkpoint.restore(path, {"params": {"a": np.zeros(2)}, "key": jax.random.key(0, impl="rbg")})


def test_a_python_number_fits_an_array_of_rank_zero_of_its_kind(folder):
    path = checkpoint.save(folder, 1, {"step": jnp.int32(7), "rate": 0.5, "flag": True, "n": 3})
    template = {"step": 0, "rate": jnp.float32(0), "flag": np.bool_(False), "n": jnp.int32(0)}
    again = checkpoint.restore(path, template)
    assert again == {"step": 7, "rate": 0.5, "flag": True, "n": 3}
    assert [type(again["step"]), again["rate"].dtype, again["n"].dtype] == [int, jnp.float32, jnp.int32]
    for wrong in (0.0, True, jnp.zeros(1, jnp.int32), jnp.uint32(0)):
        with pytest.raises(CheckpointError, match="step: int32"):
            checkpoint.restore(path, {**template, "step": wrong})


def test_another_environment_that_fits_is_only_a_warning(folder, log):
    path = checkpoint.save(folder, 1, make_state(), spec=spec(), settings=settings())
    other = spec()._replace(observations=(ObservationSpec(name="Camera", shape=(3,)),))
    checkpoint.restore(path, make_state(), spec=other, settings=settings())
    assert "observation 0 (Camera) name: Rays in the checkpoint, Camera now" in log.text


def test_a_leaf_that_is_no_number_is_refused(folder):
    with pytest.raises(TypeError, match="name: a checkpoint holds arrays"):
        checkpoint.save(folder, 1, {"name": "text"})


def test_params_only_takes_the_weights_and_nothing_else(folder):
    trained = train_step(make_state())
    path = checkpoint.save(folder, 100, trained)
    fresh = make_state(seed=7)
    start = checkpoint.restore_params_only(path, fresh, fields=("params", "normalizer"))
    assert_same(start.params, trained.params)
    assert_same(start.normalizer, trained.normalizer)
    assert_same((start.optimizer, start.key), (fresh.optimizer, fresh.key))


def test_params_only_keeps_new_weights_for_a_module_that_does_not_fit(folder, log):
    path = checkpoint.save(folder, 100, make_state(hidden=4), settings=settings(4))
    fresh = make_state(hidden=8, seed=7)
    start = checkpoint.restore_params_only(path, fresh, settings=settings(8))
    assert_same(start.params["actor"], fresh.params["actor"])
    assert_same(start.params["critic"], make_state().params["critic"])
    assert "params/actor" in log.text and "hidden_units: 4 in the checkpoint, 8 now" in log.text
    with pytest.raises(CheckpointError, match="no network in the checkpoint fits"):
        checkpoint.restore_params_only(path, make_state(hidden=8, inputs=9))
    path = checkpoint.save(folder, 200, {"train": {"policy": np.zeros(2), "own": {"owed": np.ones(())}}})
    with pytest.raises(CheckpointError, match=r"no network .* fits .*To start from it, undo these changes"):
        other = {"train": {"policy": np.zeros(3), "own": {"owed": np.zeros(())}}}
        checkpoint.restore_params_only(path, other, fields=("train/policy", "train/own"))


def test_old_checkpoints_and_their_onnx_files_are_removed(folder):
    state = {"params": np.zeros(2)}
    for step in (50, 900, 1000):  # by number, not by letters
        checkpoint.save(folder, step, state, keep=2)
        checkpoint_folder.onnx_path(folder, step).write_text("onnx")
    checkpoint.save(folder, 1100, state, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "Walker-1000",
        "Walker-1000.onnx",
        "Walker-1100",
        "checkpoint",
    ]
    for step in (1200, 1300, 1400):
        checkpoint.save(folder, step, state, keep=0)
    assert [item.step for item in checkpoint_folder.checkpoints(folder)] == [1000, 1100, 1200, 1300, 1400]


def test_the_same_step_can_be_saved_twice(folder):
    checkpoint.save(folder, 1, {"a": np.zeros(2)})
    path = checkpoint.save(folder, 1, {"a": np.ones(2)})
    assert checkpoint.restore(path, {"a": np.zeros(2)})["a"].tolist() == [1, 1]
    assert sorted(item.name for item in folder.iterdir()) == ["Walker-1", "checkpoint"]


def test_nothing_saved_is_none_or_an_error_with_advice(folder):
    assert checkpoint_folder.latest(folder) is None
    with pytest.raises(CheckpointError, match="--force"):
        checkpoint_folder.require_latest(folder)


def test_another_format_names_the_version_that_wrote_it(folder):
    path = checkpoint.save(folder, 1, {"a": np.zeros(2)})
    document = json.loads((path / "checkpoint.json").read_text())
    document |= {"format": 99, "versions": {"jaxrl_version": "9.9"}}
    (path / "checkpoint.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"format 99.*jaxrl 9\.9"):
        checkpoint.read_info(path)
