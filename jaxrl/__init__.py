"""MA-POCA, PPO and relatives in JAX, with ML-Agents' files and flags: the interface for scripts and notebooks.

The names stand in `__init__.pyi`. Each is imported when it is first used: environment processes import this package
too, and must not load JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import lazy_loader

from jaxrl import mlagents_import

mlagents_import.install()

_named, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import and return the object of that name; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("jaxrl.artifacts.versions").versions()["jaxrl_version"]
    try:
        return _named(name)
    except AttributeError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}") from error
