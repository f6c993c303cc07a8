"""Compressed images against visible numbers and against the package's own decoder, and faulty ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from jaxrl.envs.player.messages import channel_mapping, encode_png
from jaxrl.envs.protobuf import messages, register
from jaxrl.envs.sensors import IMAGE_PROPERTIES, SensorError, WireSpec, unmarked_last, wire_sensor
from jaxrl.envs.unity.decode import InvalidMessage, decode_spec, decode_steps
from jaxrl.envs.unity.images import ImageError, decode_alike, decode_png
from jaxrl.types import ActionSpec, DimensionProperty, ObservationSpec

register()
from mlagents_envs import rpc_utils  # noqa: E402, importable after register()

m = messages()
NONE, MOVES = DimensionProperty.NONE, DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
LAST, FIRST = (MOVES, MOVES, NONE), (NONE, MOVES, MOVES)


def png(pixels, mode=None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image if mode is None else image.convert(mode)).save(file, "PNG")
    return file.getvalue()


def camera(shape, properties=LAST, dtype="uint8") -> WireSpec:
    return WireSpec((wire_sensor(ObservationSpec("camera", shape, properties, dtype=dtype)),), ActionSpec(1, ()))


def decoded(data: bytes, shape, mapping=()) -> np.ndarray:
    image = np.full(shape, 77, np.uint8)
    decode_png(data, image, mapping)
    return image


def agent_with(shape, *, number=1, data=None, numbers=None, mapping=(), properties=LAST):
    info = m.AgentInfoProto(id=number)
    sensor = info.observations.add(name="camera", shape=shape, dimension_properties=properties)
    if data is not None:
        sensor.compression_type, sensor.compressed_data = m.PNG, data
        sensor.compressed_channel_mapping.extend(mapping)
    if numbers is not None:
        sensor.float_data.data.extend(np.ravel(numbers).tolist())
    return info


@pytest.mark.parametrize("mapping", [[], [0, 1, 2, 3, 3, 3], [1, 0, 2, -1, 3, 3], [0, 1, 2, 3, -1, -1]])
@pytest.mark.parametrize("channels_first", [False, True])
def test_images_equal_the_packages_decoder(mapping, channels_first):
    """The package knows (H, W, C) and floats alone; a mean may be half a 255th away, the others are the same."""
    rng = np.random.default_rng(0)
    data = b"".join(png(rng.integers(256, size=(4, 5, 3))) for _ in range(2))
    shape, properties = ((4, 4, 5), FIRST) if channels_first else ((4, 5, 4), LAST)
    info = agent_with(shape, data=data, mapping=mapping, properties=properties)
    spec = decode_spec("B", m.BrainParametersProto(), info)
    sensor = spec.behavior.observations[0]
    assert (sensor.shape, sensor.dimension_property, sensor.dtype) == ((4, 4, 5), IMAGE_PROPERTIES, "uint8")
    expected = 255 * rpc_utils.process_pixels(data, 4, mapping).transpose(2, 0, 1)
    other = type(info)()
    other.CopyFrom(info)
    other.id += 1
    image = decode_steps("B", [info, other], spec).deciding.obs[0]
    assert image.dtype == np.uint8 and image.shape == (2, 4, 4, 5)
    whole = mapping.count(3) < 2
    np.testing.assert_allclose(image[1], expected, rtol=0, atol=1e-3 if whole else 0.501)
    np.testing.assert_array_equal(image[1][:3], np.rint(expected[:3]))


def test_golden_means():
    """Of 0, 51 and 255: 102. Of 0, 0 and 2: 0.667, so 1. Of 1 and 2: 1.5, and a half goes up: 2."""
    pixels = np.broadcast_to(np.array([0, 51, 255]), (2, 3, 3))
    assert (decoded(png(pixels), (1, 2, 3)) == 102).all()
    assert (decoded(png(pixels[..., 1]), (1, 2, 3)) == 51).all()
    assert (decoded(png(np.broadcast_to(np.array([0, 0, 2]), (2, 3, 3))), (1, 2, 3)) == 1).all()
    halves = decoded(png(np.broadcast_to(np.array([1, 9, 2]), (2, 3, 3))), (2, 2, 3), (0, 1, 0))
    assert (halves[0] == 2).all() and (halves[1] == 9).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("level", [0, 9])
def test_plain_files_and_all_others_are_read_alike(channels, level):
    """Filters 0 to 4 by hand, and mixed: unfiltered lines take the short way, everything else goes through Pillow."""
    pixels = np.random.default_rng(0).integers(256, size=(3, 4, channels), dtype=np.uint8)
    lines = pixels.reshape(3, 4 * channels)
    left = np.concatenate([np.zeros((3, channels), np.uint8), lines[:, :-channels]], axis=1)
    above = np.concatenate([np.zeros((1, 4 * channels), np.uint8), lines[:-1]])
    filtered = {0: lines, 1: lines - left, 2: lines - above}
    for numbers in ((0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 1, 2), (0, 0, 1)):
        content = b"".join(bytes([n]) + filtered[n][row].tobytes() for row, n in enumerate(numbers))
        packed = zlib.compress(content, level)
        for parts in ([packed], [packed[:5], packed[5:]]):
            head = struct.pack(">IIBBBBB", 4, 3, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
            data = b"\x89PNG\r\n\x1a\n" + b"".join(
                chunk(kind, part)
                for kind, part in [(b"IHDR", head), *((b"IDAT", part) for part in parts), (b"IEND", b"")]
            )
            np.testing.assert_array_equal(decoded(data, (channels, 3, 4)), pixels.transpose(2, 0, 1))


def chunk(kind: bytes, part: bytes) -> bytes:
    return struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))


def test_a_byte_that_changed_on_its_way():
    """Each one of a plain file's data, by what it breaks: the stream, its sum, or the chunk's."""
    data = encode_png(np.full((1, 2, 2, 3), 9, np.uint8))[0]
    for position in range(41, len(data) - 12):
        with pytest.raises(ImageError, match="broken PNG"):
            decoded(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :], (3, 2, 2))


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7])
def test_files_that_are_alike_are_read_at_once(channels):
    """The same pixels as one by one; with any byte of the second file changed, or a file that is packed: not at all."""
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, channels), np.uint8)
    files, mapping = encode_png(images), tuple(channel_mapping(channels))
    found, expected = np.zeros((2, 3, channels, 4, 5), np.uint8)
    assert decode_alike(files, found, mapping)
    for file, image in zip(files, expected, strict=True):
        decode_png(file, image, mapping)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, images.transpose(0, 3, 1, 2))
    for at in range(len(files[1])):
        broken = files[1][:at] + bytes([files[1][at] ^ 1]) + files[1][at + 1 :]
        assert not decode_alike([files[0], broken, files[2]], found, mapping)
    assert not decode_alike([files[0], files[1][:-1], files[2]], found, mapping)
    assert not decode_alike([png(images[0, :, :, 0])] * 3, found, mapping)
    assert not decode_alike(files, found[:, :, :3], mapping)  # another height than the sensor's


def test_a_grid_of_many_channels_comes_in_several_pictures():
    """Seven channels are three pictures; the two channels that are too many are dropped. Stacked grey frames map."""
    pixels = np.arange(2 * 3 * 9, dtype=np.uint8).reshape(2, 3, 9)
    data = b"".join(png(pixels[..., i : i + 3]) for i in (0, 3, 6))
    np.testing.assert_array_equal(decoded(data, (7, 2, 3)), pixels.transpose(2, 0, 1)[:7])
    mapping = (0, 1, 2, 3, 4, 5, 6, -1, -1)
    np.testing.assert_array_equal(decoded(data, (7, 2, 3), mapping), pixels.transpose(2, 0, 1)[:7])
    stacked = decoded(data[:], (3, 2, 3), (0, 0, 0, 1, 1, 1, 2, 2, 2))
    np.testing.assert_array_equal(stacked, pixels.transpose(2, 0, 1)[1::3])  # the mean of k, k + 1, k + 2 is k + 1


def test_plain_images_stay_floats_and_change_their_order():
    """(H, W, C) of 2 x 3 x 2 with the number 10 y + x + 100 c becomes (C, H, W)."""
    y, x, c = np.mgrid[:2, :3, :2]
    numbers = 10 * y + x + 100 * c
    info = agent_with((2, 3, 2), numbers=numbers)
    spec = decode_spec("B", m.BrainParametersProto(), info)
    assert spec.behavior.observations[0].dtype == "float32"
    seen = decode_steps("B", [info], spec).deciding.obs[0]
    assert seen.dtype == np.float32 and seen.flags.c_contiguous
    assert seen[0].tolist() == [[[0, 1, 2], [10, 11, 12]], [[100, 101, 102], [110, 111, 112]]]


def test_two_cameras_and_numbers_between_them():
    info = agent_with((2, 2, 3), data=png(np.full((2, 2, 3), 5)))
    info.observations.add(name="ray", shape=(2,), dimension_properties=[NONE]).float_data.data.extend([0.5, 1.5])
    grey = info.observations.add(name="back", shape=(1, 3, 4), dimension_properties=FIRST, compression_type=m.PNG)
    grey.compressed_data = png(np.full((3, 4), 9))
    spec = decode_spec("B", m.BrainParametersProto(), info)
    assert [s.shape for s in spec.behavior.observations] == [(3, 2, 2), (2,), (1, 3, 4)]
    front, ray, back = decode_steps("B", [info], spec).deciding.obs
    assert (front == 5).all() and ray.tolist() == [[0.5, 1.5]] and (back == 9).all() and back.dtype == np.uint8


def test_compressed_and_plain_agents_in_one_message():
    """The first agent of the run says which dtype it is: floats keep all, and bytes take whole 255ths."""
    image = agent_with((2, 2, 3), data=png(np.full((2, 2, 3), 255)))
    plain = agent_with((2, 2, 3), number=2, numbers=[0.5] * 12)
    obs = decode_steps("B", [image, plain], camera((2, 2, 3), dtype="float32")).deciding.obs[0]
    assert obs.dtype == np.float32 and (obs[0] == 1).all() and (obs[1] == 0.5).all()
    whole = agent_with((2, 2, 3), number=2, numbers=np.arange(12, dtype=np.float32) / np.float32(255))
    obs = decode_steps("B", [image, whole], camera((2, 2, 3))).deciding.obs[0]
    assert obs.dtype == np.uint8 and sorted(obs[1].ravel().tolist()) == list(range(12)) and obs[1, 0, 0, 1] == 3
    with pytest.raises(InvalidMessage, match=r"agent 2, sensor 0 .*no 255ths.* sent PNG; choose the same compression"):
        decode_steps("B", [image, plain], camera((2, 2, 3)))
    plain.observations[0].float_data.data.pop()
    with pytest.raises(InvalidMessage, match=r"agent 2, sensor 0 .* received \(2, 2, 3\) with 11 numbers"):
        decode_steps("B", [image, plain], camera((2, 2, 3), dtype="float32"))
    broken = agent_with((2, 2, 3), number=2, numbers=[0.5] * 11 + [float("nan")])
    with pytest.raises(InvalidMessage, match=r"agent 2, sensor 0 .*nan is not a finite"):
        decode_steps("B", [image, broken], camera((2, 2, 3), dtype="float32"))


@pytest.mark.parametrize(
    ("properties", "last"),
    [(FIRST, False), (LAST, True), ((), True), ((DimensionProperty.UNSPECIFIED,) * 3, True)],
)
def test_where_the_channels_are(properties, last):
    sensor = wire_sensor(ObservationSpec("camera", (4, 5, 6), properties))
    assert (sensor.channels_last, sensor.shape, sensor.is_image) == (last, (4, 5, 6), True)
    assert sensor.spec.shape == ((6, 4, 5) if last else (4, 5, 6))
    assert sensor.spec.dimension_property == IMAGE_PROPERTIES


@pytest.mark.parametrize(
    ("version", "last"), [("2.3.0-exp.3", True), ("3.0.0", False), ("4.0.0-pre.1", False), ("", True), ("dev", True)]
)
def test_without_marks_the_version_of_the_package_tells(version, last):
    assert unmarked_last(version) == last
    info = agent_with((2, 4, 5), numbers=np.zeros(40), properties=())
    spec = decode_spec("B", m.BrainParametersProto(), info, unmarked_last(version))
    assert spec.behavior.observations[0].shape == ((5, 2, 4) if last else (2, 4, 5))


def test_channels_that_cannot_be_told():
    """A block of floats without sides is no image, and nobody turns it around; as PNG it is refused."""
    block = ObservationSpec("block", (2, 3, 4), (NONE, NONE, NONE))
    assert wire_sensor(block).spec == block
    with pytest.raises(SensorError, match=r"'block' sends PNG, but its shape \(2, 3, 4\) .*'NONE', 'NONE', 'NONE'"):
        wire_sensor(block._replace(dtype="uint8"))
    info = agent_with((6,), data=b"", properties=(NONE,))
    with pytest.raises(InvalidMessage, match=r"behavior 'Walker': sensor 'camera' sends PNG, but its shape \(6,\)"):
        decode_spec("Walker", m.BrainParametersProto(), info)


@pytest.mark.parametrize(
    ("data", "mapping", "words"),
    [
        (b"", (), "empty"),
        (b"JPEG", (), "no PNG at byte 0 of 4"),
        (png(np.zeros((2, 2, 3)))[:-6], (), "cut off"),
        (png(np.zeros((2, 2, 3)))[:45] + b"\0" * 8 + png(np.zeros((2, 2, 3)))[53:], (), "broken PNG"),
        (png(np.zeros((2, 4, 3))), (), r"\(2, 4\), expected \(2, 2\); a camera keeps its size"),
        (png(np.zeros((2, 2))), (), "1 image channels, expected 3"),
        (png(np.zeros((2, 2, 3))), (0, 1), "lengths must be equal"),
        (png(np.zeros((2, 2, 3))), (0, 2, 2), "must use each of 0"),
        (png(np.zeros((2, 2, 3)), "P"), (), "PNG of kind P, expected 8 bits"),
        (png(np.zeros((2, 2, 3)), "1"), (), "PNG of kind 1, expected 8 bits"),
    ],
)
def test_faulty_images_name_sensor_and_agent(data, mapping, words):
    info = agent_with((2, 2, 3), number=8, data=data, mapping=mapping)
    with pytest.raises(InvalidMessage, match=rf"'Walker', agent 8, sensor 0 \('camera'\): .*{words}"):
        decode_steps("Walker", [info], camera((2, 2, 3)))


def test_a_camera_that_changes_its_size():
    info = agent_with((4, 4, 3), number=8, data=png(np.zeros((4, 4, 3))))
    words = r"expected shape \(2, 2, 3\), received \(4, 4, 3\) with an image; a camera or grid must keep its size"
    with pytest.raises(InvalidMessage, match=rf"'Walker', agent 8, sensor 0 \('camera'\): {words}"):
        decode_steps("Walker", [info], camera((2, 2, 3)))


def test_a_second_header_is_refused():
    """The size of the first one is checked, a reader takes that of the last."""
    small, large = png(np.zeros((4, 4, 3))), png(np.zeros((3000, 3000, 3)))
    with pytest.raises(ImageError, match="two headers"):
        decoded(small[:33] + large[8:], (3, 4, 4))


def test_a_picture_that_would_need_any_amount_of_memory_is_refused_unopened():
    """66 bytes that announce 60,000 x 60,000 pixels, 10 GiB in colour."""
    small = png(np.zeros((2, 2, 3)))
    vast = small[:16] + (60_000).to_bytes(4, "big") * 2 + small[24:]
    with pytest.raises(ImageError, match=r"PNG of \(height, width\) \(60000, 60000\), expected \(2, 2\)"):
        decoded(vast, (3, 2, 2))
    with pytest.raises(ImageError, match="does not begin with its header"):
        decoded(small[:12] + b"IDAT" + small[16:], (3, 2, 2))
