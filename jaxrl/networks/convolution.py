"""Convolutions and pooling over images [N, H, W, C], as XLA's CPU backend computes them fast.

XLA's own convolution is fast on a CPU in the forward direction only: inside a loop, and an update is a loop over
minibatches, its gradients take about 10 to 60 times as long as products (64 images of 20 x 20 x 32, 64 filters 4 x 4,
one core: 427 against 10 ms). Hence on a CPU
  - without padding a convolution is a sum of matrix products, one per place in the filter, over shifted pictures;
    strides that divide the filter disappear first, as blocks of pixels become channels;
  - with padding (small filters, few channels) it stays XLA's. The gradient of its input is another forward
    convolution, and that of the filters a product per row of the filter.
Accelerators have good convolutions; there XLA's own gradients are taken.

Channels are last inside a network, whatever the observation's order. Kernels are [kh, kw, inputs, outputs]; all arrays
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.initializers import uniform
from jaxrl.networks.onnx_graph import OnnxGraph

POOL_SIDE, POOL_STRIDE = 3, 2

Convolve = Callable[[jax.Array, jax.Array], jax.Array]
"""(x [N, H, W, C], kernel [kh, kw, C, F]) → [N, H', W', F]."""


class Convolution(nn.Module):
    """`features` square filters with a bias: [N, H, W, C] -> [N, H', W', features], sides as `convolved` says."""

    features: int
    side: int
    stride: int = 1
    padding: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.shape[-1]
        limit = 1.0 / math.sqrt(self.side * self.side * inputs)
        kernel = self.param("kernel", uniform(limit), (self.side, self.side, inputs, self.features))
        bias = self.param("bias", uniform(limit), (self.features,))
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        return convolve(x, kernel, self.stride, self.padding) + bias.reshape(1, 1, 1, -1)


def convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """x [N, H, W, C] with kernel [kh, kw, C, F] -> [N, H', W', F]; `padding` zeros on each side."""
    return _convolve(x, kernel, stride, padding)


def _chosen(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """The convolution as this platform computes it fast."""
    there = partial(_library, stride=stride, padding=padding)
    here = there if padding else partial(_products, stride=stride)
    return jax.lax.platform_dependent(x, kernel, cpu=here, default=there)


def _forward(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _chosen(x, kernel, stride, padding), (x, kernel)


def _backward(
    stride: int, padding: int, saved: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def gradients_of(function: Convolve, x: jax.Array, kernel: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(function, x, kernel)[1](g)

    there = partial(gradients_of, partial(_library, stride=stride, padding=padding))
    here = partial(_padded_gradients, padding) if padding else partial(gradients_of, partial(_products, stride=stride))
    return jax.lax.platform_dependent(*saved, gradient, cpu=here, default=there)


_convolve = jax.custom_vjp(_chosen, nondiff_argnums=(2, 3))
_convolve.defvjp(_forward, _backward)


def _library(x: jax.Array, kernel: jax.Array, *, stride: int, padding: int) -> jax.Array:
    """XLA's own convolution."""
    sides = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _products(x: jax.Array, kernel: jax.Array, *, stride: int) -> jax.Array:
    """Without padding: Σ over the places of the filter of a picture shifted by it, times the kernel's matrix there."""
    x, kernel, stride = _in_blocks(x, kernel, stride)
    side, channels, features = kernel.shape[0], *kernel.shape[2:]
    height, width = (convolved(size, side, stride, 0) for size in x.shape[1:3])
    total = jnp.zeros((x.shape[0] * height * width, features), x.dtype)
    for i in range(side):
        for j in range(side):
            end = (x.shape[0], i + stride * (height - 1) + 1, j + stride * (width - 1) + 1, channels)
            shifted = jax.lax.slice(x, (0, i, j, 0), end, (1, stride, stride, 1))
            total += shifted.reshape(-1, channels) @ kernel[i, j]
    return total.reshape(-1, height, width, features)


def _in_blocks(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, jax.Array, int]:
    """Blocks of stride x stride pixels as channels, where the stride divides the filter: the same with stride 1."""
    side, (n, _, _, channels) = kernel.shape[0], x.shape
    if stride == 1 or side % stride:
        return x, kernel, stride
    places = side // stride
    height, width = (convolved(size, side, stride, 0) - 1 + places for size in x.shape[1:3])
    blocks = x[:, : height * stride, : width * stride].reshape(n, height, stride, width, stride, channels)
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(n, height, width, -1)
    kernel = kernel.reshape(places, stride, places, stride, channels, -1).transpose(0, 2, 1, 3, 4, 5)
    return blocks, kernel.reshape(places, places, stride * stride * channels, -1), 1


def _padded_gradients(
    padding: int, x: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of `_library` with stride 1, with respect to x and kernel."""
    side, channels, features = kernel.shape[0], *kernel.shape[2:]
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    by_x = _library(gradient, turned, stride=1, padding=side - 1 - padding)
    height, width = gradient.shape[1:3]
    wide = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    columns = jnp.concatenate([wide[:, :, j : j + width] for j in range(side)], axis=-1)
    flat = gradient.reshape(-1, features)
    by_kernel = [
        jax.lax.dot_general(columns[:, i : i + height].reshape(len(flat), -1), flat, (((0,), (0,)), ((), ())))
        for i in range(side)
    ]
    return by_x, jnp.stack(by_kernel).reshape(side, side, channels, features)


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 3 x 3 with stride 2, no padding: [N, H, W, C] -> [N, (H - 3) // 2 + 1, (W - 3) // 2 + 1, C].

    Of equal ones the first in reading order gets the gradient. Written as choices between slices: the gradient of
    XLA's windowed maximum is a scatter, which its CPU backend runs one element after the other.
    """
    return _max_pool_axis(_max_pool_axis(x, 2), 1)


def pooled(side: int) -> int:
    """What `max_pool` leaves of a side."""
    return (side - POOL_SIDE) // POOL_STRIDE + 1


def convolved(side: int, kernel: int, stride: int, padding: int) -> int:
    """What a convolution leaves of a side."""
    return (side + 2 * padding - kernel) // stride + 1


def convolution_onnx(graph: OnnxGraph, x: str, path: str, stride: int = 1, padding: int = 0) -> str:
    """`Convolution` with its parameters at a path, on the tensor x [batch, C, H, W]."""
    kernel = graph.param(f"{path}/kernel")
    weights = graph.constant(f"{path}/kernel", np.transpose(kernel, (3, 2, 0, 1)))
    bias = graph.constant(f"{path}/bias", graph.param(f"{path}/bias"))
    size = {"kernel_shape": list(kernel.shape[:2]), "strides": [stride] * 2, "pads": [padding] * 4}
    return graph.add("Conv", [x, weights, bias], path, **size)


def max_pool_onnx(graph: OnnxGraph, x: str, output: str) -> str:
    """`max_pool` of the tensor x [batch, C, H, W]."""
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
