"""What a signal has paid an agent over its episode, as "Policy/Extrinsic Reward" and its like show it.

All are sums over an episode, times strength. The environment's own is added up where it is played. What another signal
pays is known when a rollout is learned from, and is what the signal held of each decision then, before it learned from
it: an episode that lies in several rollouts is paid for each part as its rollout is taken, and told with the last of
them. So a summary tells of episodes whose end was learned from since the one before. A replay's rewards are computed
anew whenever they are drawn, many times or never; what is told of an off-policy algorithm's is what its signals held of
each decision when it went into the replay, which is when ML-Agents adds up as well.

Where rows hold teams, an agent that changes its team is told as one agent for each of them. Not among them: decisions
that nobody learns from, and what an agent was paid in a team whose last member moved on as it did.
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
"""Where `Paid` stands among the metrics of an update until somebody adds it up."""


class Paid(NamedTuple):
    """What a rollout's decisions were paid. Arrays [T, B, A]."""

    rewards: Mapping[str, Any]  # by signal, float32, with strength
    acted: Any  # bool, decided here and learned from
    begin: Any  # bool, the first decision of an episode
    over: Any  # bool, the last one


def paid_by_decision(rollout: Rollout, rewards: Mapping[str, jax.Array]) -> Paid:
    """Beside the rewards of each decision of a rollout what tells its episodes apart."""
    over = rollout.terminated | rollout.truncated | rollout.left
    return Paid(rewards, rollout.acted, rollout.begin, rollout.acted & over)


def episode_sums(before: Mapping[str, jax.Array], paid: Paid) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """By signal, what each decision's episode was paid up to and with it, [T, B, A]; and so far after them all, [B, A].

    before: float32 [B, A] by signal, what the episodes that go on here were paid earlier.
    """

    def step(sums: dict[str, jax.Array], at: Paid) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        now = {
            name: jnp.where(at.begin, 0.0, sums[name]) + jnp.where(at.acted, reward, 0.0)
            for name, reward in at.rewards.items()
        }
        return now, now  # another episode begins with its first decision

    after, found = jax.lax.scan(step, dict(before), paid)
    return found, after


class EpisodeSums:
    """The same in the host loop, in numpy: sums of episodes under way, and of those that ended since the last `take`.

    A row is a stream of states over its pages and from one update to the next, so what an episode was paid before the
    newest update is kept by row and member until it ends. Letters: P pages, B rows.
    """

    def __init__(self) -> None:
        self._open: dict[str, np.ndarray] = {}  # by signal, float64 [B, A]
        self._ended: dict[str, list[float]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Any], rows: np.ndarray) -> None:
        """What was paid in one rollout [T, P, A]: `PAID` of its metrics, if it is there.

        rows: int64 [at most P], the row whose stream lies in each page, pages of one row in the order of time.
        """
        if PAID not in metrics:
            return
        told: Paid = jax.tree.map(lambda x: np.asarray(x)[:, : len(rows)], metrics[PAID])
        for name, reward in told.rewards.items():
            before, shape = self._open.get(name, np.zeros((0, 0))), (int(rows.max()) + 1, reward.shape[2])
            room = [(0, max(new - old, 0)) for old, new in zip(before.shape, shape, strict=True)]
            self._open[name] = np.pad(before, room)
        for pages in _each_row_once(rows):
            for t in range(len(told.acted)):
                self._step(told, t, pages, rows[pages])

    def take(self) -> dict[str, list[float]]:
        """By signal, the sums of the episodes that have ended; afterwards there are none."""
        taken, self._ended = dict(self._ended), defaultdict(list)
        return taken

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
    """Indices of pages: the first page of every row, then the second of those that have one, and so on."""
    found, left = [], np.arange(len(rows))
    while len(left):
        first = np.sort(np.unique(rows[left], return_index=True)[1])
        found.append(left[first])
        left = np.delete(left, first)
    return found


def extrinsic_sum(
    settings: BehaviorSettings, *, own: np.ndarray, group: np.ndarray, mates: np.ndarray, strength: Any = None
) -> np.ndarray | None:
    """strength · (own + group [+ mates' own rewards]), what ML-Agents adds up over an episode; None without the signal.

    Args:
      own, group, mates: float64 [N], sums over an agent's episode (or over several): its individual rewards, the group
        rewards that it received, and the individual rewards of its mates while it lived.
      strength: instead of that of the settings.
    """
    signal = settings.reward_signals.get("extrinsic")
    if signal is None:
        return None
    cooperative = TRAINER_TYPES[settings.trainer_type].cooperative
    return (signal.strength if strength is None else strength) * (own + group + (mates if cooperative else 0.0))
