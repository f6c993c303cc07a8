"""When summaries and checkpoints are due."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl.artifacts.metrics.step_clock import crossed_multiple


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
