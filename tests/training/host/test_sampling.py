"""What an update is given: counted by environment steps or decisions, in fragments or whole episodes; what is said."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import Held, LearnerPrograms, learn
from jaxrl.training.host.recorder import IDLE_MESSAGES, Notices
from jaxrl.types import EnvMessage
from tests.algorithms.team_rollouts import quick_jit
from tests.helpers import decision_steps, make_spec, message, settings_of, terminal_steps

SPEC = make_spec((2,), branches=(2,))
SOURCE = Source(0, "Crowd?team=0")
SMALL = {
    "hyperparameters__buffer_size": 20,
    "hyperparameters__batch_size": 8,
    "hyperparameters__num_epoch": 1,
    "network_settings__hidden_units": 4,
    "network_settings__num_layers": 1,
}


@cache
def behavior_of(**changes: Any) -> tuple[Any, ...]:
    settings = settings_of("ppo", SMALL | changes)
    algorithm = ALGORITHMS["ppo"](SPEC, settings)
    programs = Programs(
        ActorPrograms(decide=quick_jit(partial(decide, algorithm, settings.segment_limit), donate_argnums=1)),
        LearnerPrograms(learn=quick_jit(partial(learn, algorithm))),
    )
    return "Crowd", SPEC, settings, algorithm, programs


def crowd(**changes: Any) -> Behavior:
    return make_behavior(*behavior_of(**changes), jax.random.key(0), training=True)


def say(behavior: Behavior, ask: range | list[int], end: list[int] | None = None, steps: int = 1) -> None:
    """These agents ask, with reward 1 each; those that end get reward 2. A message is `steps` environment steps."""
    ids, over = list(ask), end or []
    deciding = decision_steps(SPEC, ids, reward=[1.0] * len(ids))
    ended = terminal_steps(SPEC, over, reward=[2.0] * len(over))
    behavior.act({SOURCE: message(SPEC, ended, deciding)})
    behavior.actor.env_steps += steps


def test_m13_r3_r52_environment_steps_are_counted_exactly() -> None:
    """4 agents: an update of 20 environment steps has 80 decisions, the next one as many; by decisions it has 24."""
    by_steps = crowd(count_by="env_steps")
    by_decisions = crowd()
    say(by_steps, range(4), steps=0)
    say(by_decisions, range(4), steps=0)
    for _ in range(2):
        messages = 0
        while not by_steps.due():
            say(by_steps, range(4))
            messages += 1
        assert messages == 20
        by_steps.learn()
        assert by_steps.learner.held == Held(env_steps=20, agent_steps=80), "R56: a batch knows how much it holds"
        assert by_steps.actor.env_steps == 0
    while not by_decisions.due():
        say(by_decisions, range(4))
    by_decisions.learn()
    assert by_decisions.learner.held == Held(env_steps=6, agent_steps=24)


def test_r55_environment_steps_without_decisions_are_no_update() -> None:
    behavior = crowd(count_by="env_steps")
    say(behavior, [0], steps=0)
    behavior.actor.env_steps += 100
    assert not behavior.due(), "no reward has arrived"
    say(behavior, [0])
    assert behavior.due() and behavior.actor.fresh == 1


def test_r2_r51_an_update_is_due_when_ended_episodes_have_enough() -> None:
    """Agent 0 never ends; the others end after two decisions each: 21 of theirs are enough, with 10 of 0 kept."""
    behavior = crowd(batch_mode="complete_episodes")
    say(behavior, [0, 1], steps=0)
    agent = 1
    while not behavior.due():
        say(behavior, [0, agent])
        say(behavior, [0, agent + 1], end=[agent])
        agent += 1
    assert behavior.actor.fresh == 22 and behavior.actor.held == 44
    behavior.learn()
    assert int(behavior.state.step) == 22 and behavior.actor.held == 22 and behavior.actor.fresh == 0
    assert behavior.learner.held.agent_steps == 22, "R56: what it was learned from, not what is kept"
    say(behavior, [], end=[0])
    assert behavior.actor.fresh == 23, "all of its episode, the decisions before the update too"
    trained = quick_jit(rollout_of)(behavior.actor.buffer, *behavior.actor.begin)
    assert float(np.asarray(trained.reward).sum()) == 22 * 1.0 + 2.0
    assert not np.asarray(trained.cut).any()


def test_a_long_episode_gets_longer_pages_and_one_without_end_is_cut_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R59: 20 decisions asked for; an agent that never ends is learned from in pieces when it would fill all room."""
    behavior = crowd(batch_mode="complete_episodes")
    sizes = set()
    with caplog.at_level(logging.INFO, logger="jaxrl"):
        for _ in range(600):
            say(behavior, [0])
            sizes.add(behavior.actor.buffer.shape[0])
            if behavior.due():
                break
    assert behavior.actor.fresh > 20 * 10 and len(sizes) > 2, sizes
    told = [record.message for record in caplog.records if "in spite of batch_mode" in record.message]
    assert len(told) == 1 and "max_episode_length" in told[0]
    assert np.isfinite(list(behavior.learn().values())).all()
    for _ in range(300):
        say(behavior, [0])
    assert len([r for r in caplog.records if "in spite of batch_mode" in r.message]) == 1, "that is said once"


