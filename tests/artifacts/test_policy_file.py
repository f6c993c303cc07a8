"""A policy in an ONNX file as a pure function of what is seen and drawn: files of jaxrl, and of version 2, by value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from handmade_models import good, handmade
from onnx import TensorProto, helper, numpy_helper
from onnx_policies import ACTIONS, distribution, make_masks, make_obs, make_policy, make_spec, run

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx.policy_file import PolicyFile
from jaxrl.networks import actions
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

CASES = Path(__file__).parents[1] / "cases"
NOTHING = np.zeros((7, 0), np.float32)
V2 = {"version_number": [2], "memory_size": [0], "discrete_action_output_shape": [5]}


def drawn(file: PolicyFile, rows: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    draws = [(rng.gumbel if each.is_gumbel else rng.normal)(size=(rows, each.size)) for each in file.noise]
    return [draw.astype(np.float32) for draw in draws]


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_deterministic_actions_are_those_of_the_file(tmp_path, action):
    spec = make_spec(action)
    policy, path = make_policy(spec), tmp_path / "a.onnx"
    exporter.export(path, **policy)
    obs, masks = make_obs(spec, seed=5), make_masks(spec, seed=5)
    expected, file = run(path, obs, masks), PolicyFile(path)
    assert file.spec.action == action and [o.shape for o in file.spec.observations] == [(4,), (3,)]
    answer = file.act(obs, masks, NOTHING, None)
    zero = file.act(obs, masks, NOTHING, [np.zeros((7, each.size)) for each in file.noise])
    for kind, got in zip(("continuous", "discrete"), answer.action, strict=True):
        name = f"deterministic_{kind}_actions"
        wanted = expected.get(name, np.zeros((7, 0)))
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(zero.action.discrete, answer.action.discrete)  # without noise the most likely
    np.testing.assert_allclose(zero.action.continuous, answer.action.continuous, atol=1e-6)


def test_noise_moves_continuous_actions_by_the_deviation_and_repeats(tmp_path):
    spec = make_spec(ActionSpec(3, ()))
    policy, path = make_policy(spec), tmp_path / "a.onnx"
    exporter.export(path, **policy)
    obs, masks, file = make_obs(spec), make_masks(spec), PolicyFile(path)
    dist = distribution(policy, obs)
    noise = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    sent = file.act(obs, masks, NOTHING, [noise]).action.continuous
    np.testing.assert_allclose(sent, np.clip(dist.mean + np.exp(dist.log_sigma) * noise, -3, 3) / 3, atol=1e-5)
    np.testing.assert_array_equal(sent, PolicyFile(path).act(obs, masks, NOTHING, [noise]).action.continuous)


def test_drawn_indices_follow_the_masked_softmax(tmp_path):
    spec, rows = make_spec(ActionSpec(0, (4, 3))), 20_000
    policy, path = make_policy(spec), tmp_path / "a.onnx"
    exporter.export(path, **policy)
    obs = tuple(np.repeat(x[:1], rows, axis=0) for x in make_obs(spec, seed=3))
    masks = np.repeat([[True, False, True, True, True, True, True]], rows, axis=0)
    file = PolicyFile(path)
    sampled = file.act(obs, masks, np.zeros((rows, 0), np.float32), drawn(file, rows)).action.discrete
    dist = distribution(policy, make_obs(spec, seed=3))
    for branch, p in enumerate(actions.probabilities(dist, masks[:7], spec.action)):
        p = np.asarray(p[0], np.float64)
        counts = np.bincount(sampled[:, branch], minlength=len(p))
        assert (counts[p == 0.0] == 0).all()
        assert ((counts[p > 0.0] - rows * p[p > 0.0]) ** 2 / (rows * p[p > 0.0])).sum() < 13.82  # 0.999, 2 degrees


def test_memory_goes_on_from_step_to_step(tmp_path):
    settings = NetworkSettings(hidden_units=8, num_layers=1, memory=MemorySettings(memory_size=6))
    policy, path = make_policy(make_spec(ActionSpec(2, (3,))), settings=settings), tmp_path / "a.onnx"
    spec = policy["spec"]
    exporter.export(path, **policy)
    file, memory, theirs = PolicyFile(path, spec), np.zeros((7, 6), np.float32), np.zeros((7, 1, 6), np.float32)
    assert file.memory_size == 6
    for step in range(3):
        obs, masks = make_obs(spec, seed=step), make_masks(spec, seed=step)
        answer, expected = file.act(obs, masks, memory, None), run(path, obs, masks, theirs)
        memory, theirs = answer.memory, expected["recurrent_out"]
        np.testing.assert_array_equal(answer.action.discrete, expected["deterministic_discrete_actions"])
        np.testing.assert_array_equal(memory, theirs[:, 0])
    assert np.abs(memory).min() > 0


def test_images_in_bytes_are_shown_from_0_to_1(tmp_path):
    spec = BehaviorSpec((ObservationSpec("camera", (1, 2, 2), dtype="uint8"),), ActionSpec(2, ()))
    path = good(
        tmp_path / "a.onnx",
        inputs={"obs_0": [1, 2, 2]},
        nodes=[
            helper.make_node("Flatten", ["obs_0"], ["flat"], axis=1),
            helper.make_node("Slice", ["flat"], ["two"], axes=[1], starts=[1], ends=[3]),
        ],
        copies={"continuous_actions": "two"},
    )
    image = np.array([[[[0, 51], [255, 102]]]], np.uint8)
    answer = PolicyFile(path, spec).act((image,), np.zeros((1, 0), bool), NOTHING[:1], None)
    np.testing.assert_allclose(answer.action.continuous, [[0.2, 1.0]])


def test_the_small_file_of_version_2_shows_sensors_of_numbers_together():
    path = CASES / "legacy_v2.onnx"
    weights = numpy_helper.to_array(next(t for t in onnx.load(path).graph.initializer if t.name == "W"))
    x = np.array([[1, 2, 3], [-1, 0.5, 0]], np.float32)
    alone = PolicyFile(path)
    assert alone.spec == BehaviorSpec((alone.spec.observations[0],), ActionSpec(2, ()))
    two = BehaviorSpec((ObservationSpec("a", (1,)), ObservationSpec("b", (2,))), ActionSpec(2, ()))
    for file, obs in ((alone, (x,)), (PolicyFile(path, two), (x[:, :1], x[:, 1:]))):
        answer = file.act(obs, np.zeros((2, 0), bool), NOTHING[:2], [])
        np.testing.assert_allclose(answer.action.continuous, x @ weights, rtol=1e-6)


def version_2(path: Path, **changes) -> Path:
    """Log-probabilities of branches of 2 and 3: those that the vector shows, -1e8 where the mask forbids."""
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    far = helper.make_node("Constant", [], ["far"], value_float=1e8)
    nodes = [
        *(one, far),
        helper.make_node("Sub", ["action_masks", "one"], ["less"]),
        helper.make_node("Mul", ["less", "far"], ["penalty"]),
        helper.make_node("Add", ["vector_observation", "penalty"], ["logs"]),
    ]
    parts = {
        "inputs": {"vector_observation": [5], "visual_observation_0": [3, 4, 4], "action_masks": [5]},
        "constants": V2,
        "copies": {"discrete_actions": "logs"},
        "nodes": nodes,
        "opset": 12,
    }
    return handmade(path, **(parts | changes))


SIDE_BY_SIDE = BehaviorSpec((ObservationSpec("c", (3, 4, 4)), ObservationSpec("v", (5,))), ActionSpec(0, (2, 3)))


def test_branches_of_version_2_are_drawn_behind_the_graph(tmp_path):
    file, rows = PolicyFile(version_2(tmp_path / "a.onnx"), SIDE_BY_SIDE), 20_000
    logs = np.log(np.array([0.3, 0.7, 0.2, 0.5, 0.3], np.float32))
    obs = (np.zeros((rows, 3, 4, 4), np.float32), np.repeat(logs[None], rows, axis=0))
    masks = np.repeat([[True, True, True, False, True]], rows, axis=0)
    sampled = file.act(obs, masks, np.zeros((rows, 0), np.float32), drawn(file, rows)).action.discrete
    for branch, p in ((0, [0.3, 0.7]), (1, [0.4, 0.0, 0.6])):
        counts = np.bincount(sampled[:, branch], minlength=len(p)) / rows
        np.testing.assert_allclose(counts, p, atol=4 * (0.25 / rows) ** 0.5)
        assert counts[np.array(p) == 0].sum() == 0
    likely = file.act(obs, masks, np.zeros((rows, 0), np.float32), None).action.discrete
    assert (likely == [1, 2]).all()


def test_the_noise_input_of_the_oldest_files_is_drawn(tmp_path):
    path = handmade(
        tmp_path / "a.onnx",
        inputs={"vector_observation": [2], "epsilon": [2]},
        nodes=[helper.make_node("Add", ["vector_observation", "epsilon"], ["sum"])],
        constants={"version_number": [2], "memory_size": [0], "is_continuous_control": [1], "action_output_shape": [2]},
        copies={"action": "sum"},
    )
    file, x, noise = PolicyFile(path), np.ones((3, 2), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    assert file.spec.action == ActionSpec(2, ())
    np.testing.assert_array_equal(file.act((x,), np.zeros((3, 0)), NOTHING[:3], [noise]).action.continuous, x + noise)
    np.testing.assert_array_equal(file.act((x,), np.zeros((3, 0)), NOTHING[:3], None).action.continuous, x)


def test_nobody_asks(tmp_path):
    file = PolicyFile(CASES / "legacy_v2.onnx")
    answer = file.act((np.zeros((0, 3)),), np.zeros((0, 0), bool), NOTHING[:0], None)
    assert answer.action.continuous.shape == (0, 2) and answer.action.discrete.shape == (0, 0)


def external(path: Path) -> Path:
    model = onnx.load(good(path))
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"
    path.write_bytes(model.SerializeToString())
    return path


def two_samples(path: Path) -> Path:
    node = helper.make_node("Multinomial", ["obs_0"], ["i"], sample_size=2)
    return good(path, nodes=[node])


REFUSED = {
    "branches": (lambda p: version_2(p), None, "tells the sum of its branches alone, 5: name the environment"),
    "another agent": (lambda p: version_2(p), "hybrid", "expected [batch, 7]"),
    "other draws": (
        lambda p: good(p, nodes=[helper.make_node("RandomUniformLike", ["obs_0"], ["u"])]), None, "RandomUniformLike",
    ),
    "two samples": (two_samples, None, "draws 2 indices at once"),
    "weights elsewhere": (external, None, "its weights lie in another file"),
    "memory of version 2": (
        lambda p: version_2(p, constants={**V2, "memory_size": [8]}),
        None,
        "models of version 2 with memory are rejected",
    ),
    "missing": (lambda p: p, None, "cannot be read as an ONNX model"),
    "barracuda": (lambda p: p.with_suffix(".nn"), None, "is a model of Barracuda (.nn)"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "spec", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_played_is_named(tmp_path, make, spec, words):
    spec = None if spec is None else make_spec(ActionSpec(1, (2, 2)))
    with pytest.raises(ArtifactError) as error:
        PolicyFile(make(tmp_path / "a.onnx"), spec)
    assert words in str(error.value)
