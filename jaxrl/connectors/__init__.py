"""Connectors: functions between an environment and a policy, by the `type` that a configuration file names.

    behaviors:
      Ball:
        connectors: [{type: clip, low: -5, high: 5}, {type: frame_stack, frames: 4}]

A new connector is a file with its function `make_<type>` and a class of settings in `settings/connectors.py`. A user's
own connector is registered from Python, before settings are made:

    jaxrl.connectors.register("my_thing", MySettings, make_my_thing)

Behaviors without connectors import and compute nothing of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.registry import Registry
from jaxrl.settings.connectors import CONNECTORS, ConnectorSettings
from jaxrl.types import BehaviorSpec

if TYPE_CHECKING:
    from jaxrl.connectors.chain import Chain
    from jaxrl.connectors.interface import Maker

_FILES = {
    "clip": "elementwise",
    "normalize_rewards": "normalize",
    "previous_reward": "previous_action",
    "scale": "elementwise",
}
"""File of a type's function by type, where it is not called like the type."""
MAKERS: Registry[str, Maker] = Registry(
    {name: f"jaxrl.connectors.{_FILES.get(name, name)}:make_{name}" for name in CONNECTORS}
)
"""Functions that make the connectors, by type."""


def register(name: str, settings: type[ConnectorSettings], make: Maker) -> None:
    """Register a user's own connector under a `type`, for configuration files that are read from now on.

    Args:
      name: the type.
      settings: class of its settings, below `ConnectorSettings`; `remembers` if an agent's `slot` is not empty.
      make: (spec, settings) → `interface.Connector`.

    Raises ConnectorError if the name is taken.
    """
    from jaxrl.connectors.interface import ConnectorError

    if name in CONNECTORS:
        raise ConnectorError(f"a connector of type {name} is there already: choose another name")
    CONNECTORS[name] = settings
    MAKERS[name] = make


def make_chain(spec: BehaviorSpec, settings: Sequence[ConnectorSettings], behavior: str = "") -> Chain | None:
    """Make the chain of connectors of a behavior whose environment has this spec; None without settings.

    Raises ConnectorError for a connector that does not fit its input; the text names it and the `behavior`.
    """
    if not settings:
        return None
    from jaxrl.connectors.chain import Chain
    from jaxrl.connectors.interface import ConnectorError

    links = []
    for i, written in enumerate(settings):
        before = links[-1].spec if links else spec
        try:
            links.append(MAKERS[written.type](before, written))
        except ConnectorError as error:
            whose = f"behavior '{behavior}': " if behavior else ""
            raise ConnectorError(f"{whose}connectors[{i}] ({written.type}): {error}") from None
    return Chain(tuple(links), tuple(written.type for written in settings))
