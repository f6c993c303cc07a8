"""Slots and trajectory buffer driven together, and everything they say turned back into single transitions.

Every number is made from the agent's own observation [uid, serial, weight]: action, log-probability and mask. So
whatever lands with the wrong agent, state or time is seen at once. V of a state is the sum of the present weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rollout.booking.records import Ingested
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer import external_actions, trajectory
from jaxrl.rollout.buffer.cells import pack
from jaxrl.rollout.buffer.pages import Pages
from jaxrl.rollout.buffer.repaging import repage, resize
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import NOTHING, Action, ActionSpec, BehaviorMessage, BehaviorSpec, ObservationSpec
from tests.algorithms.team_rollouts import returns_of
from tests.helpers import ppo_settings

SPEC = BehaviorSpec(
    observations=(ObservationSpec("self", (3,)), ObservationSpec("grid", (1, 2))), action=ActionSpec(1, (3,))
)
ONE_STEP = ppo_settings(hyperparameters__lambd=0.0, reward_signals__extrinsic__gamma=1.0)
"""R_t = own + group reward + V(what follows): shows which state every transition bootstraps from."""

ADD = jax.jit(trajectory.add, static_argnames="time_horizon")
TAKE = jax.jit(trajectory.take)
LEAVE_OUT = jax.jit(external_actions.leave_out)
TURN = jax.jit(trajectory.turn)
EXTRAS = (("log_prob", (2,)),)
RETURNS = jax.jit(partial(returns_of, ONE_STEP, False))


class Transition(NamedTuple):
    """One trained decision. `state` holds (uid, serial of the observation, action) of every member that was present."""

    uid: int
    serial: int
    reward: float
    group_reward: float
    ending: str
    bootstrap: float  # V of the state that follows; 0 where nothing does
    state: frozenset[tuple[int, int, float]]


def observe(uid: int, serial: int, weight: int) -> tuple[np.ndarray, np.ndarray]:
    """Both sensors of one agent."""
    return np.array([uid, serial, weight], np.float32), np.array([[weight, -uid]], np.float32)


def allowed(serial: int) -> list[bool]:
    """Action mask of one decision."""
    return [True, serial % 2 == 0, serial % 3 == 0]


def chosen(uid: float, serial: float) -> float:
    """Continuous action of one decision."""
    return 16.0 * uid + serial


def policy(steps_obs: tuple[np.ndarray, ...]) -> tuple[Action, np.ndarray]:
    """Action and log-probabilities of all slots, [B, A, ...]."""
    uid, serial = steps_obs[0][1][..., 0], steps_obs[0][1][..., 1]
    action = Action(continuous=chosen(uid, serial)[..., None], discrete=(serial % 3).astype(np.int32)[..., None])
    return action, np.stack([-uid, -serial], axis=-1)


class RowCollector:
    """What `jaxrl.training.host.acting_policy` does around the rows, without a policy."""

    def __init__(
        self,
        *,
        team_rows: bool = True,
        rows: int = 1,
        members: int = 1,
        capacity: int = 16,
        horizon: int = 64,
        poison: bool = False,
        turns: bool = False,
    ) -> None:
        self.slots = Slots(SPEC, team_rows=team_rows, rows=rows, members=members)
        self.buffer = trajectory.init(SPEC, EXTRAS, capacity=capacity, rows=rows, members=members)
        self.pages = Pages(capacity, rows)
        self.horizon = horizon
        self.poison = poison
        self.turns = turns  # whether rows go on in fresh pages; else the caller takes in time
        self.turned = 0
        self.room = 192 if turns else 1  # pages come in such numbers, so that few programs are compiled
        self.finished = 0
        self.rollout: Rollout | None = None  # the last one taken
        if poison:
            self.buffer = poisoned(self.buffer)

    @property
    def full(self) -> bool:
        """A row has no room for a final and a new state."""
        return bool((self.pages.size + 2 > self.pages.capacity).any())

    def feed(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> Ingested:
        """One message: book, grow, act, append. Checks that every agent gets the action of its own observation."""
        ingested = self.slots.ingest(messages, untrained)
        if (self.slots.rows, self.slots.members) != (len(self.pages.page), self.buffer.shape[2]):
            self.resize(self.pages.grow(self.slots.rows))
        self.turn(self.pages.full(ingested.steps) & self.turns)
        if ingested.left_out is not None:
            self.buffer = LEAVE_OUT(self.buffer, ingested.left_out)
        action, log_prob = policy(ingested.steps.obs)
        log_prob = np.where(ingested.steps.deciding[..., None], log_prob, 7)  # a silent member keeps its decision's own
        steps = jax.tree.map(np.copy, ingested.steps)
        self.buffer = ADD(self.buffer, steps, action, {"log_prob": log_prob}, time_horizon=self.horizon)
        self.pages.append(ingested.steps)
        self.finished += ingested.finished
        for source, places in ingested.decisions.items():
            own = messages[source].deciding.obs[0]
            np.testing.assert_array_equal(action.continuous.reshape(-1)[places], chosen(own[:, 0], own[:, 1]))
        self.check()
        return ingested

    def turn(self, turning: np.ndarray) -> None:
        """Fresh pages for these rows."""
        if not turning.any():
            return
        self.turned += int(turning.sum())
        page = self.pages.turn(turning, np.asarray((self.buffer.open_at >= 0).any(-1)))
        if self.pages.given > self.buffer.shape[1]:
            self.resize(())
        self.buffer = TURN(self.buffer, turning, page.astype(np.int32))

    def cut(self, capacity: int) -> None:
        """The same contents in shorter pages."""
        self.buffer, self.pages = repage(self.buffer, self.pages, capacity=capacity)
        self.check()

    def resize(self, fresh: Sequence[int] | np.ndarray) -> None:
        """Room for all pages that are given out, `fresh` ones for new rows among them."""
        self.buffer = resize(
            self.buffer,
            capacity=self.pages.capacity,
            pages=self.room * -(-max(self.pages.given, self.buffer.shape[1]) // self.room),
            members=self.slots.members,
            fresh=fresh,
        )
        if self.poison:
            self.buffer = poisoned(self.buffer)

    def check(self) -> None:
        """The host's mirror says what the buffer says."""
        np.testing.assert_array_equal(self.pages.size, self.buffer.size)
        np.testing.assert_array_equal(self.pages.page, self.buffer.page)

    def take(self, *, check: bool = True) -> list[Transition]:
        """Everything trained now, sorted; `check`: and compared with the observation that it is made from."""
        self.rollout, self.buffer = TAKE(self.buffer)
        self.pages.taken(self.slots.living)
        self.check()
        if self.poison:
            self.buffer = poisoned(self.buffer)
        return transitions(self.rollout) if check else []


