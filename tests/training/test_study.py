"""A search with the real Optuna: it proposes within the spaces, gives up the worst, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl.settings.sweep import Space
from jaxrl.training.study import Study

pytest.importorskip("optuna")
SPACES = {"a": Space(1e-4, 1e-1, log=True), "b": Space(2, 5, whole=True), "c": Space(choices=(0.5, 0.9))}


def opened(folder: Path, trials: int, *, prune: bool = False) -> Study:
    return Study(folder, SPACES, trials, 0, prune=prune, runs=lambda name, values: [])


def test_trials_lie_in_their_spaces_and_are_remembered(tmp_path):
    study = opened(tmp_path, 4)
    found = []
    for _ in range(3):
        trial = study.ask()
        assert trial is not None and trial.name == f"trial_{len(found):04d}"
        assert (
            1e-4 <= trial.values["a"] <= 1e-1 and trial.values["b"] in (2, 3, 4, 5) and trial.values["c"] in (0.5, 0.9)
        )
        study.tell(trial, 1.0)
        found.append(dict(trial.values))
    open_one = study.ask()
    assert open_one is not None and study.ask() is None and study.left == 0  # four are made or under way
    again = opened(tmp_path, 4)  # the session ended in the middle of the fourth
    assert again.left == 1
    assert [dict(values) for _, values in again.made()][:3] == found
    another = again.ask()
    assert another is not None and another.number == 4 and another.values != open_one.values
    again.tell(another, None)
    assert again.left == 1  # it was interrupted


def test_a_trial_that_ends_without_a_score_is_not_made_again(tmp_path):
    study = opened(tmp_path, 2)
    for left in (1, 0):
        trial = study.ask()
        assert trial is not None
        study.tell(trial, None, pruned=True)  # no episode has ended, or its process has failed
        assert study.left == left
    assert study.ask() is None and not study.has_scores
    more = opened(tmp_path, 3)
    trial = more.ask()
    assert trial is not None and trial.number == 2
    more.tell(trial, 1.0)
    assert more.has_scores and more.left == 0


def test_the_worst_are_given_up_at_the_first_third_and_ninth_summary(tmp_path):
    study = opened(tmp_path, 12, prune=True)
    kept = []
    for score in (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 10.0):
        trial = study.ask()
        assert trial is not None
        hopeless = [study.hopeless(trial, number, score) for number in (1, 2, 3)]
        kept.append(not any(hopeless))
        study.tell(trial, score, pruned=any(hopeless))
    assert kept[0] and kept[-1] and not any(kept[2:-1])
