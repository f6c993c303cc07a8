"""Specifications that cannot be meant are refused by behavior, sensor and number, before anything is allocated."""

from __future__ import annotations

import re

import pytest

from jaxrl.envs import spec_limits
from jaxrl.envs.protobuf import messages
from jaxrl.envs.spec_limits import SpecError, check_spec
from jaxrl.envs.unity.decode import InvalidMessage, decode_spec
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

GOOD = ObservationSpec("eye", (3, 84, 84))
NONE = DimensionProperty.NONE


def spec_of(*sensors: ObservationSpec, continuous: int = 0, branches: tuple[int, ...] = (2,)) -> BehaviorSpec:
    return BehaviorSpec(observations=sensors or (GOOD,), action=ActionSpec(continuous, branches))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of(branches=(3, 0)), "discrete branch 1 of size 0, expected 1 to 65536"),
        (spec_of(branches=(-4,)), "discrete branch 0 of size -4"),
        (spec_of(branches=(2**31 - 1,)), "discrete branch 0 of size 2147483647"),
        (spec_of(branches=(2**15,) * 3), "discrete branches of 98304 choices in all"),
        (spec_of(branches=(1,) * 5000), "5000 discrete branches, expected at most 4096"),
        (spec_of(continuous=-1), "-1 continuous actions, expected 0 to 16384"),
        (spec_of(continuous=2**31 - 1), "2147483647 continuous actions"),
        (spec_of(GOOD, ObservationSpec("ray", (0,))), "sensor 1 ('ray') of shape (0,), expected sizes of 1 and more"),
        (spec_of(ObservationSpec("ray", (-3, 4))), "sensor 0 ('ray') of shape (-3, 4)"),
        (spec_of(ObservationSpec("big", (2**31 - 1, 2**31 - 1))), "sensor 0 ('big') of shape (2147483647, 2147483647)"),
        (
            spec_of(*[ObservationSpec("big", (2**23,))] * 3),
            "sensor 2 ('big') of shape (8388608,), with which an agent ",
        ),
        (spec_of(*[ObservationSpec("ray", (1,))] * 1025), "1025 sensors, expected at most 1024"),
        (spec_of(ObservationSpec("deep", (1,) * 9)), "sensor 0 ('deep') with 9 axes"),
        (spec_of(ObservationSpec("ray", (3, 4), (NONE,))), "with 1 dimension properties, expected one for each axis"),
    ],
)
def test_what_cannot_be_meant_is_named(spec, words):
    with pytest.raises(SpecError, match=f"^behavior 'Walker': announces .*{re.escape(words)}"):
        check_spec("Walker", spec)


def test_what_somebody_may_mean_is_taken():
    """A camera of 4 megapixels in colour, every muscle, and a move on a large board."""
    check_spec("Walker", spec_of(ObservationSpec("eye", (3, 2000, 2000)), continuous=700, branches=(361, 4672)))
    at_the_limit = spec_of(ObservationSpec("eye", (spec_limits.MOST_NUMBERS,)), branches=(spec_limits.MOST_CHOICES,))
    check_spec("Walker", at_the_limit)


@pytest.mark.parametrize("deprecated", [False, True], ids=["action_spec", "deprecated fields"])
def test_a_player_that_announces_nonsense_is_refused(deprecated):
    """2,147,483,647 choices were 256 GiB of masks for 128 agents."""
    brain, agent = messages().BrainParametersProto(), messages().AgentInfoProto()
    agent.observations.add(name="ray", shape=[3])
    if deprecated:
        brain.vector_action_size_deprecated.append(2**31 - 1)
    else:
        brain.action_spec.num_discrete_actions = 1
        brain.action_spec.discrete_branch_sizes.append(2**31 - 1)
    with pytest.raises(InvalidMessage, match="behavior 'Walker': announces discrete branch 0 of size 2147483647"):
        decode_spec("Walker", brain, agent)
