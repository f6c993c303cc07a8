"""Schedules of learning rate, epsilon and beta."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import pytest

from jaxrl.learning import schedules
from jaxrl.types import JaxrlError


def test_linear_golden():
    value = schedules.linear(0.2, 0.1, 1000)
    # (0.2 - 0.1) (1 - 250 / 1000) + 0.1
    assert value(jnp.int32(250)) == pytest.approx(0.175)
    assert value(jnp.int32(0)) == pytest.approx(0.2)
    assert value(jnp.int32(1000)) == pytest.approx(0.1)
    assert value(jnp.int32(5000)) == pytest.approx(0.1)


def test_linear_keeps_its_digits_at_the_end():
    value = schedules.linear(3e-4, 1e-10, 100_000_000)
    # one step before the end 3e-4 / 1e8 + 1e-10 remain
    assert value(jnp.int32(99_999_999)) == pytest.approx(3e-12 + 1e-10, rel=1e-5)


def test_constant_and_names():
    assert schedules.make_schedule("constant", 0.5, 0.1, 10)(jnp.int32(9)) == 0.5
    assert schedules.make_schedule("linear", 0.5, 0.1, 10)(jnp.int32(10)) == pytest.approx(0.1)
    with pytest.raises(JaxrlError, match="'cosine' is unknown, use linear or constant"):
        schedules.make_schedule("cosine", 0.5, 0.1, 10)
    with pytest.raises(JaxrlError, match="max_steps: 0"):
        schedules.linear(0.5, 0.1, 0)


def test_a_new_step_does_not_compile_again():
    value = jax.jit(chex.assert_max_traces(schedules.linear(1.0, 0.0, 10), n=1))
    assert [float(value(jnp.int32(step))) for step in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])
