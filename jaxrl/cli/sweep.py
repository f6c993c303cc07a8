"""`jaxrl sweep`: trains every combination of some settings, with several seeds each."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich
import rich.console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.artifacts.names import check_run_names
from jaxrl.artifacts.versions import version_line
from jaxrl.cli import flags, train
from jaxrl.cli.device import choose_device, start_computing
from jaxrl.cli.leaving import leaving_at_once
from jaxrl.cli.search import Search, check_search, make_trials
from jaxrl.cli.sweep_processes import folder_of, train_in_processes
from jaxrl.envs.address import is_compiled
from jaxrl.settings import RunSettings, SettingsError, load_run_settings, with_drawn_seed, with_seed
from jaxrl.settings.inheritance import merge
from jaxrl.settings.loading import without_remarks
from jaxrl.settings.reading import read_yaml
from jaxrl.settings.run import LARGEST_SEED
from jaxrl.settings.sweep import Point, grid, overrides_of, space
from jaxrl.tools.report.sweep import write_results
from jaxrl.training.checks import check_run
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)

TRIALS = 20
"""Number of trials of a search without --trials."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, the flags of `jaxrl train`, and those that vary settings."""
    parser.description = (
        "Train every combination of some settings. Each point is a run of its own in RESULTS_DIR/RUN_ID/POINT. In a "
        "compiled environment, points that differ in numbers alone (learning_rate, beta, gamma, parameters of the "
        "environment ...) are one program with all their seeds; other environments run point by point."
    )
    train.add_config(parser)
    flags.add_flags(parser, several=True)
    parser.add_argument(
        "--search",
        action="append",
        metavar="KEY=LOW:HIGH[:log][:int]",
        default=[],
        help="look for a good value, with Optuna (extra `sweep`), instead of trying all; or KEY=VALUE,VALUE...",
    )
    parser.add_argument("--trials", type=flags.count, metavar="N", help="how many --search makes (default: 20)")
    parser.add_argument(
        "--prune", action="store_true", help="--search gives up trials that fall behind (successive halving by thirds)"
    )
    parser.add_argument(
        "--population",
        type=flags.count,
        metavar="N",
        help="population based training of N members in one program: the worst learn from the best, with values "
        "of --search changed; one run, whose seeds are the members",
    )
    parser.add_argument(
        "--every", type=flags.count, metavar="STEPS", help="between generations (default: 1/20 of max_steps)"
    )
    parser.add_argument(
        "--parallel",
        type=flags.count,
        metavar="N",
        help="points side by side (default: all of a program, 4 of a search, 1 where environments are processes)",
    )


def run(given: argparse.Namespace) -> int:
    """Check every point, train, and print a table; return the exit code. Raises JaxrlError for the user's errors."""
    console = rich.get_console()
    with leaving_at_once():
        asked = _asked(given, console)
        plans = [] if given.search else _planned(asked)
        search = _searched(given, asked) if given.search else None
        _log.info(version_line())
        if asked.base.torch_settings.device is not None:
            choose_device(asked.base.torch_settings.device)
    if given.population is not None:
        return _train_population(given, asked, search, console)
    failed = None
    with Interrupt() as interrupt:
        if search is not None:
            trials, failed = make_trials(search, asked.base, asked.folder, asked.runs, console, interrupt)
            points = [(Point(name, values), list(asked.places(name))) for name, values in trials]
        else:
            failed = _train(plans, console, interrupt, given.parallel)
            points = [(plan.point, [run.checkpoint_settings.run_id for run in plan.runs]) for plan in plans]
        if asked.folder.is_dir() and points:
            for line in write_results(asked.folder, points):
                print(line)
    if failed is not None:
        raise failed
    return interrupt.exit_code


class _Asked(NamedTuple):
    """The command line of a sweep, parsed."""

    config: str | None
    overrides: Mapping[str, Any]
    points: list[Point]
    base: RunSettings  # without the values of a point
    folder: Path  # of the sweep
    search: bool

    def places(self, name: str) -> dict[str, dict[str, int]]:
        """Return `env_settings` of each of a point's runs, by name."""
        base = self.base.env_settings
        if is_compiled(base.env_path) or base.seeds == 1:
            return {name: {"seed": base.seed}}
        numbers = range(base.seed, base.seed + base.seeds)
        return {f"{name}_seed{number}": {"seed": number, "seeds": 1} for number in numbers}

    def runs(self, name: str, values: Mapping[str, Any]) -> list[RunSettings]:
        """Return settings of the runs of a point, each in its own folder. Raises JaxrlError if they fit no sweep."""
        saved = self.base.checkpoint_settings
        start = saved.initialize_from and Path(saved.results_dir, saved.initialize_from).absolute()
        runs, of_point = [], merge(self.overrides, overrides_of(values))
        for run_id, environment in self.places(name).items():
            options = {"run_id": run_id, "results_dir": str(self.folder)}
            if self.search:  # a trial is always a new run
                options |= {"resume": False}
            if start is not None:  # it lies beside the sweep
                options |= {"initialize_from": str(start)}
            place = {"checkpoint_settings": options, "env_settings": environment}
            with without_remarks():
                runs.append(load_run_settings(self.config, merge(of_point, place), HYPERPARAMETER_TYPES))
        for settings in runs:
            _check(settings, self.config or "command line")
        return runs


class _Plan(NamedTuple):
    """Point and its runs: one with all seeds where the environment is compiled, else one for each seed."""

    point: Point
    runs: list[RunSettings]


