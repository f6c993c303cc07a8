"""When summaries and checkpoints are due."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl import make_settings
from jaxrl.artifacts.metrics.step_clock import crossed_multiple, due, never_due, next_due


def test_golden_rule():
    # interval 1000: from 960, 48 more give 1008 >= 1000
    assert crossed_multiple(960, 48, 1000) == 1000
    assert crossed_multiple(952, 48, 1000) == 1000  # 1000 >= 1000: reaching is enough
    assert crossed_multiple(951, 48, 1000) is None  # 999 < 1000
    assert crossed_multiple(0, 5000, 1000) is None  # nothing is counted yet
    assert crossed_multiple(1000, 48, 1000) is None  # the next multiple is 2000
    assert crossed_multiple(1000, 5000, 1000) == 2000  # one label, although 3000 to 6000 are passed as well


def test_a_run_in_jumps_of_48_reports_each_multiple_once():
    step, labels = 0, []
    while step < 5000:
        label = crossed_multiple(step, 48, 1000)
        labels += [label] if label else []
        step += 48
    assert labels == [1000, 2000, 3000, 4000, 5000]


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_label_is_a_multiple_between_the_two_steps(step, new, interval):
    label = crossed_multiple(step, new, interval)
    if label is not None:
        assert label % interval == 0 and step < label <= step + new and label - step <= interval


def test_a_training_ends_with_a_summary_whatever_the_interval():
    short = make_settings("ppo", max_steps=500, summary_freq=50_000, checkpoint_interval=10**6)
    assert [due(short, *steps).summary for steps in ((0, 499), (499, 500), (500, 501), (0, 2048))] == [
        None, 500, None, 500,
    ]  # fmt: skip
    assert next_due(short, 0) == 500 and next_due(short, 500) == 50_000
    uneven = make_settings("ppo", max_steps=550, summary_freq=100, checkpoint_interval=10**6)
    assert [due(uneven, step, step + 50).summary for step in range(450, 650, 50)] == [500, 550, 600, None]
    even = make_settings("ppo", max_steps=500, summary_freq=100)
    assert due(even, 450, 550).summary == 500 and due(even, 500, 550).summary is None


def test_intervals_that_are_longer_than_the_training_are_named():
    options = {"max_steps": 500, "evaluation": {"interval": 501}}
    assert never_due(make_settings("ppo", **options, summary_freq=501)) == [
        "summary_freq is 501 and max_steps 500: there is one summary, at the end of the training",
        "evaluation.interval is 501 and max_steps 500: nothing is evaluated",
    ]
    assert never_due(make_settings("ppo", max_steps=500, summary_freq=500, evaluation={"interval": 500})) == []


def test_what_is_due_of_a_behavior_is_what_comes_next():
    given = {"summary_freq": 300, "checkpoint_interval": 1000, "evaluation": {"interval": 500, "episodes": 1}}
    settings = make_settings("ppo", **given)
    assert next_due(settings, 300) == 500 and next_due(settings, 899) == 900 and next_due(settings, 900) == 1000
    assert due(settings, 480, 520) == (None, 500, False)  # no multiple of 300 or 1000 from 481 to 520
    assert due(settings, 590, 1000) == (600, 1000, True)
    assert due(settings, 0, 5000) == (None, None, False)
    without = make_settings("ppo", **given | {"evaluation": None})
    assert due(without, 480, 520) == (None, None, False) and next_due(without, 300) == 600
