"""`compute_dtype: bfloat16`: what encoders and hidden layers multiply is half as wide, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.algorithms.team_rollouts import quick_jit, random_rollout
from tests.helpers import settings_of

VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
VECTOR = ObservationSpec("vector", (16,))
SENSES = {
    "vector": (VECTOR,),
    "image": (ObservationSpec("image", (3, 20, 20), dtype="uint8"),),
    "entities": (VECTOR, ObservationSpec("entities", (4, 3), VARIABLE)),
    "goal": (VECTOR, ObservationSpec("goal", (2,), observation_type=ObservationType.GOAL_SIGNAL)),
}
SHAPE = {
    "network_settings__hidden_units": 64,
    "network_settings__normalize": True,
    "hyperparameters__batch_size": 16,
    "hyperparameters__buffer_size": 64,
}


def made(trainer: str, sense: str, dtype: str, **more: Any):
    """The algorithm, its specs, and a rollout for it."""
    spec = BehaviorSpec(SENSES[sense], ActionSpec(2, (3,)))
    team = {"hyperparameters__team_capacity": 3} if trainer in ("mappo", "coma") else {}
    settings = settings_of(trainer, SHAPE | {"network_settings__compute_dtype": dtype} | team | more)
    rollout = random_rollout(1, spec=spec)
    return ALGORITHMS[trainer](spec, settings), rollout._replace(
        obs=tuple(x.astype(sensor.dtype) for x, sensor in zip(rollout.obs, spec.observations, strict=True))
    )


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of loops, branches and custom gradients too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


def products(trace: Any) -> dict[str, float]:
    """Multiply-adds of matrix products and convolutions by the dtype of what is multiplied."""
    done: dict[str, float] = {}
    for equation in equations(trace.jaxpr):
        if equation.primitive.name not in ("dot_general", "conv_general_dilated"):
            continue
        a, b = (x.aval for x in equation.invars)
        assert a.dtype == b.dtype
        if equation.primitive.name == "dot_general":
            contracted = np.prod([a.shape[i] for i in equation.params["dimension_numbers"][0][0]])
            work = float(np.prod(equation.outvars[0].aval.shape) * contracted)
        else:
            work = float(np.prod(equation.outvars[0].aval.shape) * np.prod(b.shape[:-1]))
        done[str(a.dtype)] = done.get(str(a.dtype), 0.0) + work
    return done


@pytest.mark.parametrize(
    ("trainer", "sense"),
    [
        ("ppo", "vector"),
        ("ppo", "image"),
        ("ppo", "goal"),
        pytest.param("poca", "entities", marks=pytest.mark.slow),
        ("coma", "vector"),
    ],
)
def test_an_update_multiplies_in_bfloat16_and_keeps_float32(trainer: str, sense: str) -> None:
    algorithm, rollout = made(trainer, sense, "bfloat16")
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    trace, (after, metrics) = jax.make_jaxpr(algorithm.learn, return_shape=True)(state, rollout)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    assert jnp.bfloat16 not in {x.dtype for x in jax.tree.leaves((after, metrics))}
    work = products(trace)
    assert work["bfloat16"] > 0.75 * sum(work.values()), work  # heads are float32: 5 of 64 columns and more
    exact, _ = made(trainer, sense, "float32")
    assert set(products(jax.make_jaxpr(exact.learn)(state, rollout))) == {"float32"}


@pytest.mark.parametrize(
    ("trainer", "sense"), [("ppo", "image"), ("ppo", "entities"), ("poca", "goal"), ("sac", "vector")]
)
def test_decisions_are_nearly_those_of_float32(trainer: str, sense: str) -> None:
    """A product of bfloat16 has 8 bits: features of about 1 are off by up to some thousandths."""
    exact, rollout = made(trainer, sense, "float32")
    half, _ = made(trainer, sense, "bfloat16")
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(exact.init, jax.random.key(0)).policy.params
    params = jax.tree.map(lambda x: rng.normal(0, 1 / np.sqrt(x.shape[0]), x.shape).astype(np.float32), shapes)
    obs = tuple(x[0] for x in rollout.obs)

    def features(algorithm: Any) -> Any:
        network = algorithm.policy.module
        return quick_jit(lambda params: network.apply(params, obs, method="encode"))(params)

    assert half.policy.in_file.settings == exact.policy.module.settings  # a file for a game is float32
    wide, narrow = features(exact), features(half)
    assert narrow.dtype == jnp.float32
    difference = np.abs(np.asarray(wide) - np.asarray(narrow))
    assert 0 < difference.max() < 0.05 * np.abs(np.asarray(wide)).max()


def test_a_memory_is_kept_in_float32() -> None:
    algorithm, rollout = made(
        "ppo", "vector", "bfloat16", network_settings__memory={"memory_size": 8, "sequence_length": 8}
    )
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    lead = rollout.acted.shape[1:]
    obs = tuple(x[0] for x in rollout.obs)
    carry = {name: np.zeros((*lead, *shape), np.float32) for name, shape in algorithm.memories}
    decision = jax.eval_shape(algorithm.act, state.policy, obs, rollout.action_mask[0], carry, jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(decision) if x.dtype.kind not in "iu"} == {jnp.dtype("float32")}
