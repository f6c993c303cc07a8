"""Rollouts of the compiled loop are equal to what the host loop makes of the same steps."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm, Batch
from jaxrl.envs.player_teams import PlayedStep, Teams
from jaxrl.jax_envs.collect import Steps, collect, start_play
from jaxrl.jax_envs.dungeon_escape import DungeonSettings, make_dungeon_escape
from jaxrl.jax_envs.interface import TeamView
from jaxrl.jax_envs.stacking import EpisodeFigures, figures, stack
from jaxrl.rollout import trajectory
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.rollout.slots import Slots
from jaxrl.rollout.trajectory import Rollout
from jaxrl.types import Action, AgentSteps
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_jit

T, E, A = 10, 3, 3
HORIZON = 3  # of episodes of 6 to 8 decisions
CAPACITY = 2 * T + 2
SOURCE = (0, "Toy?team=0")
DUNGEON = make_dungeon_escape(DungeonSettings(size=4, capacity=A, team_size=A, dragon_period=1, episode_limit=8))
SPEC = DUNGEON.spec  # toys speak as the dungeon does, so that programs are shared
_TOY = ToySettings(
    members=A, length=7, die=True, spawn=True, obs_size=SPEC.observations[0].shape[0], actions=SPEC.action.mask_size
)
ENVIRONMENTS = {
    "terminates": make_toy(_TOY)._replace(spec=SPEC),
    "truncates": make_toy(_TOY._replace(truncates=True))._replace(spec=SPEC),
    "dungeon": DUNGEON,
}
ENDS = ("terminated", "truncated", "left", "cut")
COVERED = {
    ("terminates", "poca"): {"terminated", "left", "cut"},
    ("terminates", "ppo"): {"terminated", "cut"},
    ("truncates", "poca"): {"truncated", "left", "cut"},
    ("truncates", "ppo"): {"terminated", "truncated", "cut"},
    ("dungeon", "poca"): {"terminated", "left", "cut"},
    ("dungeon", "ppo"): {"terminated", "cut"},
}
"""What the steps bring about, so that the comparison means something."""


@cache
def algorithm(trainer: str) -> Algorithm:
    """A small one for the common spec, with compiled parts."""
    small = {"hidden_units": 8, "num_layers": 1, "normalize": True}
    made = ALGORITHMS[trainer](SPEC, settings_of(trainer, {"network_settings": small}))
    return made._replace(init=quick_jit(made.init), prepare=quick_jit(made.prepare))


class Part(NamedTuple):
    """T decisions of one seed and what came of them, numpy, without the seed axis."""

    steps: Steps  # `log_prob` numbers the decisions
    last: TeamView
    rollouts: dict[bool, Rollout]  # by team_rows; filled up to CAPACITY with states of which nothing is true
    figures: EpisodeFigures


class Decision(NamedTuple):
    """Of all members, [E, A, ...]."""

    action: Action
    log_prob: np.ndarray


class Host:
    """The host loop's slots and buffer, fed with steps of areas as a player would send them."""

    add = staticmethod(quick_jit(partial(trajectory.add, time_horizon=HORIZON)))
    take = staticmethod(quick_jit(trajectory.take))

    def __init__(self, team_rows: bool) -> None:
        rows, members = (E, A) if team_rows else (E * A, 1)
        self.teams = Teams(SPEC, E, A)
        self.slots = Slots(SPEC, team_rows=team_rows, rows=rows, members=members)
        self.buffer = trajectory.init(SPEC, capacity=CAPACITY, rows=rows, members=members)
        self.episodes: list[EpisodeRecords] = []

    def tell(self, played: PlayedStep, decision: Decision) -> None:
        """One message, and what the policy chose for those who ask in it."""
        (ended,) = self.teams.absorb(played)
        (deciding,) = self.teams.ask(played, True)
        ingested = self.slots.ingest({SOURCE: AgentSteps(ended=ended, deciding=deciding)})
        self.episodes += ingested.episodes
        places = ingested.decisions[SOURCE]

        def dense(x: Any) -> np.ndarray:
            table = np.zeros((self.slots.rows, self.slots.members, *x.shape[2:]), x.dtype)
            table[places] = x[played.alive]
            return table

        chosen = Action(*map(dense, decision.action))
        self.buffer = self.add(self.buffer, ingested.steps, chosen, dense(decision.log_prob))
        jax.block_until_ready(self.buffer)  # it reads the tables of the slots, which the next message overwrites

    def taken(self) -> tuple[Rollout, list[EpisodeRecords]]:
        """What an update would learn from, and the episodes that ended meanwhile."""
        rollout, self.buffer = self.take(self.buffer)
        self.slots.taken()
        episodes, self.episodes = self.episodes, []
        return rollout, episodes


def first_message(view: TeamView) -> PlayedStep:
    """Everybody begins."""
    nobody, nothing, shown = np.zeros((E, A), bool), np.zeros((E, A), np.float32), np.asarray(view.obs[0])
    return PlayedStep(
        ended=nobody,
        truncated=nobody,
        reward=nothing,
        group_reward=nothing,
        last_obs=(shown,),
        alive=np.asarray(view.alive),
        action_mask=np.asarray(view.action_mask),
        obs=(shown,),
        over=nobody[:, 0],
        stats={},
    )


