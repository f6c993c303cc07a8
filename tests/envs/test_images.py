"""Compressed images against visible numbers and against the package's own decoder, and faulty ones."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from jaxrl.envs.protobuf import messages, register
from jaxrl.envs.unity.decode import InvalidMessage, decode_steps
from jaxrl.envs.unity.images import ImageError, channel_axis, decode_png
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

register()
from mlagents_envs import rpc_utils  # noqa: E402, importable after register()

m = messages()
NONE, MOVES = DimensionProperty.NONE, DimensionProperty.TRANSLATIONAL_EQUIVARIANCE


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("mapping", [[], [0, 1, 2, 3, 3, 3], [1, 0, 2, -1, 3, 3], [0, 1, 2, 3, -1, -1]])
@pytest.mark.parametrize("channels_first", [False, True])
def test_images_equal_the_packages_decoder(mapping, channels_first):
    """The package knows (H, W, C) alone; (C, H, W) is the same with the axis moved."""
    rng = np.random.default_rng(0)
    data = b"".join(png(rng.integers(256, size=(4, 5, 3))) for _ in range(2))
    shape, properties = ((4, 4, 5), (NONE, MOVES, MOVES)) if channels_first else ((4, 5, 4), (MOVES, MOVES, NONE))
    spec = BehaviorSpec(observations=(ObservationSpec("camera", shape, properties),), action=ActionSpec(1, ()))
    info = m.AgentInfoProto(id=1)
    info.observations.add(shape=shape, compression_type=m.PNG, compressed_data=data, compressed_channel_mapping=mapping)
    expected = rpc_utils.process_pixels(data, 4, mapping)
    image = decode_steps("B", [info, info], spec).deciding.obs[0]
    assert image.shape == (2, *shape)
    np.testing.assert_allclose(np.moveaxis(image[1], 0, 2) if channels_first else image[1], expected, atol=1e-6)


def test_golden_grey_image():
    # Mean of 0, 51 and 255 is 102; 102 / 255 = 0.4.
    pixels = np.broadcast_to(np.array([0, 51, 255]), (2, 3, 3))
    np.testing.assert_allclose(decode_png(png(pixels), (1, 2, 3), 0), np.full((1, 2, 3), 0.4), rtol=1e-6)
    np.testing.assert_allclose(decode_png(png(pixels), (2, 3, 1), 2), np.full((2, 3, 1), 0.4), rtol=1e-6)
    np.testing.assert_allclose(decode_png(png(pixels[..., 1]), (1, 2, 3), 0), np.full((1, 2, 3), 0.2), rtol=1e-6)


def test_compressed_and_plain_agents_in_one_message():
    spec = BehaviorSpec(observations=(ObservationSpec("camera", (2, 2, 3)),), action=ActionSpec(1, ()))
    image, plain = m.AgentInfoProto(id=1), m.AgentInfoProto(id=2)
    data = png(np.full((2, 2, 3), 255))
    image.observations.add(shape=(2, 2, 3), compression_type=m.PNG, compressed_data=data)
    plain.observations.add(shape=(2, 2, 3)).float_data.data.extend([0.5] * 12)
    obs = decode_steps("B", [image, plain], spec).deciding.obs[0]
    assert (obs[0] == 1).all() and (obs[1] == 0.5).all()
    plain.observations[0].float_data.data.pop()
    with pytest.raises(InvalidMessage, match=r"agent 2, sensor 0 .* received \(2, 2, 3\) with 11 numbers"):
        decode_steps("B", [image, plain], spec)


@pytest.mark.parametrize(
    ("properties", "axis"),
    [((NONE, MOVES, MOVES), 0), ((MOVES, MOVES, NONE), 2), ((), 2), ((DimensionProperty.UNSPECIFIED,) * 3, 2)],
)
def test_channel_axis(properties, axis):
    assert channel_axis(ObservationSpec("camera", (2, 2, 3), properties)) == axis


def test_channel_axis_that_cannot_be_told():
    with pytest.raises(ImageError, match=r"\(2, 2, 3\).*'NONE', 'NONE', 'NONE'"):
        channel_axis(ObservationSpec("camera", (2, 2, 3), (NONE, NONE, NONE)))


@pytest.mark.parametrize(
    ("data", "mapping", "words"),
    [
        (b"", (), "empty"),
        (b"JPEG", (), "no PNG at byte 0 of 4"),
        (png(np.zeros((2, 2, 3)))[:-6], (), "cut off"),
        (png(np.zeros((2, 2, 3)))[:45] + b"\0" * 8 + png(np.zeros((2, 2, 3)))[53:], (), "broken PNG"),
        (png(np.zeros((2, 4, 3))), (), r"\(2, 4\), expected \(2, 2\)"),
        (png(np.zeros((2, 2))), (), "1 image channels, expected 3"),
        (png(np.zeros((2, 2, 3))), (0, 1), "lengths must be equal"),
        (png(np.zeros((2, 2, 3))), (0, 2, 2), "must use each of 0"),
    ],
)
def test_faulty_images_name_sensor_and_agent(data, mapping, words):
    spec = BehaviorSpec(observations=(ObservationSpec("camera", (2, 2, 3)),), action=ActionSpec(1, ()))
    info = m.AgentInfoProto(id=8)
    info.observations.add(
        shape=(2, 2, 3), compression_type=m.PNG, compressed_data=data, compressed_channel_mapping=mapping
    )
    with pytest.raises(InvalidMessage, match=rf"'Walker', agent 8, sensor 0 \('camera'\): .*{words}"):
        decode_steps("Walker", [info], spec)


def test_a_picture_that_would_need_any_amount_of_memory_is_refused_unopened():
    """66 bytes that announce 60,000 x 60,000 pixels, 10 GiB in colour."""
    small = png(np.zeros((2, 2, 3)))
    vast = small[:16] + (60_000).to_bytes(4, "big") * 2 + small[24:]
    with pytest.raises(ImageError, match=r"PNG of \(height, width\) \(60000, 60000\), expected \(2, 2\)"):
        decode_png(vast, (2, 2, 3), 2)
    with pytest.raises(ImageError, match="does not begin with its header"):
        decode_png(small[:12] + b"IDAT" + small[16:], (2, 2, 3), 2)
