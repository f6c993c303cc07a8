"""A turn of cloning, with a policy of two numbers: what it draws, what counts, and what it goes on from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.demonstrations import Demonstration
from jaxrl.learning import cloning
from jaxrl.networks import actions
from jaxrl.networks.actions import ActionDistribution
from jaxrl.types import Action
from tests.helpers import make_spec, settings_of

SPEC = make_spec((1,), continuous=1, branches=(2,))
BATCHES = {"demo_path": "unread", "num_epoch": 2, "batch_size": 4}


def settings(**section: Any) -> Any:
    return settings_of("ppo", {"behavioral_cloning": BATCHES | section})


def distribution(params: Any, obs: tuple[jax.Array, ...], _along: Any) -> ActionDistribution:
    """Mean w · obs, a second choice that is preferred by v."""
    lead = obs[0].shape[:-1]
    logits = jnp.broadcast_to(jnp.stack([jnp.zeros(()), params["v"]]), (*lead, 2))
    return ActionDistribution(params["w"] * obs[0], jnp.zeros(1), logits)


COPIED = cloning.Copied(distribution, actions.drawn, lambda action: action)


def rows(seen: Any, number: Any, choice: Any, valid: Any) -> cloning.Rows:
    """Decisions [S, L] of these numbers."""
    seen, number = (jnp.asarray(x, jnp.float32)[..., None] for x in (seen, number))
    return cloning.Rows((seen,), Action(number, jnp.asarray(choice, jnp.int32)[..., None]), jnp.asarray(valid, bool))


def test_an_epoch_shows_each_decision_once_and_each_turn_goes_on_from_the_one_before() -> None:
    """12 decisions in batches of 4, two epochs: 6 steps of Adam in a turn, 12 after two."""
    shown: list[list[int]] = []

    def rows_at(chosen: jax.Array) -> cloning.Rows:
        jax.debug.callback(lambda numbers: shown.append(numbers.tolist()), chosen, ordered=True)
        ones = jnp.ones((4, 1))
        return rows(ones, ones, ones, ones)

    made = cloning.make_cloning(SPEC, settings(), COPIED, rows_at, (12, 1))
    params: Any = {"w": jnp.zeros(()), "v": jnp.zeros(())}
    kept, learn = made.init(params), jax.jit(made.learn)
    for turn in (1, 2):
        kept, params, _ = learn(kept, params, (None,), jnp.int32(0), jax.random.key(turn))
        assert int(kept["optimizer"].count) == 6 * turn
    jax.effects_barrier()
    epochs = np.array(shown).reshape(4, 12)
    np.testing.assert_array_equal(np.sort(epochs), np.broadcast_to(np.arange(12), (4, 12)))
    assert len(set(map(tuple, epochs.tolist()))) == 4
    assert made.size == 2 * 12


def test_the_loss_is_that_of_decisions_alone_and_what_fills_up_sequences_does_not_count() -> None:
    """Means over the three decisions: (μ − a)², μ = 2 · obs, and − ln p of choices with odds 1 : 3."""
    made = cloning.make_cloning(SPEC, settings(), COPIED, lambda _: None, (2, 2))
    params = {"w": jnp.float32(2.0), "v": jnp.log(jnp.float32(3.0))}
    shown = rows([[1.0, 2.0], [3.0, 50.0]], [[2.5, 3.0], [6.0, 0.0]], [[0, 1], [1, 0]], [[1, 1], [1, 0]])
    found = made.loss(params, (None,), shown, jnp.zeros((2, 2, 1)))
    squares, surprises = [0.5**2, 1.0**2, 0.0], [-np.log(0.25), -np.log(0.75), -np.log(0.75)]
    assert float(found) == pytest.approx(np.mean(squares) + np.mean(surprises), rel=1e-5)
    noise = jnp.full((2, 2, 1), 2.0)  # σ is 1
    noisy = made.loss(params, (None,), shown, noise)
    expected = [(2.0 - 0.5) ** 2, (2.0 + 1.0) ** 2, 2.0**2]
    assert float(noisy) == pytest.approx(np.mean(expected) + np.mean(surprises), rel=1e-5)


def of_episodes(done: list[int], last: list[int], count: int) -> Demonstration:
    """Decisions number 0, 1, ..., which show and do their number."""
    number, no = np.arange(count, dtype=np.float32)[:, None], np.zeros(count, bool)
    ends, breaks = (np.isin(np.arange(count), of) for of in (done, last))
    action = Action(number, np.zeros((count, 1), np.int32))
    columns = {"reward": number[:, 0], "done": ends, "interrupted": no, "terminal": no, "last": breaks}
    return Demonstration(SPEC, "Any", (number,), action, **columns)


def test_sequences_end_with_episodes_and_with_recordings_and_hold_what_they_shall() -> None:
    """An episode of 3, one of 2 that its recording breaks off, one of 4; then the first and the last of them alone."""
    shown = of_episodes(done=[2, 8], last=[4], count=9)
    whole = cloning.in_sequences(shown, 2).places.tolist()
    assert whole == [[0, 1], [2, -1], [3, 4], [5, 6], [7, 8]]
    among = np.isin(np.arange(9), [0, 1, 2, 5, 6, 7, 8])
    assert cloning.in_sequences(shown, 2, among).places.tolist() == [whole[i] for i in (0, 1, 3, 4)]
    assert cloning.in_sequences(shown, 1, among).places.tolist() == [[i] for i in (0, 1, 2, 5, 6, 7, 8)]
    found = cloning.as_wanted(COPIED, cloning.in_sequences(shown, 2))(jnp.array([1, 0]))
    assert found.valid.tolist() == [[True, False], [True, True]]
    assert found.obs[0][..., 0].tolist() == found.action.continuous[..., 0].tolist() == [[2, 0], [0, 1]]
