"""Search for good settings: Optuna proposes trials, decides which to give up, and stores them in a file.

The file is not trusted: names in it are shown and never become settings, and values that Optuna proposes from it are
checked against the spaces that the user has given.
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
    """Proposal. Its folder is named after its number."""

    number: int
    values: Mapping[str, Any]
    runs: list[RunSettings]

    @property
    def name(self) -> str:
        """Name of its folder, like trial_0007."""
        return f"trial_{self.number:04d}"


class Study:
    """All trials of a search. Higher scores are better.

    Args:
      folder: folder of the sweep; it stores the trials, and a later session continues from them.
      trials: number of trials in all, earlier sessions included.
      prune: give up trials that fall behind.
      runs: (name of a trial, its values) → the settings of its runs.
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
        """Number of trials still to be made; interrupted ones do not count as made."""
        good = (self._states.COMPLETE, self._states.PRUNED, self._states.RUNNING)
        return self._trials - len(self._study.get_trials(deepcopy=False, states=good))

    def ask(self) -> Trial | None:
        """Return the next trial; None when all have been made."""
        if self.left <= 0:
            return None
        asked = self._study.ask()
        self._asked[asked.number] = asked
        values = self._suggested(asked)
        trial = Trial(asked.number, values, [])
        return trial._replace(runs=self._runs(trial.name, values))

    def _suggested(self, asked: Any) -> dict[str, Any]:
        """Return the values of a trial. Raises JaxrlError if the file's values are not of these spaces."""
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
        """Return whether to give up a trial with this score at its summary number `summaries`, counted from 1."""
        asked = self._asked[trial.number]
        asked.report(score, summaries)
        return asked.should_prune()

    def tell(self, trial: Trial, score: float | None, *, pruned: bool = False) -> None:
        """Record how a trial ended. `score` None: it was interrupted, and another trial replaces it.

        `pruned`: it was given up, or ended without a score. It counts as made, and as bad.
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
        """True if any trial has a score."""
        trials = self._study.get_trials(deepcopy=False)
        return any(t.value is not None or t.intermediate_values for t in trials)

    def made(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return name and values of every trial so far, earlier sessions included; only show them, never use them."""
        trials = self._study.get_trials(deepcopy=False)
        return [(Trial(t.number, {}, []).name, t.params) for t in trials if t.params]


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise JaxrlError for any error while opening the trials of a search: an untrusted file can raise anything."""
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
        # constant_liar: running trials count as bad, so that parallel trials are not all the same
        return optuna.create_study(
            storage=storage,
            study_name="jaxrl",
            load_if_exists=bool(names),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed + before, constant_liar=True),
            pruner=pruner if prune else optuna.pruners.NopPruner(),
        )


def _check_file(path: Path) -> None:
    """Raise OSError if the file is a link, no regular file, or too large: Optuna would hang, or follow the link."""
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
