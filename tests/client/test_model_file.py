"""`jaxrl.load("FILE.onnx")`: a bare model plays as a run does, with memory and masks, in episodes and by a key."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from onnx import helper

import jaxrl
from jaxrl.artifacts.files import ArtifactError
from jaxrl.client.policy import evaluate
from jaxrl.training.file_policy import choose_model
from jaxrl.types import ActionSpec
from tests.jax_envs.toy_jax_env import quick_compilation

sys.path.insert(0, str(Path(__file__).parents[1] / "artifacts"))

from handmade_models import good

ROOT = Path(__file__).parents[2]
BASIC = ROOT / "zoo" / "basic" / "Basic.onnx"
GRID = ROOT / "zoo" / "grid_world" / "GridWorld.onnx"


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    """Programs run once."""
    with quick_compilation():
        yield


def test_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "Basic-700.onnx").write_bytes(BASIC.read_bytes())
    policy = jaxrl.load(tmp_path / "Basic-700.onnx")
    assert (policy.behavior, policy.step, policy.spec.action) == ("Basic", 700, ActionSpec(0, (3,)))
    assert repr(policy) == "<Policy Basic, Basic-700.onnx>"
    assert jaxrl.load(BASIC).step == 0 and jaxrl.load(BASIC, behavior="Other").behavior == "Other"


def test_episodes_are_those_of_the_run() -> None:
    """With images and a goal too, in many areas at once."""
    played = jaxrl.load(BASIC, deterministic=True).rollout("jax:basic", 5, areas=2)
    np.testing.assert_allclose(played.returns, np.full((5, 1), 0.93), rtol=1e-5)
    of_file = jaxrl.load(GRID, deterministic=True).rollout("jax:grid_world", 32)
    of_run = jaxrl.load("zoo:grid_world", deterministic=True).rollout("jax:grid_world", 32)
    np.testing.assert_array_equal(of_file.lengths, of_run.lengths)
    np.testing.assert_allclose(of_file.returns, of_run.returns, atol=1e-6)
    assert (
        of_file.finished.all()
        and evaluate(BASIC, "jax:basic", episodes=3, deterministic=True) == [pytest.approx(0.93)] * 3
    )


def test_a_key_repeats_and_masks_forbid() -> None:
    policy = jaxrl.load(BASIC)
    seen = np.zeros((200, 20), np.float32)
    mask = np.ones((200, 3), bool)
    mask[:, 2] = False  # where it would go
    first, again, other = (policy.act(seen, mask, key=key).discrete for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other) and set(np.unique(first)) == {0, 1}
    with pytest.raises(jaxrl.PolicyError, match="key: this policy samples its actions"):
        policy.act(seen)
    straight = jaxrl.load(BASIC, deterministic=True)
    for lead in ((), (3,), (2, 2)):
        assert straight.act(np.zeros((*lead, 20))).discrete.tolist() == np.full((*lead, 1), 2).tolist()
    assert straight.act(np.zeros((0, 20))).discrete.shape == (0, 1)


def test_memory_belongs_to_each_agent_and_ends_with_its_episode(tmp_path: Path) -> None:
    """The model adds up what it sees."""
    path = good(
        tmp_path / "Sum.onnx",
        inputs={"obs_0": [2], "recurrent_in": [1, 2]},
        constants={"version_number": [3], "memory_size": [2], "continuous_action_output_shape": [2]},
        nodes=[
            helper.make_node("Squeeze", ["recurrent_in"], ["before"], axes=[1]),
            helper.make_node("Add", ["obs_0", "before"], ["sum"]),
            helper.make_node("Unsqueeze", ["sum"], ["after"], axes=[1]),
        ],
        copies={"continuous_actions": "sum", "deterministic_continuous_actions": "sum", "recurrent_out": "after"},
    )
    policy, seen = jaxrl.load(path, deterministic=True), np.array([[1, 2], [10, 20]], np.float32)
    memory = None
    for step in (1, 2, 3):
        action = policy.act(seen, memory=memory)
        memory = action.memory
        np.testing.assert_array_equal(action.continuous, step * seen)
    np.testing.assert_array_equal(policy.act(seen, memory=memory, begin=[True, False]).continuous, [[1, 2], [40, 80]])
    with pytest.raises(jaxrl.PolicyError, match=r"memory: is not that of agents \[1\]"):
        policy.act(seen[:1], memory=memory)


def test_what_a_file_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    for load in (lambda: jaxrl.load(BASIC, checkpoint=700), lambda: jaxrl.load(BASIC, seed=1)):
        with pytest.raises(jaxrl.PolicyError, match="is one policy: leave it out, or name its run's folder"):
            load()
    with pytest.raises(ArtifactError, match=r"input 'obs_0' is \['batch', 20\], expected \[batch, 8\]"):
        jaxrl.load(BASIC, "jax:ball3d")
    with pytest.raises(jaxrl.PolicyError, match=r"does not fit it .observation 0"):
        jaxrl.load(BASIC).rollout("jax:ball3d", 1)
    with pytest.raises(ArtifactError, match=r"missing.onnx: cannot be read as an ONNX model"):
        jaxrl.load(tmp_path / "missing.onnx")
    with pytest.raises(jaxrl.PolicyError, match="a policy of an ONNX file is played: to learn, train a run"):
        jaxrl.load(BASIC).algorithm.init(jax.random.key(0))


def test_files_play_the_behaviors_that_they_are_called_after() -> None:
    goalie, striker, other = Path("a/Goalie-500.onnx"), Path("Striker.onnx"), Path("Other.onnx")
    both = ["Goalie", "Striker"]
    assert [choose_model([goalie, striker], name, both) for name in both] == [goalie, striker]
    assert [choose_model([goalie], name, both) for name in both] == [goalie, None]
    assert [choose_model([goalie, other], name, both) for name in both] == [goalie, other]
    assert choose_model([], "Goalie", both) is None
    with pytest.raises(jaxrl.PolicyError, match="which of them plays Goalie"):
        choose_model([goalie, Path("Goalie.onnx")], "Goalie", both)
    with pytest.raises(jaxrl.PolicyError, match=r"Name each after its behavior .Goalie, Striker"):
        choose_model([other, Path("x.onnx")], "Striker", both)
