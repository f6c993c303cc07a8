"""JAX-native environments by short name. A new one is one file, one `make_<name>` function and one line here.

JAX is imported when an environment is made, so that a trainer can look up a name before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.jax_envs.interface import JaxEnv

_FILES = ("ball3d", "basic", "baton_pass", "dungeon_escape", "push_block", "simple_spread", "soccer_twos")


def _make(name: str) -> JaxEnv:
    return getattr(import_module(f"jaxrl.jax_envs.{name}"), f"make_{name}")()


ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {name: partial(_make, name) for name in _FILES}
"""Functions that make a `JaxEnv` with its usual settings, by the name used in `jax:NAME` and `player:NAME`."""
