"""Layers of filters over images that are fast on CPUs, and trunks that consist of them.

XLA's own convolutions are fast on a CPU in the forward direction only: inside a loop, and an update is a loop over
minibatches, their gradients take 10 to 60 times as long as products. Here a convolution is one matrix product
    y [F, h·w·n] = kernelᵀ [F, k·k·C] · places [k·k·C, h·w·n]
over the inputs of the filter at all its places, and so are both its gradients. Two things make it fast:
  - images are the last axis, [C, H, W, n], so that all copies are of long rows, and no product transposes its inputs;
  - without gradients, a few images at a time go through all layers, so that activations stay in the caches. Gradients
    need all activations, and storing them tile by tile costs more than it saves.
A stride is removed first by turning blocks of pixels into channels. Accelerators have good convolutions: they use
XLA's, with its gradients, on images [N, H, W, C].

Letters: N images, n of them in a tile, C channels, F features, k side of a filter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import mesh
from jaxrl.networks.convolution import Kernel, convolved, library
from jaxrl.networks.encoders import as_float
from jaxrl.networks.shapes import as_row

SLOPE = 0.01
"""Slope of the leaky ReLU behind every filter and linear layer."""
TILE_PIXELS, LEARNING_PIXELS, LANES = 8 * 84 * 84, 256 * 84 * 84, 8
"""Pixels of a tile, whose places about fill a core's cache; pixels of a tile with gradients, bounded by memory (80 MB
of the first layer of `nature_cnn`); and the number to whose multiples images are rounded up."""


Weights = tuple[tuple[jax.Array, jax.Array], ...]
"""Kernel [k, k, C, F] and bias [F] of each layer."""
Layer = Callable[[jax.Array, tuple[jax.Array, jax.Array], int, int], jax.Array]
"""(x, kernel and bias, stride, zeros on each side) → the layer's output, height and width on axes 1 and 2 as in x."""
Layers = Callable[[Layer, jax.Array, Weights], jax.Array]
"""(layer, images, weights) → the trunk's features, computed by such layers."""


class Filters(NamedTuple):
    """Layer of filters without padding. The stride divides the side."""

    features: int
    side: int
    stride: int


class FilterTrunk(nn.Module):
    """Layers of filters, leaky ReLU behind each: [N, C, H, W] -> [N, c·h·w] of `dtype`. No layer: the image itself."""

    layers: tuple[Filters, ...]
    dtype: str

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        if not self.layers:
            return as_float(images, self.dtype).reshape(len(images), -1)
        channels, weights = images.shape[1], []
        for i, layer in enumerate(self.layers):
            weights.append(Kernel(layer.features, layer.side, name=f"convolution_{i}")(channels, self.dtype))
            channels = layer.features

        def through(convolution: Layer, x: jax.Array, weights: Weights) -> jax.Array:
            for layer, of_layer in zip(self.layers, weights, strict=True):
                x = nn.leaky_relu(convolution(x, of_layer, layer.stride, 0), SLOPE)
            return x

        return features_of(through, images, tuple(weights))


def features_of(layers: Layers, images: jax.Array, weights: Weights) -> jax.Array:
    """Apply the layers by the method that suits the device: [N, C, H, W] -> [N, c·h·w]."""
    return (by_library if mesh.on_accelerator() else in_tiles)(layers, images, weights)