def poisoned(state: TrajectoryState) -> TrajectoryState:
    """The buffer with rubbish in every cell that holds nothing: NaN, and -999 in whole numbers."""
    capacity, pages, _ = state.shape
    sizes = np.where(np.arange(pages) <= np.asarray(state.page).max(), capacity, 0)
    sizes[np.asarray(state.page)] = np.asarray(state.size)
    live = np.arange(capacity)[:, None] < sizes

    def spoil(x: jax.Array) -> np.ndarray:
        rubbish = np.nan if np.issubdtype(x.dtype, np.floating) else -999
        return np.where(live.reshape(live.shape + (1,) * (x.ndim - 2)), x, np.asarray(rubbish, x.dtype))

    cells = state.cells
    spoilt = cells._replace(
        obs=tuple(map(spoil, cells.obs)),
        action=Action(*map(spoil, cells.action)),
        extras={name: spoil(x) for name, x in cells.extras.items()},
    )
    return dataclasses.replace(state, stored=pack(spoilt, state.layout))


def transitions(rollout: Rollout) -> list[Transition]:
    """The trained decisions of a rollout, sorted; checks what belongs to each against its observation."""
    r = jax.tree.map(np.asarray, rollout)
    value = np.where(r.present, r.obs[0][..., 2], 0.0).sum(-1, keepdims=True)
    value = np.broadcast_to(value, r.present.shape)[..., None]
    returns = np.asarray(RETURNS(rollout, value))[..., 0]
    paid = np.asarray(EXTRINSIC.reward((), rollout, cooperative=False))
    for leaf in jax.tree.leaves(r._replace(action=r.action._replace(discrete=np.zeros(0)))):
        assert np.isfinite(leaf).all(), "rubbish of untouched memory in the rollout"
    np.testing.assert_array_equal(r.acted, r.acted & r.present)
    found = []
    for t, b, a in zip(*np.nonzero(r.acted), strict=True):
        uid, serial, weight = r.obs[0][t, b, a]
        assert r.obs[1][t, b, a].tolist() == [[weight, -uid]]
        assert r.action_mask[t, b, a].tolist() == allowed(int(serial))
        assert r.action.continuous[t, b, a].tolist() == [chosen(uid, serial)]
        assert r.action.discrete[t, b, a].tolist() == [serial % 3]
        assert r.extras["log_prob"][t, b, a].tolist() == [-uid, -serial]
        reward, group_reward = r.reward[t, b, a], r.group_reward[t, b, a]
        present = r.present[t, b]
        found.append(
            Transition(
                uid=int(uid),
                serial=int(serial),
                reward=float(reward),
                group_reward=float(group_reward),
                ending=_ending(r, (t, b, a)),
                bootstrap=float(returns[t, b, a] - paid[t, b, a]),
                state=frozenset(
                    (int(o[0]), int(o[1]), float(c[0]))
                    for o, c in zip(r.obs[0][t, b][present], r.action.continuous[t, b][present], strict=True)
                ),
            )
        )
    return sorted(found)


def _ending(r: Rollout, at: tuple[int, int, int]) -> str:
    names = [name for name in ("terminated", "truncated", "left", "cut") if getattr(r, name)[at]]
    assert len(names) <= 1
    return names[0] if names else "continues"
