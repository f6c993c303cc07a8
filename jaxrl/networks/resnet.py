"""The trunk of the image encoder `resnet` (IMPALA's, Espeholt et al. 2018, arXiv 1802.01561): three stacks.

A stack is filters 3 x 3, a maximum pool 3 x 3 with stride 2, and two residual blocks
    x + filters(swish(filters(swish(x)))).
"""

from __future__ import annotations

import flax.linen as nn
import jax

from jaxrl.networks.convolution import Kernel, convolution_onnx, max_pool, max_pool_onnx, pooled
from jaxrl.networks.filters import Layer, Weights, features_of
from jaxrl.networks.onnx_graph import OnnxGraph

CHANNELS = (16, 32, 32)
BLOCKS = 2
SIDE, PADDING = 3, 1


class ResnetTrunk(nn.Module):
    """Trunk [N, C, H, W] -> [N, 32·h·w] of `dtype`, with a last swish."""

    dtype: str

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        channels, weights = images.shape[1], []
        for name, features in _layers():
            weights.append(Kernel(features, SIDE, name=name)(channels, self.dtype))
            channels = features
        return features_of(_through, images, tuple(weights))


def _layers() -> list[tuple[str, int]]:
    """Return names and features of the layers, in the order in which they are applied."""
    names = ["", *(f"_block_{j}_{part}" for j in range(BLOCKS) for part in ("first", "second"))]
    return [(f"stack_{i}{name}", channels) for i, channels in enumerate(CHANNELS) for name in names]


def _through(convolution: Layer, x: jax.Array, weights: Weights) -> jax.Array:
    left = iter(weights)

    def layer(x: jax.Array) -> jax.Array:
        return convolution(x, next(left), 1, PADDING)

    for _ in CHANNELS:
        x = max_pool(layer(x))
        for _ in range(BLOCKS):
            x = x + layer(nn.swish(layer(nn.swish(x))))
    return nn.swish(x)


def resnet_onnx(graph: OnnxGraph, x: str, path: str) -> str:
    """Add `ResnetTrunk` of the tensor x [batch, C, H, W]."""
    for i in range(len(CHANNELS)):
        x = max_pool_onnx(graph, convolution_onnx(graph, x, f"{path}/stack_{i}", 1, PADDING), f"{path}/stack_{i}/pool")
        for j in range(BLOCKS):
            block = f"{path}/stack_{i}_block_{j}"
            inner = convolution_onnx(graph, graph.swish(x), f"{block}_first", 1, PADDING)
            inner = convolution_onnx(graph, graph.swish(inner), f"{block}_second", 1, PADDING)
            x = graph.add("Add", [x, inner], f"{block}/sum")
    return graph.swish(x)


def resnet_features(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of the trunk's output, (C, H, W) -> (c, h, w)."""
    _, height, width = shape
    for _ in CHANNELS:
        height, width = pooled(height), pooled(width)
    return CHANNELS[-1], height, width
