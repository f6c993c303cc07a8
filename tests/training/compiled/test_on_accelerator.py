"""What programs do otherwise on a GPU or TPU, traced for one and run on a CPU: the same numbers, in fewer steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.rollout.chunks import ACCELERATOR_NUMBERS, WIDER, in_chunks
from jaxrl.training.compiled.packing import SMALL, pack, unpack
from jaxrl.training.host.behaviors import tell_of_accelerator
from tests.helpers import make_spec, settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation

SIZES = {
    "hyperparameters__batch_size": 16, "hyperparameters__buffer_size": 64, "hyperparameters__num_epoch": 2,
    "network_settings__hidden_units": 4, "network_settings__num_layers": 1, "network_settings__normalize": True,
}  # fmt: skip
MEMORY = {"network_settings__memory": {"memory_size": 4, "sequence_length": 4}}


@pytest.fixture
def on_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.mesh.on_accelerator", lambda: True)


def trained(trainer: str, changes: Mapping[str, Any]) -> list[np.ndarray]:
    """All that two seeds have become after two updates, members dying, pausing and being cut off; and what is told."""
    env, settings = (
        make_toy(ToySettings(truncates=True, die=True, spawn=True, pause=True)),
        settings_of(trainer, SIZES | changes),
    )
    with quick_compilation():
        made = jaxrl.make_jitted_trainer(env, jaxrl.make_algorithm(env.spec, settings), settings, areas=3, seeds=2)
        state, logs = made.run(made.init(range(2)), 2)
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state)
    return [np.asarray(x) for x in jax.tree.leaves((plain, logs))]


@pytest.mark.parametrize(
    ("trainer", "changes"),
    [pytest.param("ppo", MEMORY, marks=pytest.mark.slow), ("poca", {})],
    ids=["ppo with memory", "poca"],
)
def test_a_program_for_an_accelerator_learns_the_same(
    trainer: str, changes: Mapping[str, Any], request: pytest.FixtureRequest
) -> None:
    here = trained(trainer, changes)
    request.getfixturevalue("on_accelerator")
    there = trained(trainer, changes)
    for mine, other in zip(here, there, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)  # Adam makes steps of rounding, where nothing is


@pytest.mark.usefixtures("on_accelerator")
def test_arrays_are_joined_by_dtype_but_for_large_ones_and_come_back_as_they_were() -> None:
    rng = np.random.default_rng(0)
    lead = (2, 3)
    given: dict[str, Any] = {
        "float": jnp.asarray(rng.normal(size=(*lead, 4, 2)), jnp.float32),
        "flat": jnp.asarray(rng.normal(size=lead), jnp.float32),
        "none": (jnp.zeros((*lead, 0), jnp.float32),),
        "flags": jnp.asarray(rng.random((*lead, 5)) < 0.5),
        "picture": jnp.asarray(rng.integers(0, 255, (*lead, SMALL + 1)), jnp.uint8),
        "of a seed": jnp.arange(2),
        "keys": jax.random.split(jax.random.key(0), lead),
    }
    packed = pack(given)
    assert {str(x.dtype): x.shape for x in packed.joined.values()} == {
        "float32": (2, 3, 9), "bool": (2, 3, 5), "key<fry>": (2, 3, 1)
    }  # fmt: skip
    over_time = jax.tree.map(lambda x: jnp.stack([x, x]), packed)
    for found, times in ((unpack(packed), 1), (unpack(over_time), 2)):
        assert jax.tree.structure(found) == jax.tree.structure(given)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(given), strict=True):
            expected = y if times == 1 else jnp.stack([y, y])
            assert x.shape == expected.shape and x.dtype == expected.dtype and bool((x == expected).all())


def test_on_a_cpu_nothing_is_joined() -> None:
    given = {"float": jnp.zeros((2, 3, 4))}
    assert pack(given) is given and unpack(given) is given


def widths(numbers: int) -> set[int]:
    """Members of each pass of 4 members over 1,024 states of 2 rows, each of so many numbers."""
    seen: set[int] = set()

    def estimate(x: jax.Array) -> jax.Array:
        seen.add(x.shape[0] * x.shape[1] * x.shape[2])
        return x.sum(-1)

    jax.eval_shape(lambda x: in_chunks(estimate, (x,), 4), jax.ShapeDtypeStruct((1024, 2, 1, numbers), jnp.float32))
    return seen


def test_passes_over_a_rollout_are_wider_unless_what_is_seen_is_large(request: pytest.FixtureRequest) -> None:
    assert widths(3) == {4}
    request.getfixturevalue("on_accelerator")
    assert widths(3) == {4 * WIDER}
    assert widths(ACCELERATOR_NUMBERS // 8) == {8}
    assert widths(ACCELERATOR_NUMBERS) == {4}


def test_the_host_loop_tells_where_a_cpu_decides_sooner(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    vector, camera = make_spec((4,)), make_spec((3, 20, 20))
    tell_of_accelerator([vector])
    request.getfixturevalue("on_accelerator")
    for specs in ([], [camera], [vector, camera]):
        tell_of_accelerator(specs)
    assert not caplog.messages
    tell_of_accelerator([vector])
    (told,) = caplog.messages
    assert "--device cpu" in told
