"""`jaxrl sweep --search`: trials that Optuna proposes, in one program or as processes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.console

from jaxrl.artifacts.run_folder import RunFolderError
from jaxrl.cli.device import start_computing
from jaxrl.cli.sweep_processes import Ended, Job, go_through
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings
from jaxrl.settings.sweep import Space
from jaxrl.tools.report.events import Curve
from jaxrl.tools.report.sweep import curves_of, seeds_of, worth
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.study import FILE, Study, Trial
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)

READ_SECONDS = 3.0
"""Seconds between two reads of the summaries of processes."""
Runs = Callable[[str, Mapping[str, Any]], list[RunSettings]]
"""(name of a trial, its values) → settings of its runs."""


class Search(NamedTuple):
    """The keys and spaces that are searched, and how."""

    spaces: Mapping[str, Space]
    trials: int
    prune: bool
    parallel: int | None


def check_search(search: Search, base: RunSettings, folder: Path, runs: Runs) -> None:
    """Raise JaxrlError unless the search can begin: the ends of every space are settings. Writes nothing."""
    ends = {key: space.choices or (space.low, space.high) for key, space in search.spaces.items()}
    for number in range(max(map(len, ends.values()))):
        runs("trial", {key: values[min(number, len(values) - 1)] for key, values in ends.items()})
    options = base.checkpoint_settings
    if (folder / FILE).exists() and not options.resume and not options.force:
        raise RunFolderError(
            f"{folder} already holds a search: continue it with --resume, choose another --run-id, or begin it anew "
            "with --force."
        )


def make_trials(
    search: Search, base: RunSettings, folder: Path, runs: Runs, console: rich.console.Console, interrupt: Interrupt
) -> tuple[list[tuple[str, Mapping[str, Any]]], JaxrlError | None]:
    """Make all trials; return name and values of each, earlier ones too, and the error if none has a score."""
    seed, compiled = base.env_settings.seed, None
    if is_compiled(base.env_settings.env_path):
        start_computing(base.torch_settings.device, os.cpu_count() or 1)
        from jaxrl.training.compiled import search as compiled

        compiled.check_keys(list(search.spaces), base)
    if base.checkpoint_settings.force and not base.checkpoint_settings.resume:
        (folder / FILE).unlink(missing_ok=True)
    study = Study(folder, search.spaces, search.trials, seed, prune=search.prune, runs=runs)
    if study.left <= 0:
        _log.info("All %d trials have been made; raise --trials for more.", search.trials)
    elif compiled is not None:
        compiled.search(base, list(search.spaces), study, console, interrupt, search.parallel)
    else:
        _in_processes(study, interrupt, search.parallel or 1)
    if interrupt.requested or study.left > 0 or study.has_scores:
        return study.made(), None
    return study.made(), JaxrlError(
        f"--search: none of {search.trials} trials has a score: in none did an episode end before max_steps, or their "
        "runs failed, as the log says. Mend that, and search in a new --run-id"
    )


def _in_processes(study: Study, interrupt: Interrupt, parallel: int) -> None:
    """Run trials as processes of `jaxrl train`, `parallel` at a time, one process for each seed of a trial.

    After a signal the running trials save and end, and are not judged.
    """
    hopeless = _Hopeless(study)

    def next_job() -> Job | None:
        trial = study.ask()
        return None if trial is None else Job(trial, trial.runs)

    def ended(job: Job, end: Ended) -> None:
        trial, pruned = job.label, job.label.number in hopeless.found
        interrupted = end.told_to and not pruned
        score = None if interrupted or end.failed else _score(trial, 1 if pruned else len(trial.runs))
        study.tell(trial, score, pruned=pruned or (score is None and not interrupted))

    go_through(next_job, interrupt, parallel, ended=ended, hopeless=hopeless)


class _Hopeless:
    """Reports the summaries that all runs of a trial have, now and then; returns whether the trial is given up."""

    def __init__(self, study: Study) -> None:
        self.found: set[int] = set()  # numbers of trials
        self._study = study
        self._seen: dict[int, int] = {}  # by trial, summaries
        self._looked: dict[int, float] = {}  # by trial, seconds

    def __call__(self, job: Job) -> bool:
        trial, now = job.label, time.monotonic()
        if now - self._looked.setdefault(trial.number, now) < READ_SECONDS:
            return False
        self._looked[trial.number] = now
        curves = _curves(trial)
        if len(curves) < len(trial.runs):
            return False
        last = min(len(curve.step) for group in curves.values() for curve in group)
        for number in range(self._seen.get(trial.number, 0) + 1, last + 1):
            self._seen[trial.number] = number
            score = float(np.mean([curve.value[number - 1] for group in curves.values() for curve in group]))
            if self._study.hopeless(trial, number, score):
                self.found.add(trial.number)
                return True
        return False


def _score(trial: Trial, least: int) -> float | None:
    """Return the mean final score of the runs of a trial; None where fewer than `least` have one."""
    scores = list(map(worth, _curves(trial).values()))
    return float(np.mean(scores)) if len(scores) >= least else None


def _curves(trial: Trial) -> dict[str, list[Curve]]:
    """Return by seed the curves of the statistic that the trial is judged by, one of each behavior."""
    options = [run.checkpoint_settings for run in trial.runs]
    _, (curves,) = curves_of([seeds_of(Path(place.results_dir, place.run_id) for place in options)])
    return curves
