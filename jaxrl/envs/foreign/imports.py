"""Imports foreign code before anything is started, and says in one sentence why it cannot be imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from jaxrl import trust
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.types import JaxrlError


def require_package(package: str, address: str) -> None:
    """Raise JaxrlError unless `package`, which is also the name of jaxrl's extra, can be imported."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it greets on standard output
    if importlib.util.find_spec(package) is None:
        raise JaxrlError(f"{address} needs a package that is not installed: pip install 'jaxrl[{package}]'")


def import_for(address: str, module: str, package: str) -> ModuleType:
    """Import the module that an address names. Raises UnknownEnvironmentError if it cannot be imported.

    Raises UntrustedError if a folder, not the user, names it, and no installed package made for `package` holds it.
    """
    try:
        trust.require(address)
    except trust.UntrustedError:
        if not is_made_for(package, module):
            raise
    try:
        return importlib.import_module(module)
    except Exception as error:  # a user's code may raise anything
        raise UnknownEnvironmentError(
            f"{address}: module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def is_made_for(package: str, module: str) -> bool:
    """Return whether a module is of `package`, or of an installed package that requires it, without importing it.

    Modules that are programs (`__main__`) act when they are imported, and do not count.
    """
    outer = module.partition(".")[0]
    return "__main__" not in module.split(".") and (outer == package or outer in _made_for(package))


def belongs_to_others(package: str, module: str) -> bool:
    """Return whether a module is Python's own, or of an installed package that is not made for `package`."""
    outer = module.partition(".")[0]
    file = Path(str(getattr(sys.modules.get(outer), "__file__", None)))
    installed = any(file.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
    return (outer in sys.stdlib_module_names or installed) and not is_made_for(package, module)


@lru_cache
def _made_for(package: str) -> frozenset[str]:
    """Return outermost modules of installed packages that require `package`."""
    modules: set[str] = set()
    for distribution in metadata.distributions():
        needs = [need for need in distribution.requires or () if "extra" not in need.partition(";")[2]]
        if any(re.split(r"[^\w.-]", need)[0].lower() == package for need in needs):
            modules |= {path.parts[0].removesuffix(".py") for path in distribution.files or ()}
    return frozenset(modules)