def test_pages_turn_with_the_message_that_brings_more_agents_than_there_is_room_for() -> None:
    """It ended the run: 2 rows were known of 4. The episodes of the first are whole in the end, 1 for a decision."""
    behavior = crowd(batch_mode="complete_episodes")
    say(behavior, range(2))
    paged = behavior.actor.paged
    assert paged is not None
    messages = 1
    while not paged.pages.scarce:
        say(behavior, range(2))
        messages += 1
    say(behavior, range(4))
    say(behavior, [], end=[0, 1])
    assert behavior.actor.fresh == 2 * (messages + 1)
    trained = quick_jit(rollout_of)(behavior.actor.buffer, *behavior.actor.begin)
    assert float(np.asarray(trained.reward).sum()) == 2 * (messages + 2.0)


def test_x20_with_a_limit_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    behavior = crowd(batch_mode="complete_episodes", max_episode_length=7)
    with caplog.at_level(logging.WARNING, logger="jaxrl"):
        for _ in range(60):
            say(behavior, [0])
            if behavior.due():
                assert behavior.actor.fresh % 7 == 0
                behavior.learn()
    assert behavior.updates >= 2 and not caplog.records


def test_r4_r59_m14_a_large_buffer_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Above max(1000, 10 x 20) agent steps: 300 agents for 4 of 20 environment steps."""
    behavior, notices = crowd(count_by="env_steps"), Notices()
    with caplog.at_level(logging.WARNING, logger="jaxrl"):
        for count in (999, 1000, 1001, 5000):
            behavior.actor.held = count
            notices.collected(behavior)
    (told,) = [record.message for record in caplog.records]
    assert "1001 agent steps" in told and "20 env steps" in told and "count_by" in told


def test_r54_m15_environments_in_which_nobody_asks_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices()
    part = message(SPEC, terminal_steps(SPEC, [1]), None)
    silent = EnvMessage(3, {"Crowd?team=0": part}, {}, (), 0.0)
    asking = silent._replace(steps={"Crowd?team=0": message(SPEC, None, decision_steps(SPEC, [1]))})
    with caplog.at_level(logging.WARNING, logger="jaxrl"):
        notices.messages([silent] * (IDLE_MESSAGES - 1))
        notices.messages([asking])
        notices.messages([silent] * (IDLE_MESSAGES - 1))
        assert not caplog.records
        notices.messages([silent] * 200)
    (told,) = [record.message for record in caplog.records]
    assert "worker 3" in told and "Decision Requester" in told
