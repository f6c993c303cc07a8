"""A game of two in turns, inside one program: whoever is not to move pauses, and is paid for its move meanwhile."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import Array

from jaxrl.jax_envs.contract import check_environment
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.training.probe_loops import share_in_compiled_loop

ROUNDS = 5


def make_turns(*, forgets: bool = False) -> JaxEnv:
    """In each of 5 rounds member 0 chooses, then member 1: 1 for both, if both have chosen 1. Nobody sees the other.

    `forgets`: nothing is said of the member that pauses when the game is over.
    """

    def view(clock: Array) -> TeamView:
        alive = jnp.arange(2) == clock % 2
        obs = jnp.stack([jnp.arange(2.0), alive * 1.0], axis=-1)
        return TeamView((obs,), jnp.ones((2, 2), bool), alive & (clock < 2 * ROUNDS))

    def reset(key: Array, parameters: EnvParams) -> tuple[tuple[Array, Array], TeamView]:
        return (jnp.int32(0), jnp.zeros(2, jnp.int32)), view(jnp.int32(0))

    def step(key: Array, state: tuple[Array, Array], actions: TeamActions) -> tuple[tuple[Array, Array], TeamStep]:
        clock, chosen = state
        moves = jnp.arange(2) == clock % 2
        chosen = jnp.where(moves, actions.discrete[:, 0], chosen)
        won = (clock % 2 == 1) & (chosen == 1).all()
        over = clock == 2 * ROUNDS - 1
        ended = jnp.broadcast_to(over, (2,)) & (moves | (not forgets))
        no, nothing = jnp.zeros(2, bool), jnp.zeros(2)
        return (clock + 1, chosen), TeamStep(view(clock + 1), won + nothing, nothing, ended, no, over, {})

    spec = BehaviorSpec((ObservationSpec("turn", (2,)),), ActionSpec(0, (2,)))
    return JaxEnv("Turns", spec, members=2, parameters={}, reset=reset, step=step)


@pytest.mark.parametrize("trainer", [pytest.param("ppo", marks=pytest.mark.slow), "poca"])
def test_a_game_in_turns_is_learned_to_its_end(trainer: str) -> None:
    """5 of 5 for each; with returns that began anew at each pause, 1.8 and less."""
    env = make_turns()
    faster = {"hyperparameters__learning_rate": 0.01, "hyperparameters__beta": 1e-3}
    share = share_in_compiled_loop(trainer, env, 30, paid="each", **faster)
    assert share > 4.5


def test_the_check_tells_who_pauses_from_who_is_gone() -> None:
    """One that pauses at the end and has no ending was taken for one that is gone, which it should have been told."""
    found = check_environment(make_turns(), areas=2, steps=30)
    assert found.problems == [] and found.episodes == 6
    assert [text.split(":")[1] for text in found.remarks if "pause" in text] == [" members pause"]
    (problem,) = check_environment(make_turns(forgets=True), areas=2, steps=30).problems
    assert "a member that was alive, or paused, has not ended" in problem
