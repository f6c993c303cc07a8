"""Masks of discrete actions, wherever environments put them and in whatever parts: what is allowed is known by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from games import choose, stairs_env
from gymnasium import spaces

from jaxrl.envs.foreign.behaviors import AgentKind
from jaxrl.envs.foreign.masks import MaskError
from jaxrl.envs.foreign.observations import SpaceError


def bits(*shape: int) -> spaces.Space:
    return spaces.MultiBinary(shape)


CARDS, WHEEL = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
HANDS = spaces.MultiDiscrete([3, 2])
HYBRID = spaces.Dict({"wheel": WHEEL, "card": CARDS, "bell": spaces.Discrete(2, start=5)})
PAIR = spaces.Tuple([CARDS, WHEEL, spaces.MultiBinary(1)])
FORMS = {
    "one array": (HANDS, bits(5), np.array([1, 0, 1, 0, 1])),
    "a branch each, in a Tuple": (HANDS, spaces.Tuple([bits(3), bits(2)]), (np.array([1, 0, 1]), np.array([0, 1]))),
    "rows": (spaces.MultiDiscrete([3, 3]), bits(2, 3), np.array([[1, 0, 1], [0, 1, 1]])),
    "a Dict of the parts": (
        HYBRID,
        spaces.Dict({"bell": bits(2), "card": bits(3)}),
        {"bell": np.array([0, 1]), "card": np.array([1, 0, 1])},
    ),
    "a Tuple of the parts": (PAIR, spaces.Tuple([bits(3), bits(2)]), (np.array([1, 0, 1]), np.array([0, 1]))),
    "an array for a Dict": (HYBRID, spaces.Box(0, 1, (5,), np.int8), np.array([0, 1, 1, 0, 1])),
    "an array in an array": (CARDS, bits(1, 3), np.array([[1, 0, 1]])),
}
"""The action space, the space of its mask, and a mask."""
ALLOWED = {"rows": [1, 0, 1, 0, 1, 1], "an array in an array": [1, 0, 1]}
ALLOWED |= {"a Dict of the parts": [0, 1, 1, 0, 1], "an array for a Dict": [0, 1, 1, 0, 1]}  # Dicts are sorted by key


@pytest.mark.parametrize("form", FORMS)
def test_masks_in_parts_are_read_in_the_order_of_the_actions(form: str) -> None:
    action, space, mask = FORMS[form]
    expected = ALLOWED.get(form, [1, 0, 1, 0, 1])
    inner = {"seen": spaces.Box(0, 1, (2,)), "action_mask": space}
    given = {"seen": np.zeros(2), "action_mask": mask}
    for observation, obs in ((spaces.Dict(inner), given), (spaces.Dict({"me": spaces.Dict(inner)}), {"me": given})):
        kind = AgentKind("any", observation, action)
        assert [sensor.shape for sensor in kind.spec.observations] == [(2,)]
        told = kind.mask(obs)
        assert told is not None and told.tolist() == expected
    told = AgentKind("any", spaces.Box(0, 1, (2,)), action).mask(np.zeros(2), mask)  # from the infos
    assert told is not None and told.tolist() == expected


def test_an_agent_that_is_shown_its_mask_alone_sees_it() -> None:
    kind = AgentKind("any", spaces.Dict({"action_mask": bits(3)}), CARDS)
    given = {"action_mask": np.array([1, 0, 1])}
    told = kind.mask(given)
    assert told is not None and told.tolist() == [1, 0, 1] == kind.observation.read(given)[0].tolist()


@pytest.mark.parametrize(
    ("action", "mask", "words"),
    [
        (spaces.MultiDiscrete([4, 4]), bits(4, 4), "got 16 entries, expected 8.* Combinations of choices cannot"),
        (CARDS, bits(4), "observation space 'me/action_mask': .* no mask of .*got 4 entries, expected 3"),
        (WHEEL, bits(2), "got 2 entries, expected 0"),
        (HANDS, spaces.Tuple([bits(2), bits(3)]), "action_mask/0: got 2 entries, expected 3"),
        (spaces.MultiDiscrete([2, 2, 2]), bits(2, 3), r"got shape \(2, 3\), expected one axis"),
        (HYBRID, spaces.Dict({"card": bits(3)}), r"got the parts \['card'\], expected those of the action space"),
        (spaces.MultiBinary(3), bits(3), "got 3 entries, expected .*"),
    ],
)
def test_masks_that_do_not_fit_are_refused_by_name(action: spaces.Space, mask: spaces.Space, words: str) -> None:
    inner = spaces.Dict({"seen": spaces.Box(0, 1, (2,)), "action_mask": mask})
    with pytest.raises(SpaceError, match=words):
        AgentKind("any", spaces.Dict({"me": inner}), action)


def test_two_masks_and_masks_of_other_numbers_are_refused() -> None:
    both = spaces.Dict({"left": spaces.Dict({"action_mask": bits(3)}), "right": spaces.Dict({"action_mask": bits(2)})})
    with pytest.raises(SpaceError, match="left/action_mask and right/action_mask are masks, expected one"):
        AgentKind("any", both, HANDS)
    kind = AgentKind("any", spaces.Box(0, 1), CARDS)
    with pytest.raises(MaskError, match=r"got \[0.0, -inf, 0.0\], expected 1 where allowed and 0 where forbidden"):
        kind.mask(np.zeros(1), np.array([0, -np.inf, 0]))
    with pytest.raises(MaskError, match="action_mask: got 0 entries, expected 3"):
        kind.mask(np.zeros(1), ())


class Closing(gymnasium.Env):
    """Allows nothing from the second step on; `lacking`: shows no mask then."""

    observation_space: Any = spaces.Dict({"seen": spaces.Box(0, 1, (1,)), "action_mask": bits(3)})
    action_space: Any = CARDS

    def __init__(self, *, lacking: bool = False) -> None:
        self.lacking = lacking

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"seen": np.zeros(1), "action_mask": np.ones(3)}, {}

    def step(self, action: Any) -> Any:
        obs = {"seen": np.zeros(1)} | ({} if self.lacking else {"action_mask": np.zeros(3)})
        return obs, 0.0, False, False, {}


def test_a_mask_that_forbids_all_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    env = stairs_env(Closing())
    message = env.reset()
    assert not caplog.records
    for _ in range(2):
        message = env.step(choose(message))
    assert message.steps["Stairs-v0"].deciding.action_mask.tolist() == [[False] * 3]
    assert [record.message for record in caplog.records] == [
        "worker 3 (gymnasium:Stairs-v0), area 0, agent 'agent', action_mask: every choice of branch 0 is forbidden. "
        "One is drawn from all of them then, with equal probabilities; leave one allowed."
    ]


def test_a_mask_that_is_missing_is_an_error_of_the_environment() -> None:
    env = stairs_env(Closing(lacking=True))
    message = env.reset()
    message = env.step(choose(message))
    assert "agent 'agent', action_mask: there is no part 'action_mask'" in message.faults[0].why
