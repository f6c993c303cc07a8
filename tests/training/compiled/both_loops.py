"""The same steps through both loops: stacked as in a compiled run, and told to the host loop's slots and buffer."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.parts import Batch
from jaxrl.envs.player.teams import AreasOutcome, Teams
from jaxrl.jax_envs.interface import JaxEnv, TeamView
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.row_arrays import by_place
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled.collect import from_before, still_open
from jaxrl.training.compiled.play import Made, Transitions
from jaxrl.training.compiled.stacking import EpisodeFigures, figures, stack
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec
from tests.algorithms.team_rollouts import steps_of
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_jit
from tests.training.compiled.alone import collect, start_play

T, E = 10, 3
HORIZON = 3
CAPACITY = 2 * T + 2
SOURCE = Source(0, "Toy?team=0")


class Part(NamedTuple):
    """T decisions of one seed and what came of them, numpy, without the seed axis."""

    steps: Transitions  # `extras` number the decisions
    last: TeamView
    rollouts: dict[bool, Rollout]  # by team_rows; filled up to CAPACITY with states of which nothing is true
    figures: EpisodeFigures


class Decision(NamedTuple):
    """Of all members, [E, A, ...]."""

    action: Action
    log_prob: np.ndarray


class Told(NamedTuple):
    """What the host loop made of a `Part`."""

    rollout: Rollout
    episodes: list[EpisodeRecords]


def small_settings(trainer: str) -> BehaviorSettings:
    """Of networks that compile fast."""
    small = {"hidden_units": 8, "num_layers": 1, "normalize": True}
    return settings_of(trainer, {"network_settings": small})


@cache
def algorithm(trainer: str, spec: BehaviorSpec) -> Algorithm:
    """A small one, with compiled parts."""
    made = ALGORITHMS[trainer](spec, small_settings(trainer))
    return made._replace(init=quick_jit(made.init))


@cache
def preparation(trainer: str, spec: BehaviorSpec):
    """(state, rollout) → (state, batch, metrics) of the same."""
    return quick_jit(steps_of(trainer, small_settings(trainer), spec).prepare)


class Host:
    """The host loop's slots and buffer, fed with steps of areas as a player would send them."""

    add = staticmethod(quick_jit(partial(trajectory.add, time_horizon=HORIZON)))
    take = staticmethod(quick_jit(trajectory.take))

    def __init__(self, env: JaxEnv, team_rows: bool) -> None:
        rows, members = (E, env.members) if team_rows else (E * env.members, 1)
        extras = (("log_prob", (env.spec.action.columns,)),)
        self.teams = Teams(env.spec, E, env.members)
        self.slots = Slots(env.spec, team_rows=team_rows, rows=rows, members=members)
        self.buffer = trajectory.init(env.spec, extras, capacity=CAPACITY, rows=rows, members=members)
        self.episodes: list[EpisodeRecords] = []

    def tell(self, played: AreasOutcome, decision: Decision) -> None:
        """One message, and what the policy chose for those who ask in it."""
        (ended,) = self.teams.absorb(played)
        (deciding,) = self.teams.ask(played, True)
        ingested = self.slots.ingest({SOURCE: BehaviorMessage(ended=ended, deciding=deciding)})
        self.episodes += ingested.episodes
        places = ingested.decisions[SOURCE]

        def dense(x: Any) -> np.ndarray:
            table = np.zeros((self.slots.rows, self.slots.members, *x.shape[2:]), x.dtype)
            by_place(table)[places] = x[played.alive]
            return table

        chosen = Action(*map(dense, decision.action))
        extras = {"log_prob": dense(decision.log_prob)}
        self.buffer = self.add(self.buffer, ingested.steps, chosen, extras)
        jax.block_until_ready(self.buffer)  # it reads the tables of the slots, which the next message overwrites

    def taken(self) -> Told:
        """What an update would learn from, and the episodes that ended meanwhile."""
        rollout, self.buffer = self.take(self.buffer)
        episodes, self.episodes = self.episodes, []
        return Told(rollout, episodes)


def told(env: JaxEnv, parts: list[Part], *, team_rows: bool) -> list[Told]:
    """Both parts, told to one host loop one after the other, a rollout taken after each.

    A rollout holds exactly the decisions of its part. Those of the newest message, whose reward is still open, stay in
    the host's buffer; they are the ones that the compiled loop makes first in its next rollout.
    """
    host = Host(env, team_rows)
    decisions = [
        Decision(Action(*(x[t] for x in p.steps.action)), np.asarray(p.steps.extras["log_prob"][t]))
        for p in parts
        for t in range(T)
    ]
    host.tell(first_message(view_at(parts[0].steps, 0)), decisions[0])
    found = []
    for i, part in enumerate(parts):
        for t, message in enumerate(messages(part), start=1):
            host.tell(message, decisions[min(i * T + t, len(decisions) - 1)])  # the very last ones stay open
        found.append(host.taken())
    return found


