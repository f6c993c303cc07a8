"""What an actor compiles: the one call per environment result, and what seldom has to be done beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.rollout import noise
from jaxrl.rollout.booking.records import Moved, RowsMessage
from jaxrl.rollout.buffer import external_actions, trajectory, whole_episodes
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.training.host import connectors
from jaxrl.types import Action


class ActorPrograms(NamedTuple):
    """The compiled programs of an actor."""

    decide: Callable[..., tuple[Action, TrajectoryState, Any]]
    # Seldom. They do the same uncompiled, then as some 200 small programs, which takes seconds.
    allocate: Callable[..., TrajectoryState] = trajectory.init
    turn: Callable[..., TrajectoryState] = trajectory.turn
    discard: Callable[[TrajectoryState], TrajectoryState] = lambda buffer: trajectory.take(buffer)[1]
    turn_whole: Callable[..., TrajectoryState] = whole_episodes.turn  # instead of `turn` where episodes are not cut
    leave_out: Callable[..., TrajectoryState] = external_actions.leave_out
    decide_frozen: Callable[..., Any] | None = None  # `decide` whose connectors learn nothing; None without connectors
    replace_actions: Callable[..., tuple[TrajectoryState, Action]] | None = None  # None: it learns from its own alone


def decide(
    algorithm: Algorithm,
    time_horizon: int,
    policy: PolicyState,
    state: TrajectoryState,
    steps: RowsMessage,
    key_data: Any,
    connected: Any = (),
    moved: Moved | None = None,
) -> tuple[Action, TrajectoryState, Any]:
    """Choose actions for the new states and append them: the one call per environment result.

    `moved`: who has changed its team, with what it remembers; None: nobody, or nothing is remembered.

    Returns:
      Actions for the environment, dense [B, A, ...], the buffer, and what the connectors remember (`connectors`).
    """
    if algorithm.connectors is not None:
        connected, steps = connectors.received(algorithm.connectors, connected, steps, moved)
    origin = None if moved is None else moved.origin
    obs = tuple(o[1] for o in steps.obs)
    carry = trajectory.memory(state, steps, origin)
    key = noise.typed(key_data)
    decision = algorithm.act(policy, obs, steps.action_mask, carry, key)
    after = decision.carry
    if algorithm.critic_step is not None and policy.critic != ():  # a critic comes with policies that are learned from
        doing = trajectory.standing(state, steps.deciding, decision.action)
        after = algorithm.critic_step(policy, obs, steps.present[1], decision._replace(action=doing))
    made = (decision.action, decision.extras, after)
    state = trajectory.add(state, steps, *made, time_horizon=time_horizon, origin=origin)
    if algorithm.connectors is None:
        return decision.sent, state, connected
    connected, sent = connectors.sent(algorithm.connectors, connected, decision.action, decision.sent, steps.deciding)
    return sent, state, connected
