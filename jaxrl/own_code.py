"""A user's own code by name: `my_file.py:name` or `package.module:name`, for environments, algorithms and networks.

A file may import what lies beside it, as a script may; a module is found from the current folder as well. A file is
run again only when it has changed, so that two looks at one name give the same object.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxrl import trust
from jaxrl.near_names import unknown
from jaxrl.types import JaxrlError

__all__ = ["NotThereError", "OwnCodeError", "calling", "load", "split_address", "told"]

_LIBRARIES = ("jax", "flax", "numpy", "jaxrl", "importlib")
_ADDRESS = re.compile(r"(.+\.py|[A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)", re.DOTALL)
_FILES: dict[tuple[str, int, int], ModuleType] = {}  # by path, time of the last change and size


class OwnCodeError(JaxrlError):
    """A file or module that cannot be imported, or whose object cannot be used. The text says where."""


class NotThereError(OwnCodeError):
    """There is no such file, module or object."""


def split_address(name: object) -> tuple[str, str] | None:
    """Split an address into FILE.py or module, and the object in it; None for any other name. Nothing is imported."""
    match = _ADDRESS.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else (match.group(1), match.group(2))


def load(address: str, *, what: str = "function", where: str = "") -> Any:
    """Load the object behind `FILE.py:NAME` or `module:NAME`. `where` stands before the text of an error.

    Raises:
      NotThereError: no such file, module or name; the text lists the nearest names.
      OwnCodeError: importing the file raised; the text has the error and its line.
      UntrustedError: a folder names it, and not the user (`jaxrl.trust`).
    """
    try:
        return _load(address, what)
    except OwnCodeError as error:
        raise type(error)(f"{where}{error}") from error.__cause__


def _load(address: str, what: str) -> Any:
    split = split_address(address)
    if split is None:
        raise NotThereError(f"{address}: expected FILE.py:{what.upper()} or package.module:{what.upper()}")
    place, name = split
    trust.require(address)
    module = _of_file(address, place) if place.endswith(".py") else _of_module(address, place)
    if not hasattr(module, name):
        shown = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        names = [key for key, value in shown.items() if getattr(value, "__module__", None) == module.__name__]
        missing = f"{place} has no {what} {name}"
        raise NotThereError(unknown(address, name, names, what=missing, there_are="it has"))
    return getattr(module, name)


@contextmanager
def calling(what: str, raises: type[JaxrlError] = OwnCodeError) -> Iterator[None]:
    """Turn errors of somebody else's code inside the block into a `raises` that names it, with the line.

    A JaxrlError stays as it is, because it says what is wrong already.
    """
    try:
        yield
    except JaxrlError:
        raise
    except Exception as error:
        raise raises(f"{what} raised {told(error)}") from error


def told(error: Exception) -> str:
    """Describe an error and the line that raised it: the last line that is not JAX's, Flax's, NumPy's or jaxrl's own.

    There is no line if nobody else's code was reached, for example if a module is missing.
    """
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    modules = (sys.modules.get(name) for name in _LIBRARIES)
    libraries = tuple(str(Path(module.__file__).parent) for module in modules if module and module.__file__)
    others = (frame for frame in reversed(frames) if not frame.filename.startswith((*libraries, "<frozen ")))
    last = next(others, None)
    return f"{type(error).__name__}: {error}{'' if last is None else f' ({last.filename}, line {last.lineno})'}"


def _of_file(address: str, place: str) -> ModuleType:
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise NotThereError(f"{address}: there is no file {path}")
    status = path.stat()
    known = (str(path), status.st_mtime_ns, status.st_size)
    if known in _FILES:
        return _FILES[known]
    spec = importlib.util.spec_from_file_location(f"jaxrl_file_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # its name ends with .py
    module = importlib.util.module_from_spec(spec)
    _make_findable(str(path.parent))
    sys.modules[spec.name] = module  # for classes that are looked up by the name of their module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise OwnCodeError(f"{address}: the file cannot be imported: {told(error)}") from error
    _FILES[known] = module
    return module


def _of_module(address: str, place: str) -> ModuleType:
    _make_findable(str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise NotThereError(f"{address}: there is no module {error.name}; a file is FILE.py:NAME") from None
        raise OwnCodeError(f"{address}: the module cannot be imported: {told(error)}") from error
    except Exception as error:
        raise OwnCodeError(f"{address}: the module cannot be imported: {told(error)}") from error


def _make_findable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
