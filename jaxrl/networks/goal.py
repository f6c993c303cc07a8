"""Goals that choose the weights: the last layer of a body comes from a hypernetwork (Ha et al. 2016, arXiv 1609.09106).

    g = LN(swish(linear(swish(linear(goal encodings)))));  K = linear(g) as [inputs, h];  y = swish(x·K + bias)

as ML-Agents does with `goal_conditioning_type: hyper`. The body also reads the encodings of the goals as inputs.

K has inputs x h numbers, each the product of g with its own weights. Computed for each row of a minibatch, K is nearly
the whole cost of a policy. There are mostly few different goals, though: with at most FEW of them in FEW_ROWS rows or
more, K is computed once for each goal (BUILD_NOTES.md has the times).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from jaxrl.networks.attention import layer_norm
from jaxrl.networks.initializers import fan_in_normal, uniform
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.networks.shapes import on_rows

FEW, FEW_ROWS = 8, 32

Columns = tuple[tuple[int, int], ...]
"""Columns of the goals in an encoding: first column and the one behind the last, goal by goal."""


class ConditionedMLP(nn.Module):
    """Hidden layers, of which the last has weights made from the goal: [..., E] -> [..., h]."""

    units: int
    layers: int
    kernel_init: Initializer
    goals: Columns

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        goal = jnp.concatenate([x[..., start:end] for start, end in self.goals], axis=-1)
        for i in range(self.layers - 1):
            linear = nn.Dense(self.units, dtype=x.dtype, kernel_init=self.kernel_init, name=f"layer_{i}")
            x = nn.swish(on_rows(linear, x))
        layer = GoalLayer(self.units, name=f"layer_{self.layers - 1}")
        rows = layer(x.reshape(-1, x.shape[-1]), goal.reshape(-1, goal.shape[-1]))
        return nn.swish(rows).reshape(*x.shape[:-1], self.units)


class GoalLayer(nn.Module):
    """A linear layer whose kernel depends on the goal: x [N, inputs], goal [N, G] -> [N, units]."""

    units: int

    @nn.compact
    def __call__(self, x: jax.Array, goal: jax.Array) -> jax.Array:
        inputs = x.shape[-1]
        g = goal
        for i in range(2):
            g = nn.swish(nn.Dense(self.units, dtype=x.dtype, kernel_init=fan_in_normal(1.0), name=f"hidden_{i}")(g))
        limit = math.sqrt(1.0 / (self.units * inputs))
        kernel, shift = Affine(self.units, inputs * self.units, uniform(limit), name="made")()
        maker = kernel.astype(x.dtype), shift.astype(x.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.units,)).astype(x.dtype)
        return made_product(x, goal, layer_norm(g), *maker) + bias.reshape(1, -1)


class Affine(nn.Module):
    """Parameters of an `nn.Dense` without its product: kernel [inputs, features], bias [features]."""

    inputs: int
    features: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        kernel = self.param("kernel", self.kernel_init, (self.inputs, self.features))
        return kernel, self.param("bias", nn.initializers.zeros, (self.features,))


Given = tuple[jax.Array, ...]
"""Arguments x, g, kernel, bias of `made_product`."""


class Groups(NamedTuple):
    """Groups of equal rows."""

    first: jax.Array  # int32 [most], index of each group's first row
    which: jax.Array  # int32 [N], group of each row; `most` for rows of further groups, and rows with NaN


@jax.custom_vjp
def made_product(x: jax.Array, goal: jax.Array, g: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Multiply x [N, I] by each row's matrix [I, h], g [N, k] · kernel [k, I h] + bias [I h] -> [N, h].

    Equal rows of `goal` [N, G] have equal rows of g; the first of them gets the gradients by g of all. The gradient is
    written by hand and stores no matrix: otherwise each branch of the condition would fill in the other's residuals.
    """
    return _product(goal, (x, g, kernel, bias))


def _forward(x: jax.Array, goal: jax.Array, *made: jax.Array) -> tuple[jax.Array, Any]:
    return _product(goal, (x, *made)), (goal, (x, *made))


def _backward(saved: tuple[jax.Array, Given], dy: jax.Array) -> tuple[jax.Array, ...]:
    dx, *others = _gradient(*saved, dy)
    return dx, jnp.zeros_like(saved[0]), *others


made_product.defvjp(_forward, _backward)


@jax.custom_batching.custom_vmap
def _product(goal: jax.Array, given: Given) -> jax.Array:
    def few(groups: Groups) -> jax.Array:
        return _of_few_goals(groups, *given)

    return _chosen(goal, few, lambda: _of_each_row(*given))


