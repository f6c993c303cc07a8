"""Updates in a thread beside the collection: what is decided with which policy, how old it is, and how threads end."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.networks import normalizer
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.training.errors import DivergedError
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, learn, learn_from
from jaxrl.training.host.threaded import Staleness, ThreadedLearner
from tests import trainer
from tests.algorithms.team_rollouts import quick_jit
from tests.event_files import read_events
from tests.helpers import decision_steps, make_spec, message, ppo_settings

SPEC = make_spec((2,), branches=(2,))
SOURCE = Source(0, "Crowd?team=0")
SETTINGS = ppo_settings(
    threaded=True,
    hyperparameters__buffer_size=8,
    hyperparameters__batch_size=4,
    hyperparameters__num_epoch=1,
    network_settings__hidden_units=4,
    network_settings__num_layers=1,
)
ALGORITHM = ALGORITHMS["ppo"](SPEC, SETTINGS)
DECIDE = quick_jit(partial(decide, ALGORITHM, SETTINGS.time_horizon), donate_argnums=1)
TAKE = quick_jit(trajectory.take, donate_argnums=0)
LEARN = quick_jit(partial(learn_from, ALGORITHM))


class Gate:
    """An update that ends when it is told to, and fails if it is told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None
        self.thread = ""
        self.rollouts: list[Any] = []

    def __call__(self, state: Any, store: Any, rollout: Any) -> Any:
        assert self.open.wait(30)
        self.open.clear()
        self.thread = threading.current_thread().name
        if self.error is not None:
            raise self.error
        self.rollouts.append(jax.tree.map(np.asarray, rollout))
        return LEARN(state, store, rollout)


def crowd(gate: Any) -> tuple[Behavior, ThreadedLearner]:
    learner = LearnerPrograms(learn=quick_jit(partial(learn, ALGORITHM)), take=TAKE, learn_from=gate)
    programs = Programs(ActorPrograms(decide=DECIDE), learner)
    behavior = make_behavior("Crowd", SPEC, SETTINGS, ALGORITHM, programs, jax.random.key(0), training=True)
    assert isinstance(behavior.learner, ThreadedLearner)
    return behavior, behavior.learner


def say(behavior: Behavior, times: int = 1) -> None:
    """Four agents ask, with reward 1 for what they did before."""
    for _ in range(times):
        deciding = decision_steps(SPEC, range(4), reward=[1.0] * 4)
        behavior.act({SOURCE: message(SPEC, None, deciding)})


def published(behavior: Behavior, learner: ThreadedLearner, gate: Gate) -> dict[str, float]:
    gate.open.set()
    learner.wait()
    return learned(behavior, learner)


def learned(behavior: Behavior, learner: ThreadedLearner) -> dict[str, float]:
    """What is told of the update that is done; the actor goes on with what it has learned."""
    metrics = learner.publish()
    behavior.follow()
    return metrics


def test_s28_m23_collection_goes_on_with_the_policy_before_until_the_newest_is_there() -> None:
    gate = Gate()
    behavior, learner = crowd(gate)
    say(behavior, 4)
    assert behavior.due() and behavior.actor.fresh == 12
    before = behavior.actor.policy
    assert behavior.learn() == {} and learner.under_way and not learner.done()
    say(behavior, 2)
    assert behavior.actor.fresh == 8 and not behavior.due()
    assert behavior.actor.policy is before and behavior.state.policy is before, "what is saved now is whole"
    assert behavior.updates == 0 and int(behavior.state.step) == 0
    metrics = published(behavior, learner, gate)
    assert gate.thread.startswith("jaxrl-learn") and behavior.updates == 1 and int(behavior.state.step) == 12
    assert behavior.actor.policy is behavior.state.policy is not before
    assert {"staleness", "time_waited", "policy_loss"} <= metrics.keys()
    old, new = jax.tree.leaves(before.params), jax.tree.leaves(behavior.state.policy.params)
    assert not all(map(np.array_equal, old, new))
    assert np.isfinite(jax.tree.leaves(before.params)[0]).all(), "nothing of the old policy was overwritten"


def test_staleness_is_that_of_the_decisions_that_are_trained_on() -> None:
    """Per update 12 decisions, 4 of each of three messages; x says after which update each message was decided.

    update 1 trains messages 1 2 3 (x = 0 0 0), it begins after message 4 (x = 0) and is published after message 6;
    update 2 trains messages 4 5 6 (x = 0 0 0): 1 behind; it begins after message 7 (x = 1), published after message 8;
    update 3 trains messages 7 8 9 (x = 1 1 2): it learns from version 2: (1 + 1 + 0) / 3.
    """
    gate = Gate()
    behavior, learner = crowd(gate)
    say(behavior, 4)
    behavior.learn()
    say(behavior, 2)
    assert published(behavior, learner, gate)["staleness"] == 0.0
    say(behavior, 1)
    assert behavior.due()
    behavior.learn()
    say(behavior, 1)
    assert published(behavior, learner, gate)["staleness"] == 1.0
    say(behavior, 2)
    assert behavior.due()
    behavior.learn()
    assert published(behavior, learner, gate)["staleness"] == pytest.approx(2 / 3)
    assert [int(rollout.acted.sum()) for rollout in gate.rollouts] == [12, 12, 12], "no decision is lost or doubled"
    for rollout in gate.rollouts:
        np.testing.assert_array_equal(rollout.reward[rollout.acted], 1.0)


