"""What the film of Dungeon Escape says under its pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxrl.jax_envs.dungeon_escape import tell_dungeon

DOOR, PORTAL, MIDDLE, CORNER = (0, 3), (5, 0), (3, 3), (0, 5)


def state(**changes: Any) -> Any:
    """Three agents in the middle, the dragon in its corner."""
    usual = {
        "position": [MIDDLE] * 3,
        "alive": [True] * 3,
        "started": [True] * 3,
        "dragon": CORNER,
        "dragon_alive": True,
        "carrier": -1,
        "door": DOOR,
        "portal": PORTAL,
    }
    return SimpleNamespace(**{name: np.array(value) for name, value in {**usual, **changes}.items()})


SLAIN = {"dragon_alive": False, "alive": [True, True, False]}


@pytest.mark.parametrize(
    ("changes", "over", "text"),
    [
        ({}, False, "the dragon makes for the portal"),
        ({"position": [(1, 4), MIDDLE, MIDDLE]}, False, "the dragon is held"),
        ({}, True, "held out until help came"),
        ({"dragon": PORTAL}, True, "lost: the dragon is gone"),
        (SLAIN, False, "3 slew the dragon and died: the key drops"),
        ({**SLAIN, "carrier": 1}, False, "2 carries the key to the door"),
        ({**SLAIN, "carrier": 1, "position": [MIDDLE, DOOR, MIDDLE]}, True, "the door opens: escaped!"),
        ({**SLAIN, "carrier": 1}, True, "lost: too late"),
        (SLAIN, True, "lost: too late"),
        ({**SLAIN, "alive": [False] * 3}, True, "lost: nobody is left to carry the key"),
    ],
)
def test_the_caption_says_what_has_happened(changes, over, text):
    assert tell_dungeon(state(**changes), over) == text
