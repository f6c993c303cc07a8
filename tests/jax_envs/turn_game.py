"""A game in turns whose every return is known: each player decides several times in a row, then waits for the others.

The last decision of a turn is a bid. It is right if it names the colour that the player sees, and paid 1 when the round
is over: to a player that waits, as its decision before it. With the parameter `anyway` at 1 every bid is right, so that
every player earns 1 in each round. A player is first there when its first turn begins. All end with the last round.

Observation: colour (±1), whether this is a bid, share of the turn, own place.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec


class TurnState(NamedTuple):
    """One area."""

    clock: Array  # int32 [], decisions of this episode
    colour: Array  # int32 [], 0 or 1
    right: Array  # bool [A], the bid of this round
    anyway: Array  # bool []


def make_turn_game(players: int = 5, turn: int = 20, rounds: int = 4, anyway: float = 0.0) -> JaxEnv:
    """So many players with turns of so many decisions; `anyway` is the usual value of the parameter."""
    everybody, usual = jnp.arange(players), {"anyway": anyway}
    round_length = players * turn

    def view(state: TurnState) -> TeamView:
        alive = (state.clock // turn % players == everybody) & (state.clock < rounds * round_length)
        bids = state.clock % turn == turn - 1
        shown = [2.0 * state.colour - 1.0, bids, state.clock % turn / turn]
        obs = jnp.stack([*(jnp.full(players, x, jnp.float32) for x in shown), everybody / players], axis=-1)
        return TeamView((obs,), jnp.ones((players, 2), bool), alive)

    def reset(key: Array, parameters: EnvParams) -> tuple[TurnState, TeamView]:
        colour = jax.random.bernoulli(key).astype(jnp.int32)
        is_anyway = given(parameters, usual)["anyway"] > 0
        state = TurnState(jnp.int32(0), colour, jnp.zeros(players, bool), is_anyway)
        return state, view(state)

    def step(key: Array, state: TurnState, actions: TeamActions) -> tuple[TurnState, TeamStep]:
        bids = (state.clock // turn % players == everybody) & (state.clock % turn == turn - 1)
        right = state.right | (bids & (state.anyway | (actions.discrete[:, 0] == state.colour)))
        clock = state.clock + 1
        paid, over = clock % round_length == 0, clock == rounds * round_length
        colour = jax.random.bernoulli(key).astype(jnp.int32)
        state = TurnState(clock, colour, right & ~paid, state.anyway)
        nothing, nobody = jnp.zeros(players), jnp.zeros(players, bool)
        ended = jnp.broadcast_to(over, (players,))
        return state, TeamStep(view(state), jnp.where(paid, right * 1.0, 0.0), nothing, ended, nobody, over, {})

    spec = BehaviorSpec((ObservationSpec("turn", (4,)),), ActionSpec(0, (2,)))
    return JaxEnv("TurnGame", spec, players, usual, reset, step)
