"""Sensors of every kind from a player's process over real gRPC and through a worker's: what is shown arrives."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gallery_player import LENGTH, MEMBERS, SPEC, shown
from unity_build import free_port

from jaxrl.envs.player.messages import ObservationWriter, channel_mapping, encode_png
from jaxrl.envs.protobuf import messages
from jaxrl.envs.sensors import IMAGE_PROPERTIES, IMAGE_PROPERTIES_LAST
from jaxrl.envs.unity.decode import decode_spec, decode_steps
from jaxrl.envs.unity.images import decode_png
from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, JaxrlError, ObservationSpec

AREAS, BEHAVIOR = 2, "Gallery?team=0"


def test_what_the_environment_shows_is_what_arrives_bit_for_bit(tmp_path):
    """Cameras, a grid of 7 channels, grey, floats, entities, goals; decisions and endings; bytes stay bytes."""
    build, script = tmp_path / "gallery.x86_64", Path(__file__).with_name("gallery_player.py")
    build.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    build.chmod(0o755)
    arguments = {"file_name": str(build), "base_port": free_port(), "num_areas": AREAS, "log_folder": str(tmp_path)}
    with EnvPool(partial(make_unity, arguments, 1, True, False), 1) as pool:
        pool.reset({})
        (result,) = pool.recv()
        assert result.new_specs[BEHAVIOR] == SPEC
        for clock in range(1, 2 * LENGTH + 1):
            count = AREAS * MEMBERS
            action = Action(np.zeros((count, 1), np.float32), np.zeros((count, 0), np.int32))
            pool.send(0, {BEHAVIOR: action})
            (result,) = pool.recv()
            steps = result.steps[BEHAVIOR]
            _same(steps.deciding.obs, shown(AREAS, clock % LENGTH))
            if clock % LENGTH == 0:
                _same(steps.ended.obs, shown(AREAS, LENGTH))


def _same(arrived: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for sensor, found, wanted in zip(SPEC.observations, arrived, expected, strict=True):
        assert found.dtype == sensor.dtype, sensor.name
        np.testing.assert_array_equal(found, wanted.reshape(-1, *sensor.shape), err_msg=sensor.name)


@pytest.mark.parametrize("channels", range(1, 8))
def test_pictures_of_any_number_of_channels(channels):
    images = np.random.default_rng(channels).integers(256, size=(3, channels, 4, 5), dtype=np.uint8)
    files = encode_png(images.transpose(0, 2, 3, 1))
    assert [data.count(b"IEND") for data in files] == [-(-channels // 3)] * 3
    for data, image in zip(files, images, strict=True):
        found = np.zeros_like(image)
        decode_png(data, found, tuple(channel_mapping(channels)))
        np.testing.assert_array_equal(found, image)


def test_the_mapping_fills_the_last_picture():
    assert [channel_mapping(n) for n in (1, 2, 3, 4)] == [[], [0, 1, -1], [], [0, 1, 2, 3, -1, -1]]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("properties", [(), IMAGE_PROPERTIES, IMAGE_PROPERTIES_LAST])
def test_orders_of_axes_that_a_spec_may_have(properties, dtype):
    """Without marks the first axis is the channels; one that shows (H, W, C) says so, and is turned."""
    spec = BehaviorSpec((ObservationSpec("eye", (2, 3, 4), properties, dtype=dtype),), ActionSpec(1, ()))
    images = np.arange(24).reshape(1, 2, 3, 4).astype(dtype)
    info = messages().AgentInfoProto()
    info.MergeFromString(ObservationWriter(spec).write(np.zeros((1, 0), np.uint8), (images,))[0])
    wire = decode_spec("B", messages().BrainParametersProto(), info)
    turned = images.transpose(0, 3, 1, 2) if properties == IMAGE_PROPERTIES_LAST else images
    (sensor,) = wire.behavior.observations
    assert (sensor.shape, sensor.dimension_property, sensor.dtype) == (turned.shape[1:], IMAGE_PROPERTIES, dtype)
    np.testing.assert_array_equal(decode_steps("B", [info], wire).deciding.obs[0], turned)


def test_what_no_player_can_send():
    def writer(shape, properties=()) -> ObservationWriter:
        sensor = ObservationSpec("eye", shape, properties, dtype="uint8")
        return ObservationWriter(BehaviorSpec((sensor,), ActionSpec(1, ())))

    with pytest.raises(JaxrlError, match=r"'eye' sends PNG, but its shape \(5,\) .* or declare it float32"):
        writer((5,), (DimensionProperty.NONE,))
    with pytest.raises(JaxrlError, match="'eye' is declared uint8, the environment gives float32"):
        writer((3, 4, 5)).write(np.zeros((1, 0), np.uint8), (np.zeros((1, 3, 4, 5), np.float32),))
