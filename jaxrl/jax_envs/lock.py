"""A lock that only a seer can read and only a runner can open: teams of several behaviors, each of whom is needed.

The smallest game in which members of different kinds earn what none of them could: what is right is known to one, and
done by another. Written for this project as a probe of credit across behaviors.

Rules. The lock has a code, 0 to `codes` - 1. One decision of the team goes in this order:
1. The seer sees the code and says one of `codes` words. The others wait: what they do counts for nothing.
2. The runner has heard the word and sets the lock to a number. With a carrier, which has heard a second word of the
   seer's (of three) of its own, the carrier turns to one of three keys (as an angle: a third of a full turn each).
   The lock is open if the number is the code, and the key is the one that fits.
3. The runner sees whether it is open. Then the group is paid 1 where it is, 0 else, and the episode is over.

`seer_leaves` (parameter, 0 or 1): the seer is gone after decision 2, before the group is paid. It has nothing then but
what its team is worth without it: that the runner sees the open lock.

By chance the group has 1 / `codes` (with a carrier a third of that); together 1.

Observations, vectors in [0, 1]:
- Seer: the code, one-hot · the number that the lock is set to, one-hot (0 before) · with a carrier the key that fits,
  one-hot · clock, 3 numbers, one-hot.
- Runner: the word, one-hot (0 before) · whether the lock is open · clock, one-hot.
- Carrier: its word, one-hot (0 before) · whether the lock is open · clock, one-hot.
Actions: the seer a branch of `codes` (and one of 3 with a carrier), the runner a branch of `codes`, the carrier two
numbers, the way to which it turns.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

KEYS = 3
LENGTH = 3
"""Decisions of an episode."""
SEER, RUNNER, CARRIER = "Seer", "Runner", "Carrier"


class LockSettings(NamedTuple):
    """Sizes, fixed when the environment is made, except the default of the parameter."""

    codes: int = 4  # at least 2
    seer_leaves: bool = False  # parameter `seer_leaves`


DEFAULTS = LockSettings()


class LockState(NamedTuple):
    """One area."""

    code: Array  # int32 []
    key: Array  # int32 [], the one that fits
    word: Array  # int32 [], what the runner has heard; -1: nothing yet
    hint: Array  # int32 [], what the carrier has heard; -1: nothing yet
    set_to: Array  # int32 [], number of the lock; -1: none yet
    open: Array  # bool []
    clock: Array  # int32 [], decisions made
    leaves: Array  # bool [], the seer does


def make_lock(settings: LockSettings = DEFAULTS) -> JaxScene:
    """A seer and a runner. Raises ValueError for fewer than 2 codes."""
    return _make("Lock", settings, carrier=False)


def make_lock_and_key(settings: LockSettings = DEFAULTS) -> JaxScene:
    """A seer, a runner and a carrier. Raises ValueError for fewer than 2 codes."""
    return _make("LockAndKey", settings, carrier=True)


def _make(name: str, settings: LockSettings, *, carrier: bool) -> JaxScene:
    if settings.codes < 2:
        raise ValueError(f"codes = {settings.codes}: must be at least 2")
    parts = _parts(settings, carrier)
    usual = {"seer_leaves": float(settings.seer_leaves)}

    def reset(key: Array, parameters: EnvParams = usual) -> tuple[LockState, dict[str, TeamView]]:
        leaves = jnp.asarray(parameters.get("seer_leaves", usual["seer_leaves"])) > 0.5
        code_key, key_key = jax.random.split(key)
        code = jax.random.randint(code_key, (), 0, settings.codes)
        fits = jax.random.randint(key_key, (), 0, KEYS) if carrier else jnp.int32(0)
        nothing = jnp.int32(-1)
        state = LockState(code, fits, nothing, nothing, nothing, jnp.bool_(False), jnp.int32(0), leaves)
        return state, _views(settings, parts, state)

    return JaxScene(name, parts, usual, reset, partial(_step, settings, parts))


def _parts(settings: LockSettings, carrier: bool) -> tuple[BehaviorPart, ...]:
    codes, keys = settings.codes, (KEYS,) if carrier else ()
    sizes = {
        SEER: (2 * codes + sum(keys) + LENGTH, ActionSpec(0, (codes, *keys))),
        RUNNER: (codes + 1 + LENGTH, ActionSpec(0, (codes,))),
        CARRIER: (KEYS + 1 + LENGTH, ActionSpec(2, ())),
    }
    return tuple(
        BehaviorPart(name, BehaviorSpec((_vector(size),), action), members=1)
        for name, (size, action) in sizes.items()
        if carrier or name != CARRIER
    )


def _vector(size: int) -> ObservationSpec:
    return ObservationSpec(f"VectorSensor_size{size}", (size,), (DimensionProperty.NONE,))


def _step(
    settings: LockSettings,
    parts: tuple[BehaviorPart, ...],
    _key: Array,
    state: LockState,
    actions: dict[str, TeamActions],
) -> tuple[LockState, SceneStep]:
    said, first = actions[SEER].discrete[0], state.clock == 0
    second = state.clock == 1
    right = actions[RUNNER].discrete[0, 0] == state.code
    hint = state.hint
    if CARRIER in actions:
        way = actions[CARRIER].continuous[0]
        share = jnp.arctan2(way[1], way[0]) / (2 * jnp.pi) % 1.0
        right &= jnp.minimum((share * KEYS).astype(jnp.int32), KEYS - 1) == state.key
        hint = jnp.where(first, said[1], hint)
    after = state._replace(
        word=jnp.where(first, said[0], state.word),
        hint=hint,
        set_to=jnp.where(second, actions[RUNNER].discrete[0, 0], state.set_to),
        open=jnp.where(second, right, state.open),
        clock=state.clock + 1,
    )
    over = after.clock == LENGTH
    won = (over & after.open).astype(jnp.float32)
    views, steps = _views(settings, parts, after), {}
    for part in parts:
        there = ~(state.leaves & (state.clock == LENGTH - 1)) if part.name == SEER else jnp.bool_(True)
        leaves = (state.leaves & second) if part.name == SEER else jnp.bool_(False)
        ended = (there & over) | leaves
        steps[part.name] = BehaviorStep(
            view=views[part.name],
            reward=jnp.zeros(1, jnp.float32),
            group_reward=jnp.where(there, won, 0.0)[None],
            terminated=ended[None],
            truncated=jnp.zeros(1, bool),
        )
    return after, SceneStep(steps, over, {"Environment/Opened": won})


def _views(settings: LockSettings, parts: tuple[BehaviorPart, ...], state: LockState) -> dict[str, TeamView]:
    clock, opened = jax.nn.one_hot(state.clock, LENGTH), state.open.astype(jnp.float32)[None]
    set_to, word = (jax.nn.one_hot(x, settings.codes) for x in (state.set_to, state.word))
    fits = (jax.nn.one_hot(state.key, KEYS),) if len(parts) > 2 else ()
    seen = {
        SEER: (jax.nn.one_hot(state.code, settings.codes), set_to, *fits, clock),
        RUNNER: (word, opened, clock),
        CARRIER: (jax.nn.one_hot(state.hint, KEYS), opened, clock),
    }
    over, gone = state.clock == LENGTH, state.leaves & (state.clock > 1)
    return {
        part.name: TeamView(
            obs=(jnp.concatenate(seen[part.name])[None],),
            action_mask=jnp.ones((1, part.spec.action.mask_size), bool),
            alive=(~over & ~(gone if part.name == SEER else jnp.bool_(False)))[None],
        )
        for part in parts
    }
