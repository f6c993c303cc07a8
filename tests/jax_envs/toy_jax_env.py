"""A cheap environment that does everything the interface allows, and on request what it forbids.

A lamp shows a colour; a member that names it earns 1 / n in an episode of n decisions, so that the best return is 1.
The team earns 1 for each decision in which somebody was right; a member that ends before its team gets none of it.

Observation: colour (±1), clock / length, own index, luck of the episode, then zeros up to `obs_size`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.quick_compilation import SWITCH

quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
"""For programs that run once or twice: compiled in half the time, run slower."""


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """The same for what is compiled inside."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", os.environ.get(SWITCH) == "1")  # as the folder's tests do


NAME = "Toy"
NEVER = 1_000_000


class ToySettings(NamedTuple):
    """What the toy does."""

    members: int = 2
    length: int = 5  # decisions of an episode, one less where its luck is below 0.5: areas do not end together
    truncates: bool = False  # the end of an episode cuts off whoever lives then
    die: bool = False  # member i > 0 ends with decision length - 1 - i
    spawn: bool = False  # the last member begins after decision 1; with decision 2 another takes member 0's row
    pause: bool = False  # members do not decide at some clocks: they see what they saw, and earn 0.25 each time
    nan_at: int = NEVER  # clock at which member 0 sees NaN
    breaks: str = ""  # "jit": a branch on a value; "shape": the state grows
    obs_size: int = 4
    actions: int = 2


class ToyState(NamedTuple):
    """One area. A test may set `nan_at` and `poison` of one area; they last until its episode ends."""

    clock: Array  # int32 [], decisions of this episode
    colour: Array  # int32 [], 0 or 1
    luck: Array  # float32 [], drawn at the start of an episode
    alive: Array  # bool [A], also those that pause
    asked: Array  # bool [A]
    held: Array  # float32 [A, 4], what each saw when it was asked last
    nan_at: Array  # int32 []
    poison: Array  # bool [], what belongs to members that are not alive is NaN


def make_toy(settings: ToySettings | None = None) -> JaxEnv:
    """Bind the settings, by default the usual ones."""
    bound = settings or ToySettings()

    def reset(key: Array, parameters: EnvParams) -> tuple[ToyState, TeamView]:
        draw = jax.random.uniform(key, (2,))
        state = ToyState(
            clock=jnp.int32(0),
            colour=(draw[0] < jnp.asarray(parameters["red"])).astype(jnp.int32),
            luck=draw[1],
            alive=jnp.arange(bound.members) < bound.members - bound.spawn,
            asked=jnp.arange(bound.members) < bound.members - bound.spawn,
            held=jnp.zeros((bound.members, 4)),
            nan_at=jnp.int32(bound.nan_at),
            poison=jnp.bool_(False),
        )
        return _view(bound, state, state.alive)

    def step(key: Array, state: ToyState, actions: TeamActions) -> tuple[ToyState, TeamStep]:
        return _step(bound, key, state, actions.discrete[:, 0])

    return JaxEnv(
        name=NAME,
        spec=BehaviorSpec((ObservationSpec("lamp", (bound.obs_size,)),), ActionSpec(0, (bound.actions,))),
        members=bound.members,
        parameters={"red": 0.5},
        reset=reset,
        step=step,
        truncates=bound.truncates,
    )


def _step(settings: ToySettings, key: Array, state: ToyState, chosen: Array) -> tuple[ToyState, TeamStep]:
    member, before, length = jnp.arange(settings.members), state.alive, settings.length - (state.luck < 0.5)
    clock = state.clock + 1
    if settings.breaks == "jit" and chosen[0] > 0:
        clock = clock + 1
    over = clock >= length
    dies = (settings.die & (member > 0) & (clock == settings.length - 1 - member)) | (
        settings.spawn & (member == 0) & (clock == 2)
    )
    born = settings.spawn & (((member == settings.members - 1) & (clock == 1)) | ((member == 0) & (clock == 2)))
    ended, alive = before & (dies | over), ((before & ~dies) | born) & ~over
    right = state.asked & (chosen == state.colour)
    pausing = settings.pause & before & ((2 * clock + member) % 5 < 2) & ~born
    asked = alive & ~pausing
    absent = jnp.where(before | ~state.poison, 0.0, jnp.nan)
    cut = ended & over & settings.truncates
    colour = jax.random.bernoulli(key).astype(jnp.int32)
    patience = jnp.where(before & ~state.asked, 0.25, 0.0)
    state = state._replace(clock=clock, colour=colour, alive=alive, asked=asked)
    state, view = _view(settings, state, jnp.where(over, before, alive))
    step = TeamStep(
        view=view,
        reward=right / length + patience + absent,
        group_reward=jnp.where(before & (over | ~ended), right.any() * 1.0, 0.0) + absent,
        terminated=ended & ~cut,
        truncated=cut,
        over=over,
        stats={"Environment/Clock": clock.astype(jnp.float32)},
    )
    if settings.breaks == "shape":
        state = state._replace(alive=jnp.append(state.alive, True))
    return state, step


def _view(settings: ToySettings, state: ToyState, sees: Array) -> tuple[ToyState, TeamView]:
    """`sees` [A]: also members whose episode is just over, which see its last state."""
    shown = jnp.stack([2.0 * state.colour - 1.0, state.clock / settings.length, 0.0, state.luck])
    obs = jnp.tile(shown, (settings.members, 1)).at[:, 2].set(jnp.arange(settings.members))
    obs = jnp.where(sees[:, None], obs, jnp.where(state.poison, jnp.nan, 0.0))
    obs = obs.at[0, 0].set(jnp.where(state.clock == state.nan_at, jnp.nan, obs[0, 0]))
    obs = jnp.where((state.alive & ~state.asked)[:, None], state.held, obs)
    return state._replace(held=obs), TeamView(
        obs=(jnp.pad(obs, ((0, 0), (0, settings.obs_size - 4))),),
        action_mask=jnp.ones((settings.members, settings.actions), bool),
        alive=state.asked,
    )
