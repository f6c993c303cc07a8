"""Settings of networks: body, image encoder, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from jaxrl.settings.section import Boolean, Count, Integer, Location, Section


class MemorySettings(Section):
    """Recurrent memory (LSTM). Its presence turns memory on."""

    sequence_length: Count = Field(default=64, description="steps that gradients flow back through; at most batch_size")
    memory_size: Integer = Field(
        default=128, gt=0, description="numbers kept between steps (hidden plus cell state), even"
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """`memory_size` is shared by two equal halves, hidden and cell state."""
        if self.memory_size % 2:
            yield ("memory_size",), f"got {self.memory_size}, expected an even number (hidden and cell state)"


class NetworkSettings(Section):
    """Layout of one network."""

    normalize: Boolean = Field(
        default=False, description="standardize vector observations by their running mean and deviation"
    )
    hidden_units: Count = Field(default=128, description="width H of every hidden layer")
    num_layers: Count = Field(default=2, description="hidden layers of the body")
    vis_encode_type: Literal["simple", "nature_cnn", "resnet", "match3", "fully_connected"] = Field(
        default="simple", description="image encoder; smallest image 20, 36, 15, 5 and 1 pixels squared"
    )
    memory: MemorySettings | None = Field(default=None, description="recurrent memory; null: none")
    goal_conditioning_type: Literal["hyper", "none"] = Field(
        default="hyper", description="how a goal observation enters: hyper network, or like any other observation"
    )
    deterministic: Boolean = Field(
        default=False, description="act with the mean or most likely action while collecting"
    )
