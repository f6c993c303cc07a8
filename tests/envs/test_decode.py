"""The decoder against visible numbers, against the package's own decoder on random messages, and on faulty ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.envs.protobuf import messages, register
from jaxrl.envs.sensors import WireSpec, wire_sensor
from jaxrl.envs.unity.decode import InvalidMessage, decode_spec, decode_steps
from jaxrl.types import ActionSpec, DimensionProperty, ObservationSpec, ObservationType

register()
from mlagents_envs import rpc_utils  # noqa: E402, importable after register()

m = messages()


def vector_spec(shape=(3,), branches=(), properties=()) -> WireSpec:
    return WireSpec((wire_sensor(ObservationSpec("ray", shape, properties)),), ActionSpec(0, branches))


def agent(number: int = 1, numbers=(0.0, 0.0, 0.0), shape=(3,), **fields):
    info = m.AgentInfoProto(id=number, **fields)
    info.observations.add(name="ray", shape=shape).float_data.data.extend(numbers)
    return info


def test_golden_message():
    infos = [
        agent(7, (1, 2, 3), reward=0.5, group_id=2, group_reward=0.25, action_mask=[True, False, False]),
        agent(5, (4, 5, 6), reward=-1, group_id=2, done=True, max_step_reached=True),
        agent(6, (7, 8, 9), done=True),
        agent(9, (0, 0, 1)),
    ]
    steps = decode_steps("B", infos, vector_spec(branches=(2, 1)))
    ended, deciding, *_ = steps
    assert (ended.agent_id.tolist(), ended.group_id.tolist()) == ([5, 6], [2, 0])
    assert (ended.reward.tolist(), ended.truncated.tolist()) == ([-1, 0], [True, False])
    assert ended.obs[0].tolist() == [[4, 5, 6], [7, 8, 9]]
    assert (deciding.agent_id.tolist(), deciding.group_id.tolist()) == ([7, 9], [2, 0])
    assert (deciding.reward.tolist(), deciding.group_reward.tolist()) == ([0.5, 0], [0.25, 0])
    assert deciding.action_mask.tolist() == [[False, True, True], [True, True, True]]
    assert deciding.obs[0].tolist() == [[1, 2, 3], [0, 0, 1]]
    assert deciding.obs[0].dtype == np.float32 and deciding.obs[0].flags.writeable and deciding.obs[0].flags.aligned
    assert deciding.agent_id.dtype == np.int64 and ended.truncated.dtype == np.bool_


@pytest.mark.parametrize("size", [0, 1, 31, 32, 4095, 4096])
def test_every_length_of_the_packed_header(size):
    numbers = np.arange(size, dtype=np.float32)
    steps = decode_steps("B", [agent(i, numbers.tolist(), (size,)) for i in (1, 2)], vector_spec((size,)))
    np.testing.assert_array_equal(steps.deciding.obs[0], [numbers, numbers])


def test_no_agents():
    steps = decode_steps("B", [], vector_spec((2, 3), (4,)))
    assert steps.ended.obs[0].shape == steps.deciding.obs[0].shape == (0, 2, 3)
    assert steps.deciding.action_mask.shape == (0, 4)


@st.composite
def random_messages(draw):
    """A spec's shapes and branches, and agents with random numbers, flags and masks."""
    shapes = draw(st.lists(st.sampled_from([(1,), (5,), (4, 3), (2, 3, 2), (2100,)]), min_size=1, max_size=3))
    branches = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    infos = []
    for number in range(draw(st.integers(0, 6))):
        info = m.AgentInfoProto(id=number + 1, group_id=int(rng.integers(3)), done=bool(rng.integers(2)))
        info.reward, info.group_reward = rng.normal(size=2)
        info.max_step_reached = info.done and bool(rng.integers(2))
        if rng.integers(2):
            info.action_mask.extend(rng.integers(2, size=sum(branches)).astype(bool).tolist())
        for shape in shapes:
            info.observations.add(shape=shape).float_data.data.extend(rng.normal(size=np.prod(shape)).tolist())
        infos.append(info)
    brain = m.BrainParametersProto()
    brain.action_spec.num_continuous_actions = 1
    brain.action_spec.num_discrete_actions = len(branches)
    brain.action_spec.discrete_branch_sizes.extend(branches)
    example = m.AgentInfoProto()
    for shape in shapes:
        example.observations.add(shape=shape, dimension_properties=[1] * len(shape))
    return infos, brain, example


