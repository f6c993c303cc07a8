"""What the networks read of a behavior's settings (`jaxrl.settings.NetworkSettings` is one such object)."""

from __future__ import annotations

from typing import Protocol


class NetworkShape(Protocol):
    """Sizes of a network. Must be hashable (frozen)."""

    @property
    def hidden_units(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
