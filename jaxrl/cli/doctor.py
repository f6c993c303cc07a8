"""`jaxrl doctor`: checks whether this machine, and an environment, are fit for training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings
    from jaxrl.tools.doctor.findings import Finding

BUILD_SECONDS, EDITOR_SECONDS = 60.0, 10.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the subjects of the checks."""
    parser.description = (
        "Look at Python, packages, device, memory, disk and CONFIG, then start an environment: executable, port, "
        "handshake, behaviors, and what a first decision costs. A line each, with a remedy where there is something to "
        "do. Exit code 1 where training would not work. Without an environment the Unity Editor is waited for, for a "
        "moment."
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file of the training")
    parser.add_argument("--env", metavar="PATH", help="the environment, as in jaxrl train; beats that of CONFIG")
    parser.add_argument("--base-port", type=int, metavar="PORT", help="port of the environment")
    parser.add_argument("--results-dir", metavar="DIR", help="where runs are to be written")
    parser.add_argument("--timeout-wait", type=float, metavar="SECONDS",
                        help=f"for the environment to answer (default: {BUILD_SECONDS:g}, of the Editor "
                        f"{EDITOR_SECONDS:g})")  # fmt: skip
    parser.add_argument("--no-graphics", action="store_true", help="the environment renders nothing")
    parser.add_argument("--no-env", action="store_true", help="look at the machine alone")
    parser.add_argument("--env-args", nargs=argparse.REMAINDER, metavar="...", help="rest of the line; must come last")


def run(given: argparse.Namespace) -> int:
    """Print each finding as it is made; return 1 if a check failed. Raises SettingsError for an unreadable CONFIG."""
    from jaxrl.tools.doctor.findings import Outcome

    settings, counts = _settings(given), dict.fromkeys(Outcome, 0)
    for finding in _findings(settings, alone=given.no_env, written=given.config is not None):
        counts[finding.outcome] += 1
        for line in _lines(finding):
            print(line, flush=True)
    totals = [f"{counts[kind]} {word}" for kind, word in ((Outcome.FAIL, "failed"), (Outcome.WARN, "to look at"))]
    print(f"{sum(counts.values())} checks, {', '.join(totals)}.")
    return 1 if counts[Outcome.FAIL] else 0


def _findings(settings: RunSettings, *, alone: bool, written: bool) -> Iterator[Finding]:
    from jaxrl.tools.doctor.configuration import configuration
    from jaxrl.tools.doctor.environment import environment
    from jaxrl.tools.doctor.findings import Outcome
    from jaxrl.tools.doctor.hardware import hardware
    from jaxrl.tools.doctor.software import software

    yield from software()
    yield from hardware(Path(settings.checkpoint_settings.results_dir))
    finding = configuration(settings)
    if written:
        yield finding
    if not alone and finding.outcome is Outcome.OK:
        yield from environment(settings)


def _lines(finding: Finding) -> list[str]:
    """Return the lines of a finding, with further lines of its text and its remedy indented."""
    lines = f"{finding.outcome:<6}{finding.subject:<13}{finding.text}".splitlines()
    lines += [f"do: {finding.remedy}"] if finding.remedy else []
    return [lines[0], *(f"{'':<19}{line}" for line in lines[1:])]


def _settings(given: argparse.Namespace) -> RunSettings:
    """Return the settings of the configuration, or built-in ones, with the flags over them and a definite seed."""
    from jaxrl.algorithms import HYPERPARAMETER_TYPES
    from jaxrl.settings import RunSettings, load_run_settings, with_seed
    from jaxrl.settings.behavior import TYPES

    environment: dict[str, Any] = {"env_path": given.env, "base_port": given.base_port, "env_args": given.env_args}
    environment["timeout_wait"] = given.timeout_wait
    overrides = {"env_settings": {key: value for key, value in environment.items() if value is not None}}
    if given.results_dir is not None:
        overrides["checkpoint_settings"] = {"results_dir": given.results_dir}
    if given.no_graphics:
        overrides["engine_settings"] = {"no_graphics": True}
    if given.config is None:
        written = {"default_settings": {}, **overrides}
        settings = RunSettings.model_validate(written, context={TYPES: HYPERPARAMETER_TYPES})
    else:
        settings = load_run_settings(given.config, overrides, HYPERPARAMETER_TYPES)
    options = settings.env_settings
    if options.env_path is None:  # the Editor may not be there
        wait = given.timeout_wait or EDITOR_SECONDS
        options = options.model_copy(update={"timeout_wait": wait, "editor_wait": wait})
    return with_seed(settings.model_copy(update={"env_settings": options}), max(options.seed, 0))
