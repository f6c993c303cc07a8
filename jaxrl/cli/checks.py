"""What can be found wrong before anything is written or started."""

from __future__ import annotations

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.launch import check_executable
from jaxrl.settings import EnvironmentSettings, RunSettings, SettingsError, unsupported

PLAYER = "player:"
"""Prefix of env_path for one of jaxrl's own environments."""


def refuse_unsupported(settings: RunSettings, source: str) -> None:
    """Raise SettingsError if a feature is in use that jaxrl does not train yet; `source` is where it was written."""
    problems = unsupported(settings)
    if problems:
        raise SettingsError(problems, source)


def check_environment(settings: EnvironmentSettings) -> None:
    """Raise SettingsError if `env_path` names no executable; the Editor and jaxrl's own environments need none."""
    if settings.env_path is None or settings.env_path.startswith(PLAYER):
        return
    try:
        check_executable(settings.env_path)
    except EnvironmentFailure as error:
        raise SettingsError(f"env_settings.env_path: {error}") from None
