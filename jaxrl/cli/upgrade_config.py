"""`jaxrl upgrade-config`: converts files of before ML-Agents 0.18 to one of today."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.settings.loading import without_remarks
from jaxrl.settings.reading import load_yaml, read_yaml
from jaxrl.settings.upgrade import upgrade_files


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add OLD and the files that belonged to it."""
    parser.description = (
        "Write configuration files of before ML-Agents 0.18 as one of today, on standard output; what was dropped or "
        "needs a look is said on standard error. Also for a present-day file that forgets `behaviors:`."
    )
    parser.add_argument(
        "old", metavar="OLD", help="trainer configuration, with `default:` or names of behaviors on top"
    )
    parser.add_argument(
        "more",
        metavar="CURRICULUM|SAMPLER",
        nargs="*",
        help="curriculum (YAML, JSON named like its behavior, or a folder of these) and sampler file, in any order",
    )


def run(given: argparse.Namespace) -> None:
    """Print the new file. Raises SettingsError, and nothing is printed, where the result would not load."""
    paths = [file for path in (given.old, *given.more) for file in _files(Path(path))]
    doubled: list[str] = []
    try:
        result, notes = upgrade_files([(path.stem, read_yaml(path, doubled)) for path in paths], HYPERPARAMETER_TYPES)
    except SettingsError as error:
        known = any(str(path.absolute()) in str(error) for path in paths)
        raise error if known else SettingsError(error.problems, ", ".join(map(str, paths))) from None
    text = yaml.safe_dump(result, sort_keys=False, allow_unicode=True)
    _check(text, given.old)
    for note in [f"{text}, the last one counts" for text in doubled] + notes:
        print(note, file=sys.stderr)
    print(text, end="")


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".json", ".yaml", ".yml"))
    if not files:
        raise SettingsError(f"{path}: got a folder without .json and .yaml files, expected one of curricula")
    return files


def _check(text: str, source: str) -> None:
    """Raise SettingsError unless the new file loads."""
    if not load_yaml(text):
        raise SettingsError(f"{source}: holds nothing to convert")
    with tempfile.TemporaryDirectory() as folder, without_remarks():
        path = Path(folder, "new.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            load_run_settings(path, {}, HYPERPARAMETER_TYPES)
        except SettingsError as error:
            raise SettingsError(error.problems, f"{source}, converted,") from None
