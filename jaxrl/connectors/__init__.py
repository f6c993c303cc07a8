"""Connectors: what stands between an environment and a policy, by the `type` that a configuration file names.

    behaviors:
      Ball:
        connectors: [{type: clip, low: -5, high: 5}, {type: frame_stack, frames: 4}]

A new connector is a file with its function `make_<type>` and a class of settings in `settings/connectors.py`. One's own
is registered from Python, before settings are made:

    jaxrl.connectors.register("my_thing", MySettings, make_my_thing)

Without connectors nothing of this is imported or computed.
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
"""By type the file of its function, where that has another name."""
MAKERS: Registry[str, Maker] = Registry(
    {name: f"jaxrl.connectors.{_FILES.get(name, name)}:make_{name}" for name in CONNECTORS}
)
"""The functions of all types."""


def register(name: str, settings: type[ConnectorSettings], make: Maker) -> None:
    """Give a connector of one's own a `type`, for configuration files that are read from now on.

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
    """The connectors of a behavior whose environment shows `spec`; None without any.

    Raises ConnectorError where one does not fit what comes to it; the text says which, and of which `behavior`.
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
