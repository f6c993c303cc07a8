"""Forms of masks in which the odd environments tell what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

KEY = "action_mask"


class MaskForm(NamedTuple):
    """Where a mask stands and in what form: `form` makes it of one array for each branch."""

    place: str  # "infos", "beside", "deep"
    form: Callable[[list[np.ndarray]], Any]
    space_of_mask: spaces.Space | None = None  # None: in the infos

    def space(self, observation: spaces.Space) -> spaces.Space:
        """Return the observation space with the mask in it."""
        if self.space_of_mask is None:
            return observation
        inner = spaces.Dict({"seen": observation, KEY: self.space_of_mask})
        return inner if self.place == "beside" else spaces.Dict({"me": inner, "else": spaces.Discrete(2)})

    def show(self, obs: Any, infos: dict[str, Any], masks: list[np.ndarray]) -> Any:
        """Return the observation with the mask, or write it into the infos."""
        mask = self.form(masks)
        if self.space_of_mask is None:
            infos[KEY] = mask
            return obs
        inner = {**(obs if self.place == "beside" else obs["me"]), KEY: mask}
        return inner if self.place == "beside" else {**obs, "me": inner}


def bits(*shape: int) -> spaces.Space:
    return spaces.MultiBinary(shape)


def joint(masks: list[np.ndarray]) -> np.ndarray:
    """One entry for each combination."""
    return np.multiply.outer(*masks)


MASKS = {
    "infos, one array": MaskForm("infos", np.concatenate),
    "infos, bool": MaskForm("infos", lambda masks: np.concatenate(masks).astype(bool)),
    "infos, a list of numbers": MaskForm("infos", lambda masks: np.concatenate(masks).tolist()),
    "infos, a branch each": MaskForm("infos", tuple),
    "beside, one array": MaskForm("beside", np.concatenate, bits(3)),
    "beside, floats": MaskForm("beside", np.concatenate, spaces.Box(0, 1, (3,))),
    "beside, a Tuple": MaskForm("beside", tuple, spaces.Tuple([bits(2), bits(3)])),
    "deep, a Dict": MaskForm(
        "deep", lambda masks: {"bell": masks[0], "lever": masks[1]}, spaces.Dict({"lever": bits(3), "bell": bits(2)})
    ),
    "deep, rows": MaskForm("deep", np.stack, bits(2, 3)),
    "beside, joint": MaskForm("beside", joint, bits(3, 3)),
    "infos, logits": MaskForm("infos", lambda masks: np.where(np.concatenate(masks), 0.0, -np.inf)),
    "beside, too long": MaskForm("beside", lambda masks: np.ones(4), bits(4)),
    "infos, too short": MaskForm("infos", lambda masks: np.concatenate(masks)[:-1]),
}
