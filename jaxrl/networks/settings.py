"""What `Memory` reads of a behavior's settings (`jaxrl.settings.networks.MemorySettings` is one such object)."""

from __future__ import annotations

from typing import Protocol


class MemoryShape(Protocol):
    """Kind and size of a recurrent memory. Must be hashable (frozen)."""

    @property
    def memory_type(self) -> str: ...  # lstm or gru
    @property
    def memory_size(self) -> int: ...  # numbers kept between two decisions
