"""Random rollouts, and what may be done to them without any effect on learning.

Numpy throughout: every operation of its own on a JAX array would be one more program to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms import coma, mappo, poca, ppo, preparing, updating
from jaxrl.algorithms.interface import Algorithm, TrainState
from jaxrl.algorithms.parts import Batch, Now, Parts
from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rewards.signals import bind
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action, BehaviorSpec
from tests.helpers import make_spec

SPEC = make_spec((3,), (2,), continuous=2, branches=(2, 3))
SMALL = {
    "network_settings__hidden_units": 8,
    "network_settings__num_layers": 1,
    "network_settings__normalize": True,
    "hyperparameters__batch_size": 16,
    "hyperparameters__buffer_size": 64,
}
"""Settings of networks that compile fast."""

quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
"""For programs that run once or twice: compiled in half the time, run slower."""


class Steps(NamedTuple):
    """The two halves of an algorithm's `learn`, and what it is made of."""

    parts: Parts
    prepare: Callable[[TrainState, Rollout], Any]  # (state, rollout) → (state, batch, metrics)
    update: Callable[[TrainState, Batch], Any]  # (state, batch) → (state, metrics)


def steps_of(trainer: str, settings: BehaviorSettings, spec: BehaviorSpec = SPEC) -> Steps:
    """What `learn` of this algorithm goes through."""
    parts = {"ppo": ppo, "mappo": mappo, "poca": poca, "coma": coma}[trainer].parts_of(spec, settings)
    prepare = partial(preparing.prepare, parts, bind(spec, settings))
    return Steps(parts, prepare, partial(updating.update, parts))


def returns_of(
    settings: BehaviorSettings, cooperative: bool, rollout: Rollout, value: jax.Array, posthumous: bool = False
) -> jax.Array:
    """λ-returns [T, B, A, 1] of the environment's own reward."""
    paid = {"extrinsic": EXTRINSIC.reward((), rollout, cooperative=cooperative)}
    return preparing.stream_returns(rollout, value, settings, paid, posthumous=posthumous)


def random_rollout(seed: int, *, t: int = 5, b: int = 4, a: int = 3, spec: BehaviorSpec = SPEC) -> Rollout:
    """Teams with absent, waiting and ended members; states in which nobody acted. Valid in every field."""
    rng = np.random.default_rng(seed)
    lead = (t, b, a)
    present = rng.random(lead) < 0.8
    acted = present & (rng.random(lead) < 0.8)
    acted[-1] = False
    kind = np.where(acted, rng.choice(5, lead, p=[0.5, 0.1, 0.1, 0.2, 0.1]), 0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=(*lead, *shape)).astype(np.float32)

    def where(mask: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - 3)), x, 0)

    branches = [rng.integers(0, n, lead) for n in spec.action.discrete_branches]
    mask = rng.random((*lead, spec.action.mask_size)) < 0.7
    for i, branch in enumerate(branches):  # what was chosen was allowed
        first = sum(spec.action.discrete_branches[:i])
        np.put_along_axis(mask, (branch + first)[..., None], True, axis=-1)
    rollout = Rollout(
        obs=tuple(where(present, numbers(*sensor.shape)) for sensor in spec.observations),
        carry=(),
        action_mask=mask,
        action=Action(
            continuous=where(present, numbers(spec.action.continuous_size)),
            discrete=where(present, np.stack(branches, -1).astype(np.int32)),
        ),
        extras={"log_prob": where(acted, -np.abs(numbers(spec.action.columns)) - 0.5)},
        begin=acted & (np.cumsum(acted, axis=0) == 1),
        present=present,
        acted=acted,
        waiting=present & ~acted & acted.any(-1, keepdims=True),
        reward=where(acted, numbers()),
        mates_reward=np.zeros(lead, np.float32),
        group_reward=where(acted, numbers()),
        **{name: kind == i for i, name in enumerate(("terminated", "truncated", "left", "cut"), start=1)},
    )
    mates = rollout.reward.sum(-1, keepdims=True) - rollout.reward  # all rewards of a state arrive at once
    return rollout._replace(mates_reward=where(acted, mates) if a > 1 else rollout.mates_reward)


def members(rollout: Rollout, change) -> Rollout:
    """`change` applied to every array [T, B, A, ...]."""
    return jax.tree.map(change, rollout)


def pad_members(rollout: Rollout, more: int) -> Rollout:
    """Room for `more` members who are never there."""
    return members(rollout, lambda x: np.pad(x, [(0, 0), (0, 0), (0, more)] + [(0, 0)] * (x.ndim - 3)))


def poison_unused(batch: Batch) -> Batch:
    """NaN in all that belongs to decisions that are not trained on."""

    acted = np.asarray(batch.acted)

    def spoil(x: jax.Array) -> np.ndarray:
        return np.where(acted.reshape(acted.shape + (1,) * (x.ndim - acted.ndim)), x, np.float32(np.nan))

    return batch._replace(
        log_prob=spoil(batch.log_prob),
        advantage=spoil(batch.advantage),
        returns=spoil(batch.returns),
        baseline=spoil(batch.baseline),
    )


def fresh(algorithm: Algorithm, seed: int = 0) -> TrainState:
    """A learner whose networks say something: no layer starts at zero or nearly so."""
    state = quick_jit(algorithm.init)(jax.random.key(seed))
    rng = np.random.default_rng(seed)

    def stir(x: jax.Array) -> np.ndarray:
        return np.asarray(x) + 0.3 * rng.normal(size=x.shape).astype(np.float32)

    return state.replace(
        policy=state.policy.replace(params=jax.tree.map(stir, state.policy.params)),
        critic=jax.tree.map(stir, state.critic),
    )


def now_of(state: TrainState) -> Now:
    """What losses are told at a state, with ML-Agents' epsilon and beta."""
    return Now(np.float32(3e-4), np.float32(0.2), np.float32(5e-3), state.own)  # type: ignore[arg-type]


def params_of(state: TrainState) -> dict[str, Any]:
    """Params as losses take them."""
    return {"actor": state.policy.params, "critic": state.critic}


def assert_close(first: Any, second: Any, tolerance: float = 2e-5) -> None:
    """Every array of two trees is equal but for rounding, and finite."""
    a, b = jax.tree.leaves(first), jax.tree.leaves(second)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert np.isfinite(np.asarray(x)).all()
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
