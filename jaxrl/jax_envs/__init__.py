"""JAX-native environments by short name. A new one is one file and one line here."""

from jaxrl.jax_envs.dungeon_escape import make_dungeon_escape

ENVIRONMENTS = {
    "dungeon_escape": make_dungeon_escape,
}
"""Functions that make a `JaxEnv` with its usual settings, by the name used in `player:NAME` and `jaxrl make-player`."""
