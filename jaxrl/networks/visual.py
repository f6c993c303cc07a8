"""Images (cameras, grids) as vectors: filters, then one linear layer. All five encoders of ML-Agents.

An image encoder is a trunk, images [N, C, H, W] -> features [N, c·h·w], and one line of `IMAGE_ENCODERS` below. In all
encoders the features, channel by channel as in ML-Agents, go into a linear layer of `hidden_units`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax

from jaxrl.networks.convolution import convolution_onnx, convolved
from jaxrl.networks.encoders import EncoderInput, as_float
from jaxrl.networks.filters import SLOPE, Filters, FilterTrunk
from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.onnx_graph import ExportError, OnnxGraph
from jaxrl.networks.own import own_module, own_output
from jaxrl.networks.resnet import ResnetTrunk, resnet_features, resnet_onnx
from jaxrl.own_code import OwnCodeError
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ObservationSpec


class ImageEncoder(NamedTuple):
    """An encoder of images, one line of the registry."""

    smallest: int  # side of the smallest image, pixels
    trunk: Callable[..., nn.Module]  # (dtype=..., name=...) → module: [N, C, H, W] → [N, c·h·w]
    trunk_onnx: Callable[[OnnxGraph, str, str], str] | None  # (graph, tensor [batch, C, H, W], path) → [batch, c, h, w]
    features: Callable[[tuple[int, ...]], tuple[int, int, int]]  # (C, H, W) → (c, h, w)
    layers: tuple[Filters, ...] = ()  # layers of a trunk that has no other parts
    leaky: bool = True  # behind the linear layer: leaky ReLU, or plain


def filters(smallest: int, layers: tuple[Filters, ...]) -> ImageEncoder:
    """Make an image encoder of plain layers of filters."""

    def onnx(graph: OnnxGraph, x: str, path: str) -> str:
        for i, layer in enumerate(layers):
            x = convolution_onnx(graph, x, f"{path}/convolution_{i}", layer.stride)
            x = graph.add("LeakyRelu", [x], f"{x}/leaky", alpha=SLOPE)
        return x

    def features(shape: tuple[int, ...]) -> tuple[int, int, int]:
        channels, height, width = shape
        for layer in layers:
            height, width = (convolved(side, layer.side, layer.stride) for side in (height, width))
            channels = layer.features
        return channels, height, width

    return ImageEncoder(smallest, partial(FilterTrunk, layers), onnx, features, layers)


class VisualEncoder(nn.Module):
    """Encoder of images [..., C, H, W], float32 or uint8 (255 is 1) -> [..., hidden_units] of `compute_dtype`."""

    observation: ObservationSpec
    settings: NetworkSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        encoder = image_encoder(self.settings)
        dtype = self.settings.compute_dtype
        features = encoder.trunk(dtype=dtype, name="trunk")(x.reshape(-1, *self.observation.shape))
        dense = nn.Dense(self.settings.hidden_units, dtype=dtype, kernel_init=fan_in_normal(1.41), name="dense")
        out = dense(features)
        out = nn.leaky_relu(out, SLOPE) if encoder.leaky else nn.relu(out)
        return out.reshape(*x.shape[:-3], -1)


def visual_onnx(graph: OnnxGraph, given: EncoderInput) -> str:
    """Add `VisualEncoder` of the tensor [batch, C, H, W], float32."""
    encoder = image_encoder(given.settings)
    if encoder.trunk_onnx is None:
        raise ExportError(f"a file cannot hold the image encoder {given.settings.vis_encode_type}")
    features = encoder.trunk_onnx(graph, given.x, f"{given.path}/trunk")
    flat = graph.add("Flatten", [features], f"{given.path}/flat", axis=1)
    out = graph.dense(flat, f"{given.path}/dense")
    if encoder.leaky:
        return graph.add("LeakyRelu", [out], f"{given.path}/leaky", alpha=SLOPE)
    return graph.add("Relu", [out], f"{given.path}/relu")


def visual_problem(observation: ObservationSpec, settings: NetworkSettings) -> str:
    """Return the problem of an image that is too small for its encoder; "" for other images."""
    name, smallest = settings.vis_encode_type, image_encoder(settings).smallest
    side = min(observation.shape[1:])
    if side >= smallest:
        return ""
    fitting = [
        f"{other} ({kind.smallest} x {kind.smallest})"
        for other, kind in IMAGE_ENCODERS.items()
        if side >= kind.smallest
    ]
    return (
        f"is too small for network_settings.vis_encode_type {name}, which needs at least {smallest} x {smallest} "
        f"pixels: make the sensor's image larger, or choose {' or '.join(fitting)}"
    )


def image_encoder(settings: NetworkSettings) -> ImageEncoder:
    """Return the encoder that the settings name."""
    name = settings.vis_encode_type
    return IMAGE_ENCODERS[name] if name in IMAGE_ENCODERS else _own(name)


class OwnTrunk(nn.Module):
    """A user's own image encoder, which takes [N, H, W, C]; its parameters are those of the module itself."""

    address: str
    dtype: str

    def setup(self) -> None:
        self.module = own_module(_KEY, self.address)
        nn.share_scope(self, self.module)

    def __call__(self, x: jax.Array) -> jax.Array:
        images = as_float(x.transpose(0, 2, 3, 1), self.dtype)
        features = own_output(_KEY, self.address, self.module, None, images)
        return (features.transpose(0, 3, 1, 2) if features.ndim == 4 else features).reshape(len(x), -1)


def _own(address: str) -> ImageEncoder:
    own_module(_KEY, address)  # raises if it cannot be made

    def features(shape: tuple[int, ...]) -> tuple[int, int, int]:
        raise OwnCodeError(f"network_settings.{_KEY}: {address}: weights of PyTorch cannot be read into it")

    return ImageEncoder(1, partial(OwnTrunk, address), None, features)


_KEY = "vis_encode_type"


IMAGE_ENCODERS = {
    "simple": filters(20, (Filters(16, 8, 4), Filters(32, 4, 2))),
    "nature_cnn": filters(36, (Filters(32, 8, 4), Filters(64, 4, 2), Filters(64, 3, 1))),
    "resnet": ImageEncoder(15, ResnetTrunk, resnet_onnx, resnet_features, leaky=False),
    "match3": filters(5, (Filters(35, 3, 1), Filters(144, 3, 1))),
    "fully_connected": filters(1, ()),
}
"""Image encoders by the name that `vis_encode_type` gives."""