def first_message(view: TeamView) -> AreasOutcome:
    """Everybody begins."""
    alive, shown = np.asarray(view.alive), tuple(map(np.asarray, view.obs))
    nobody, nothing = np.zeros(alive.shape, bool), np.zeros(alive.shape, np.float32)
    return AreasOutcome(
        ended=nobody,
        truncated=nobody,
        reward=nothing,
        group_reward=nothing,
        last_obs=shown,
        alive=alive,
        action_mask=np.asarray(view.action_mask),
        obs=shown,
        over=nobody[:, 0],
        stats={},
    )


def messages(part: Part) -> list[AreasOutcome]:
    """What the areas tell after each of the T decisions."""
    steps = part.steps
    views = [view_at(steps, t) for t in range(1, T)] + [part.last]
    # Who terminates tells nothing that counts.
    seen = steps.last_obs or tuple(np.full_like(x, np.nan if x.dtype == np.float32 else 77) for x in steps.obs)
    return [
        first_message(view)._replace(
            ended=steps.terminated[t] | steps.truncated[t],
            truncated=steps.truncated[t],
            reward=steps.reward[t],
            group_reward=steps.group_reward[t],
            last_obs=tuple(x[t] for x in seen),
            over=steps.over[t],
        )
        for t, view in enumerate(views)
    ]


def view_at(steps: Transitions, t: int) -> TeamView:
    """What was seen before decision t."""
    return TeamView(obs=tuple(x[t] for x in steps.obs), action_mask=steps.action_mask[t], alive=steps.alive[t])


def play(env: JaxEnv, seed: int = 1, actor: Algorithm | None = None) -> list[Part]:
    """Two times T decisions of one seed, one after the other, by a policy (PPO's) that has learned nothing."""
    actor = actor or algorithm("ppo", env.spec)
    policies = jax.tree.map(lambda x: np.asarray(x)[None], actor.init(jax.random.key(0)).policy)

    @quick_jit
    def run():
        keys = jax.random.split(jax.random.key(seed), (1 + 2 * T, 1))
        parameters = {name: np.full(1, value, np.float32) for name, value in env.parameters.items()}
        begun = start_play(env, actor, keys[0], E, parameters)
        after, steps = collect(env, actor, policies, begun, keys[1:], parameters)
        return steps, after.view

    @quick_jit
    def form(made: Made, steps: Transitions, last: TeamView):
        whole = from_before(made, steps)
        rollouts = {rows: stack(env, whole, last, (), team_rows=rows, time_horizon=HORIZON) for rows in (True, False)}
        return rollouts, figures(env, steps), still_open(made, steps)

    def fill(x: Any) -> np.ndarray:
        return np.pad(x, [(0, CAPACITY - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    steps, view = jax.tree.map(np.asarray, run())
    steps, view = jax.tree.map(lambda x: x[:, 0], steps), jax.tree.map(lambda x: x[0], view)
    number = np.arange(steps.alive.size, dtype=np.float32).reshape(*steps.alive.shape, 1)
    numbered = np.broadcast_to(number, steps.extras["log_prob"].shape)
    steps = steps._replace(extras={"log_prob": numbered})
    halves = [jax.tree.map(lambda x, at=at: x[at : at + T], steps) for at in (0, T)]
    parts, made = [], jax.tree.map(lambda x: np.zeros_like(x[0]), Made(*(getattr(steps, f) for f in Made._fields)))
    for half, last in zip(halves, (view_at(steps, T), view), strict=True):
        rollouts, sums, made = form(made, half, last)
        parts.append(Part(half, last, jax.tree.map(fill, rollouts), sums))
    return parts


def by_number(rollout: Rollout, batch: Batch) -> dict[str, np.ndarray]:
    """All that is trained on, in the order of the decisions' numbers."""
    acted = np.asarray(rollout.acted)
    order = np.argsort(np.asarray(rollout.extras["log_prob"])[acted][:, 0])
    parts = {
        name: getattr(rollout, name)
        for name in Rollout._fields
        if name not in ("obs", "action", "extras", "carry", "between")
    }
    parts |= {"number": rollout.extras["log_prob"], "obs": rollout.obs[0], "action": rollout.action.discrete}
    flat = {"normalised": batch.obs[0], "returns": batch.returns, "advantage": batch.advantage}
    trained = {name: np.asarray(x)[np.asarray(batch.acted)].reshape(len(order), -1) for name, x in flat.items()}
    return {name: x[order] for name, x in trained.items()} | {
        name: np.asarray(x)[acted][order] for name, x in parts.items()
    }