def by_library(layers: Layers, images: jax.Array, weights: Weights) -> jax.Array:
    """Apply the layers by XLA's convolutions."""

    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array], stride: int, padding: int) -> jax.Array:
        kernel, bias = weights
        x = library(as_float(x, kernel.dtype.name), kernel, stride, padding)
        return x + as_row(bias, x)

    return layers(layer, images.transpose(0, 2, 3, 1), weights).transpose(0, 3, 1, 2).reshape(len(images), -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_tiles(layers: Layers, images: jax.Array, weights: Weights) -> jax.Array:
    """Apply the layers by products over a few images at a time, or over many for a gradient."""
    return _tiled(layers, TILE_PIXELS, images, weights)


def _for_gradient(layers: Layers, images: jax.Array, weights: Weights) -> tuple[jax.Array, Any]:
    return jax.vjp(partial(_tiled, layers, LEARNING_PIXELS), images, weights)


in_tiles.defvjp(_for_gradient, lambda layers, backward, gradient: backward(gradient))


def _tiled(layers: Layers, pixels: int, images: jax.Array, weights: Weights) -> jax.Array:
    """Apply the layers to tiles of at most `pixels` pixels, or of `LANES` images."""
    count = images.shape[0]
    tiles, tile = tiles_of(count, pixels // (images.shape[2] * images.shape[3]))
    images = jnp.pad(images, [(0, tiles * tile - count)] + [(0, 0)] * 3).reshape(tiles, tile, *images.shape[1:])

    def columns(images: jax.Array) -> jax.Array:
        """Apply the layers to a tile, [n, C, H, W] -> [c·h·w, n]."""
        x = images.reshape(len(images), -1).T.reshape(*images.shape[1:], -1)
        return layers(_by_places, x, weights).reshape(-1, len(images))

    features = jax.lax.map(columns, images) if tiles > 1 else columns(images[0])[None]
    return jnp.swapaxes(features, 1, 2).reshape(tiles * tile, -1)[:count]


def tiles_of(images: int, most: int) -> tuple[int, int]:
    """Return the number of tiles and their images, at most `most` or `LANES`; one tile if devices share the rows."""
    if mesh.rows_are_spread():
        return 1, images
    tiles = -(-images // max(most, LANES))
    tile = -(-images // tiles)
    return tiles, tile if tiles == 1 else -(-tile // LANES) * LANES


def _by_places(x: jax.Array, weights: tuple[jax.Array, jax.Array], stride: int, padding: int) -> jax.Array:
    """Apply a `Layer` to images [C, H, W, n] by `convolve`."""
    kernel, bias = weights
    x, kernel = _in_blocks(x, kernel, stride)
    x = jnp.pad(as_float(x, kernel.dtype.name), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    return convolve(x, kernel) + bias.reshape(-1, 1, 1, 1)


def _in_blocks(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
    """Turn blocks of stride x stride pixels of x [C, H, W, n] and its kernel into channels, so that the stride is 1."""
    side, channels, features = kernel.shape[1:]
    if stride == 1:
        return x, kernel
    height, width, places = x.shape[1] // stride, x.shape[2] // stride, side // stride
    blocks = x[:, : height * stride, : width * stride].reshape(channels, height, stride, width, stride, -1)
    blocks = blocks.transpose(2, 4, 0, 1, 3, 5).reshape(stride * stride * channels, height, width, -1)
    kernel = kernel.reshape(places, stride, places, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return blocks, kernel.reshape(places, places, -1, features)


@jax.custom_vjp
def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve x [C, H, W, n] with kernel [k, k, C, F] -> [F, H - k + 1, W - k + 1, n]."""
    side, features = kernel.shape[0], kernel.shape[3]
    height, width = (convolved(size, side, 1) for size in x.shape[1:3])
    return _product(kernel.reshape(-1, features), _places(x, side), 0, 0).reshape(features, height, width, -1)


def _backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    side, features = kernel.shape[0], kernel.shape[3]
    height, width = gradient.shape[1:3]
    flat = gradient.reshape(features, -1)
    by_places = _product(kernel.reshape(-1, features), flat, 1, 0).reshape(side, side, -1, height, width, x.shape[3])
    by_x = jnp.zeros_like(x)
    for i in range(side):
        for j in range(side):
            so_far = by_x[:, i : i + height, j : j + width]
            by_x = jax.lax.dynamic_update_slice(by_x, so_far + by_places[i, j], (0, i, j, 0))
    return by_x, _product(_places(x, side), flat, 1, 1).reshape(kernel.shape)


convolve.defvjp(lambda x, kernel: (convolve(x, kernel), (x, kernel)), _backward)


def _places(x: jax.Array, side: int) -> jax.Array:
    """Collect the inputs of a filter at each of its places: x [C, H, W, n] -> [k·k·C, h·w·n]."""
    height, width = (convolved(size, side, 1) for size in x.shape[1:3])
    seen = [x[:, i : i + height, j : j + width] for i in range(side) for j in range(side)]
    return jnp.concatenate(seen).reshape(side * side * x.shape[0], -1)


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """Multiply two matrices over an axis of each."""
    return jax.lax.dot_general(a, b, (((of_a,), (of_b,)), ((), ())))
