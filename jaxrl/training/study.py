"""A search for good settings: Optuna proposes trials, judges which to give up, and remembers them in a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.artifacts.files import write_error
from jaxrl.settings import RunSettings, SettingsError
from jaxrl.settings.sweep import Space

FILE = "optuna.log"
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
        self._states = optuna.trial.TrialState
        self._spaces, self._trials, self._runs = spaces, trials, runs
        try:
            folder.mkdir(parents=True, exist_ok=True)
            backend = optuna.storages.journal.JournalFileBackend(str(folder / FILE))
            storage = optuna.storages.JournalStorage(backend)
            names = optuna.get_all_study_names(storage)
            before = sum(study.n_trials for study in optuna.get_all_study_summaries(storage))
        except OSError as error:
            raise write_error(folder / FILE, error) from error
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # constant_liar: those under way count as bad, so that trials side by side are not all the same
            self._study = optuna.create_study(
                storage=storage,
                study_name="jaxrl",
                load_if_exists=bool(names),
                direction="maximize",
                sampler=optuna.samplers.TPESampler(seed=seed + before, constant_liar=True),
                pruner=pruner if prune else optuna.pruners.NopPruner(),
            )
        self._asked: dict[int, Any] = {}
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
        values = {key: space.suggested(asked, key) for key, space in self._spaces.items()}
        trial = Trial(asked.number, values, [])
        return trial._replace(runs=self._runs(trial.name, values))

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
        """Name and values of every trial so far, those of earlier sessions too."""
        trials = self._study.get_trials(deepcopy=False)
        return [(Trial(t.number, {}, []).name, t.params) for t in trials if t.params]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("--search: needs Optuna: pip install 'jaxrl[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