def messages(part: Part) -> list[PlayedStep]:
    """What the areas tell after each of the T decisions."""
    steps = part.steps
    views = [view_at(steps, t) for t in range(1, T)] + [part.last]
    # Who terminates tells nothing that counts.
    seen = steps.last_obs[0] if steps.last_obs else np.full_like(steps.obs[0], np.nan)
    return [
        first_message(view)._replace(
            ended=steps.terminated[t] | steps.truncated[t],
            truncated=steps.truncated[t],
            reward=steps.reward[t],
            group_reward=steps.group_reward[t],
            last_obs=(seen[t],),
            over=steps.over[t],
        )
        for t, view in enumerate(views)
    ]


def view_at(steps: Steps, t: int) -> TeamView:
    """What was seen before decision t."""
    return TeamView(obs=(steps.obs[0][t],), action_mask=steps.action_mask[t], alive=steps.alive[t])


@cache
def played(name: str) -> list[Part]:
    """Two times T decisions of one seed, one after the other."""
    env, policy = ENVIRONMENTS[name], algorithm("ppo").init(jax.random.key(0)).policy
    policies = jax.tree.map(lambda x: np.asarray(x)[None], policy)

    @quick_jit
    def play():
        keys = jax.random.split(jax.random.key(1), (1 + 2 * T, 1))
        begun = start_play(env, keys[0], E, dict(env.parameters))
        after, steps = collect(env, algorithm("ppo"), policies, begun, keys[1:], env.parameters)
        return steps, after.view

    @quick_jit
    def form(steps: Steps, last: TeamView):
        rollouts = {rows: stack(env, steps, last, team_rows=rows, time_horizon=HORIZON) for rows in (True, False)}
        return rollouts, figures(env, steps)

    def fill(x: Any) -> np.ndarray:
        return np.pad(x, [(0, CAPACITY - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    steps, view = jax.tree.map(np.asarray, play())
    steps, view = jax.tree.map(lambda x: x[:, 0], steps), jax.tree.map(lambda x: x[0], view)
    number = np.arange(steps.alive.size, dtype=np.float32).reshape(*steps.alive.shape, 1)
    steps = steps._replace(log_prob=number)
    halves = [jax.tree.map(lambda x, at=at: x[at : at + T], steps) for at in (0, T)]
    parts = []
    for half, last in zip(halves, (view_at(steps, T), view), strict=True):
        rollouts, sums = form(half, last)
        parts.append(Part(half, last, jax.tree.map(fill, rollouts), sums))
    return parts


def by_number(rollout: Rollout, batch: Batch) -> dict[str, np.ndarray]:
    """All that is trained on, in the order of the decisions' numbers."""
    acted = np.asarray(rollout.acted)
    order = np.argsort(np.asarray(rollout.log_prob)[acted][:, 0])
    parts = {name: getattr(rollout, name) for name in Rollout._fields if name not in ("obs", "action")}
    parts |= {"obs": rollout.obs[0], "action": rollout.action.discrete}
    flat = {"normalised": batch.obs[0], "returns": batch.returns, "advantage": batch.advantage}
    parts |= {name: np.asarray(x).reshape(*acted.shape, -1) for name, x in flat.items()}
    return {name: np.asarray(x)[acted][order] for name, x in parts.items()}


@pytest.mark.parametrize("trainer", ["poca", "ppo"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_equal_to_the_host_loop(name: str, trainer: str) -> None:
    """Same observations, rewards, flags, returns, advantages and episodes, in two rollouts one after the other.

    Both hold exactly the same decisions. Those of the newest message, whose reward is still open, stay in the host's
    buffer; they are the ones that the compiled loop makes first in its next rollout.
    """
    made, parts = algorithm(trainer), played(name)
    host, state = Host(made.team_rows), made.init(jax.random.key(2))
    decisions = [
        Decision(Action(*(x[t] for x in p.steps.action)), p.steps.log_prob[t]) for p in parts for t in range(T)
    ]
    host.tell(first_message(view_at(parts[0].steps, 0)), decisions[0])
    for i, part in enumerate(parts):
        for t, message in enumerate(messages(part), start=1):
            host.tell(message, decisions[min(i * T + t, 2 * T - 1)])  # the very last ones stay open
        theirs, episodes = host.taken()
        ours = part.rollouts[made.team_rows]
        _, batch, _ = made.prepare(state, ours)
        state, expected_batch, _ = made.prepare(state, theirs)
        found, expected = by_number(ours, batch), by_number(theirs, expected_batch)
        assert len(found["acted"]) == part.steps.alive.sum() == len(expected["acted"])
        for field in expected:
            np.testing.assert_allclose(found[field], expected[field], rtol=1e-5, atol=1e-5, err_msg=f"{field}, {i}")
        assert_same_episodes(part.figures, episodes, teams_agree=name == "dungeon")
    rollouts = [part.rollouts[made.team_rows] for part in parts]
    assert {end for end in ENDS if np.any([getattr(rollout, end) for rollout in rollouts])} == COVERED[name, trainer]


def assert_same_episodes(found: EpisodeFigures, records: list[EpisodeRecords], *, teams_agree: bool) -> None:
    """The host's team return is that of its longest-lived agent; a team of the toy earns before that one begins."""
    kinds = [(found.reward, "returns"), (found.length, "lengths"), (found.group_reward, "team_returns")]
    for moments, kind in kinds:
        expected = np.array([x for record in records for x in getattr(record, kind)])
        assert len(expected) == moments.count
        if kind != "team_returns" or teams_agree:
            assert moments.total == pytest.approx(expected.sum(), abs=1e-5)
            assert moments.square == pytest.approx(np.square(expected).sum(), abs=1e-5)
