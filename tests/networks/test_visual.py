"""Image encoders against plain loops, their smallest images, first weights, and uint8 input."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxrl.networks import convolution, filters
from jaxrl.networks.encoders import UnsupportedObservationError
from jaxrl.networks.observations import ObservationEncoder, check_observations, encoding_size
from jaxrl.networks.visual import IMAGE_ENCODERS, VisualEncoder
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec, ObservationType

SMALLEST = {"simple": 20, "nature_cnn": 36, "resnet": 15, "match3": 5, "fully_connected": 1}


def make(name: str, shape: tuple[int, int, int], units: int = 8, rows: int = 2):
    """An encoder with random parameters, biases too, and random images [rows, *shape] of uint8."""
    rng = np.random.default_rng(0)
    settings = NetworkSettings(hidden_units=units, vis_encode_type=name)
    module = VisualEncoder(ObservationSpec("camera", shape), settings)
    images = rng.integers(0, 256, (rows, *shape), np.uint8)
    shapes = jax.eval_shape(module.init, jax.random.key(0), images)
    params = jax.tree.map(lambda x: rng.normal(0, 1 / x.size**0.25, x.shape).astype(np.float32), shapes)
    return module, params, images


def naive_convolution(x: np.ndarray, layer: dict, stride: int, padding: int = 0) -> np.ndarray:
    """x [C, H, W] -> [F, H', W'], one output number after the other."""
    kernel = layer["kernel"].astype(np.float64)
    x = np.pad(x, [(0, 0), (padding, padding), (padding, padding)])
    side = kernel.shape[0]
    height, width = ((size - side) // stride + 1 for size in x.shape[1:])
    out = np.zeros((kernel.shape[3], height, width))
    for i in range(height):
        for j in range(width):
            window = x[:, i * stride : i * stride + side, j * stride : j * stride + side]
            out[:, i, j] = np.einsum("chw,hwcf->f", window, kernel) + layer["bias"]
    return out


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


def swish(x):
    return x / (1 + np.exp(-x))


def naive_resnet(x: np.ndarray, trunk: dict) -> np.ndarray:
    for i in range(3):
        x = naive_convolution(x, trunk[f"stack_{i}"], 1, 1)
        height, width = ((side - 3) // 2 + 1 for side in x.shape[1:])
        windows = [
            [x[:, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3].max((1, 2)) for w in range(width)] for h in range(height)
        ]
        x = np.array(windows).transpose(2, 0, 1)
        for j in range(2):
            inner = naive_convolution(swish(x), trunk[f"stack_{i}_block_{j}_first"], 1, 1)
            x = x + naive_convolution(swish(inner), trunk[f"stack_{i}_block_{j}_second"], 1, 1)
    return swish(x)


def naive(name: str, params: dict, image: np.ndarray) -> np.ndarray:
    strides = {"simple": (4, 2), "nature_cnn": (4, 2, 1), "match3": (1, 1), "fully_connected": ()}
    trunk, x = params.get("trunk", {}), image.astype(np.float64)
    if name == "resnet":
        x = naive_resnet(x, trunk)
    else:
        for i, stride in enumerate(strides[name]):
            x = leaky(naive_convolution(x, trunk[f"convolution_{i}"], stride))
    out = x.reshape(-1) @ params["dense"]["kernel"] + params["dense"]["bias"]  # channel by channel
    return np.maximum(out, 0) if name == "resnet" else leaky(out)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("simple", (3, 21, 30)),
        ("nature_cnn", (1, 45, 37)),
        ("resnet", (2, 16, 19)),
        ("match3", (4, 5, 7)),
        ("fully_connected", (2, 1, 3)),
    ],
)
def test_numbers_are_those_of_plain_loops(name, shape):
    """A side that the strides do not divide, height unlike width, several channels."""
    module, params, images = make(name, shape)
    found = jax.jit(module.apply)(params, images)
    assert found.shape == (2, 8) and found.dtype == jnp.float32
    expected = [naive(name, params["params"], image / 255.0) for image in images]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
def test_uint8_is_the_same_as_float_over_255(name):
    side = SMALLEST[name]
    module, params, images = make(name, (3, side, side), rows=3)
    apply = jax.jit(module.apply)
    np.testing.assert_allclose(
        apply(params, images), apply(params, images.astype(np.float32) / 255), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
def test_the_smallest_image_is_read_and_a_smaller_one_refused_with_its_numbers(name):
    """One pixel less in either direction would leave nothing to flatten."""
    side = SMALLEST[name]
    settings = NetworkSettings(hidden_units=4, vis_encode_type=name)
    for shape in ((1, side, side + 2), (1, side + 2, side)):
        spec = BehaviorSpec((ObservationSpec("eye", shape),), ActionSpec(1, ()))
        encoder, image = ObservationEncoder(spec, settings), (jnp.zeros((2, *shape)),)
        found = jax.eval_shape(encoder.init_with_output, jax.random.key(0), image)[0]
        assert found.shape == (2, encoding_size(spec, settings)) == (2, 4)
    if side == 1:
        return
    for shape in ((1, side - 1, side), (1, side, side - 1)):
        spec = BehaviorSpec((ObservationSpec("v", (3,)), ObservationSpec("eye", shape)), ActionSpec(1, ()))
        words = (
            rf"behavior 'Crawler': observation 1 \('eye', shape \(1, .*{name}, which needs at least {side} x {side} pix"
        )
        with pytest.raises(UnsupportedObservationError, match=words):
            check_observations(spec, settings, "Crawler")


@pytest.mark.parametrize("goal", [ObservationType.DEFAULT, ObservationType.GOAL_SIGNAL])
def test_cameras_and_vectors_stand_side_by_side_with_any_leading_axes(goal):
    """Vector, two cameras of different kinds of number, another vector: 2 + 8 + 8 + 1 columns in this order."""
    sensors = (
        ObservationSpec("a", (2,)),
        ObservationSpec("left", (3, 5, 6), dtype="uint8", observation_type=goal),
        ObservationSpec("right", (1, 7, 5)),
        ObservationSpec("b", (1,)),
    )
    spec, settings = BehaviorSpec(sensors, ActionSpec(1, ())), NetworkSettings(hidden_units=8, vis_encode_type="match3")
    obs = tuple(jnp.ones((2, 3, *sensor.shape), sensor.dtype) for sensor in sensors)
    encoder, rng = ObservationEncoder(spec, settings), np.random.default_rng(0)
    shapes = jax.eval_shape(encoder.init, jax.random.key(0), obs)
    params = jax.tree.map(lambda x: rng.normal(0, 0.2, x.shape).astype(np.float32), shapes)
    encoding = jax.jit(encoder.apply)(params, obs)
    assert encoding.shape == (2, 3, 19) and encoding_size(spec, settings) == 19
    np.testing.assert_array_equal(encoding[..., [0, 1, 18]], 1.0)
    left = jax.jit(VisualEncoder(sensors[1], settings).apply)({"params": params["params"]["observation_1"]}, obs[1])
    np.testing.assert_allclose(encoding[..., 2:10], left, atol=1e-6)
    assert not np.allclose(encoding[..., 2:10], encoding[..., 10:18])


def test_first_weights():
    """Filters uniform within ± 1 / sqrt(inputs) with their biases, linear layer normal with 1.41 / sqrt(inputs)."""
    settings = NetworkSettings(hidden_units=256, vis_encode_type="nature_cnn")
    module = VisualEncoder(ObservationSpec("camera", (3, 52, 52)), settings)
    params = flatten_dict(jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 3, 52, 52))), sep="/")
    for layer, inputs in (("convolution_0", 3 * 64), ("convolution_1", 32 * 16), ("convolution_2", 64 * 9)):
        kernel, bias = (np.asarray(params[f"params/trunk/{layer}/{leaf}"]) for leaf in ("kernel", "bias"))
        limit = inputs**-0.5
        assert 0.98 * limit < np.abs(kernel).max() <= limit and 0.8 * limit < np.abs(bias).max() <= limit
        assert abs(kernel.std() * 3**0.5 / limit - 1) < 0.03 and abs(kernel.mean()) < 0.05 * limit
    kernel = params["params/dense/kernel"]
    assert kernel.shape == (64 * 3 * 3, 256)  # 52 -> 12 -> 5 -> 3
    assert abs(float(kernel.std()) / (1.41 / 576**0.5) - 1) < 0.01
    assert not params["params/dense/bias"].any()


def test_of_equal_pixels_the_first_gets_the_gradient_of_the_maximum():
    """A blank image: every window is a tie. 5 x 5 has 2 x 2 windows, which begin at rows and columns 0 and 2."""
    gradient = jax.grad(lambda x: convolution.max_pool(x).sum())(jnp.zeros((1, 5, 5, 1)))[0, :, :, 0]
    expected = np.zeros((5, 5))
    expected[np.ix_([0, 2], [0, 2])] = 1
    np.testing.assert_array_equal(gradient, expected)


def score_and_gradients(function, *arguments):
    def score(*arguments):
        out = function(*arguments)
        return jnp.sum(jnp.sin(out)), out

    return jax.tree.leaves(jax.jit(jax.value_and_grad(score, argnums=(0, 1), has_aux=True))(*arguments))


@pytest.mark.parametrize(("images", "tiles"), [(3, (1, 3)), (19, (2, 16))])
def test_gradients_of_filters_in_tiles_are_those_of_the_library(images, tiles, monkeypatch):
    """Blocks of 2 x 2 pixels, of which the last column is left over, then filters with zeros around, and without.
    Tiles of up to 16 images: one that is not filled up, and two with 13 images that are none."""
    for name in ("TILE_PIXELS", "LEARNING_PIXELS"):
        monkeypatch.setattr(filters, name, 16 * 9 * 11 + 50)
    assert filters.tiles_of(images, 16) == tiles
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(images, 3, 9, 11)), jnp.float32)
    sizes = (((4, 4, 3, 5), 5), ((3, 3, 5, 5), 5), ((2, 2, 5, 6), 6))
    weights = tuple((0.3 * rng.normal(size=of_kernel), rng.normal(size=of_bias)) for of_kernel, of_bias in sizes)
    weights = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), weights)

    def layers(layer, x, weights):
        first, second, third = weights
        x = layer(x, first, 2, 0)
        return layer(jnp.tanh(x + layer(x, second, 1, 1)), third, 1, 0)

    ours, library = (partial(way, layers) for way in (filters.in_tiles, filters.by_library))
    for found, expected in zip(
        score_and_gradients(ours, x, weights), score_and_gradients(library, x, weights), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    several = jax.vmap(ours, in_axes=(0, None))(jnp.stack([x, x + 1]), weights)
    np.testing.assert_allclose(several[1], library(x + 1, weights), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(filters, "LEARNING_PIXELS", 32 * 9 * 11)
    loops = [
        str(jax.make_jaxpr(way)(weights)).count("scan[")
        for way in (partial(ours, x), jax.grad(lambda w: ours(x, w).sum()))
    ]
    assert loops == [int(images > 16), 0], "a gradient is taken of more images at once than values are"


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
def test_no_gradient_of_the_library_is_left_in_a_loop_on_a_cpu(name):
    """Inside a loop XLA's CPU backend takes many times as long for it (benchmarks/convolutions.py)."""
    module, params, images = make(name, (3, 36, 37), rows=2)

    def train(params, images):
        def step(params, batch):
            gradient = jax.grad(lambda p: jnp.sum(module.apply(p, batch)))(params)
            return jax.tree.map(lambda p, g: p - g, params, gradient), ()

        return jax.lax.scan(step, params, images)[0]

    text = jax.jit(train).lower(params, images[None]).as_text()
    assert "stablehlo.convolution" not in text
