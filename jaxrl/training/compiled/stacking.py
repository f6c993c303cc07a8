"""Convert T steps of one seed's areas to the `Rollout` that an algorithm learns from, and compute episode figures.

All rows are aligned in time: state t of a row is decision t of its area. Environments that truncate have a second state
after each decision, with the true last observation; it is absent unless a team was cut off there. The state after the
last step bootstraps members that live on; like every state it is trained on once, with the next rollout. So is a
decision that is still pending because its member is paused: the next rollout begins with it (`collect.from_before`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import TeamView
from jaxrl.jax_envs.scene import Sizes
from jaxrl.masks import trailing
from jaxrl.rollout.rollout import EverySecond, Rollout, masked
from jaxrl.training.compiled.play import Transitions, by_team
from jaxrl.types import Action


class Moments(NamedTuple):
    """Moments of a set of numbers: float32 [], or float64 [S] if numpy has combined several sets.

    Squares are of distances from the mean: float32 sums of plain squares lose a spread below a thousandth of the mean.
    """

    count: Any
    mean: Any  # 0 without numbers
    squares: Any  # sum of squared distances from the mean

    @property
    def total(self) -> Any:
        """Sum of the numbers."""
        return self.count * self.mean

    @property
    def std(self) -> Any:
        """Population standard deviation; 0 without numbers."""
        return (self.squares / (self.count + (self.count == 0))) ** 0.5


class EpisodeFigures(NamedTuple):
    """Figures of the episodes that ended in a rollout."""

    reward: Moments  # own return of each agent
    length: Moments  # decisions of each agent before its last
    # Group return of each team over its whole episode, whichever member received it. All members get it in the same
    # step here, so one reward counts once, and a team whose members are replaced keeps its earlier rewards.
    group_reward: Moments
    received: Any  # sum of the group rewards that the agents received: float32 [], or float64 [S] as in Moments
    mates_reward: Any  # sum of the own rewards of the agents' mates while they lived
    stats: dict[str, Moments]  # the environment's statistics of an episode


def stack(
    env: Sizes, steps: Transitions, last: TeamView, memory: Any, *, team_rows: bool, time_horizon: int
) -> Rollout:
    """Make a rollout as `stacked`, with zeros where its masks are False."""
    return masked(stacked(env, steps, last, memory, team_rows=team_rows, time_horizon=time_horizon))


def stack_team(
    sizes: Mapping[str, Sizes],
    steps: Mapping[str, Transitions],
    last: Mapping[str, TeamView],
    memory: Mapping[str, Any],
    *,
    time_horizon: int,
) -> dict[str, Rollout]:
    """Make the rollouts [T', B, A_k] of the behaviors of a team, aligned so that row b is one team in all of them.

    Presence, waiting, rewards and ends are computed as of one row with all members. Arguments as of `stacked`.
    """
    first = next(iter(sizes.values()))
    whole = first._replace(members=sum(env.members for env in sizes.values()))
    of_all = {field: _beside(sizes, {n: getattr(part, field) for n, part in steps.items()}) for field in _OF_ALL}
    nothing = jnp.zeros((*of_all["alive"].shape, 0))
    empty = dict.fromkeys(("obs", "carry", "last_obs", "last_carry"), ())
    empty |= {
        "extras": {},
        "action": Action(nothing, nothing),
        "begin": of_all["alive"],
        "action_mask": of_all["alive"],
    }
    alive = _beside(sizes, {name: view.alive[None] for name, view in last.items()})[0]
    everybody = steps[next(iter(sizes))]._replace(**empty | of_all)
    seen = TeamView((), alive, alive)
    row = stacked(whole, everybody, seen, (), team_rows=True, time_horizon=time_horizon)
    rollouts, start = {}, 0
    for name, env in sizes.items():
        rollout = stacked(env, steps[name], last[name], memory[name], team_rows=True, time_horizon=time_horizon)
        columns = slice(start, start := start + env.members)
        rollouts[name] = masked(rollout._replace(**{field: getattr(row, field)[:, :, columns] for field in _OF_ROW}))
    return rollouts


_OF_ALL = (
    "alive", "waits", "arrived", "reward", "mates_reward", "group_reward", "terminated", "truncated", "stays",
)  # fmt: skip
_OF_ROW = (
    "present", "acted", "waiting", "reward", "mates_reward", "group_reward", "terminated", "truncated", "left", "cut",
)  # fmt: skip


def _beside(sizes: Mapping[str, Sizes], arrays: Mapping[str, Array]) -> Array:
    """Concatenate arrays [T, E, A_k] of the behaviors of a team to [T, E, A], team by team."""
    joined = jnp.concatenate([by_team(env, arrays[name]) for name, env in sizes.items()], axis=-1)
    return joined.reshape(*joined.shape[:-2], -1)


def stacked(
    env: Sizes, steps: Transitions, last: TeamView, memory: Any, *, team_rows: bool, time_horizon: int
) -> Rollout:
    """Make the rollout [T', B, A'] of one seed from `steps` [T, E, A, ...], without masking.

    `last` is the view after the steps, `memory` the members' memory then, a pytree of [E, A, *].

    T' = T + 1, or 2 T + 1 if the environment truncates. Rows are teams (B = E·K, A' = A / K) or single agents
    (B = E·A, A' = 1). A single agent terminates when it ends: later rewards of its team are not counted for it. Returns
    pass through states in which a member is paused, in which no member of its row decides, and absent second states.
    """
    lead = steps.alive.shape
    members = env.members if team_rows else 1
    rows = lead[1] * lead[2] // members

    def row(x: Array) -> Array:
        return x.reshape(x.shape[0], rows, members, *x.shape[3:])

    alive, waits, arrived = row(steps.alive), row(steps.waits), row(steps.arrived)
    ended = row(steps.terminated | steps.truncated)
    # A single agent in a row terminates when it ends, even if another agent takes the row in the same step.
    over = ended & ~row(steps.stays).any(-1, keepdims=True) if team_rows else ended
    truncated = over & row(steps.truncated)
    final = over & truncated.any(-1, keepdims=True)  # part of the last state of a team that was cut off
    nobody, cut = jnp.zeros_like(alive), _cut(alive, waits, ended, time_horizon)
    told = _Told(
        acted=alive & arrived,
        action=Action(*map(row, steps.action)),
        reward=row(steps.reward),
        mates_reward=row(steps.mates_reward) if team_rows else jnp.zeros_like(row(steps.reward)),
        group_reward=row(steps.group_reward),
        terminated=over & ~truncated,
        truncated=truncated,
        left=ended & ~over,
    )
    pauses = (alive & ~arrived).any()
    told = jax.lax.cond(pauses, lambda: _by_decision(told, alive, arrived, over, final), lambda: told)

    def states(x: Array, at_last: Array, at_final: Array | None = None) -> Array:
        """Interleave decisions [T, ...] with final states, and append the last state: [T', ...]."""
        if env.truncates:
            between = jnp.zeros_like(x) if at_final is None else at_final
            x = jnp.stack([x, between], axis=1).reshape(2 * x.shape[0], *x.shape[1:])
        return jnp.concatenate([x, at_last[None]])

    def decided(x: Array) -> Array:
        """Convert decisions [T, ...] to states [T', ...], with zeros in states without decisions."""
        return states(x, jnp.zeros_like(x[0]))

    lives = row(last.alive[None])[0] | ((alive | waits) & ~arrived)[-1]
    idle = waits | ~alive.any(-1, keepdims=True)
    seen_last, known = steps.last_obs or steps.obs, steps.last_carry or steps.carry
    obs = (states(row(o), row(n[None])[0], row(f)) for o, n, f in zip(steps.obs, last.obs, seen_last, strict=True))
    return Rollout(
        obs=tuple(obs),
        action_mask=states(row(steps.action_mask), row(last.action_mask[None])[0]),
        action=Action(*map(decided, told.action)),
        extras={name: decided(row(x)) for name, x in steps.extras.items()},
        carry=jax.tree.map(lambda x, m, f: states(row(x), row(m[None])[0], row(f)), steps.carry, memory, known),
        begin=decided(alive & row(steps.begin)),
        present=states(alive | waits, lives, final),
        acted=decided(told.acted),
        waiting=states(idle, nobody[0], jnp.broadcast_to(~final.any(-1, keepdims=True), final.shape)),
        reward=decided(told.reward),
        mates_reward=decided(told.mates_reward),
        group_reward=decided(told.group_reward),
        terminated=decided(told.terminated),
        truncated=decided(told.truncated),
        left=decided(told.left),
        cut=decided(cut & ~(told.terminated | told.truncated | told.left)),
        between=EverySecond() if env.truncates else (),
    )


class _Told(NamedTuple):
    """Outcomes of decisions, [T, B, A, ...]; fields as in `Rollout`."""

    acted: Array
    action: Action
    reward: Array
    mates_reward: Array
    group_reward: Array
    terminated: Array
    truncated: Array
    left: Array


def _by_decision(told: _Told, alive: Array, arrived: Array, over: Array, final: Array) -> _Told:
    """Move outcomes from the step at which they arrived to the step of their decision; repeat actions during pauses.

    An agent that left its team is followed by the next state in which a mate decides, or by none if the team ends
    before. It also gets its mates' rewards until then.
    """
    time, nowhere = jnp.arange(len(alive))[:, None, None], len(alive)

    def next_of(mask: Array) -> Array:
        """Return the first step, from each on, in which `mask` holds; `nowhere` if none does."""
        return jax.lax.cummin(jnp.where(mask, time, nowhere), axis=0, reverse=True)

    def at(x: Array, step: Array) -> Array:
        return jnp.take_along_axis(x, trailing(step, x), axis=0)

    decides, ends = (next_of(x.any(-1, keepdims=True)) for x in (alive, over))
    following = jnp.concatenate([decides[1:], jnp.full_like(decides[:1], nowhere)])
    end = jnp.concatenate([ends[1:], jnp.full_like(ends[:1], nowhere)])
    cut_off = at(final.any(-1, keepdims=True), jnp.minimum(end, nowhere - 1))
    for_nothing = told.left & (end < following) & ~cut_off
    paid = jnp.cumsum(jnp.broadcast_to(told.reward.sum(-1, keepdims=True), told.reward.shape), axis=0)
    later = at(paid, jnp.broadcast_to(jnp.minimum(following - 1, jnp.minimum(end, nowhere - 1)), paid.shape)) - paid
    told = told._replace(
        left=told.left & ~for_nothing,
        terminated=told.terminated | for_nothing,
        mates_reward=told.mates_reward + jnp.where(told.left, later, 0.0),
    )
    known = next_of(arrived)
    newest = jax.lax.cummax(jnp.where(alive, time, 0), axis=0)
    moved = jax.tree.map(lambda x: at(x, jnp.minimum(known, nowhere - 1)), told._replace(acted=alive, action=()))
    return moved._replace(acted=alive & (known < nowhere), action=jax.tree.map(lambda x: at(x, newest), told.action))


def _cut(alive: Array, waits: Array, ended: Array, time_horizon: int) -> Array:
    """Return where a segment has reached `time_horizon` decisions, bool [T, B, A]; each rollout begins new segments."""
    if time_horizon >= alive.shape[0]:
        return jnp.zeros_like(alive)
    goes_on = (alive | waits) & ~ended
    before = jnp.concatenate([jnp.zeros_like(alive[:1]), goes_on[:-1]])
    number = jnp.cumsum(alive, axis=0)
    first = jax.lax.cummax(jnp.where(alive & ~before, number, 0), axis=0)
    return alive & ((number - first + 1) % time_horizon == 0)


def figures(env: Sizes, steps: Transitions, team_over: Array | None = None) -> EpisodeFigures:
    """Compute figures of the episodes that ended in `steps` [T, E, ...]; `team_over` for teams of several behaviors."""
    ended = steps.terminated | steps.truncated
    team_over = teams_over({"": env}, {"": steps}) if team_over is None else team_over
    return EpisodeFigures(
        reward=moments(steps.sums.reward, ended),
        length=moments(steps.sums.length.astype(jnp.float32), ended),
        group_reward=moments(steps.sums.group_reward, team_over),
        received=jnp.where(ended, steps.sums.received, 0.0).sum(),
        mates_reward=jnp.where(ended, steps.sums.mates_reward, 0.0).sum(),
        stats={name: moments(value, steps.over) for name, value in steps.stats.items()},
    )


def teams_over(sizes: Mapping[str, Sizes], steps: Mapping[str, Transitions]) -> Array:
    """Return where the last member of a team has ended, counting all these behaviors, bool [T, E, K]."""
    ended = [by_team(env, steps[name].terminated | steps[name].truncated).any(-1) for name, env in sizes.items()]
    stays = [by_team(env, steps[name].stays).any(-1) for name, env in sizes.items()]
    return reduce(jnp.logical_or, ended) & ~reduce(jnp.logical_or, stays)


def moments(x: Array, mask: Array) -> Moments:
    """Compute moments of float32 `x` where `mask`, both [...]; a second pass corrects the rounding of the first."""
    count = mask.sum(dtype=jnp.float32)
    divisor = jnp.maximum(count, 1.0)
    about = jnp.where(mask, x, 0.0).sum() / divisor
    rest = jnp.where(mask, x - about, 0.0)
    error = rest.sum() / divisor
    squares = jnp.maximum(jnp.square(rest).sum() - count * jnp.square(error), 0.0)
    return Moments(count=count, mean=about + error, squares=squares)


def together(some: Any, others: Any) -> Any:
    """Add the arrays of two equal pytrees, of JAX or numpy, and combine the `Moments` in them (Chan 1983)."""

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
    """Return (step, area, 0 observation or 1 reward) of the first number that is not finite, int32 [3]; -1 if none.

    Step T is the view after the T decisions, from which the newest of them bootstrap.
    """
    unseen = _any_not_finite(steps.obs, steps.alive | steps.waits)
    if steps.last_obs:
        unseen |= _any_not_finite(steps.last_obs, steps.truncated)
    unpaid = _any_not_finite((steps.reward, steps.group_reward), steps.arrived)
    end = _any_not_finite(last.obs, last.alive)
    bad = jnp.stack([jnp.vstack([unseen, end]), jnp.vstack([unpaid, jnp.zeros_like(end)])], axis=-1)  # [T+1, E, 2]
    at, areas = jnp.argmax(bad.reshape(-1)), bad.shape[1]
    where = jnp.stack([at // (2 * areas), at // 2 % areas, at % 2]).astype(jnp.int32)
    return jnp.where(bad.any(), where, -1)


def _any_not_finite(numbers: tuple[Array, ...], mask: Array) -> Array:
    """Return where a member in `mask` [..., E, A] has a non-finite number in the arrays [..., E, A, *], bool [..., E].

    Integer arrays, such as images, are always finite and skipped.
    """
    floats = [x for x in numbers if jnp.issubdtype(x.dtype, jnp.inexact)]
    finite = [jnp.isfinite(x).reshape(*mask.shape, -1).all(-1) for x in floats]
    return (mask & ~jnp.stack([jnp.ones_like(mask), *finite]).all(0)).any(-1)
