"""The trunk of the image encoder `resnet` (IMPALA's, Espeholt et al. 2018, arXiv 1802.01561): three stacks.

A stack is filters 3 x 3, a maximum pool 3 x 3 with stride 2, and two residual blocks
    x + filters(swish(filters(swish(x)))).
"""

from __future__ import annotations

import flax.linen as nn
import jax

from jaxrl.networks.convolution import Convolution, convolution_onnx, max_pool, max_pool_onnx, pooled
from jaxrl.networks.onnx_graph import OnnxGraph

CHANNELS = (16, 32, 32)
BLOCKS = 2
SIDE, PADDING = 3, 1


class ResnetTrunk(nn.Module):
    """[N, H, W, C] -> [N, h, w, 32] behind a last swish."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, channels in enumerate(CHANNELS):
            x = max_pool(_filters(channels, f"stack_{i}")(x))
            for j in range(BLOCKS):
                inner = _filters(channels, f"stack_{i}_block_{j}_first")(nn.swish(x))
                x = x + _filters(channels, f"stack_{i}_block_{j}_second")(nn.swish(inner))
        return nn.swish(x)


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


def _filters(channels: int, name: str) -> Convolution:
    return Convolution(channels, SIDE, padding=PADDING, name=name)
