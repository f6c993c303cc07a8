"""What predictions of a program's time count in its text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.program_costs import Product, Rates, products, written


def test_products_are_found_with_their_shapes_inside_loops_too():
    def function(x, w, v):
        x = jax.lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x @ w), x)
        return x @ v, jnp.einsum("nk,nm->km", x, x)

    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((6, 4), (4, 4), (4, 3))]
    program = jax.jit(function).lower(*given).compile()
    found = products(program.as_text())
    assert sum(found.values()) == 3, found
    assert found[Product((6, 4), (4, 4), (((1,), (0,)), ((), ())))] == 1  # a loop's body once
    assert found[Product((6, 4), (4, 3), (((1,), (0,)), ((), ())))] == 1
    assert found[Product((6, 4), (6, 4), (((0,), (0,)), ((), ())))] == 1
    sizes = written(program.as_text())
    assert sizes.count(4 * 6 * 4) >= 2, "the product and tanh of the loop's body are started in each turn"
    assert 4 * 6 * 3 in sizes and 4 * 4 * 4 in sizes


def test_an_accelerator_takes_the_longer_of_work_and_bytes_and_a_launch_for_each_kernel():
    program = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile()
    costs = program.cost_analysis()
    assert costs["flops"] == 2 * 64**3
    work, moved = 2 * 64**3 / 1e6, costs["bytes accessed"] / 1e9
    launches = len(written(program.as_text()))
    assert work > moved and launches >= 1
    assert Rates(1e6, 1e9, 0.5).seconds(program) == pytest.approx(work + 0.5 * launches)
    assert Rates(1e15, 1e3, 0.0).seconds(program) == pytest.approx(costs["bytes accessed"] / 1e3)
