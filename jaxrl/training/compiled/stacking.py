"""From T steps of one seed's areas to the `Rollout` that an algorithm learns from, and the figures of its episodes.

All rows are aligned in time here: state t of a row is decision t of its area. Environments that truncate get a second
state after each decision, absent unless a team was cut off there: its true last observation. The state after the last
step bootstraps those who live on; like every state it is trained on once, with the next rollout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import TeamView
from jaxrl.jax_envs.scene import Sizes
from jaxrl.rollout.rollout import EverySecond, Rollout
from jaxrl.training.compiled.collect import Transitions, by_team
from jaxrl.types import Action


class Moments(NamedTuple):
    """Of a number that is met now and then: float32 [], or float64 [S] where numpy has put several together.

    Squares are of distances from the mean: float32 sums of plain squares know nothing of a spread below a thousandth of
    the mean.
    """

    count: Any
    mean: Any  # 0 of none
    squares: Any  # sum of squared distances from the mean

    @property
    def total(self) -> Any:
        """Their sum."""
        return self.count * self.mean

    @property
    def std(self) -> Any:
        """Their population standard deviation; 0 of none."""
        return (self.squares / (self.count + (self.count == 0))) ** 0.5


class EpisodeFigures(NamedTuple):
    """Of the episodes that ended in a rollout."""

    reward: Moments  # own return of each agent
    length: Moments  # decisions of each agent before its last
    # Return of each team: what it earned in its whole episode, by whomever it was received. All are paid at every step
    # here, so the same reward is known by its step, and a team whose members are replaced keeps what it earned before.
    group_reward: Moments
    received: Any  # sum of the group rewards that the agents received: float32 [], or float64 [S] as in Moments
    mates_reward: Any  # sum of the own rewards of the agents' mates while they lived
    stats: dict[str, Moments]  # what the environment tells of an episode


def stack(
    env: Sizes, steps: Transitions, last: TeamView, memory: Any, *, team_rows: bool, time_horizon: int
) -> Rollout:
    """The rollout [T', B, A'] of one seed: `steps` [T, E, A, ...] without the seed axis, `last` the view after them.

    `memory` is what the members remember then, a pytree of [E, A, *].

    T' = T + 1, or 2 T + 1 where the environment truncates. Rows are teams (B = E·K, A' = A / K) or single agents
    (B = E·A, A' = 1), which then end for good when they end: what their team earns later is not theirs. Everybody
    alive decides at every step, so nobody waits, except that returns pass through second states that are absent.
    """
    lead = steps.alive.shape
    members = env.members if team_rows else 1
    rows = lead[1] * lead[2] // members

    def row(x: Array) -> Array:
        return x.reshape(x.shape[0], rows, members, *x.shape[3:])

    acted, ended = row(steps.alive), row(steps.terminated | steps.truncated)
    # Alone in its row an agent ends for good, also when another takes the row in the same step.
    over = ended & ~row(steps.stays).any(-1, keepdims=True) if team_rows else ended
    truncated = over & row(steps.truncated)
    final = over & truncated.any(-1, keepdims=True)  # part of the last state of a team that was cut off
    nobody = jnp.zeros_like(acted)

    def states(x: Array, at_last: Array, at_final: Array | None = None) -> Array:
        """[T, ...] of decisions, with final states in between and the last one: [T', ...]."""
        if env.truncates:
            between = jnp.zeros_like(x) if at_final is None else at_final
            x = jnp.stack([x, between], axis=1).reshape(2 * x.shape[0], *x.shape[1:])
        return jnp.concatenate([x, at_last[None]])

    def decided(x: Array) -> Array:
        """Nothing in states in which nobody acts."""
        return states(x, jnp.zeros_like(x[0]))

    present = states(acted, row(last.alive[None])[0], final)
    seen_last, known = steps.last_obs or steps.obs, steps.last_carry or steps.carry
    own = jnp.where(acted, row(steps.reward), 0.0)
    obs = (states(row(o), row(n[None])[0], row(f)) for o, n, f in zip(steps.obs, last.obs, seen_last, strict=True))
    return Rollout(
        obs=tuple(_seen_by(present, o) for o in obs),
        action_mask=states(row(steps.action_mask), row(last.action_mask[None])[0]),
        action=Action(*(decided(row(x)) for x in steps.action)),
        extras={name: decided(row(x)) for name, x in steps.extras.items()},
        carry=jax.tree.map(lambda x, m, f: states(row(x), row(m[None])[0], row(f)), steps.carry, memory, known),
        begin=decided(acted & row(steps.begin)),
        present=present,
        acted=decided(acted),
        waiting=states(nobody, nobody[0], jnp.broadcast_to(~final.any(-1, keepdims=True), final.shape)),
        reward=decided(own),
        mates_reward=decided(jnp.where(acted, own.sum(-1, keepdims=True) - own, 0.0)),
        group_reward=decided(jnp.where(acted, row(steps.group_reward), 0.0)),
        terminated=decided(over & ~truncated),
        truncated=decided(truncated),
        left=decided(ended & ~over),
        cut=decided(_cut(acted, ended, time_horizon)),
        between=EverySecond() if env.truncates else (),
    )


def _seen_by(present: Array, x: Array) -> Array:
    """Zeros for members that are not `present` [T', B, A]; x [T', B, A, *shape] keeps its dtype."""
    return jnp.where(present.reshape(*present.shape, *[1] * (x.ndim - present.ndim)), x, jnp.zeros((), x.dtype))


def _cut(acted: Array, ended: Array, time_horizon: int) -> Array:
    """bool [T, B, A]: a segment has reached `time_horizon` decisions here. Segments begin anew with each rollout."""
    if time_horizon >= acted.shape[0]:
        return jnp.zeros_like(acted)
    time = jnp.arange(acted.shape[0])[:, None, None]
    before = jnp.concatenate([jnp.zeros_like(acted[:1]), (acted & ~ended)[:-1]])
    begin = jax.lax.cummax(jnp.where(acted & ~before, time, 0), axis=0)
    return acted & ~ended & ((time - begin + 1) % time_horizon == 0)


def figures(env: Sizes, steps: Transitions) -> EpisodeFigures:
    """Of the episodes that ended in `steps` [T, E, ...]."""
    ended = steps.terminated | steps.truncated
    team_over = by_team(env, ended).any(-1) & ~by_team(env, steps.stays).any(-1)
    return EpisodeFigures(
        reward=moments(steps.sums.reward, ended),
        length=moments(steps.sums.length.astype(jnp.float32), ended),
        group_reward=moments(steps.sums.group_reward, team_over),
        received=jnp.where(ended, steps.sums.received, 0.0).sum(),
        mates_reward=jnp.where(ended, steps.sums.mates_reward, 0.0).sum(),
        stats={name: moments(value, steps.over) for name, value in steps.stats.items()},
    )


def moments(x: Array, mask: Array) -> Moments:
    """Of float32 `x` where `mask`, both [...]. In two passes, the second of which mends what the first has rounded."""
    count = mask.sum(dtype=jnp.float32)
    divisor = jnp.maximum(count, 1.0)
    about = jnp.where(mask, x, 0.0).sum() / divisor
    rest = jnp.where(mask, x - about, 0.0)
    error = rest.sum() / divisor
    squares = jnp.maximum(jnp.square(rest).sum() - count * jnp.square(error), 0.0)
    return Moments(count=count, mean=about + error, squares=squares)


def together(some: Any, others: Any) -> Any:
    """Sums of the arrays of two equal pytrees, of JAX or numpy; of the `Moments` in them those of both (Chan 1983)."""

    def pair(a: Any, b: Any) -> Any:
        if not isinstance(a, Moments):
            return a + b
        count = a.count + b.count
        share = b.count / (count + (count == 0))
        away = b.mean - a.mean
        squares = a.squares + b.squares + away * away * a.count * share
        return Moments(count=count, mean=a.mean + away * share, squares=squares)

    return jax.tree.map(pair, some, others, is_leaf=lambda x: isinstance(x, Moments))


def first_fault(steps: Transitions, last: TeamView) -> Array:
    """int32 [3]: (step, area, 0 observation or 1 reward) of the first number that is not finite; -1 where none is.

    Step T is the view after the T decisions, which the newest of them bootstrap from.
    """
    unseen = _any_not_finite(steps.obs, steps.alive)
    if steps.last_obs:
        unseen |= _any_not_finite(steps.last_obs, steps.truncated)
    unpaid = _any_not_finite((steps.reward, steps.group_reward), steps.alive)
    after = _any_not_finite(last.obs, last.alive)
    bad = jnp.stack([jnp.vstack([unseen, after]), jnp.vstack([unpaid, jnp.zeros_like(after)])], axis=-1)  # [T+1, E, 2]
    at, areas = jnp.argmax(bad.reshape(-1)), bad.shape[1]
    where = jnp.stack([at // (2 * areas), at // 2 % areas, at % 2]).astype(jnp.int32)
    return jnp.where(bad.any(), where, -1)


def _any_not_finite(numbers: tuple[Array, ...], mask: Array) -> Array:
    """bool [..., E]: a member in `mask` [..., E, A] has a number in one of the arrays [..., E, A, *] that is not.

    Whole numbers, such as those of images, always are and cost nothing.
    """
    floats = [x for x in numbers if jnp.issubdtype(x.dtype, jnp.inexact)]
    finite = [jnp.isfinite(x).reshape(*mask.shape, -1).all(-1) for x in floats]
    return (mask & ~jnp.stack([jnp.ones_like(mask), *finite]).all(0)).any(-1)
