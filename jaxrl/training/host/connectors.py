"""Connectors in the host loop: a message of the environments goes through them inside the one compiled `decide`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.interface import Algorithm
from jaxrl.connectors import chain as chains
from jaxrl.connectors.chain import Chain, ChainState
from jaxrl.masks import of_slots, where
from jaxrl.rollout.booking.records import Ending, Moved, RowsMessage
from jaxrl.rollout.booking.untrained import ExternalActionError
from jaxrl.rollout.buffer.external_actions import ScoreAction
from jaxrl.rollout.buffer.trajectory import begins
from jaxrl.types import Action


class Connected(NamedTuple):
    """What the connectors of an actor remember between two messages."""

    state: ChainState
    seen: tuple[Any, ...]  # what each member's newest decision was shown: its dtype [B, A, *shape] of each sensor


def start(chain: Chain, shared: tuple[Any, ...], lead: tuple[int, int]) -> Connected:
    """Before the first message, for B rows of A members; arrays of its own, for they are updated in place."""
    seen = tuple(jnp.zeros((*lead, *sensor.shape), sensor.dtype) for sensor in chain.spec.observations)
    return Connected(jax.tree.map(jnp.array, chains.start(chain, shared, lead)), seen)


def resize(connected: Connected, lead: tuple[int, int]) -> Connected:
    """Room for more rows and members. Whoever gets a place there begins an episode, which sets it right."""

    def room(x: Any) -> jax.Array:
        return jnp.pad(x, [(0, lead[0] - x.shape[0]), (0, lead[1] - x.shape[1])] + [(0, 0)] * (x.ndim - 2))

    state, seen = connected
    return Connected(state._replace(slots=jax.tree.map(room, state.slots)), jax.tree.map(room, seen))


def with_statistics(connected: Any, shared: tuple[Any, ...]) -> Any:
    """The same memory beside the statistics of another policy, in arrays of its own; before the first message none."""
    if not connected:
        return connected
    return connected._replace(state=connected.state._replace(shared=jax.tree.map(jnp.array, shared)))


def received(
    chain: Chain, connected: Connected, steps: RowsMessage, moved: Moved | None = None
) -> tuple[Connected, RowsMessage]:
    """The message as policy and learner get it, before anybody decides.

    Final states are shown what they would decide on. Members that are present and do not decide keep what they were
    shown when they did. What is remembered of members goes with them to another team.
    """
    before, deciding, begin = connected.state, jnp.asarray(steps.deciding), jnp.asarray(begins(steps))
    state = before
    reward, earned = jnp.asarray(steps.reward), jnp.asarray(steps.earned)
    if chain.watches_rewards:
        state, reward = chains.rewarded(chain, state, reward, steps.ending != Ending.OPEN)
        earned = chains.paid(chain, state, jnp.stack([earned, jnp.zeros_like(earned)], axis=-1))[..., 0]
    final = chains.shown(chain, state, tuple(jnp.asarray(o[0]) for o in steps.obs), deciding.shape)
    new = tuple(jnp.asarray(o[1]) for o in steps.obs)
    if moved is not None:
        came = jnp.asarray(moved.origin) >= 0
        theirs = _come_along(chain, before.slots, state.shared, moved, came)
        slots = jax.tree.map(lambda x, own: where(came, x, own), theirs, state.slots)
        state, begin = state._replace(slots=slots), begin & ~came
    state, obs = chains.observed(chain, state, new, deciding, begin)
    seen = tuple(where(deciding, x, old) for x, old in zip(obs, connected.seen, strict=True))
    both = tuple(jnp.stack(pair) for pair in zip(final, seen, strict=True))
    return Connected(state, seen), steps._replace(obs=both, reward=reward, earned=earned)


def _come_along(chain: Chain, slots: Any, shared: Any, moved: Moved, came: jax.Array) -> Any:
    """What is remembered [B, A, *] of members that have changed their team, with what their last decision earned.

    The learner is told of that in their old place, perhaps later: statistics take notice of it then.
    """
    there = ChainState(jax.tree.map(lambda x: of_slots(x, moved.origin), slots), shared)
    return chains.rewarded(chains.frozen(chain), there, jnp.asarray(moved.reward), came)[0].slots


def taken(chain: Chain, connected: Connected, mask: Any, raw: Action, action: Action) -> Connected:
    """Agents did something else than they were sent (M21): it counts as their last action where `mask` [B, A].

    Call it before the message in which that was told is `received`.

    Args:
      raw: as the policy would have drawn it, [B, A, ...].
      action: as the environment has it, of a chain without irreversible connectors.
    """
    did = chains.undone(chain, Action(*(jnp.asarray(x) for x in action)))
    state, _ = chains.sent(chain, connected.state, raw, did, jnp.asarray(mask))
    return connected._replace(state=state)


def scoring_action(algorithm: Algorithm) -> ScoreAction | None:
    """`Algorithm.score_action` for actions as the environment has them, behind the connectors; None: there is none."""
    chain, score_action = algorithm.connectors, algorithm.score_action
    if chain is None or score_action is None:
        return score_action
    if chain.irreversible:
        return None
    return lambda *before: score_action(*before[:-1], chains.undone(chain, before[-1]))


def not_scored(name: str, algorithm: Algorithm) -> ExternalActionError:
    """Why behavior `name` cannot learn from actions that the environment took itself."""
    chain = algorithm.connectors
    if algorithm.score_action is not None and chain is not None and chain.irreversible:
        why = f"what its connectors do to actions cannot be undone ({', '.join(chain.irreversible)})"
    else:
        why = "this trainer_type learns from its own alone"
    return ExternalActionError(
        f"{name}: the environment took actions itself, and {why}; write env_settings.outside_actions: leave_out"
    )


def sent(
    chain: Chain, connected: Connected, action: Action, to_environment: Action, deciding: Any
) -> tuple[Connected, Action]:
    """What the environments get; raw actions [B, A, ...] and `deciding` [B, A] are noted."""
    state, out = chains.sent(chain, connected.state, action, to_environment, jnp.asarray(deciding))
    return connected._replace(state=state), out
