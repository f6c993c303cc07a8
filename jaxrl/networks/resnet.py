"""The trunk of the image encoder `resnet` (IMPALA's, Espeholt et al. 2018, arXiv 1802.01561): three stacks.

A stack is filters 3 x 3, a maximum pool 3 x 3 with stride 2, and two residual blocks
    x + filters(swish(filters(swish(x)))).
"""

from __future__ import annotations

import flax.linen as nn
import jax

from jaxrl.networks.convolution import Kernel, convolution_onnx, max_pool, max_pool_onnx, padded, pooled
from jaxrl.networks.encoders import as_float
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.shapes import as_row

CHANNELS = (16, 32, 32)
BLOCKS = 2
SIDE, PADDING = 3, 1


class ResnetTrunk(nn.Module):
    """[N, C, H, W] -> [N, 32·h·w] of `dtype`, behind a last swish."""

    dtype: str

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = as_float(images.transpose(0, 2, 3, 1), self.dtype)
        for i, channels in enumerate(CHANNELS):
            x = max_pool(_Layer(channels, name=f"stack_{i}")(x))
            for j in range(BLOCKS):
                inner = _Layer(channels, name=f"stack_{i}_block_{j}_first")(nn.swish(x))
                x = x + _Layer(channels, name=f"stack_{i}_block_{j}_second")(nn.swish(inner))
        return nn.swish(x).transpose(0, 3, 1, 2).reshape(len(images), -1)


class _Layer(nn.Module):
    """Filters 3 x 3 that keep the picture's size: [N, H, W, C] -> [N, H, W, features]."""

    features: int

    def setup(self) -> None:
        self.weights = Kernel(self.features, SIDE)
        nn.share_scope(self, self.weights)

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, bias = self.weights(x.shape[-1], x.dtype.name)
        return padded(x, kernel, PADDING) + as_row(bias, x)


def resnet_onnx(graph: OnnxGraph, x: str, path: str) -> str:
    """`ResnetTrunk` of the tensor x [batch, C, H, W]."""
    for i in range(len(CHANNELS)):
        x = max_pool_onnx(graph, convolution_onnx(graph, x, f"{path}/stack_{i}", 1, PADDING), f"{path}/stack_{i}/pool")
        for j in range(BLOCKS):
            block = f"{path}/stack_{i}_block_{j}"
            inner = convolution_onnx(graph, graph.swish(x), f"{block}_first", 1, PADDING)
            inner = convolution_onnx(graph, graph.swish(inner), f"{block}_second", 1, PADDING)
            x = graph.add("Add", [x, inner], f"{block}/sum")
    return graph.swish(x)


def resnet_features(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(C, H, W) -> (c, h, w)."""
    _, height, width = shape
    for _ in CHANNELS:
        height, width = pooled(height), pooled(width)
    return CHANNELS[-1], height, width
