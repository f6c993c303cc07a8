"""Checks that Python and packages are there, recent enough, and fit together. No JAX here: it may be the fault."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

from jaxrl.envs.protobuf import register
from jaxrl.tools.doctor.findings import Finding, fail, ok, warn

OLDEST, NEWEST = (3, 11), (3, 14)
"""Oldest and newest version of Python that jaxrl is tested on."""


def software() -> Iterator[Finding]:
    """Check Python, jaxrl's requirements, and the reader of players' messages."""
    yield python(sys.version_info[:2])
    yield packages(_requirements())
    yield protocol()


def python(version: tuple[int, ...]) -> Finding:
    """Check the interpreter, whose version is (major, minor)."""
    oldest, newest = (".".join(map(str, limit)) for limit in (OLDEST, NEWEST))
    text = f"{platform.python_version()} ({sys.executable})"
    if version < OLDEST:
        return fail("python", text, f"jaxrl needs {oldest} or later: make an environment with Python {newest}")
    if version > NEWEST:
        return warn("python", text, f"jaxrl is tested up to {newest}; if something does not work, try that")
    return ok("python", text)


def packages(requirements: Iterable[str]) -> Finding:
    """Check requirements of jaxrl's own metadata: "name>=version", some with "; python_version ..."."""
    wanted = [
        item for item in map(Requirement, requirements) if item.marker is None or item.marker.evaluate({"extra": ""})
    ]
    if not wanted:
        return warn("packages", "jaxrl is not installed, it runs from its source: what it needs is not known",
                    "pip install -e . in its folder")  # fmt: skip
    installed_packages, missing = [], []
    for item in wanted:
        try:
            installed = metadata.version(item.name)
        except metadata.PackageNotFoundError:
            missing.append((f"{item.name} is not installed", item.name))
            continue
        installed_packages.append(f"{item.name} {installed}")
        if not item.specifier.contains(installed, prereleases=True):
            missing.append((f"{item.name} is {installed}, needed is {item.specifier}", f"{item.name}{item.specifier}"))
    if missing:
        names = " ".join(f"'{name}'" for _, name in missing)
        return fail("packages", "; ".join(text for text, _ in missing), f"{sys.executable} -m pip install {names}")
    return ok("packages", ", ".join(installed_packages))


def protocol() -> Finding:
    """Check that ML-Agents' messages can be read, and by protobuf's fast core."""
    try:
        register()
        from google.protobuf.internal import api_implementation
        from mlagents_envs.communicator_objects import unity_message_pb2  # noqa: F401
    except Exception as error:  # any error of an installation whose parts do not fit
        return fail("protocol", f"mlagents-envs cannot be imported: {type(error).__name__}: {error}",
                    "reinstall it with jaxrl: pip install --force-reinstall jaxrl")  # fmt: skip
    kind = api_implementation.Type()
    if kind == "python":
        return warn("protocol", "protobuf runs without its C core: messages are read about 1000 times slower",
                    "pip install --upgrade protobuf; unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")  # fmt: skip
    return ok("protocol", f"mlagents-envs reads messages with protobuf's {kind} core, communicator API 1.5.0")


def _requirements() -> list[str]:
    try:
        return metadata.requires("jaxrl") or []
    except metadata.PackageNotFoundError:
        return []
