"""Connectors: what stands between an environment and a policy, by the `type` that a configuration file names.

    behaviors:
      Ball:
        connectors: [{type: clip, low: -5, high: 5}, {type: frame_stack, frames: 4}]

A new connector is one file with its function `make_<type>`, a class of settings in
`settings/connectors.py` and one line here. One's own is registered from Python, before settings are made:

    jaxrl.connectors.register("my_thing", MySettings, make_my_thing)

Without connectors nothing of this is imported or computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from jaxrl.settings.connectors import CONNECTORS, ConnectorSettings
from jaxrl.types import BehaviorSpec

if TYPE_CHECKING:
    from jaxrl.connectors.chain import Chain
    from jaxrl.connectors.interface import Maker

MAKERS: dict[str, str | Maker] = {
    "clip": "jaxrl.connectors.elementwise",
    "flatten": "jaxrl.connectors.flatten",
    "frame_stack": "jaxrl.connectors.frame_stack",
    "mask": "jaxrl.connectors.mask",
    "normalize": "jaxrl.connectors.normalize",
    "normalize_rewards": "jaxrl.connectors.normalize",
    "one_hot": "jaxrl.connectors.one_hot",
    "previous_action": "jaxrl.connectors.previous_action",
    "previous_reward": "jaxrl.connectors.previous_action",
    "scale": "jaxrl.connectors.elementwise",
    "unsquash": "jaxrl.connectors.unsquash",
}
"""The registry: the module of each type, or its function. Modules import JAX, hence by name."""


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
            links.append(_maker(written.type)(before, written))
        except ConnectorError as error:
            whose = f"behavior '{behavior}': " if behavior else ""
            raise ConnectorError(f"{whose}connectors[{i}] ({written.type}): {error}") from None
    return Chain(spec, tuple(links), tuple(written.type for written in settings))


def _maker(name: str) -> Maker:
    home = MAKERS[name]
    return getattr(import_module(home), f"make_{name}") if isinstance(home, str) else home
