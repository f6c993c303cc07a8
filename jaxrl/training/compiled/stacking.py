"""From T steps of one seed's areas to the `Rollout` that an algorithm learns from, and the figures of its episodes.

All rows are aligned in time here: state t of a row is decision t of its area. Environments that truncate get a second
state after each decision, absent unless a team was cut off there: its true last observation. The state after the last
step bootstraps those who live on; like every state it is trained on once, with the next rollout. So is a decision that
is still open then, because its member pauses: the next rollout begins with it (`collect.from_before`).
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
    """As `stacked`, with nothing where its masks say so."""
    return masked(stacked(env, steps, last, memory, team_rows=team_rows, time_horizon=time_horizon))


def stack_team(
    sizes: Mapping[str, Sizes],
    steps: Mapping[str, Transitions],
    last: Mapping[str, TeamView],
    memory: Mapping[str, Any],
    *,
    time_horizon: int,
) -> dict[str, Rollout]:
    """The rollouts [T', B, A_k] of the behaviors of a team, whose row b is the same team; arguments as of `stacked`.

    Who is there, who waits, what was earned and how it ended is that of one row with the members of all.
    """
    first = next(iter(sizes.values()))
    whole = first._replace(members=sum(env.members for env in sizes.values()))
    of_all = {field: _beside(sizes, {n: getattr(of, field) for n, of in steps.items()}) for field in _OF_ALL}
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
    found, start = {}, 0
    for name, env in sizes.items():
        own = stacked(env, steps[name], last[name], memory[name], team_rows=True, time_horizon=time_horizon)
        mine = slice(start, start := start + env.members)
        found[name] = masked(own._replace(**{field: getattr(row, field)[:, :, mine] for field in _OF_ROW}))
    return found


_OF_ALL = (
    "alive", "waits", "arrived", "reward", "mates_reward", "group_reward", "terminated", "truncated", "stays",
)  # fmt: skip
_OF_ROW = (
    "present", "acted", "waiting", "reward", "mates_reward", "group_reward", "terminated", "truncated", "left", "cut",
)  # fmt: skip


def _beside(sizes: Mapping[str, Sizes], arrays: Mapping[str, Array]) -> Array:
    """[T, E, A_k] of the behaviors of a team → [T, E, A], the members of all, team by team."""
    joined = jnp.concatenate([by_team(env, arrays[name]) for name, env in sizes.items()], axis=-1)
    return joined.reshape(*joined.shape[:-2], -1)


def stacked(
    env: Sizes, steps: Transitions, last: TeamView, memory: Any, *, team_rows: bool, time_horizon: int
) -> Rollout:
    """The rollout [T', B, A'] of one seed: `steps` [T, E, A, ...] without the seed axis, `last` the view after them.

    `memory` is what the members remember then, a pytree of [E, A, *].

    T' = T + 1, or 2 T + 1 where the environment truncates. Rows are teams (B = E·K, A' = A / K) or single agents
    (B = E·A, A' = 1), which then end for good when they end: what their team earns later is not theirs. Returns pass
    through states in which a member pauses, in which nobody of its row decides, and second states that are absent.
    """
    lead = steps.alive.shape
    members = env.members if team_rows else 1
    rows = lead[1] * lead[2] // members

    def row(x: Array) -> Array:
        return x.reshape(x.shape[0], rows, members, *x.shape[3:])

    alive, waits, arrived = row(steps.alive), row(steps.waits), row(steps.arrived)
    ended = row(steps.terminated | steps.truncated)
    # Alone in its row an agent ends for good, also when another takes the row in the same step.
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
        """[T, ...] of decisions, with final states in between and the last one: [T', ...]."""
        if env.truncates:
            between = jnp.zeros_like(x) if at_final is None else at_final
            x = jnp.stack([x, between], axis=1).reshape(2 * x.shape[0], *x.shape[1:])
        return jnp.concatenate([x, at_last[None]])

    def decided(x: Array) -> Array:
        """Nothing in states in which nobody acts."""
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
    """Of each decision, [T, B, A, ...]; fields as in `Rollout`."""

    acted: Array
    action: Action
    reward: Array
    mates_reward: Array
    group_reward: Array
    terminated: Array
    truncated: Array
    left: Array


def _by_decision(told: _Told, alive: Array, arrived: Array, over: Array, final: Array) -> _Told:
    """What stands at the step with which it arrived, at the step of the decision; actions also while members pause.

    Whoever left its team is followed by the next state in which a mate decides, and by nothing if the team ends before.
    What its mates are paid until then is its, too.
    """
    time, nowhere = jnp.arange(len(alive))[:, None, None], len(alive)

    def next_of(mask: Array) -> Array:
        """The first step from each on in which `mask` holds; `nowhere` if none does."""
        return jax.lax.cummin(jnp.where(mask, time, nowhere), axis=0, reverse=True)

    def at(x: Array, step: Array) -> Array:
        return jnp.take_along_axis(x, trailing(step, x), axis=0)

    decides, ends = (next_of(x.any(-1, keepdims=True)) for x in (alive, over))
    after = jnp.concatenate([decides[1:], jnp.full_like(decides[:1], nowhere)])
    end = jnp.concatenate([ends[1:], jnp.full_like(ends[:1], nowhere)])
    cut_off = at(final.any(-1, keepdims=True), jnp.minimum(end, nowhere - 1))
    for_nothing = told.left & (end < after) & ~cut_off
    paid = jnp.cumsum(jnp.broadcast_to(told.reward.sum(-1, keepdims=True), told.reward.shape), axis=0)
    later = at(paid, jnp.broadcast_to(jnp.minimum(after - 1, jnp.minimum(end, nowhere - 1)), paid.shape)) - paid
    told = told._replace(
        left=told.left & ~for_nothing,
        terminated=told.terminated | for_nothing,
        mates_reward=told.mates_reward + jnp.where(told.left, later, 0.0),
    )
    known = next_of(arrived)
    newest = jax.lax.cummax(jnp.where(alive, time, 0), axis=0)
    found = jax.tree.map(lambda x: at(x, jnp.minimum(known, nowhere - 1)), told._replace(acted=alive, action=()))
    return found._replace(acted=alive & (known < nowhere), action=jax.tree.map(lambda x: at(x, newest), told.action))


def _cut(alive: Array, waits: Array, ended: Array, time_horizon: int) -> Array:
    """bool [T, B, A]: a segment has reached `time_horizon` decisions here. Segments begin anew with each rollout."""
    if time_horizon >= alive.shape[0]:
        return jnp.zeros_like(alive)
    goes_on = (alive | waits) & ~ended
    before = jnp.concatenate([jnp.zeros_like(alive[:1]), goes_on[:-1]])
    number = jnp.cumsum(alive, axis=0)
    first = jax.lax.cummax(jnp.where(alive & ~before, number, 0), axis=0)
    return alive & ((number - first + 1) % time_horizon == 0)


def figures(env: Sizes, steps: Transitions, team_over: Array | None = None) -> EpisodeFigures:
    """Of the episodes that ended in `steps` [T, E, ...]; of teams those of `team_over`, where mates are of others."""
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
    """bool [T, E, K]: the last member of a team has ended, of whichever of these behaviors it is."""
    ended = [by_team(env, steps[name].terminated | steps[name].truncated).any(-1) for name, env in sizes.items()]
    stays = [by_team(env, steps[name].stays).any(-1) for name, env in sizes.items()]
    return reduce(jnp.logical_or, ended) & ~reduce(jnp.logical_or, stays)


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
    unseen = _any_not_finite(steps.obs, steps.alive | steps.waits)
    if steps.last_obs:
        unseen |= _any_not_finite(steps.last_obs, steps.truncated)
    unpaid = _any_not_finite((steps.reward, steps.group_reward), steps.arrived)
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