@_product.def_vmap
def _product_side_by_side(size: int, batched: Any, goal: jax.Array, given: Given) -> tuple[jax.Array, bool]:
    """Join several batches of one policy; compute several policies row by row, where a condition runs both branches."""
    if any(batched[1][2:]) and size > 1:
        return jax.vmap(_of_each_row, [0 if axis else None for axis in batched[1]])(*given), True
    goal, x, g = (
        (array if axis else jnp.broadcast_to(array, (size, *array.shape))).reshape(-1, array.shape[-1])
        for array, axis in zip((goal, *given[:2]), (batched[0], *batched[1][:2]), strict=True)
    )
    kernel, bias = (array[0] if axis else array for array, axis in zip(given[2:], batched[1][2:], strict=True))
    product = _product(goal, (x, g, kernel, bias))
    return product.reshape(size, -1, product.shape[-1]), True


@jax.custom_batching.custom_vmap
def _gradient(goal: jax.Array, given: Given, dy: jax.Array) -> Given:
    def few(groups: Groups) -> Given:
        return jax.vjp(partial(_of_few_goals, groups), *given)[1](dy)

    return _chosen(goal, few, lambda: _gradient_of_each_row(given, dy))


@_gradient.def_vmap
def _gradient_side_by_side(size: int, batched: Any, *given: Any) -> tuple[Given, Any]:
    if size == 1:
        alone = jax.tree.map(lambda array, axis: array[0] if axis else array, given, tuple(batched))
        return jax.tree.map(lambda array: array[None], _gradient(*alone)), (True,) * 4
    _, *axes = jax.tree.map(lambda axis: 0 if axis else None, tuple(batched))
    return jax.vmap(_gradient_of_each_row, axes)(*given[1:]), (True,) * 4


def _chosen(goal: jax.Array, few: Callable[[Groups], Any], each: Callable[[], Any]) -> Any:
    if len(goal) < FEW_ROWS:
        return each()
    groups = distinct(goal, FEW)
    return jax.lax.cond((groups.which < FEW).all(), lambda: few(groups), each)


def distinct(rows: jax.Array, most: int) -> Groups:
    """Group the rows [N, G] by the first `most` different ones."""
    which, firsts = jnp.full(len(rows), most, jnp.int32), []
    left = jnp.ones(len(rows), bool)
    for number in range(most):
        first = jnp.argmax(left)
        same = left & (rows == jax.lax.dynamic_slice_in_dim(rows, first, 1)).all(-1)
        which, left = jnp.where(same, number, which), left & ~same
        firsts.append(first)
    return Groups(jnp.stack(firsts).astype(jnp.int32), which)


def _of_each_row(x: jax.Array, g: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    kernels = (g @ kernel + bias.reshape(1, -1)).reshape(*x.shape, -1)
    return jax.lax.dot_general(x[:, None], kernels, (((2,), (1,)), ((0,), (0,))))[:, 0]


def _gradient_of_each_row(given: Given, dy: jax.Array) -> Given:
    """Compute all gradients by two products, since the output is also (g ⊗ x) · kernel as [k I, h]."""
    x, g, kernel, bias = given
    (rows, inputs), width = x.shape, g.shape[1]
    both = (g[:, :, None] * x[:, None]).reshape(rows, -1)
    d_both = (dy @ kernel.reshape(width * inputs, -1).T).reshape(rows, width, inputs)
    dx = jnp.sum(d_both * g[:, :, None], axis=1) + dy @ bias.reshape(inputs, -1).T
    dg = jnp.sum(d_both * x[:, None], axis=2)
    return dx, dg, (both.T @ dy).reshape(kernel.shape), (x.T @ dy).reshape(-1)


def _of_few_goals(groups: Groups, x: jax.Array, g: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Compute the output as one product: each row's x is in the columns of its goal, between zeros."""
    kernels = (g[groups.first] @ kernel + bias.reshape(1, -1)).reshape(FEW * x.shape[1], -1)
    at = jax.nn.one_hot(groups.which, FEW, dtype=x.dtype)
    return (at[:, :, None] * x[:, None]).reshape(len(x), -1) @ kernels


def conditioned_mlp_onnx(graph: OnnxGraph, x: str, path: str, units: int, layers: int, goals: Columns) -> str:
    """Add `ConditionedMLP` of the tensor x [batch, E], with its parameters at a path."""
    parts = [graph.columns(x, start, end, f"{path}/goal/{i}") for i, (start, end) in enumerate(goals)]
    goal = graph.concat(parts, f"{path}/goal")
    for i in range(layers - 1):
        x = graph.swish(graph.dense(x, f"{path}/layer_{i}"))
    last = f"{path}/layer_{layers - 1}"
    for i in range(2):
        goal = graph.swish(graph.dense(goal, f"{last}/hidden_{i}"))
    numbers = graph.dense(graph.layer_norm(goal, 1, f"{last}/goal"), f"{last}/made")
    inputs = graph.param(f"{last}/made/kernel").shape[1] // units
    kernel = graph.reshape(numbers, (-1, inputs, units), f"{last}/kernel")
    product = graph.add("MatMul", [graph.reshape(x, (-1, 1, inputs), f"{last}/row"), kernel], f"{last}/product")
    bias = graph.constant(f"{last}/bias", graph.param(f"{last}/bias"))
    return graph.swish(graph.add("Add", [graph.reshape(product, (-1, units), f"{last}/flat"), bias], last))
