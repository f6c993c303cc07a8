"""Every agent decision of a run whose workers are killed: trained on, left in the buffer, dropped or still open."""

from __future__ import annotations

import argparse

from benchmarks.soak_restarts import Outcome, Sample, figures_of, problems_of, soak
from tests import trainer

pytestmark = trainer.MARKS
OPTIONS = argparse.Namespace(
    env="gymnasium:CartPole-v1", steps=6000, restarts_every=2000, workers=2, areas=4, seed=0, base_port=5005
)


def test_m17_no_decision_of_a_run_with_two_deaths_is_unaccounted_for(tmp_path):
    """Each death costs the one open decision of each of the 4 areas of a worker."""
    outcome = soak(OPTIONS, tmp_path)
    assert (outcome.kills, outcome.counts["restarts"], outcome.counts["dropped"]) == (2, 2, 8)
    assert outcome.counts["unaccounted"] == 0
    assert outcome.counts["trained"] > 4000 and outcome.counts["in_flight"] in (4, 8)
    assert outcome.counts["asked"] >= 6000


def test_what_grows_or_stays_is_found():
    """200 MiB in the second quarter and 212 in the last are 6 % more."""
    counts = {"asked": 10, "trained": 7, "left": 1, "dropped": 1, "in_flight": 0, "restarts": 1, "unaccounted": 1}
    samples = [Sample(i, 200.0 if i < 6 else 212.0, 20 + (i > 6), 4 - (i > 6)) for i in range(8)]
    figures = figures_of(Outcome(samples=samples, counts=counts, kills=2, seconds=1.0, step=8))
    assert abs(figures["growth"] - 0.06) < 1e-9
    assert len(problems_of(figures)) == 5
