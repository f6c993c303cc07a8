"""A user's own code by name, of every kind: `FILE.py:NAME`, `module:NAME`, or an object of an installed package.

    [project.entry-points."jaxrl.reward_signals"]     # in the pyproject.toml of the package
    novelty = "my_package.novelty:make_novelty"       # then `novelty` is a name like one of jaxrl's own

Installed packages are searched when a name is none of jaxrl's own; the object is imported when it is used.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from typing import Any, NamedTuple

from jaxrl.own_code import NotThereError, OwnCodeError, split_address, told
from jaxrl.own_code import load as load_address

MLAGENTS_TRAINERS = "mlagents.trainer_type"
MLAGENTS_WRITERS = "mlagents.stats_writer"
"""Groups of ML-Agents' own plugins."""


class Kind(StrEnum):
    """Kind of a user's own code; the value is the group of its entry points."""

    TRAINER = "jaxrl.trainers"
    REWARD_SIGNAL = "jaxrl.reward_signals"
    ENCODER = "jaxrl.encoders"
    BODY = "jaxrl.bodies"
    ENVIRONMENT = "jaxrl.environments"
    WRITER = "jaxrl.stats_writers"


class PluginError(OwnCodeError):
    """An installed package offers the name, and it cannot be used. The text names package, entry point and cause."""


class Plugin(NamedTuple):
    """Entry point of an installed package."""

    name: str
    group: str
    target: str  # module:object
    package: str
    version: str
    entry: metadata.EntryPoint

    @property
    def source(self) -> str:
        """Package and version, for people."""
        return f"{self.package} {self.version}"

    def load(self) -> Any:
        """Import and return the object. Raises PluginError."""
        try:
            return self.entry.load()
        except Exception as error:  # whatever somebody else's code does
            raise PluginError(
                f"{self.name} of the package {self.source} (entry point {self.group}: {self.target}) cannot be "
                f"loaded: {told(error)}"
            ) from error


def installed(group: str) -> list[Plugin]:
    """Return the entry points of installed packages in a group, by name; nothing is imported."""
    return [plugin for plugin in _entries(tuple(sys.path)) if plugin.group == group]


def find(kind: Kind, name: str) -> Plugin | None:
    """Return the entry point of this name, None if no package offers it. Raises PluginError where several do."""
    plugins = [plugin for plugin in installed(kind) if plugin.name == name]
    if len(plugins) > 1:
        sources = " and ".join(plugin.source for plugin in plugins)
        targets = " or ".join(plugin.target for plugin in plugins)
        raise PluginError(f"{name}: {sources} both offer it (entry points of {kind}): write {targets}")
    return plugins[0] if plugins else None


def offers(kind: Kind, name: object) -> bool:
    """Return whether the name is a user's own: an address, whatever is behind it, or an installed entry point."""
    if split_address(name) is not None:
        return True
    return isinstance(name, str) and any(plugin.name == name for plugin in installed(kind))


def load(kind: Kind, name: str, *, what: str = "function", where: str = "") -> Any:
    """Load the object behind an address or an installed name. `where` stands before the text of an error.

    Raises:
      NotThereError: no such file, module or object; nothing of that name is installed.
      OwnCodeError: importing it raised; the text has the error and its line.
    """
    if split_address(name) is not None:
        return load_address(name, what=what, where=where)
    try:
        plugin = find(kind, name)
        if plugin is not None:
            return plugin.load()
    except PluginError as error:
        raise PluginError(f"{where}{error}") from error.__cause__
    raise NotThereError(
        f"{where}{name}: no installed package offers it (entry points of {kind}); your own is FILE.py:{what.upper()} "
        f"or package.module:{what.upper()}"
    )


@lru_cache(maxsize=2)
def _entries(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the entry points of all groups that concern jaxrl, of packages found on this `sys.path`."""
    groups = (*Kind, MLAGENTS_TRAINERS, MLAGENTS_WRITERS)
    every = metadata.entry_points()
    return tuple(_plugin(entry) for group in groups for entry in sorted(every.select(group=group)))


def _plugin(entry: metadata.EntryPoint) -> Plugin:
    dist = entry.dist
    package, version = ("an unknown package", "") if dist is None else (dist.name, dist.version)
    return Plugin(entry.name, entry.group, entry.value, package, version, entry)
