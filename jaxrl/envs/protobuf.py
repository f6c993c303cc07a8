"""Makes `mlagents_envs` 0.28.0 importable with the current protobuf runtime.

The package's generated `*_pb2.py` modules need protobuf 3, whose pure-Python parser is about 1,600 times slower than
the current C core. Each of them holds its serialized `FileDescriptorProto`, so jaxrl reads those bytes out of the
sources without running them, registers them with the protobuf runtime that is installed, and puts modules of the same
names and contents into `sys.modules`. Nothing of the installed package is changed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

from jaxrl.types import JaxrlError

RUNNING, STOPPED = 200, 400
"""States of a message's sender: `header.status`."""
_OBJECTS = "mlagents_envs.communicator_objects"
_MARK = "serialized_pb=_b("


class _StrictVersion:
    """A stand-in for `distutils.version.StrictVersion`, gone since Python 3.12: `version` is a tuple of three ints."""

    def __init__(self, text: str) -> None:
        numbers = tuple(int(part) for part in text.split("."))
        self.version = (*numbers, 0, 0)[:3]


@cache
def register() -> ModuleType:
    """Make every module of `mlagents_envs` importable in this process. May be called again; must come first.

    Returns:
        The module `mlagents_envs.environment`.

    Raises:
        JaxrlError: the package is not installed, or is another release.
    """
    _register_messages()
    with distutils_offered():
        return importlib.import_module("mlagents_envs.environment")


@cache
def messages() -> Any:
    """Return all message classes and enum numbers of the protocol by name, such as `UnityMessageProto`, `RESET`.

    Does not import `mlagents_envs.environment`, so it is cheap.

    Raises:
        JaxrlError: as `register`.
    """
    names: dict[str, Any] = {}
    for module in _register_messages():
        names |= {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "DESCRIPTOR"}
    return SimpleNamespace(**names)


def new_message(status: int = RUNNING, text: str = "") -> Any:
    """Return a `UnityMessageProto` that holds only its sender's status."""
    message = messages().UnityMessageProto()
    message.header.status, message.header.message = status, text
    return message


def message_module(name: str) -> ModuleType:
    """Return the module of messages of a full name, such as `mlagents_envs.communicator_objects.agent_info_pb2`.

    Raises:
        ImportError: there is none. JaxrlError: as `register`.
    """
    for module in _register_messages():
        if module.__name__ == name:
            return module
    raise ImportError(f"mlagents-envs has no messages {name}", name=name)


@cache
def _register_messages() -> tuple[ModuleType, ...]:
    """Put one module per descriptor file into `sys.modules`, dependencies first, and return them."""
    files = {}
    for path in sorted(_folder().glob("*_pb2.py")):
        file = descriptor_pb2.FileDescriptorProto.FromString(_serialized_descriptor(path))
        files[file.name] = file
    parent = importlib.import_module(_OBJECTS)
    imports = {name: [other for other in file.dependency if other in files] for name, file in files.items()}
    modules = []
    for name in TopologicalSorter(imports).static_order():  # the descriptor pool refuses unknown imports
        module = _build_module(files[name])
        sys.modules[module.__name__] = module
        setattr(parent, module.__name__.rpartition(".")[2], module)
        modules.append(module)
    return tuple(modules)


def _folder() -> Path:
    """Return the folder of the generated modules without running any of them."""
    spec = importlib.util.find_spec("mlagents_envs")
    if spec is None or not spec.submodule_search_locations:
        raise JaxrlError("package mlagents_envs is not installed: pip install --no-deps mlagents-envs==0.28.0")
    return Path(next(iter(spec.submodule_search_locations))) / "communicator_objects"


def _serialized_descriptor(path: Path) -> bytes:
    """Return the argument of `serialized_pb=_b('...')`, which the generator writes on one line, as latin-1 text."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith(_MARK):
            literal = line.strip().removeprefix(_MARK).removesuffix(")")
            return ast.literal_eval(literal).encode("latin1")
    raise JaxrlError(
        f"{path}: no serialized descriptor found; jaxrl needs mlagents-envs 0.28.0, reinstall that release"
    )


def _build_module(file: descriptor_pb2.FileDescriptorProto) -> ModuleType:
    """Build the module that today's generator would write for `file`, with its `builder`."""
    stem = file.name.rpartition("/")[2].removesuffix(".proto")
    module = ModuleType(f"{_OBJECTS}.{stem}_pb2", f"Messages of {file.name}, registered by jaxrl.")
    descriptor = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    names = vars(module)
    names["DESCRIPTOR"] = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, names)
    builder.BuildTopDescriptorsAndMessages(descriptor, module.__name__, names)
    return module


@contextmanager
def distutils_offered() -> Iterator[None]:
    """Offer a `distutils.version` with `StrictVersion` alone while `mlagents_envs.environment` is imported.

    Python 3.12 has none, 3.11 warns about its own, and setuptools' copy warns each time that a version is compared.
    """
    names = ("distutils", "distutils.version")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    package, version = ModuleType("distutils"), ModuleType("distutils.version")
    vars(version)["StrictVersion"] = _StrictVersion
    vars(package).update(version=version, __path__=[])
    sys.modules.update(zip(names, (package, version), strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)
