"""Finds the configurations that come with jaxrl: in the wheel beside its code, in a clone in the folder `configs`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from jaxrl.artifacts.files import carried
from jaxrl.envs.address import Kind, parse_address, unknown
from jaxrl.settings.reading import read_yaml
from jaxrl.types import JaxrlError

MLAGENTS = "mlagents"
"""Folder of configurations for ML-Agents' own example scenes; in it one folder for each trainer."""
_TRAINERS = ("poca", "mappo", "coma", "ppo")
"""Folders in order of preference: algorithms that train teams as teams come first."""


class Shipped(NamedTuple):
    """Configuration file that comes with jaxrl."""

    name: str  # folder/file, without .yaml; mlagents/folder/file
    path: Path
    env_path: str | None  # as in the file; None: a Unity scene, whose build is given with --env
    about: str  # its first line

    @property
    def short(self) -> str:
        """Name of the file alone."""
        return self.name.rpartition("/")[2]


@cache
def shipped() -> tuple[Shipped, ...]:
    """Return all configurations, preferred ones first."""
    folder = carried("configs")
    order = {name: i for i, name in enumerate(_TRAINERS)}
    files = sorted(folder.glob("*/*.yaml"), key=lambda path: (order.get(path.parent.name, len(order)), path.stem))
    files += sorted(folder.glob(f"{MLAGENTS}/*/*.yaml"), key=lambda path: (path.stem, path.parent.name))
    return tuple(_read(path, folder) for path in files)


def _read(path: Path, folder: Path) -> Shipped:
    name = path.relative_to(folder).with_suffix("").as_posix()
    of_unity = name.startswith(f"{MLAGENTS}/")  # names no environment: a start by name is 0.2 s faster without reading
    env_path = None if of_unity else (read_yaml(path).get("env_settings") or {}).get("env_path")
    with path.open(encoding="utf-8") as file:
        about = file.readline().lstrip("# ").strip()
    return Shipped(name, path, env_path, about)


def is_shipped(name: str) -> bool:
    """Return whether there is a configuration called `name`, with or without the folders."""
    return any(name in (config.name, config.short) for config in shipped())


def named(name: str) -> list[Shipped]:
    """Return the configurations called `name`, with or without the folders, the preferred one first.

    Raises JaxrlError, with the nearest names.
    """
    matches = [config for config in shipped() if name in (config.name, config.short)]
    if not matches:
        full = name.startswith(MLAGENTS)
        names = [
            file.name if full else file.short for file in shipped() if file.name.startswith(f"{MLAGENTS}/") == full
        ]
        what, there_are = "no configuration of jaxrl's has that name", "`jaxrl init` lists"
        raise JaxrlError(unknown(name, name, names, what=what, there_are=there_are))
    return matches


def made_for(env_path: str) -> list[Shipped]:
    """Return configurations for this environment, compiled or served, preferred first; none for a Unity build."""
    wanted = _simulated(env_path)
    if wanted is None:
        return []
    return [config for config in shipped() if config.env_path is not None and _simulated(config.env_path) == wanted]


def beside(others: list[Shipped]) -> str:
    """Return the text about the alternatives that were not taken: "; there is also ...", or nothing."""
    return f"; there is also {', '.join(config.name for config in others)}" if others else ""


def _simulated(env_path: str) -> tuple[Kind, str | None] | None:
    """Return which environment it is, whether it is served or compiled."""
    kind, name = parse_address(env_path)
    if kind is Kind.UNITY:
        return None
    return (Kind.JAX if kind is Kind.PLAYER else kind), name
