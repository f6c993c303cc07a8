"""`jaxrl onnx check`: makes Unity's checks of a model. JAX is imported for a compiled environment alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings
    from jaxrl.types import BehaviorSpec


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `check` and its flags."""
    parser.description = "Look at ONNX models."
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "what Unity would say of a model: version, memory, outputs, shapes, inputs, operators"
    check = commands.add_parser("check", help=text, description=(
        f"{text[0].upper()}{text[1:]}. Of any model, also one that jaxrl has not written. Inputs and actions are "
        "compared with the behavior's: of the run in whose folder the file lies, or of an environment. Exit code 1 if "
        "Unity would refuse the model."
    ))  # fmt: skip
    check.add_argument("file", type=Path, metavar="FILE", help="the model, .onnx")
    check.add_argument("--config", type=Path, metavar="CONFIG", help="YAML file whose environment the model is for")
    check.add_argument("--env", metavar="PATH", help="the environment; as in jaxrl train, beats that of --config")
    check.add_argument("--behavior", metavar="NAME", help="which of the environment's behaviors (default: by the file)")
    check.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def run(given: argparse.Namespace) -> int:
    """Print a line for each check; return 1 if Unity refuses the model."""
    from jaxrl.artifacts.onnx.check import examine
    from jaxrl.artifacts.onnx.findings import Outcome

    name, spec = _behavior(given)
    findings = examine(given.file, spec)
    print(f"{given.file}, for {name}:" if name else f"{given.file}, for no behavior in particular:")
    for finding in findings:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        print(f"{finding.outcome:<13}{finding.check:<10}{finding.text}{remedy}")
    refused = any(finding.outcome is Outcome.REFUSED for finding in findings)
    print("Unity refuses this model." if refused else "Unity takes this model.")
    return 1 if refused else 0


def _behavior(given: argparse.Namespace) -> tuple[str, BehaviorSpec | None]:
    """Return name and spec of the behavior; "" and None where nothing describes it. Raises JaxrlError."""
    from jaxrl.artifacts.onnx.behaviors import behavior_of_environment, behavior_of_run
    from jaxrl.settings import SettingsError

    if given.env is None and given.config is None:
        if given.behavior is not None:
            raise SettingsError(f"--behavior: got {given.behavior}, expected none without --env or --config")
        return behavior_of_run(given.file) or ("", None)
    settings = _settings(given)
    if settings.env_settings.env_path is None:
        raise SettingsError(f"{given.config}: env_settings.env_path: names no environment: give one there or by --env")
    return behavior_of_environment(settings, given.behavior, given.file)


def _settings(given: argparse.Namespace) -> RunSettings:
    from jaxrl.algorithms import HYPERPARAMETER_TYPES
    from jaxrl.settings import EnvironmentSettings, RunSettings, load_run_settings, with_seed

    if given.config is None:
        return RunSettings(env_settings=EnvironmentSettings(env_path=given.env, seed=0))
    overrides = {"env_settings": {"env_path": given.env}} if given.env else {}
    return with_seed(load_run_settings(given.config, overrides, HYPERPARAMETER_TYPES), 0)