@settings(max_examples=60, deadline=None)
@given(random_messages())
def test_equals_the_packages_decoder(case):
    infos, brain, example = case
    ours = decode_steps("B", infos, decode_spec("B", brain, example))
    decision, terminal = rpc_utils.steps_from_proto(infos, rpc_utils.behavior_spec_from_proto(brain, example))
    for mine, theirs in ((ours.deciding, decision), (ours.ended, terminal)):
        for name in ("agent_id", "group_id", "reward", "group_reward"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
        for own, other in zip(mine.obs, theirs.obs, strict=True):
            np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(ours.ended.truncated, terminal.interrupted)
    if decision.action_mask is not None:
        np.testing.assert_array_equal(ours.deciding.action_mask, ~np.concatenate(decision.action_mask, axis=1))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (agent(4, (0, float("nan"), 0)), r"agent 4, sensor 0 \('ray'\): nan is not a finite"),
        (agent(4, (0, 0, float("-inf"))), r"agent 4, sensor 0 \('ray'\): -inf is not a finite"),
        (agent(4, reward=float("nan")), "agent 4, reward: nan"),
        (agent(4, group_reward=float("inf")), "agent 4, group reward: inf"),
        (agent(4, done=True, reward=float("nan")), "agent 4, reward: nan"),
        (agent(4, (0, 0), (2,)), r"agent 4, sensor 0 \('ray'\): expected shape \(3,\), received \(2,\) with 2 numbers"),
        (agent(4, (0, 0), (3,)), r"expected shape \(3,\), received \(3,\) with 2 numbers"),
        (agent(4, [0] * 2999, (3,)), r"expected shape \(3,\), received \(3,\) with 2999 numbers"),
        (m.AgentInfoProto(id=4), "agent 4, all sensors: expected 1 observations, received 0"),
        (agent(4, action_mask=[True]), "agent 4, action mask: expected 2 entries .* received 1"),
    ],
)
def test_faults_name_behavior_sensor_and_agent(bad, words):
    with pytest.raises(InvalidMessage, match=f"'Walker', .*{words}"):
        decode_steps("Walker", [agent(1), bad, agent(2)], vector_spec(branches=(2,)))


def test_same_numbers_in_another_shape_are_refused():
    with pytest.raises(InvalidMessage, match=r"expected shape \(2, 3\), received \(3, 2\) with 6 numbers"):
        decode_steps("B", [agent(1, [0] * 6, (3, 2))], vector_spec((2, 3)))


def test_more_entities_than_the_sensor_holds():
    """Both ways in which a player can say so: by the shape, and by the numbers."""
    spec = vector_spec((2, 3), properties=(DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE))
    words = "expected shape \\(2, 3\\), received \\({}, 3\\) with 9 numbers; at most 2 entities fit"
    with pytest.raises(InvalidMessage, match=words.format(3)):
        decode_steps("B", [agent(1, [0] * 9, (3, 3))], spec)
    with pytest.raises(InvalidMessage, match=words.format(2)):
        decode_steps("B", [agent(1, [0] * 9, (2, 3))], spec)


def test_large_observation_with_too_few_numbers():
    with pytest.raises(InvalidMessage, match=r"agent 2, .* received \(2100,\) with 2099 numbers"):
        decode_steps("B", [agent(1, [0] * 2100, (2100,)), agent(2, [0] * 2099, (2100,))], vector_spec((2100,)))


def test_large_finite_numbers_pass():
    """The mean of these overflows, which the package mistakes for an infinite observation."""
    steps = decode_steps("B", [agent(1, (3e38, 3e38, 3e38))], vector_spec())
    assert np.isfinite(steps.deciding.obs[0]).all()


def test_spec():
    brain = m.BrainParametersProto()
    brain.action_spec.num_continuous_actions = 2
    brain.action_spec.num_discrete_actions = 1
    brain.action_spec.discrete_branch_sizes.append(5)
    info = m.AgentInfoProto()
    info.observations.add(name="goal", shape=(4,), observation_type=m.GOAL_SIGNAL)
    info.observations.add(name="buffer", shape=(6, 2), dimension_properties=[4, 1])
    spec = decode_spec("B", brain, info).behavior
    assert spec.action == ActionSpec(2, (5,))
    unspecified = (DimensionProperty.UNSPECIFIED,)
    assert spec.observations[0] == ObservationSpec("goal", (4,), unspecified, ObservationType.GOAL_SIGNAL)
    assert spec.observations[1].dimension_property == (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)


@pytest.mark.parametrize(("kind", "action"), [(1, ActionSpec(3, ())), (0, ActionSpec(0, (3,)))])
def test_action_spec_of_old_players(kind, action):
    brain = m.BrainParametersProto(vector_action_size_deprecated=[3], vector_action_space_type_deprecated=kind)
    assert decode_spec("B", brain, m.AgentInfoProto()).action == action


def test_spec_with_unknown_numbers():
    info = m.AgentInfoProto()
    info.observations.add(shape=(4,), dimension_properties=[9])
    with pytest.raises(InvalidMessage, match="'B': unknown kind of observation: 9"):
        decode_spec("B", m.BrainParametersProto(), info)
    brain = m.BrainParametersProto()
    brain.action_spec.num_discrete_actions = 2
    brain.action_spec.discrete_branch_sizes.append(5)
    with pytest.raises(InvalidMessage, match=r"2 discrete branches but sizes \(5,\)"):
        decode_spec("B", brain, m.AgentInfoProto())
