"""`jaxrl init`: lists the configurations that come with jaxrl, and copies one to change."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path

from jaxrl.cli.shipped import MLAGENTS, Shipped, beside, named, shipped
from jaxrl.types import JaxrlError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add [NAME], --out and --force."""
    parser.description = "List the configurations that come with jaxrl; with NAME, write a copy of one to change."
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="such as dungeon_escape, or ppo/dungeon_escape; mlagents: list those of ML-Agents' scenes",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the copy goes (default: NAME.yaml here)")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def run(given: argparse.Namespace) -> None:
    """Print the list, or write the copy and print how to use it. Raises JaxrlError, and nothing is written."""
    of_mlagents = [config for config in shipped() if config.name.startswith(f"{MLAGENTS}/")]
    if given.name == MLAGENTS:
        _list(of_mlagents)
        return
    if given.name is None:
        _list([config for config in shipped() if config not in of_mlagents])
        print("\nTrain one by its name: jaxrl train dungeon_escape --run-id=first. Copy one: jaxrl init dungeon_escape")
        print(f"ML-Agents' own, for its example scenes: `jaxrl init {MLAGENTS}` lists these {len(of_mlagents)}")
        return
    chosen, *others = named(given.name)
    out = given.out or Path(f"{chosen.short}.yaml")
    text = chosen.path.read_bytes()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("wb" if given.force else "xb") as file:
            file.write(text)
    except FileExistsError:
        raise JaxrlError(f"{out}: there already; give another --out, or --force to write over it") from None
    except OSError as error:
        raise JaxrlError(f"{out}: cannot be written: {error.strerror}") from error
    print(f"{out}: {chosen.name}{beside(others)}. Train: jaxrl train {out} --run-id={chosen.short}")


def _list(those: list[Shipped]) -> None:
    rows = [(config.name, config.env_path or "a Unity build: --env", config.about) for config in those]
    names, paths = (max(len(row[i]) for row in rows) for i in (0, 1))
    left = max(shutil.get_terminal_size().columns - names - paths - 4, 40)
    for name, path, about in rows:
        print(f"{name:<{names}}  {path:<{paths}}  {textwrap.shorten(about, left, placeholder=' ...')}")
