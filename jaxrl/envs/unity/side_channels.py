"""Side channels: statistics of the environment for TensorBoard, and a manager that warns once per channel."""

from __future__ import annotations

import importlib
import logging
import struct
import uuid
from typing import Any

from jaxrl.envs.player.channels import STATS, TRAINING_ANALYTICS, frames
from jaxrl.envs.protobuf import register
from jaxrl.envs.unity.decode import InvalidMessage
from jaxrl.types import Aggregation, EnvironmentStat, ParameterValue, SamplerSpec

register()
_package = importlib.import_module("mlagents_envs.side_channel.side_channel")
_manager = importlib.import_module("mlagents_envs.side_channel.side_channel_manager")
_incoming = importlib.import_module("mlagents_envs.side_channel.incoming_message")
_logger = logging.getLogger(__name__)


class StatsChannel(_package.SideChannel):
    """Collects (name, value, aggregation) in the order in which the environment sent them."""

    def __init__(self) -> None:
        super().__init__(STATS)
        self._stats: list[EnvironmentStat] = []

    def on_message_received(self, msg: Any) -> None:
        """Payload: name (int32 length, ASCII), value (float32), aggregation (int32).

        Raises:
            InvalidMessage: an aggregation that the protocol does not know.
        """
        name, value, number = msg.read_string(), msg.read_float32(), msg.read_int32()
        try:
            aggregation = Aggregation(number)
        except ValueError as error:
            known = ", ".join(f"{item.value} {item.name}" for item in Aggregation)
            raise InvalidMessage(
                f"statistic {name!r}: unknown aggregation {number}, expected one of {known}"
            ) from error
        self._stats.append(EnvironmentStat(name=name, value=value, aggregation=aggregation))

    def take(self) -> tuple[EnvironmentStat, ...]:
        """Return all statistics since the last call."""
        stats, self._stats = tuple(self._stats), []
        return stats


class SilentChannel(_package.SideChannel):
    """Replaces the package's training analytics, which the Editor forwards to Unity: sends and reads nothing."""

    ID = TRAINING_ANALYTICS

    def __init__(self) -> None:
        super().__init__(self.ID)

    def on_message_received(self, msg: Any) -> None:
        """Ignore the message: nothing in it is for a trainer."""


class ChannelManager(_manager.SideChannelManager):
    """Hands each channel its messages, whose frames are those of `envs/player/channels.py`."""

    def __init__(self, side_channels: list[Any]) -> None:
        super().__init__(side_channels)
        self._channels = {channel.channel_id: channel for channel in side_channels}
        self._warned: set[uuid.UUID] = set()

    def process_side_channel_message(self, data: bytes) -> None:
        """Deliver all frames of one message.

        Raises:
            InvalidMessage: a frame is cut off, or a channel cannot read its payload.
        """
        for id_, payload in frames(data, InvalidMessage):
            if id_ in self._channels:
                try:
                    self._channels[id_].on_message_received(_incoming.IncomingMessage(payload))
                except (struct.error, UnicodeDecodeError) as error:
                    raise InvalidMessage(f"side channel {id_}: cannot read {len(payload)} bytes: {error}") from error
            elif id_ not in self._warned:
                self._warned.add(id_)
                _logger.warning("data of unknown side channel %s is ignored (this is said once per channel)", id_)


def send_parameter(channel: Any, name: str, value: ParameterValue) -> None:
    """Send an environment parameter through mlagents-envs' channel: a number, or a sampler's description."""
    if not isinstance(value, SamplerSpec):
        channel.set_float_parameter(name, float(value))
    elif value.kind == "uniform":
        channel.set_uniform_sampler_parameters(name, *value.values, value.seed)
    elif value.kind == "gaussian":
        channel.set_gaussian_sampler_parameters(name, *value.values, value.seed)
    else:
        intervals = list(zip(value.values[::2], value.values[1::2], strict=True))
        channel.set_multirangeuniform_sampler_parameters(name, intervals, value.seed)
