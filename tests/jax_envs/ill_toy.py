"""The toy in which one area falls ill. It is known by `luck`, drawn at the start of an episode, which never ends."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep
from tests.jax_envs.toy_jax_env import NEVER, ToySettings, ToyState, make_toy


class Illness(NamedTuple):
    """Which decision of the area with this `luck` has a number that is not finite. None, as it stands."""

    luck: float = -1.0
    observation: int = NEVER  # decision in which member 0 sees NaN
    reward: int = NEVER  # decision that earns member 1 NaN


def make_ill(illness: Illness) -> JaxEnv:
    """Nothing but constants depends on the illness, so that all these environments compile to like programs."""
    toy = make_toy(ToySettings(length=NEVER))

    def step(key: Array, state: ToyState, actions: TeamActions) -> tuple[ToyState, TeamStep]:
        here = state.luck == jnp.float32(illness.luck)
        after, step = toy.step(key, state, actions)
        (obs,) = step.view.obs
        blind, unpaid = here & (after.clock == illness.observation), here & (state.clock == illness.reward)
        obs = obs.at[0].set(jnp.where(blind, jnp.nan, obs[0]))
        reward = step.reward.at[1].set(jnp.where(unpaid, jnp.nan, step.reward[1]))
        return after, step._replace(view=step.view._replace(obs=(obs,)), reward=reward)

    return toy._replace(step=step)
