"""Decisions that nobody learns from (R45), and decisions that somebody else took (R44, M21)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from agent_by_agent import AgentByAgent
from random_streams import RandomStream
from row_collector import RowCollector, Transition
from script import ONE, Script, brief, script

from jaxrl.algorithms.ppo import make_ppo
from jaxrl.networks import actions, normalizer
from jaxrl.rollout.booking.slots import Slots
from jaxrl.rollout.booking.untrained import ExternalActionError
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.settings import EnvironmentSettings
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.paged_buffer import Wanted
from jaxrl.training.host.programs import compile_programs
from jaxrl.types import Action, BehaviorMessage, Taken
from tests.helpers import decision_steps, make_spec, message, ppo_settings, terminal_steps

SPEC = make_spec((3,), continuous=1, branches=(2,))


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
def test_r45_random_streams_lose_exactly_the_decisions_that_are_left_out(team_rows: bool) -> None:
    """Everything else, states and mates' actions included, is trained as if nothing were left out."""
    stream, rng = RandomStream(5), np.random.default_rng(0)
    collector = RowCollector(team_rows=team_rows, rows=32, members=4 if team_rows else 1, capacity=14, horizon=5)
    agents = AgentByAgent(team_rows=team_rows, horizon=5)
    mute: set[tuple[int, int]] = set()  # uid and serial
    trained: list[Transition] = []
    expected: list[Transition] = []
    for number in range(120):
        arrived = stream.message()
        untrained = {}
        for source, steps in arrived.items():
            picked = rng.random(len(steps.deciding.agent_id)) < 0.3
            untrained[source] = set(steps.deciding.agent_id[picked].tolist())
            mute |= {(int(uid), int(serial)) for uid, serial, _ in steps.deciding.obs[0][picked]}
        if number % 2:  # said by the environment: the same
            arrived = {source: _muted(steps, untrained.pop(source)) for source, steps in arrived.items()}
        collector.feed(arrived, untrained)
        agents.feed(arrived)
        if collector.full or rng.random() < 0.08:
            trained += collector.take()
            expected += agents.take()
    trained += collector.take()
    expected += agents.take()
    kept = [t for t in expected if (t.uid, t.serial) not in mute]
    assert 0 < len(kept) < len(expected) and sorted(trained) == sorted(kept)
    waiting = [a for team in agents.teams.values() for a in team.waiting if a.decided is not None]
    late = sum(a.decided is not None and a.decided[:2] not in mute for a in waiting)
    assert len(trained) + late == collector.finished, "the trainer step counts what is learned from"


def _muted(steps: BehaviorMessage, agents: set[int]) -> BehaviorMessage:
    infos = {agent: {"training_enabled": agent not in agents} for agent in steps.deciding.agent_id.tolist()}
    return steps._replace(infos=infos)


def test_the_decision_before_one_that_is_left_out_restarts_from_its_state() -> None:
    """Agents 1 and 2; of agent 1 the second decision is left out: V of its state is 11 + 21, and it is not trained."""
    say = script(rows=2, members=2)
    say.say(ask={1: 10, 2: 20})
    feed = say.collector.feed
    say.collector.feed = lambda messages: feed(messages, {ONE: {1}})
    say.say(ask={1: 11, 2: 21}, reward=[1.0, 2.0])
    say.collector.feed = feed
    say.say(end={1: 12, 2: 22}, end_reward=[4.0, 8.0])
    trained = say.collector.take()
    assert brief(trained) == [(1, 1, "continues", 32.0), (2, 1, "continues", 32.0), (2, 2, "terminated", 0.0)]
    assert [t.reward for t in trained] == [1.0, 2.0, 8.0] and say.collector.finished == 3


def test_the_step_does_not_go_back_when_a_source_is_lost_whose_decisions_are_left_out() -> None:
    """Decisions without an outcome do not count, whether somebody would have learned from them or not."""
    slots = Slots(SPEC, team_rows=True, rows=2, members=2)
    slots.ingest({ONE: message(SPEC, deciding=decision_steps(SPEC, [1, 2]))}, {ONE: {1, 2}})
    assert slots.discard(ONE) == 2
    assert slots.ingest({ONE: message(SPEC, deciding=decision_steps(SPEC, [1]))}).finished == 0


def test_a_member_that_left_is_left_out_when_it_is_told_also_after_an_update() -> None:
    say: Script = script(rows=2, members=2)
    feed = say.collector.feed
    say.collector.feed = lambda messages: feed(messages, {ONE: {1}})
    say.say(ask={1: 10, 2: 20})
    say.collector.feed = feed
    say.say(end={1: 11}, end_reward=[4.0])
    assert say.collector.take() == []
    say.say(ask={2: 21, 3: 31}, reward=[2.0, 0.0])  # agent 3 takes the place of 1
    say.say(end={2: 22, 3: 32}, end_reward=[1.0, 1.0])
    assert [t[:2] for t in say.collector.take()] == [(2, 1), (2, 2), (3, 1)]
    assert say.collector.finished == 3


