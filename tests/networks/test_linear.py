"""Linear layers on columns against flax's on rows: parameters, values, gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.linear import Linear, on_columns

INIT = fan_in_normal(1.0)


class Columns(nn.Module):
    """Two layers on columns and a head that takes them over."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        first, second = Linear(8, INIT, name="first"), Linear(8, INIT, name="second")
        hidden = on_columns(lambda columns: nn.swish(second(nn.swish(first(columns)))), x)
        return on_columns(Linear(3, INIT, name="head"), hidden, from_columns=True)


class Rows(nn.Module):
    """The same with `nn.Dense`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        for name in ("first", "second"):
            rows = nn.swish(nn.Dense(8, kernel_init=INIT, name=name)(rows))
        return nn.Dense(3, kernel_init=INIT, name="head")(rows).reshape(*x.shape[:-1], 3)


@pytest.mark.parametrize("lead", [(), (1,), (7,), (5, 3), (2, 50, 3), (257,)])
def test_equal_to_dense_with_the_same_parameters(lead: tuple[int, ...]) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(*lead, 5)), jnp.float32)
    params = Columns().init(jax.random.key(1), x)
    expected = Rows().init(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, params, expected)

    def of(module: nn.Module):
        return jax.value_and_grad(lambda p, x: jnp.sum(jnp.sin(module.apply(p, x))), argnums=(0, 1))(params, x)

    assert Columns().apply(params, x).shape == (*lead, 3)  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose(Columns().apply(params, x), Rows().apply(params, x), atol=1e-6)  # pyright: ignore
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), of(Columns()), of(Rows()))


SPREAD = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.networks.test_linear import Columns
mesh = Mesh(np.array(jax.devices()), ("areas",))
params = Columns().init(jax.random.key(1), np.ones((512, 5), np.float32))
loss = lambda params, x: (Columns().apply(params, x) ** 2).sum()
rows = jax.ShapeDtypeStruct((512, 5), np.float32, sharding=NamedSharding(mesh, PartitionSpec("areas")))
with jax.set_mesh(mesh):
    print(jax.jit(jax.grad(loss)).lower(params, rows).compile().as_text())
"""


def test_rows_that_are_spread_over_devices_stay_where_they_are() -> None:
    """Two halves, joined again, were sent from one to the other: gradients alone are added up."""
    root = Path(__file__).parents[2]
    place = os.environ | {
        "PYTHONPATH": str(root),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    made = subprocess.run([sys.executable, "-c", SPREAD], env=place, capture_output=True, text=True, check=True)
    found = {word for word in ("all-reduce", "all-to-all", "collective-permute", "all-gather") if word in made.stdout}
    assert found == {"all-reduce"}
