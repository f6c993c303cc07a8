"""Side channels of the player: what `mlagents_envs` sends is read, what the player sends is read by `mlagents_envs`."""

from __future__ import annotations

import logging
import struct

import numpy as np
import pytest

from jaxrl.envs.player.channels import ENGINE, PARAMETERS, PlayerChannels, pack_stats
from jaxrl.envs.protobuf import register
from jaxrl.types import Aggregation, EnvironmentStat, JaxrlError

register()

from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel  # noqa: E402
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel  # noqa: E402
from mlagents_envs.side_channel.side_channel_manager import SideChannelManager  # noqa: E402
from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod, StatsSideChannel  # noqa: E402


def sent(channel) -> bytes:
    return bytes(SideChannelManager([channel]).generate_side_channel_messages())


def frame(channel, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def test_numbers_hold_for_all_areas_and_the_rest_stays_as_usual():
    trainer, player = EnvironmentParametersChannel(), PlayerChannels({"speed": 1.0, "size": 7.0})
    trainer.set_float_parameter("speed", 2.5)
    player.receive(sent(trainer))
    drawn = player.draw(3)
    np.testing.assert_array_equal(drawn["speed"], np.full(3, 2.5, np.float32))
    np.testing.assert_array_equal(drawn["size"], np.full(3, 7.0, np.float32))


def test_samplers_draw_for_each_area_and_repeat_with_their_seed():
    trainer = EnvironmentParametersChannel()
    trainer.set_uniform_sampler_parameters("u", 2.0, 4.0, 5)
    trainer.set_gaussian_sampler_parameters("g", 10.0, 2.0, 6)
    trainer.set_multirangeuniform_sampler_parameters("m", [(0.0, 1.0), (5.0, 8.0)], 7)
    data, usual = sent(trainer), {"u": 0.0, "g": 0.0, "m": 0.0}
    players = [PlayerChannels(usual), PlayerChannels(usual)]
    for player in players:
        player.receive(data)
    drawn, again = (player.draw(4000) for player in players)
    for name in usual:
        np.testing.assert_array_equal(drawn[name], again[name])
    assert drawn["u"].min() >= 2.0 and drawn["u"].max() <= 4.0 and abs(drawn["u"].mean() - 3.0) < 0.05
    assert abs(drawn["g"].mean() - 10.0) < 0.2 and abs(drawn["g"].std() - 2.0) < 0.2
    low = drawn["m"] <= 1.0
    assert ((drawn["m"] >= 5.0) | low).all() and abs(low.mean() - 0.25) < 0.04  # 1 of 4 units of length


def test_engine_configuration_is_kept():
    trainer, player = EngineConfigurationChannel(), PlayerChannels({})
    trainer.set_configuration_parameters(width=84, height=48, time_scale=20.0)
    player.receive(sent(trainer))
    assert player.engine == {"resolution": (84, 48), "time scale": (20.0,)}


def test_what_nobody_knows_is_reported_once(caplog):
    trainer, player = EnvironmentParametersChannel(), PlayerChannels({"speed": 1.0})
    trainer.set_float_parameter("sped", 2.0)
    unknown = bytes(range(16)) + struct.pack("<i", 3) + b"abc"
    data = sent(trainer) + unknown
    with caplog.at_level(logging.WARNING):
        player.receive(data)
        player.receive(data)
    assert [record.getMessage() for record in caplog.records] == [
        "environment parameter 'sped' is ignored; this environment knows ['speed']",
        "data of unknown side channel 03020100-0504-0706-0809-0a0b0c0d0e0f is ignored",
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0" * 10, "cut off in the frame at byte 0"),
        (ENGINE.bytes_le + struct.pack("<i", 8) + b"abc", "cut off"),
        (frame(ENGINE, struct.pack("<i", 9)), "unknown kind 9"),
        (frame(PARAMETERS, struct.pack("<i", 400) + b"name"), "cannot read 8 bytes"),
        (
            frame(PARAMETERS, struct.pack("<i1sii", 1, b"x", 1, 0) + struct.pack("<i", 5) + bytes(8)),
            "unknown sampler 5",
        ),
        (frame(PARAMETERS, struct.pack("<i1si", 1, b"x", 0)), "cannot read 9 bytes"),
    ],
)
def test_damaged_data_is_refused(data, text):
    with pytest.raises(JaxrlError, match=text):
        PlayerChannels({"x": 0.0}).receive(data)


def test_statistics_arrive_in_order():
    channel = StatsSideChannel()
    stats = [EnvironmentStat("Environment/A", value, Aggregation.AVERAGE) for value in (1.0, 0.0)]
    stats.append(EnvironmentStat("B", 2.5, Aggregation.SUM))
    SideChannelManager([channel]).process_side_channel_message(pack_stats(stats))
    assert dict(channel.get_and_reset_stats()) == {
        "Environment/A": [(1.0, StatsAggregationMethod.AVERAGE), (0.0, StatsAggregationMethod.AVERAGE)],
        "B": [(2.5, StatsAggregationMethod.SUM)],
    }
    assert pack_stats([]) == b""