def _asked(given: argparse.Namespace, console: rich.console.Console) -> _Asked:
    """Read the command line. Raises SettingsError; nothing is written or started."""
    setup_logging(console, debug=getattr(given, "debug", False))
    _check_flags(given)
    points = grid(vars(given).pop(flags.SET, []))
    if not given.search and len(points) < 2:
        text = "write for example --set hyperparameters.learning_rate=1e-3,3e-4, or --search KEY=LOW:HIGH"
        raise SettingsError(f"--set: nothing is varied; {text}")
    if given.search and len(points) > 1:
        raise SettingsError("--set: got several values beside --search: write one for each key, or search that key too")
    config, overrides = train.configuration(given.config, flags.overrides_from(given))
    if given.search:
        overrides = merge(overrides, overrides_of(points[0].values))
    base = load_run_settings(config, overrides, HYPERPARAMETER_TYPES, strict=hasattr(given, flags.STRICT))
    given.debug = base.debug
    setup_logging(console, debug=base.debug)
    options = base.checkpoint_settings
    check_run_names(Path(options.results_dir), options.run_id)
    folder = Path(options.results_dir, options.run_id)
    base = with_drawn_seed(with_earlier_seed(base, folder))
    return _Asked(config, overrides, points, base, folder, bool(given.search))


def _check_flags(given: argparse.Namespace) -> None:
    """Raise SettingsError for a flag that would have no effect beside the others."""
    if not given.search and (given.trials is not None or given.prune):
        raise SettingsError("--trials and --prune belong to --search KEY=LOW:HIGH, which is not given")
    if given.population is None and given.every is not None:
        raise SettingsError("--every belongs to --population N, which is not given")
    if given.population is not None and (given.trials is not None or given.prune or given.parallel is not None):
        raise SettingsError("--trials, --prune and --parallel have no meaning beside --population, which is one run")
    if given.population is not None and "env_settings.seeds" in vars(given):
        raise SettingsError("--seeds: got a number beside --population, whose members are the seeds; leave it out")


def _train_population(
    given: argparse.Namespace, asked: _Asked, search: Search | None, console: rich.console.Console
) -> int:
    """Train one run, whose seeds are the members of a population; return the exit code."""
    environment = asked.base.env_settings
    if search is None or not is_compiled(environment.env_path):
        raise SettingsError("--population: needs a compiled environment (--env jax:NAME) and --search KEY=LOW:HIGH")
    members = environment.model_copy(update={"seeds": given.population})
    run = asked.base.model_copy(update={"env_settings": members})
    _check(run, asked.config or "command line")
    start_computing(run.torch_settings.device, given.population)
    from jaxrl.training.compiled.population import train_population

    with Interrupt() as interrupt:
        train_population(run, search.spaces, given.every or 0, console, interrupt)
    return interrupt.exit_code


def _planned(asked: _Asked) -> list[_Plan]:
    plans = [_Plan(point, asked.runs(*point)) for point in asked.points]
    runs = iter(begun_or_new([run for plan in plans for run in plan.runs]))
    return [plan._replace(runs=[next(runs) for _ in plan.runs]) for plan in plans]


def _searched(given: argparse.Namespace, asked: _Asked) -> Search:
    search = Search(dict(map(space, given.search)), given.trials or TRIALS, given.prune, given.parallel)
    check_search(search, asked.base, asked.folder, asked.runs)
    return search


def _train(
    plans: Sequence[_Plan], console: rich.console.Console, interrupt: Interrupt, parallel: int | None
) -> JaxrlError | None:
    """Train all points; return the error that names the failed runs."""
    runs = [settings for plan in plans for settings in plan.runs]
    environment = runs[0].env_settings
    if not is_compiled(environment.env_path):
        return train_in_processes(runs, interrupt, parallel or 1)
    start_computing(runs[0].torch_settings.device, min(parallel or len(runs), len(runs)) * environment.seeds)
    from jaxrl.training.compiled.sweep_points import train_points

    train_points(runs, console, interrupt, parallel)
    return None


def _check(settings: RunSettings, source: str) -> None:
    """Raise JaxrlError unless a run can be part of a sweep."""
    options = settings.checkpoint_settings
    check_run_names(Path(options.results_dir), options.run_id)
    if options.inference:
        raise SettingsError("checkpoint_settings.inference: a sweep trains; play one of its runs with `jaxrl watch`")
    check_run(settings, source)


def with_earlier_seed(base: RunSettings, folder: Path) -> RunSettings:
    """Return the settings with the first seed of the earlier runs in `folder`, if they resume without a seed."""
    if not base.checkpoint_settings.resume or base.env_settings.seed >= 0:
        return base
    files = [*folder.glob("configuration.yaml"), *folder.glob("*/configuration.yaml")]
    seeds = [seed for seed in map(_seed_in, files) if seed is not None]
    return with_seed(base, min(seeds)) if seeds else base


def begun_or_new(runs: Sequence[RunSettings]) -> list[RunSettings]:
    """Return the runs of a sweep: with --resume, runs without a checkpoint begin anew, unless no run has one.

    Files of such a run, written before it was killed, are overwritten. A sweep without any checkpoint is then refused.
    """
    there = [any(checkpoints(behavior) for behavior in folder_of(run).path.glob("*/")) for run in runs]
    if not any(there) or not any(run.checkpoint_settings.resume for run in runs):
        return list(runs)
    return [run if begun else _new(run) for run, begun in zip(runs, there, strict=True)]


def _new(run: RunSettings) -> RunSettings:
    options = run.checkpoint_settings
    return run.model_copy(update={"checkpoint_settings": options.model_copy(update={"resume": False, "force": True})})


def _seed_in(path: Path) -> int | None:
    try:
        seed = read_yaml(path)["env_settings"]["seed"]
    except (SettingsError, KeyError, TypeError):
        return None  # `RunFolder.check` reports the fault of a folder
    return seed if isinstance(seed, int) and 0 <= seed <= LARGEST_SEED else None
