"""JAX-native environments by short name. A new one is one file, one function and one line here.

JAX is imported when an environment is made, so that a trainer can look up a name before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.jax_envs.interface import JaxEnv


def _dungeon_escape() -> JaxEnv:
    from jaxrl.jax_envs.dungeon_escape import make_dungeon_escape

    return make_dungeon_escape()


ENVIRONMENTS = {"dungeon_escape": _dungeon_escape}
"""Functions that make a `JaxEnv` with its usual settings, by the name used in `player:NAME` and `jaxrl make-player`."""
