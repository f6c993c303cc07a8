"""Compiled programs of an actor: the one call per environment message, and the rare operations beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxrl.algorithms.interface import Algorithm, CriticStep, Decision, PolicyState, alone
from jaxrl.rollout import noise
from jaxrl.rollout.booking.records import Moved, RowsMessage
from jaxrl.rollout.buffer import external_actions, repaging, trajectory, whole_episodes
from jaxrl.rollout.buffer.kinds import KindTrajectories
from jaxrl.rollout.buffer.trajectory import Rows
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.training.host import connectors
from jaxrl.types import Action


def _resize(buffer: TrajectoryState, *, members: Sequence[int], **sizes: Any) -> TrajectoryState:
    (count,) = members
    return repaging.resize(buffer, members=count, **sizes)


class ActorPrograms(NamedTuple):
    """The compiled programs of an actor."""

    decide: Callable[..., tuple[Any, Any, Any]]
    # Rare operations. Uncompiled they give the same results, as some 200 small programs, which take seconds.
    allocate: Callable[..., TrajectoryState] = trajectory.init
    turn: Callable[..., Any] = trajectory.turn
    discard: Callable[..., Any] = lambda buffer: trajectory.take(buffer)[1]
    turn_whole: Callable[..., Any] = whole_episodes.turn  # instead of `turn` where episodes are not cut
    leave_out: Callable[..., Any] = external_actions.leave_out
    decide_frozen: Callable[..., Any] | None = None  # `decide` whose connectors learn nothing; None without connectors
    replace_actions: Callable[..., tuple[TrajectoryState, Action]] | None = None  # None: learns only from own actions
    # On the host, with NumPy.
    resize: Callable[..., Any] = _resize
    repage: Callable[..., Any] = repaging.repage


class Acting(NamedTuple):
    """Static arguments of a decision, bound into the programs."""

    algorithm: Algorithm
    time_horizon: int


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
    """Choose actions for the new states and append them, in the one call per environment message.

    `moved`: agents that have changed their team; None: no agent has, or agents have no memory to move.

    Returns:
      Actions for the environment, dense [B, A, ...], the buffer, and the connectors' memory.
    """
    connected, steps = _received(algorithm, connected, steps, moved)
    carry = trajectory.memory(state, steps, _origin(moved))
    decided = [_decided(algorithm, policy, steps, carry, key_data)]
    if algorithm.critic_step is not None and policy.critic != ():  # a critic comes with policies that are learned from
        decided = _remembered(alone(algorithm.critic_step), [policy], [state], [steps], decided)
    return _appended(Acting(algorithm, time_horizon), state, steps, decided[0], connected, moved)


def decide_together(
    acting: Sequence[Acting],
    critic_step: CriticStep | None,
    policies: Sequence[PolicyState],
    state: KindTrajectories,
    steps: Sequence[RowsMessage],
    key_data: Sequence[Any],
    connected: Sequence[Any],
    moved: Sequence[Moved | None],
) -> tuple[tuple[Action, ...], KindTrajectories, tuple[Any, ...]]:
    """Run `decide` for teams of several behaviors, each with its own policy, buffer and message.

    `critic_step`: the `TeamAlgorithm`'s.
    """
    algorithms = [kind.algorithm for kind in acting]
    received = [_received(*kind) for kind in zip(algorithms, connected, steps, moved, strict=True)]
    connected, steps = zip(*received, strict=True)
    rows, origins = trajectory.rows_of(*steps), map(_origin, moved)
    carries = [trajectory.memory(*kind) for kind in zip(state.kinds, steps, origins, strict=True)]
    decided = [_decided(*kind) for kind in zip(algorithms, policies, steps, carries, key_data, strict=True)]
    if critic_step is not None:
        decided = _remembered(critic_step, policies, state.kinds, steps, decided)
    of_each = zip(acting, state.kinds, steps, decided, connected, moved, strict=True)
    done = [_appended(kind, *of_kind[:4], moved=of_kind[4], rows=rows) for kind, *of_kind in of_each]
    sent, buffers, connected = zip(*done, strict=True)
    return sent, KindTrajectories(buffers), connected


def _received(algorithm: Algorithm, connected: Any, steps: RowsMessage, moved: Moved | None) -> tuple[Any, RowsMessage]:
    if algorithm.connectors is None:
        return connected, steps
    return connectors.received(algorithm.connectors, connected, steps, moved)


def _origin(moved: Moved | None) -> Any:
    return None if moved is None else moved.origin


def _decided(algorithm: Algorithm, policy: PolicyState, steps: RowsMessage, carry: Any, key_data: Any) -> Decision:
    """Return the decisions of members whose recurrent memory is `carry`."""
    return algorithm.act(policy, tuple(o[1] for o in steps.obs), steps.action_mask, carry, noise.typed(key_data))


def _remembered(
    critic_step: CriticStep,
    policies: Sequence[PolicyState],
    states: Sequence[TrajectoryState],
    steps: Sequence[RowsMessage],
    decided: Sequence[Decision],
) -> list[Decision]:
    """Return the decisions of all behaviors with the critic's new memory."""
    doing = [
        made._replace(action=trajectory.standing(state, message.deciding, made.action))
        for made, state, message in zip(decided, states, steps, strict=True)
    ]
    obs, present = [tuple(o[1] for o in message.obs) for message in steps], [message.present[1] for message in steps]
    carries = critic_step(policies, obs, present, doing)
    return [made._replace(carry=carry) for made, carry in zip(decided, carries, strict=True)]


def _appended(
    acting: Acting,
    state: TrajectoryState,
    steps: RowsMessage,
    decision: Decision,
    connected: Any,
    moved: Moved | None,
    rows: Rows | None = None,
) -> tuple[Action, TrajectoryState, Any]:
    """Append the decision and return `decide`'s result; `rows` are given if other behaviors' members share them."""
    algorithm, time_horizon = acting
    fields = (decision.action, decision.extras, decision.carry)
    state = trajectory.add(state, steps, *fields, time_horizon=time_horizon, origin=_origin(moved), rows=rows)
    if algorithm.connectors is None:
        return decision.sent, state, connected
    connected, sent = connectors.sent(algorithm.connectors, connected, decision.action, decision.sent, steps.deciding)
    return sent, state, connected