def test_staleness_of_members_of_different_rhythm() -> None:
    """Member 0 decides after 0 and 2 updates, member 1 after 0 only: its decision is answered when 2 updates were."""
    staleness = Staleness()
    steps = behavior_steps()
    staleness.note(steps([True, True], [Ending.OPEN, Ending.OPEN]), 0)
    staleness.note(steps([True, False], [Ending.CONTINUES, Ending.OPEN]), 2)
    staleness.note(steps([True, True], [Ending.CONTINUES, Ending.CONTINUES]), 3)
    assert staleness.take(3) == pytest.approx((3 + 1 + 3) / 3)  # decided at 0, 2 and 0
    assert staleness.take(3) == 0.0, "nothing was decided since"


def behavior_steps() -> Any:
    class Steps:
        def __init__(self, deciding: list[bool], ending: list[int]) -> None:
            self.deciding, self.ending = np.array([deciding]), np.array([ending], np.uint8)

    return Steps


def test_what_fails_in_the_thread_is_raised_when_it_is_published() -> None:
    gate = Gate()
    behavior, learner = crowd(gate)
    say(behavior, 4)
    gate.error = RuntimeError("out of memory")
    behavior.learn()
    with pytest.raises(RuntimeError, match="out of memory"):
        published(behavior, learner, gate)
    assert not learner.under_way and behavior.updates == 0
    say(behavior, 3)
    learner.learn(behavior.actor)
    gate.error = None
    published(behavior, learner, gate)
    assert behavior.updates == 1, "the next one can"


@pytest.mark.parametrize("name", ["policy_loss", "network_settings.normalize"])
def test_an_update_with_bad_numbers_is_named(name: str) -> None:
    def bad(state: Any, store: Any, rollout: Any) -> Any:
        state, store, metrics = LEARN(state, store, rollout)
        if name in metrics:
            return state, store, {**metrics, name: np.float32(np.nan)}
        overflown = normalizer.init(1).replace(m2=np.full(1, np.inf, np.float32))
        return state.replace(policy=state.policy.replace(normalizer=(overflown,))), store, metrics

    behavior, learner = crowd(bad)
    say(behavior, 4)
    behavior.learn()
    learner.wait()
    with pytest.raises(DivergedError, match=name):
        learned(behavior, learner)


def test_u46_b21_the_end_waits_for_a_thread_within_bounds() -> None:
    gate = Gate()
    behavior, learner = crowd(gate)
    assert learner.join(0.01), "nothing is under way"
    say(behavior, 4)
    behavior.learn()
    assert not learner.join(0.01)
    assert "update 1, which has been running for 0 s" in learner.diagnosis()
    gate.open.set()
    assert learner.join(30)
    learned(behavior, learner)
    assert not learner.under_way and behavior.updates == 1


RUN = {"*.threaded": True, "*.max_steps": 1500}


@pytest.mark.usefixtures("runs")
@pytest.mark.timeout(400)
class TestWholeRuns:
    def test_b6_a_threaded_run_trains_and_saves_its_newest_state(self, tmp_path: Any) -> None:
        """Two updates at least are in the last checkpoint: its step is a sum of whole buffers above 256 each."""
        assert trainer.train(trainer.config(tmp_path, RUN), tmp_path) == 0
        state = trainer.final_state(tmp_path)
        trained = int(state[next(name for name in state if name.endswith("train/step"))])
        assert 512 < trained <= state["step"] and state["step"] > 1500
        (events,) = (tmp_path / "run" / "Countdown").glob("events*")
        values = {v.tag: v.simple_value for e in read_events(events) for v in e.summary.value}
        assert 0.0 <= values["Policy/Staleness"] <= 1.1, "one update, and one state per row that is older"
        assert 0.0 <= values["Policy/Time Waited"] <= 1.0

    @pytest.mark.slow
    def test_an_interrupt_saves_the_newest_state(self, start: Any, tmp_path: Any) -> None:
        endless = {"*.threaded": True, "*.max_steps": trainer.ENDLESS, "*.checkpoint_interval": trainer.ENDLESS}
        process = start(trainer.config(tmp_path, endless))
        process.says("Step: 600.")
        process.interrupt()
        assert process.wait() == 0 and process.leaves_nothing()
        assert "Traceback" not in process.stdout + process.stderr
        assert trainer.final_state(tmp_path / "results")["step"] >= 600

    def test_divergence_in_the_thread_ends_the_run_with_one_sentence(self, tmp_path: Any, capsys: Any) -> None:
        wild = {**RUN, "environment_parameters": {"bonus": 1e38}}
        assert trainer.train(trainer.config(tmp_path, wild), tmp_path) == 1
        assert "training has diverged" in capsys.readouterr().err
