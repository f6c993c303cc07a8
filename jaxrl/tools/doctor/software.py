"""Python and packages: there, recent enough, and able to work together. No JAX here, it may be what is broken."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

from jaxrl.envs.protobuf import register
from jaxrl.tools.doctor.findings import Finding, fail, ok, warn

OLDEST, NEWEST = (3, 11), (3, 14)
"""Versions of Python that jaxrl is tested on."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:(>=|==)\s*([0-9.]+))?")


def software() -> Iterator[Finding]:
    """Python, jaxrl's requirements, and what reads the messages of players."""
    yield python(sys.version_info[:2])
    yield packages(_requirements())
    yield protocol()


def python(version: tuple[int, ...]) -> Finding:
    """The interpreter, whose version is (major, minor)."""
    oldest, newest = (".".join(map(str, found)) for found in (OLDEST, NEWEST))
    text = f"{platform.python_version()} ({sys.executable})"
    if version < OLDEST:
        return fail("python", text, f"jaxrl needs {oldest} or later: make an environment with Python {newest}")
    if version > NEWEST:
        return warn("python", text, f"jaxrl is tested up to {newest}; if something does not work, try that")
    return ok("python", text)


def packages(requirements: Iterable[str]) -> Finding:
    """What jaxrl needs, as its own metadata say: "name>=version", some with "; python_version ..."."""
    wanted = [match for text in requirements if _applies(text) and (match := _REQUIREMENT.match(text))]
    if not wanted:
        return warn("packages", "jaxrl is not installed, it runs from its source: what it needs is not known",
                    "pip install -e . in its folder")  # fmt: skip
    found, missing = [], []
    for match in wanted:
        name, sign, version = match.groups()
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append((f"{name} is not installed", name))
            continue
        found.append(f"{name} {installed}")
        if version and not _fits(installed, sign, version):
            missing.append((f"{name} is {installed}, needed is {sign}{version}", f"{name}{sign}{version}"))
    if missing:
        names = " ".join(f"'{name}'" for _, name in missing)
        return fail("packages", "; ".join(text for text, _ in missing), f"{sys.executable} -m pip install {names}")
    return ok("packages", ", ".join(found))


def protocol() -> Finding:
    """Whether ML-Agents' messages can be read, and by protobuf's fast core."""
    try:
        register()
        from google.protobuf.internal import api_implementation
        from mlagents_envs.communicator_objects import unity_message_pb2  # noqa: F401
    except Exception as error:  # whatever an installation that does not fit together raises
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


def _applies(requirement: str) -> bool:
    """Whether it is none of an extra, and meant for this Python."""
    _, _, marker = requirement.partition(";")
    if "extra" in marker:
        return False
    newer = re.search(r"python_version\s*>=\s*[\"']3\.(\d+)", marker)
    return newer is None or sys.version_info >= (3, int(newer.group(1)))


def _fits(installed: str, sign: str, version: str) -> bool:
    numbers = [tuple(int(part) for part in re.findall(r"\d+", text)[:3]) for text in (installed, version)]
    return numbers[0] >= numbers[1] if sign == ">=" else numbers[0] == numbers[1]
