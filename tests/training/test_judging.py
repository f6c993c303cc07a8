"""Stop rules and best moments, by hand."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from jaxrl.artifacts.metrics.statistics import CUMULATIVE_REWARD, Summary
from jaxrl.training.judging import Highest, Judge
from jaxrl.types import JaxrlError
from tests.helpers import settings_of

LOSS = "Losses/Policy Loss"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    return caplog


def judge(seeds: int = 1, **settings: Any) -> Judge:
    return Judge("Walker", settings_of("ppo", settings), seeds)


def written(**values: float) -> dict[str, Summary]:
    tags = {"reward": CUMULATIVE_REWARD, "loss": LOSS}
    return {
        tags.get(name, name): Summary(value=value, mean=value, std=0.0, sum=value, count=1, histogram=None)
        for name, value in values.items()
    }


def test_the_training_ends_at_the_value_and_not_below_it() -> None:
    one = judge(stop={CUMULATIVE_REWARD: 9.5})
    for step, value in ((100, 9.499), (200, -20.0)):
        one.see(step, [written(reward=value)])
        assert one.verdict is None
    one.see(300, [written(reward=9.5)])
    assert one.verdict == (
        "Walker: Environment/Cumulative Reward is 9.500 at step 300, and was at least 9.5 (stop). "
        "The training ends here, as at max_steps."
    )
    said = one.verdict
    one.see(400, [written(reward=0.0)])
    assert one.verdict == said


def test_patience_counts_times_in_a_row_that_it_was_written() -> None:
    one = judge(stop={CUMULATIVE_REWARD: {"value": 1.0, "patience": 3}})
    for value in (1.0, 1.0, 0.9, 1.0, 1.0):
        one.see(1, [written(reward=value)])
    one.see(1, [written(loss=5.0)])  # no episode was over: nothing is known
    assert one.verdict is None
    one.see(1, [written(reward=2.0)])
    assert one.verdict is not None and "3 times in a row" in one.verdict


def test_any_of_several_rules_ends_it() -> None:
    one = judge(stop={CUMULATIVE_REWARD: 100.0, "length": 5})
    one.see(1, [written(reward=1.0, length=5.0)])
    assert one.verdict is not None and "length is 5.000" in one.verdict


def test_every_seed_must_have_reached_it_but_not_at_once() -> None:
    three = judge(3, stop={CUMULATIVE_REWARD: 1.0})
    three.see(1, [written(reward=1.0), written(reward=0.0), {}])
    three.see(2, [written(reward=0.0), written(reward=1.0), {}])
    assert three.verdict is None
    three.leave_out(2)  # its numbers were not finite
    three.see(3, [written(reward=0.0), written(reward=0.0), {}])
    assert three.verdict is not None and "in every seed at step 3" in three.verdict


def test_a_run_of_which_nothing_is_left_has_not_reached_anything() -> None:
    one = judge(stop={CUMULATIVE_REWARD: 1.0})
    one.leave_out(0)
    one.see(1, [{}])
    assert one.verdict is None


def test_the_best_moment_is_that_of_the_highest_seed() -> None:
    two = judge(2, keep_best=CUMULATIVE_REWARD)
    assert two.see(1, [written(reward=1.0), written(reward=3.0)]) == Highest(3.0, 1)
    assert two.see(2, [written(reward=2.0), {}]) == Highest(2.0, 0)
    assert two.see(3, [written(loss=2.0), {}]) is None
    two.leave_out(1)  # an exploiter, which shows what it does all the same
    shown = [written(reward=1.0), written(reward=3.0)]
    assert two.see(4, shown) == Highest(1.0, 0) and two.counting(shown) == shown[:1]
    assert judge(2).see(1, [written(reward=1.0), {}]) is None


def test_an_unknown_statistic_is_named_with_those_that_exist() -> None:
    one = judge(stop={"Environment/Cumulative Rewards": 1.0})
    one.see(1, [written(loss=1.0)])  # no episode was over yet: it may come
    with pytest.raises(JaxrlError) as raised:
        one.see(2, [written(reward=1.0)])
    assert str(raised.value) == (
        "behaviors.Walker.stop: got 'Environment/Cumulative Rewards', which nobody writes; expected one of "
        "Losses/Policy Loss, Environment/Cumulative Reward"
    )
    with pytest.raises(JaxrlError, match=r"behaviors\.Walker\.keep_best: got 'best'"):
        judge(keep_best="best").see(1, [written(reward=1.0, loss=1.0)])


def test_one_that_may_still_come_is_a_warning(log: Any) -> None:
    one = judge(keep_best="Environment/Group Cumulative Reward")
    for step in (1, 2):
        one.see(step, [written(reward=1.0, loss=1.0)])
    (warning,) = log.messages
    assert "Group Cumulative Reward decides something" in warning and "has not come yet" in warning


def test_evaluations_come_when_they_come(log: Any) -> None:
    one = judge(keep_best="Evaluation/Episode Length", evaluation={"interval": 1000})
    one.see(1, [written(reward=1.0, loss=1.0)])
    assert not log.messages


def test_a_resumed_run_goes_on_counting() -> None:
    """As if it had not been interrupted: times in a row, and seeds that had reached the value."""
    rules = {CUMULATIVE_REWARD: {"value": 1.0, "patience": 2}, LOSS: 5.0}
    whole = judge(2, stop=rules)
    seen = [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)]  # the first seed has reached it, the second once in a row
    for values in seen[:2]:
        whole.see(1, [written(reward=value, loss=0.0) for value in values])
    state = json.loads(json.dumps(whole.state()))
    assert state[CUMULATIVE_REWARD] == {"value": 1.0, "patience": 2, "in_a_row": [2, 1], "reached": [True, False]}
    resumed = judge(2, stop=rules)
    resumed.restore(state)
    for one in (whole, resumed):
        one.see(2, [written(reward=value, loss=0.0) for value in seen[2]])
        assert one.verdict is not None and one.state() == {}, "who resumes it wants to go on"


@pytest.mark.parametrize("rules", [{CUMULATIVE_REWARD: 2.0}, {CUMULATIVE_REWARD: {"value": 1.0, "patience": 3}}])
def test_another_rule_begins_anew(rules: dict[str, Any]) -> None:
    before = judge(2, stop={CUMULATIVE_REWARD: 1.0})
    before.see(1, [written(reward=1.5), written(reward=0.0)])
    changed, more = judge(2, stop=rules), judge(3, stop={CUMULATIVE_REWARD: 1.0})
    for one in (changed, more):
        new = one.state()
        one.restore(before.state())
        assert one.state() == new
