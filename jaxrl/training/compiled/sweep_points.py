"""A sweep in the compiled loop: points that can share a program run side by side, the others one after another."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import RunSettings, with_drawn_seed, with_seed
from jaxrl.settings.traced import variable, with_values
from jaxrl.training.compiled.checks import check_parameters
from jaxrl.training.compiled.lessons import SeedLessons, parameters_at_start
from jaxrl.training.compiled.planning import agents_at_start
from jaxrl.training.compiled.run import subjects_of, train_together
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)


def train_points(runs: Sequence[RunSettings], console: Console, interrupt: Interrupt, parallel: int | None) -> None:
    """Train all runs of one sweep; each has a results folder of its own. At most `parallel` share a program.

    Ends after the last, at Ctrl-C (saves and returns normally), or with an error. Raises JaxrlError for faults that the
    user can mend; a fault of any run's folder is raised before the first run begins.
    """
    seed = with_drawn_seed(runs[0]).env_settings.seed
    runs = [with_seed(run, seed) for run in runs]
    env = environment_in(runs[0].env_settings)
    for run in runs:
        options = run.checkpoint_settings
        folder = RunFolder(options.results_dir, options.run_id)
        starts = {subject.name: subject.settings.init_path for subject in subjects_of(run, env)}
        folder.check(options.resume, options.force, options.initialize_from, starts)
    pieces = list(_cut(programs(runs, env), parallel))
    for number, piece in enumerate(pieces, 1):
        names = ", ".join(run.checkpoint_settings.run_id for run in piece)
        log.info("Program %d of %d, %d point(s): %s.", number, len(pieces), len(piece), names)
        train_together(piece, console, interrupt)
        if interrupt.requested:
            return


def programs(runs: Sequence[RunSettings], env: JaxEnv | JaxScene) -> list[list[RunSettings]]:
    """Group the runs, in order: runs of a group differ only in traced numbers, and can share a program.

    Raises SettingsError for a behavior that is not configured or an unknown parameter of the environment.
    """
    groups: list[tuple[Any, list[RunSettings]]] = []
    for run in runs:
        kind = _kind(run, env)
        home = next((members for known, members in groups if known == kind), None)
        if home is None:
            groups.append((kind, [run]))
        else:
            home.append(run)
    return [members for _, members in groups]


def _kind(run: RunSettings, env: JaxEnv | JaxScene) -> Any:
    """Return a value that is equal for runs that can share a program: all settings but traced numbers and folders."""
    check_parameters(run, env)
    subjects = [subject._replace(seeds=(run.env_settings.seed,)) for subject in subjects_of(run, env)]
    lessons = SeedLessons(run.environment_parameters, subjects)
    numbers = [variable(subject.settings) for subject in subjects]
    same = [with_values(item.settings, dict.fromkeys(keys, 0.0)) for item, keys in zip(subjects, numbers, strict=True)]
    intervals = {name: count for name, count in lessons.intervals().items() if count}
    parameters = parameters_at_start(env, [lessons])
    agents = agents_at_start(env, parameters) if run.environment_parameters else None  # the length of an iteration
    sizes = (agents, intervals, lessons.newest)
    return same, [list(keys) for keys in numbers], sizes, run.env_settings, run.engine_settings, run.torch_settings


def _cut(groups: Sequence[list[RunSettings]], most: int | None) -> Iterator[list[RunSettings]]:
    for group in groups:
        size = most or len(group)
        yield from (group[i : i + size] for i in range(0, len(group), size))
