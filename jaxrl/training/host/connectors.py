"""Connectors in the host loop: each message of the environments passes them inside the compiled `decide`."""

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
    """Memory of an actor's connectors between two messages."""

    state: ChainState
    seen: tuple[Any, ...]  # observations [B, A, *shape] of each member's newest decision, one array per sensor


def start(chain: Chain, shared: tuple[Any, ...], lead: tuple[int, int]) -> Connected:
    """Return the memory before the first message, for B rows of A members, in new arrays (they are donated)."""
    seen = tuple(jnp.zeros((*lead, *sensor.shape), sensor.dtype) for sensor in chain.spec.observations)
    return Connected(jax.tree.map(jnp.array, chains.start(chain, shared, lead)), seen)


def resize(connected: Connected, lead: tuple[int, int]) -> Connected:
    """Return the memory with room for more rows and members; an agent's first episode initializes its slot."""

    def room(x: Any) -> jax.Array:
        return jnp.pad(x, [(0, lead[0] - x.shape[0]), (0, lead[1] - x.shape[1])] + [(0, 0)] * (x.ndim - 2))

    state, seen = connected
    return Connected(state._replace(slots=jax.tree.map(room, state.slots)), jax.tree.map(room, seen))


def with_statistics(connected: Any, shared: tuple[Any, ...]) -> Any:
    """Return the memory with another policy's statistics, copied; unchanged if empty (before the first message)."""
    if not connected:
        return connected
    return connected._replace(state=connected.state._replace(shared=jax.tree.map(jnp.array, shared)))


def received(
    chain: Chain, connected: Connected, steps: RowsMessage, moved: Moved | None = None
) -> tuple[Connected, RowsMessage]:
    """Return the message as policy and learner get it, before any decision.

    Final states pass the connectors as states of a decision would. Members that are present without deciding keep the
    observations of their newest decision. Members that change their team take their memory along.
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
        slots = jax.tree.map(lambda x, old: where(came, x, old), theirs, state.slots)
        state, begin = state._replace(slots=slots), begin & ~came
    state, obs = chains.observed(chain, state, new, deciding, begin)
    seen = tuple(where(deciding, x, old) for x, old in zip(obs, connected.seen, strict=True))
    both = tuple(jnp.stack(pair) for pair in zip(final, seen, strict=True))
    return Connected(state, seen), steps._replace(obs=both, reward=reward, earned=earned)


def _come_along(chain: Chain, slots: Any, shared: Any, moved: Moved, came: jax.Array) -> Any:
    """Return the memory [B, A, *] of members that have changed their team, with the reward of their last decision.

    The learner gets that reward in their old slot, perhaps later, and only then do statistics count it.
    """
    there = ChainState(jax.tree.map(lambda x: of_slots(x, moved.origin), slots), shared)
    return chains.rewarded(chains.frozen(chain), there, jnp.asarray(moved.reward), came)[0].slots


def taken(chain: Chain, connected: Connected, mask: Any, raw: Action, action: Action) -> Connected:
    """Record actions that agents took instead of those sent as their last actions, where `mask` [B, A].

    Call it before `received` of the message that reports them.

    Args:
      raw: actions as the policy would have drawn them, [B, A, ...].
      action: actions as the environment has them; the chain has no irreversible connectors.
    """
    did = chains.undone(chain, Action(*(jnp.asarray(x) for x in action)))
    state, _ = chains.sent(chain, connected.state, raw, did, jnp.asarray(mask))
    return connected._replace(state=state)


def scoring_action(algorithm: Algorithm) -> ScoreAction | None:
    """Return `Algorithm.score_action` for actions as the environment has them, or None if there is none."""
    chain, score_action = algorithm.connectors, algorithm.score_action
    if chain is None or score_action is None:
        return score_action
    if chain.irreversible:
        return None
    return lambda *before: score_action(*before[:-1], chains.undone(chain, before[-1]))


def not_scored(name: str, algorithm: Algorithm) -> ExternalActionError:
    """Return the error that says why behavior `name` cannot learn from actions that the environment took itself."""
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
    """Return the actions for the environments, and the memory of raw actions [B, A, ...] where `deciding` [B, A]."""
    state, out = chains.sent(chain, connected.state, action, to_environment, jnp.asarray(deciding))
    return connected._replace(state=state), out
