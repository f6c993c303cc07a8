"""Versions of this program and its packages, for the metadata of the files it writes."""

from __future__ import annotations

import functools
import platform
from importlib import metadata

COMMUNICATOR_API = "1.5.0"
"""Version of ML-Agents' wire protocol that jaxrl speaks."""


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Return "<package>_version" of jaxrl, of all packages that its numbers depend on, and of Python."""
    packages = {"jaxrl": "jaxrl", "mlagents_envs": "mlagents-envs"}
    packages |= {name: name for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    package_versions = {f"{name}_version": _version(package) for name, package in packages.items()}
    return package_versions | {"python_version": platform.python_version()}


def version_line() -> str:
    """Return jaxrl, mlagents-envs, communicator API and jax in one line."""
    numbers = versions()
    return (
        f"jaxrl {numbers['jaxrl_version']}, mlagents-envs {numbers['mlagents_envs_version']}, "
        f"communicator API {COMMUNICATOR_API}, jax {numbers['jax_version']}"
    )