def acting(**options: Any) -> ActingPolicy:
    settings = ppo_settings(network_settings__hidden_units=4, network_settings__num_layers=1)
    algorithm = make_ppo(SPEC, settings)
    programs = compile_programs(algorithm, settings.time_horizon).actor
    policy = jax.jit(algorithm.init)(jax.random.key(3)).policy
    return ActingPolicy("Toy", SPEC, algorithm, programs, policy, [1, 2], Wanted(64), **options)


def asks(agents: Sequence[int], taken: Taken | None = None, end: Sequence[int] = ()) -> dict[Any, BehaviorMessage]:
    ended = terminal_steps(SPEC, end)
    return {ONE: message(SPEC, ended, decision_steps(SPEC, agents))._replace(taken=taken)}


def took(agents: Sequence[int], continuous: Sequence[float], discrete: Sequence[int]) -> Taken:
    action = Action(np.array(continuous, np.float32)[:, None], np.array(discrete, np.int32)[:, None])
    return Taken(np.array(agents, np.int64), action)


def test_r44_m21_an_action_of_the_environment_replaces_the_stored_one_with_its_log_probability() -> None:
    """Agent 2 did 0.5 of [-1, 1], which is 1.5 raw, and branch 1; agents 1 and 3 keep what the policy drew."""
    actor = acting()
    actor.act(asks([1, 2, 3]))
    assert actor.buffer is not None
    before = actor.buffer.cells
    actor.act(asks([1, 2], took([2, 3], [0.5, -1.0], [1, 0]), end=[3]))
    rollout = rollout_of(actor.buffer)
    at = rollout.acted
    assert at.sum() == 3
    continuous = np.asarray(rollout.action.continuous[0, :, 0, 0])
    drawn = np.asarray(before.action.continuous[0, :, 0, 0])
    np.testing.assert_array_equal(continuous, [drawn[0], 1.5, -3.0, *drawn[3:]][: len(continuous)])
    assert np.asarray(rollout.action.discrete[0, 1:3, 0, 0]).tolist() == [1, 0]
    policy = actor.policy
    obs = normalizer.normalize_all(policy.normalizer, tuple(o[0] for o in rollout.obs))
    action = Action(rollout.action.continuous[0], rollout.action.discrete[0])
    noted = actor.algorithm.score_action(policy, obs, rollout.action_mask[0], (), actions.to_environment(action))[1]
    np.testing.assert_allclose(
        np.asarray(rollout.extras["log_prob"][0, 1:3]), np.asarray(noted["log_prob"][1:3]), rtol=1e-6
    )
    kept = np.asarray(before.extras["log_prob"][0, 0])
    np.testing.assert_array_equal(np.asarray(rollout.extras["log_prob"][0, 0]), kept)


def test_r44_left_out_the_action_still_stands_there_for_the_mates() -> None:
    actor = acting(environment=EnvironmentSettings(outside_actions="leave_out"))
    actor.act(asks([1, 2]))
    _, _, finished = actor.act(asks([1, 2], took([2], [0.5], [1])))
    assert finished == 1 and actor.buffer is not None
    rollout = rollout_of(actor.buffer)
    assert np.asarray(rollout.acted[0, :, 0])[:2].tolist() == [True, False]
    assert float(rollout.action.continuous[0, 1, 0, 0]) == 1.5
    _, _, finished = actor.act(asks([1, 2]))
    assert finished == 2, "only the decision that was taken"


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (took([2], [np.nan], [0]), "agent 2 took an action that is not finite"),
        (took([2], [0.0], [2]), "agent 2 took 2 in branch 0, expected 0 to 1"),
        (took([1, 2], [0.0], [0]), r"got shapes \(1, 1\) and \(1, 1\), expected \(2, 1\) and \(2, 1\)"),
    ],
)
def test_what_cannot_have_been_done_is_named(taken: Taken, text: str) -> None:
    actor = acting()
    actor.act(asks([1, 2]))
    with pytest.raises(ExternalActionError, match=f"worker 0, Push.team=0: .*{text}"):
        actor.act(asks([1, 2], taken))


def test_an_algorithm_that_learns_from_its_own_actions_alone_says_so() -> None:
    actor = acting()
    actor.programs = actor.programs._replace(replace_actions=None)
    actor.act(asks([1]))
    with pytest.raises(ExternalActionError, match="outside_actions: leave_out"):
        actor.act(asks([1], took([1], [0.0], [0])))


@pytest.mark.parametrize(("missing", "living"), [("carry", 471), ("truncate", 521)])
def test_only_the_default_ends_agents_before_missing_after(missing: Any, living: int) -> None:
    """400 agents vanish after two requests, one asks 30 times alone, then 120 come: 9 too many for the 512 rows.

    An eighth of those that vanished is interrupted.
    """
    actor = acting(environment=EnvironmentSettings(missing=missing))
    for agents in [range(400)] * 2 + [range(400, 401)] * 30 + [range(400, 521)]:
        actor.act(asks(list(agents)))
    assert actor.paged is not None and actor.paged.slots.living.sum() == living
