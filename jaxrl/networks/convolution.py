"""Parts of image trunks beside the fast filters of `filters.py`: parameters, XLA's convolution, pooling.

Kernels are [k, k, inputs, outputs].
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.initializers import uniform
from jaxrl.networks.onnx_graph import OnnxGraph

POOL_SIDE, POOL_STRIDE = 3, 2


class Kernel(nn.Module):
    """Parameters of `features` square filters over `inputs` channels: [side, side, inputs, features] and a bias."""

    features: int
    side: int

    @nn.compact
    def __call__(self, inputs: int, dtype: str) -> tuple[jax.Array, jax.Array]:
        limit = 1.0 / math.sqrt(self.side * self.side * inputs)
        kernel = self.param("kernel", uniform(limit), (self.side, self.side, inputs, self.features))
        bias = self.param("bias", uniform(limit), (self.features,))
        return kernel.astype(dtype), bias.astype(dtype)


def library(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """Apply XLA's convolution to x [N, H, W, C] with kernel [k, k, C, F] and `padding` zeros on each side."""
    sides = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x: jax.Array) -> jax.Array:
    """Take the maximum over 3 x 3, stride 2, no padding: [*, H, W, *] -> [*, (H - 3) // 2 + 1, (W - 3) // 2 + 1, *].

    Of equal elements the first in reading order gets the gradient. It is written as choices between slices: the
    gradient of XLA's windowed maximum is a scatter, which its CPU backend runs one element after the other.
    """
    return _max_pool_axis(_max_pool_axis(x, 2), 1)


def pooled(side: int) -> int:
    """Return the side of an image of this side after `max_pool`."""
    return (side - POOL_SIDE) // POOL_STRIDE + 1


def convolved(side: int, kernel: int, stride: int) -> int:
    """Return the side of an image of this side after a convolution without padding."""
    return (side - kernel) // stride + 1


def convolution_onnx(graph: OnnxGraph, x: str, path: str, stride: int = 1, padding: int = 0) -> str:
    """Add a convolution of the tensor x [batch, C, H, W], with its parameters at a path."""
    kernel = graph.param(f"{path}/kernel")
    weights = graph.constant(f"{path}/kernel", np.transpose(kernel, (3, 2, 0, 1)))
    bias = graph.constant(f"{path}/bias", graph.param(f"{path}/bias"))
    size = {"kernel_shape": list(kernel.shape[:2]), "strides": [stride] * 2, "pads": [padding] * 4}
    return graph.add("Conv", [x, weights, bias], path, **size)


def max_pool_onnx(graph: OnnxGraph, x: str, output: str) -> str:
    """Add `max_pool` of the tensor x [batch, C, H, W]."""
    size = {"kernel_shape": [POOL_SIDE] * 2, "strides": [POOL_STRIDE] * 2, "pads": [0] * 4}
    return graph.add("MaxPool", [x], output, **size)


def _max_pool_axis(x: jax.Array, axis: int) -> jax.Array:
    count = pooled(x.shape[axis])
    length = POOL_STRIDE * (count - 1) + 1
    best = jax.lax.slice_in_dim(x, 0, length, POOL_STRIDE, axis)
    for i in range(1, POOL_SIDE):
        other = jax.lax.slice_in_dim(x, i, i + length, POOL_STRIDE, axis)
        best = jnp.where(best >= other, best, other)
    return best
