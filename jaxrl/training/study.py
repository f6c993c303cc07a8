"""A search for good settings: Optuna proposes trials, judges which to give up, and remembers them in a file.

The file may be somebody else's: what it names is shown and never becomes a setting, and what Optuna proposes from it is
a value of the spaces that the user has given.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.artifacts.files import write_error
from jaxrl.regular_files import open_regular
from jaxrl.settings import RunSettings, SettingsError
from jaxrl.settings.sweep import Space
from jaxrl.types import JaxrlError

FILE = "optuna.log"
_LARGEST = 2**28  # bytes
_ANEW = "search in a new --run-id, or begin this one anew with --force"
FACTOR = 3
"""Successive halving (Jamieson & Talwalkar 2016; asynchronous: Li et al. 2020): one trial in FACTOR goes on at summary
1, FACTOR, FACTOR^2 ... of a run."""


class Trial(NamedTuple):
    """One proposal. Its folder is named after its number."""

    number: int
    values: Mapping[str, Any]
    runs: list[RunSettings]

    @property
    def name(self) -> str:
        """trial_0007."""
        return f"trial_{self.number:04d}"


class Study:
    """What is known of all trials. Higher scores are better.

    Args:
      folder: of the sweep; the trials are remembered in it, and go on from there when it is opened again.
      trials: how many are made in all, with those of earlier sessions.
      prune: give up trials that fall behind.
      runs: from the name of a trial and its values to the settings of its runs.
    """

    def __init__(
        self,
        folder: Path,
        spaces: Mapping[str, Space],
        trials: int,
        seed: int,
        *,
        prune: bool,
        runs: Callable[[str, Mapping[str, Any]], list[RunSettings]],
    ) -> None:
        optuna = _optuna()
        self._states, self._file = optuna.trial.TrialState, folder / FILE
        self._spaces, self._trials, self._runs = spaces, trials, runs
        self._asked: dict[int, Any] = {}
        with _told(self._file):
            folder.mkdir(parents=True, exist_ok=True)
            _check_file(self._file)
            self._study = _opened(optuna, self._file, seed, prune=prune)
            for trial in self._study.get_trials(states=(self._states.RUNNING,)):  # of a session that was interrupted
                self._study.tell(trial.number, state=self._states.FAIL)

    @property
    def left(self) -> int:
        """Trials that are still to be made; those that were interrupted do not count."""
        good = (self._states.COMPLETE, self._states.PRUNED, self._states.RUNNING)
        return self._trials - len(self._study.get_trials(deepcopy=False, states=good))

    def ask(self) -> Trial | None:
        """The next trial; None when all have been made."""
        if self.left <= 0:
            return None
        asked = self._study.ask()
        self._asked[asked.number] = asked
        values = self._suggested(asked)
        trial = Trial(asked.number, values, [])
        return trial._replace(runs=self._runs(trial.name, values))

    def _suggested(self, asked: Any) -> dict[str, Any]:
        """Return the values of a trial. Raises JaxrlError where those of the file are of other spaces."""
        values = {}
        for key, space in self._spaces.items():
            try:
                values[key] = space.suggested(asked, key)
            except ValueError as error:
                text = f"{self._file}: its trials have another kind of {key} ({error})"
                raise JaxrlError(f"{text}: {_ANEW}") from error
            if not space.holds(values[key]):
                text = f"{self._file}: proposes {key} = {values[key]!r:.40}, which was not asked for"
                raise JaxrlError(f"{text}: {_ANEW}")
        return values

    def hopeless(self, trial: Trial, summaries: int, score: float) -> bool:
        """Whether to give a trial up that had this score at the summary of this number, from 1 on."""
        asked = self._asked[trial.number]
        asked.report(score, summaries)
        return asked.should_prune()

    def tell(self, trial: Trial, score: float | None, *, pruned: bool = False) -> None:
        """How a trial ended. None: it was interrupted, and another is made in its place.

        `pruned`: it was given up, or came to its end without a score. It counts as made, and as bad.
        """
        del self._asked[trial.number]
        if pruned:  # its score is the last one reported
            self._study.tell(trial.number, state=self._states.PRUNED)
        elif score is None:
            self._study.tell(trial.number, state=self._states.FAIL)
        else:
            self._study.tell(trial.number, score)

    @property
    def has_scores(self) -> bool:
        """Whether any trial has a score."""
        trials = self._study.get_trials(deepcopy=False)
        return any(t.value is not None or t.intermediate_values for t in trials)

    def made(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Name and values of every trial so far, those of earlier sessions too, which are to be shown alone."""
        trials = self._study.get_trials(deepcopy=False)
        return [(Trial(t.number, {}, []).name, t.params) for t in trials if t.params]


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise JaxrlError for whatever opening the trials of a search raises: lines of strangers raise anything."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error
    except Exception as error:
        raise JaxrlError(
            f"{path}: the trials of the search cannot be read ({error!r:.200}). Restore the file from a backup, or "
            "begin the search anew with --force."
        ) from error


def _opened(optuna: Any, path: Path, seed: int, *, prune: bool) -> Any:
    """Return Optuna's study of the trials in a file, or an empty one."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    names = optuna.get_all_study_names(storage)
    before = sum(study.n_trials for study in optuna.get_all_study_summaries(storage))
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # constant_liar: those under way count as bad, so that trials side by side are not all the same
        return optuna.create_study(
            storage=storage,
            study_name="jaxrl",
            load_if_exists=bool(names),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed + before, constant_liar=True),
            pruner=pruner if prune else optuna.pruners.NopPruner(),
        )


def _check_file(path: Path) -> None:
    """Raise OSError for what Optuna would wait for, or read and write elsewhere."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    if os.path.lexists(path):
        open_regular(path, _LARGEST).close()


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("--search: needs Optuna: pip install 'jaxrl[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
