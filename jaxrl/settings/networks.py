"""Settings of networks: body, image encoder, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from jaxrl.plugins import Kind, offers
from jaxrl.settings.section import Boolean, Count, Integer, Location, Section, Text, expected, unwritten

ENCODERS = ("simple", "nature_cnn", "resnet", "match3", "fully_connected")
"""Image encoders of jaxrl."""


def _encoder(value: str) -> str:
    if value not in ENCODERS and not offers(Kind.ENCODER, value):
        *others, last = (f"'{name}'" for name in ENCODERS)
        raise expected(f"one of {', '.join(others)} or {last}, or your own as my_file.py:Name")
    return value


def _own(value: str) -> str:
    if not offers(Kind.BODY, value):
        raise expected("your own as my_file.py:Name or package.module:Name")
    return value


class MemorySettings(Section):
    """Recurrent memory. Its presence turns memory on."""

    sequence_length: Count = Field(default=64, description="steps that gradients flow back through; at most batch_size")
    memory_size: Integer = Field(
        default=128, gt=0, description="numbers kept between steps; even for lstm (hidden plus cell state)"
    )
    memory_type: Literal["lstm", "gru"] = Field(
        default="lstm", description="kind of cell; gru has no cell state: all numbers are hidden state"
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem if an LSTM cannot halve its `memory_size` into hidden and cell state."""
        if self.memory_type == "lstm" and self.memory_size % 2:
            yield ("memory_size",), f"got {self.memory_size}, expected an even number (hidden and cell state)"


class NetworkSettings(Section):
    """Layout of one network."""

    hints: ClassVar[Mapping[str, str]] = {
        key: f"memory.{key}" for key in ("memory_size", "sequence_length", "memory_type")
    } | {"use_recurrent": "memory"}

    normalize: Boolean = Field(
        default=False, description="standardize vector observations by their running mean and deviation"
    )
    normalize_from_data: Boolean = unwritten(
        False,
        "with normalize, mean and deviation begin with the first observations, and not with a row of zeros, which "
        "counts for long where observations are far from 0",
    )
    hidden_units: Count = Field(default=128, description="width H of every hidden layer")
    num_layers: Count = Field(default=2, description="hidden layers of the body")
    vis_encode_type: Annotated[Text, AfterValidator(_encoder)] = Field(
        default="simple",
        description="image encoder; smallest image 20, 36, 15, 5 and 1 pixels squared; or your own: my_file.py:Name",
    )
    memory: MemorySettings | None = Field(default=None, description="recurrent memory; null: none")
    goal_conditioning_type: Literal["hyper", "none"] = Field(
        default="hyper", description="how a goal observation enters: hyper network, or like any other observation"
    )
    body_type: Annotated[Text, AfterValidator(_own)] | None = unwritten(
        None, "your own hidden layers: my_file.py:Name, a flax module with fields units, layers; null: jaxrl's"
    )
    compute_dtype: Literal["float32", "bfloat16"] = unwritten(
        "float32",
        "numbers that encoders and hidden layers compute with; parameters, memory, heads, losses and Adam stay float32",
    )
    deterministic: Boolean = Field(
        default=False, description="act with the mean or most likely action while collecting"
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem for `normalize_from_data` without `normalize`."""
        if self.normalize_from_data and not self.normalize:
            yield ("normalize_from_data",), "got true, expected false without normalize: true"
