"""A search with the real Optuna: it proposes within the spaces, gives up the worst, and goes on where it was."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from jaxrl.settings.sweep import Space
from jaxrl.training.study import FILE, Study
from jaxrl.types import JaxrlError

optuna = pytest.importorskip("optuna")
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


def journal(folder: Path):
    """The study in a search's file, for a stranger."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / FILE))
    return optuna.load_study(study_name="jaxrl", storage=optuna.storages.JournalStorage(backend))


def test_nothing_is_tried_that_was_not_asked_for(tmp_path):
    opened(tmp_path, 4)
    journal(tmp_path).enqueue_trial({"a": 5.0, "b": 3, "c": 0.5})
    with warnings.catch_warnings():  # Optuna warns, and takes it
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(
            JaxrlError, match=r"optuna\.log: proposes a = 5\.0, which was not asked for: search in a new"
        ):
            opened(tmp_path, 4).ask()
    study = opened(tmp_path, 4)
    assert study.ask() is not None
    other = Study(tmp_path, SPACES | {"c": Space(choices=(1, 2))}, 9, 0, prune=False, runs=lambda name, values: [])
    with pytest.raises(JaxrlError, match=r"its trials have another kind of c \(.*: search in a new --run-id"):
        other.ask()


@pytest.mark.skipif(os.name == "nt", reason="named pipes and links of POSIX")
def test_a_file_of_a_stranger_is_one_sentence(tmp_path):
    path, secret = tmp_path / FILE, tmp_path / "secret"
    for line in ("{", "3", '{"op_code": 0}', '{"op_code": 99, "worker_id": "x"}', "[" * 100_000, "\xff"):
        path.write_text(f"{line}\n{line}\n")
        with pytest.raises(JaxrlError, match=r"optuna\.log: the trials of the search cannot be read \(") as error:
            opened(tmp_path, 1).ask()
        assert "\n" not in str(error.value)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(JaxrlError, match=r"optuna\.log: cannot be written \(it is no file"):
        opened(tmp_path, 1)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(JaxrlError, match=r"it has 3,221,225,472 bytes, more than"):
        opened(tmp_path, 1)
    path.unlink()
    secret.write_text("mine")
    path.symlink_to(secret)
    with pytest.raises(JaxrlError, match=r"it is a link"):
        opened(tmp_path, 1)
    assert secret.read_text() == "mine"


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
