"""Import what somebody else wrote, before anything is started, and say in one sentence why it cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.types import JaxrlError


class MissingPackageError(JaxrlError):
    """The package of an environment is not installed. The text says how to install it."""


def require_package(package: str, address: str) -> None:
    """Raise MissingPackageError unless `package`, which is also the name of jaxrl's extra, can be imported."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it greets on standard output
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"{address} needs a package that is not installed: pip install 'jaxrl[{package}]'")


def import_for(address: str, module: str) -> ModuleType:
    """The module that an address names. Raises UnknownEnvironmentError if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # somebody else's code may raise anything
        raise UnknownEnvironmentError(
            f"{address}: module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
