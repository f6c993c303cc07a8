"""What the networks read of a behavior's settings (`jaxrl.settings.NetworkSettings` is one such object)."""

from __future__ import annotations

from typing import Protocol


class MemoryShape(Protocol):
    """Kind and size of a recurrent memory. Must be hashable (frozen)."""

    @property
    def memory_type(self) -> str: ...  # lstm or gru
    @property
    def memory_size(self) -> int: ...  # numbers kept between two decisions


class NetworkShape(Protocol):
    """Sizes and kinds of a network's parts. Must be hashable (frozen)."""

    @property
    def hidden_units(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def vis_encode_type(self) -> str: ...  # a name of `visual.IMAGE_ENCODERS`, or my_file.py:Name
    @property
    def body_type(self) -> str | None: ...  # my_file.py:Name, or None
    @property
    def goal_conditioning_type(self) -> str: ...  # hyper or none
    @property
    def memory(self) -> MemoryShape | None: ...
    @property
    def compute_dtype(self) -> str: ...  # float32 or bfloat16, see `encoders.as_float`
