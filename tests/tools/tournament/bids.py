"""A game of one decision: two teams bid, the higher bid wins; with `handicap` team 0 bids that much more.

With `early` another decision follows, which ends the game and costs both teams 0.01.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec


def make_bids(
    handicap: float = 0.0, members: int = 2, seen: str = "nothing", length: int = 1, early: bool = False
) -> JaxEnv:
    """Teams of `members`, whose bids are added; `seen` is the name of the only sensor, of one 0.

    Of a game of several decisions the last bids count; `early`: the first of two, and the second costs both 0.01.
    """
    sensor = ObservationSpec(seen, (1,), (DimensionProperty.NONE,))

    def view(over: Any) -> TeamView:
        agents = 2 * members
        return TeamView((jnp.zeros((agents, 1)),), jnp.ones((agents, 0), bool), jnp.full(agents, ~jnp.asarray(over)))

    def reset(key: Any, parameters: EnvParams) -> tuple[Any, TeamView]:
        return jnp.int32(0), view(over=False)

    def step(key: Any, state: Any, actions: TeamActions) -> tuple[Any, TeamStep]:
        bids = actions.continuous[:, 0].reshape(2, members).sum(1) + jnp.array([handicap, 0.0])
        won = jnp.repeat(jnp.sign(bids - bids[::-1]), members)
        over, nothing = state + 1 >= length, jnp.zeros_like(won)
        draw = won == 0.0
        if early:
            over = state > 0
            seen = jax.tree.map(lambda x, y: jnp.where(over, x, y), view(over=True), view(over=False))
            ends = jnp.full_like(draw, over)
            return state + 1, TeamStep(seen, nothing, jnp.where(over, -0.01, won), ends, ~ends & False, over, {})
        return state + 1, TeamStep(view(over), nothing, won * over, ~draw & over, draw & over, over, {})

    spec = BehaviorSpec((sensor,), ActionSpec(1, ()))
    return JaxEnv("Bids", spec, members, {}, reset, step, teams=2, truncates=True)


def make_long() -> JaxEnv:
    return make_bids(length=3)


def low(seen: Any) -> Any:
    return jnp.full_like(seen, 0.1)


def middle(seen: Any) -> Any:
    return jnp.full_like(seen, 0.5)


def high(seen: Any) -> Any:
    return jnp.full_like(seen, 0.9)


def too_many(seen: Any) -> Any:
    return jnp.zeros((*seen.shape[:-1], 3))


BY_BEHAVIOR = {"Bids": middle, "Auctioneer": low}
WITHOUT = {"Auctioneer": low}
