"""Lock: only a seer can read the code and only a runner can open: a team of several behaviors that need each other.

The smallest game in which members of several behaviors earn what none could alone: one knows the right action,
another takes it. Written for this project as a probe of credit across behaviors.

Rules. The lock has a code, 0 to `codes` - 1. One decision of the team goes in this order:
1. The seer, who alone sees the code, sets the dial to a number. The others wait: their actions have no effect.
2. The runner sees the dial and pulls one of `codes` handles: the one with the number of the dial opens the lock, if
   that is the code. A carrier, who alone sees the keyhole, turns to one of three keys, at equal angles: it has to be
   the one that fits.
3. The runner sees whether the lock is open. Then the group is paid 1 where it is, 0 else, and the episode is over.

`seer_leaves` (parameter, 0 or 1): the seer is gone after decision 2, before the group is paid. All that it can be
credited with is what its team is worth without it, when the runner sees the open lock.

`dark` (parameter, 0 or 1): nobody ever sees whether the lock is open, and a seer that leaves does so after decision 1.
Nobody that lives on then sees whether the dial is right, so that no value of the team depends on what the seer did.

`glance` (parameter, 0 or 1): the code is shown before the three decisions and no longer: one for which nothing is done
comes first, with a clock of zeros. A seer without memory can set the dial by chance alone.

By chance the group has 1 / `codes`^2, where only the runner has learned 1 / `codes`, with a carrier a third of each;
together 1.

Observations, vectors in [0, 1]:
- Seer: the code, one-hot (0 where it is not shown) · the dial, one-hot (0 before it is set) · clock, one-hot of 3.
- Runner: the dial, one-hot (0 before) · whether the lock is open (0 in the dark) · clock, one-hot.
- Carrier: the keyhole, one-hot of 3 · whether the lock is open (0 in the dark) · clock, one-hot.
Actions: seer and runner a branch of `codes`, the carrier two numbers, the way to which it turns.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView, vector_sensor
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.types import ActionSpec, BehaviorSpec

KEYS = 3
LENGTH = 3
"""Decisions of an episode."""
SEER, RUNNER, CARRIER = "Seer", "Runner", "Carrier"


class LockSettings(NamedTuple):
    """Sizes, fixed when the environment is made, except the default of the parameter."""

    codes: int = 4  # at least 2
    seer_leaves: bool = False  # parameter `seer_leaves`
    glance: bool = False  # parameter `glance`
    dark: bool = False  # parameter `dark`


DEFAULTS = LockSettings()


class LockState(NamedTuple):
    """State of one area."""

    code: Array  # int32 []
    keyhole: Array  # int32 [], the key that fits; 0 without a carrier
    dial: Array  # int32 []; -1: not set yet
    open: Array  # bool []
    clock: Array  # int32 [], decisions made; from -1 on with `glance`
    leaves: Array  # bool [], the seer does
    glance: Array  # bool []
    dark: Array  # bool []


def make_lock(settings: LockSettings = DEFAULTS) -> JaxScene:
    """Make the lock with a seer and a runner. Raises ValueError for fewer than 2 codes."""
    return _make("Lock", settings, carrier=False)


def make_lock_and_key(settings: LockSettings = DEFAULTS) -> JaxScene:
    """Make the lock with a seer, a runner and a carrier. Raises ValueError for fewer than 2 codes."""
    return _make("LockAndKey", settings, carrier=True)


def _make(name: str, settings: LockSettings, *, carrier: bool) -> JaxScene:
    if settings.codes < 2:
        raise ValueError(f"codes = {settings.codes}: must be at least 2")
    parts = _parts(settings, carrier)
    usual = {name: float(getattr(settings, name)) for name in ("seer_leaves", "glance", "dark")}

    def reset(key: Array, parameters: EnvParams = usual) -> tuple[LockState, dict[str, TeamView]]:
        leaves, glance, dark = (jnp.asarray(parameters.get(name, usual[name])) > 0.5 for name in usual)
        code_key, key_key = jax.random.split(key)
        code = jax.random.randint(code_key, (), 0, settings.codes)
        fits = jax.random.randint(key_key, (), 0, KEYS) if carrier else jnp.int32(0)
        state = LockState(code, fits, jnp.int32(-1), jnp.bool_(False), -glance.astype(jnp.int32), leaves, glance, dark)
        return state, _views(settings, parts, state)

    return JaxScene(name, parts, usual, reset, partial(_step, settings, parts))


def _parts(settings: LockSettings, carrier: bool) -> tuple[BehaviorPart, ...]:
    codes = settings.codes
    sizes = {
        SEER: (2 * codes + LENGTH, ActionSpec(0, (codes,))),
        RUNNER: (codes + 1 + LENGTH, ActionSpec(0, (codes,))),
        CARRIER: (KEYS + 1 + LENGTH, ActionSpec(2, ())),
    }
    return tuple(
        BehaviorPart(name, BehaviorSpec((vector_sensor(size),), action), members=1, group="lock")
        for name, (size, action) in sizes.items()
        if carrier or name != CARRIER
    )


def _step(
    settings: LockSettings,
    parts: tuple[BehaviorPart, ...],
    _key: Array,
    state: LockState,
    actions: dict[str, TeamActions],
) -> tuple[LockState, SceneStep]:
    second, last_of_seer = state.clock == 1, _last_of_seer(state)
    right = (actions[RUNNER].discrete[0, 0] == state.dial) & (state.dial == state.code)
    if CARRIER in actions:
        way = actions[CARRIER].continuous[0]
        turned = jnp.arctan2(way[1], way[0]) / (2 * jnp.pi) % 1.0  # share of a whole turn
        right &= jnp.minimum((turned * KEYS).astype(jnp.int32), KEYS - 1) == state.keyhole
    new_state = state._replace(
        dial=jnp.where(state.clock == 0, actions[SEER].discrete[0, 0], state.dial),
        open=jnp.where(second, right, state.open),
        clock=state.clock + 1,
    )
    over = new_state.clock == LENGTH
    won = (over & new_state.open).astype(jnp.float32)
    views, steps = _views(settings, parts, new_state), {}
    for part in parts:
        there = ~(state.leaves & (state.clock > last_of_seer)) if part.name == SEER else jnp.bool_(True)
        leaves = (state.leaves & (state.clock == last_of_seer)) if part.name == SEER else jnp.bool_(False)
        ended = (there & over) | leaves
        steps[part.name] = BehaviorStep(
            view=views[part.name],
            reward=jnp.zeros(1, jnp.float32),
            group_reward=jnp.where(there, won, 0.0)[None],
            terminated=ended[None],
            truncated=jnp.zeros(1, bool),
        )
    return new_state, SceneStep(steps, over, {"Environment/Opened": won})


def _last_of_seer(state: LockState) -> Array:
    """Return the clock of the last decision of a seer that leaves, int32 []."""
    return jnp.where(state.dark, 0, 1)


def _views(settings: LockSettings, parts: tuple[BehaviorPart, ...], state: LockState) -> dict[str, TeamView]:
    clock, light = jax.nn.one_hot(state.clock, LENGTH), (state.open & ~state.dark).astype(jnp.float32)[None]
    shown = jnp.where(state.glance & (state.clock >= 0), -1, state.code)
    code, dial = (jax.nn.one_hot(x, settings.codes) for x in (shown, state.dial))
    seen = {
        SEER: (code, dial, clock),
        RUNNER: (dial, light, clock),
        CARRIER: (jax.nn.one_hot(state.keyhole, KEYS), light, clock),
    }
    over, gone = state.clock == LENGTH, state.leaves & (state.clock > _last_of_seer(state))
    return {
        part.name: TeamView(
            obs=(jnp.concatenate(seen[part.name])[None],),
            action_mask=jnp.ones((1, part.spec.action.mask_size), bool),
            alive=(~over & ~(gone if part.name == SEER else jnp.bool_(False)))[None],
        )
        for part in parts
    }
