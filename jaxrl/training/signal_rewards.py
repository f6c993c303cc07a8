"""Sum the rewards of each reward signal over agents' episodes, for "Policy/Extrinsic Reward" and similar tags.

All are sums over an episode, times strength. The environment's reward is summed where it is played. Another signal's
reward of a decision is computed when its rollout is taken, before the signal learns from it: an episode that spans
several rollouts is summed part by part, and reported with the last part. So a summary covers the episodes whose end was
learned from since the summary before. Rewards in a replay are computed anew whenever they are drawn; the reported ones
of an off-policy algorithm are those at the time when a decision went into the replay, as in ML-Agents.

If rows hold teams, an agent that changes its team counts as one agent for each team. Left out are decisions that are
not learned from, and the rewards of an agent in a team whose last member left it at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings

PAID = "paid"
"""Key of `Paid` among the metrics of an update, until it is summed."""


class Paid(NamedTuple):
    """Signal rewards of a rollout's decisions. Arrays [T, B, A]."""

    rewards: Mapping[str, Any]  # by signal, float32, with strength
    acted: Any  # bool, decided here and learned from
    begin: Any  # bool, the first decision of an episode
    over: Any  # bool, the last one


def paid_by_decision(rollout: Rollout, rewards: Mapping[str, jax.Array]) -> Paid:
    """Combine the signal rewards of a rollout's decisions with the beginnings and ends of its episodes."""
    over = rollout.terminated | rollout.truncated | rollout.left
    return Paid(rewards, rollout.acted, rollout.begin, rollout.acted & over)


def episode_sums(before: Mapping[str, jax.Array], paid: Paid) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Compute, by signal, each episode's reward sum up to every decision, [T, B, A], and after the last one, [B, A].

    before: float32 [B, A] by signal, sums of the episodes that go on from an earlier rollout.
    """

    def step(sums: dict[str, jax.Array], at: Paid) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        now = {
            name: jnp.where(at.begin, 0.0, sums[name]) + jnp.where(at.acted, reward, 0.0)
            for name, reward in at.rewards.items()
        }
        return now, now  # another episode begins with its first decision

    last, sums_by_decision = jax.lax.scan(step, dict(before), paid)
    return sums_by_decision, last


class EpisodeSums:
    """Reward sums of open episodes, and of those that ended since the last `take`, in the host loop (numpy).

    A row is a stream of states over its pages and from one update to the next, so the sum of an open episode is stored
    by row and member until it ends. Letters: P pages, B rows.
    """

    def __init__(self) -> None:
        self._open: dict[str, np.ndarray] = {}  # by signal, float64 [B, A]
        self._ended: dict[str, list[float]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Any], rows: np.ndarray) -> None:
        """Add the rewards of one rollout [T, P, A]: `PAID` of its metrics, if present.

        rows: int64 [at most P], the row whose stream lies in each page, pages of one row in the order of time.
        """
        if PAID not in metrics:
            return
        paid: Paid = jax.tree.map(lambda x: np.asarray(x)[:, : len(rows)], metrics[PAID])
        for name, reward in paid.rewards.items():
            before, shape = self._open.get(name, np.zeros((0, 0))), (int(rows.max()) + 1, reward.shape[2])
            room = [(0, max(new - old, 0)) for old, new in zip(before.shape, shape, strict=True)]
            self._open[name] = np.pad(before, room)
        for pages in _each_row_once(rows):
            for t in range(len(paid.acted)):
                self._step(paid, t, pages, rows[pages])

    def take(self) -> dict[str, list[float]]:
        """Return and clear, by signal, the sums of the episodes that have ended."""
        ended, self._ended = dict(self._ended), defaultdict(list)
        return ended

    def _step(self, paid: Paid, t: int, pages: np.ndarray, rows: np.ndarray) -> None:
        acted, begin, over = (x[t, pages] for x in (paid.acted, paid.begin, paid.over))
        if not acted.any() and not begin.any():
            return
        for name, reward in paid.rewards.items():
            members = slice(0, acted.shape[1])
            now = np.where(begin, 0.0, self._open[name][rows, members]) + np.where(acted, reward[t, pages], 0.0)
            self._ended[name] += now[over].tolist()
            self._open[name][rows, members] = now  # another episode begins with its first decision


def _each_row_once(rows: np.ndarray) -> list[np.ndarray]:
    """Group the page indices: the first page of every row, then the second of rows that have one, and so on."""
    groups, left = [], np.arange(len(rows))
    while len(left):
        first = np.sort(np.unique(rows[left], return_index=True)[1])
        groups.append(left[first])
        left = np.delete(left, first)
    return groups


def extrinsic_sum(
    settings: BehaviorSettings, *, own: np.ndarray, group: np.ndarray, mates: np.ndarray, strength: Any = None
) -> np.ndarray | None:
    """Compute strength · (own + group [+ mates' own rewards]), ML-Agents' episode sum; None without the signal.

    Args:
      own, group, mates: float64 [N], sums over an agent's episode (or over several): its individual rewards, the group
        rewards that it received, and the individual rewards of its mates while it lived.
      strength: replaces the strength of the settings.
    """
    signal = settings.reward_signals.get("extrinsic")
    if signal is None:
        return None
    cooperative = TRAINER_TYPES[settings.trainer_type].cooperative
    return (signal.strength if strength is None else strength) * (own + group + (mates if cooperative else 0.0))
