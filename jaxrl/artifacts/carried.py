"""Folders that come with jaxrl: in a wheel inside the package, in a clone (also installed with -e) beside it."""

from __future__ import annotations

from pathlib import Path

from jaxrl.artifacts.files import ArtifactError

_PACKAGE = Path(__file__).resolve().parents[1]


def carried(name: str) -> Path:
    """The folder `name`, such as "benchmarks". Raises ArtifactError where this installation has none."""
    places = _PACKAGE / name, _PACKAGE.parent / name
    for place in places:
        if place.is_dir():
            return place
    raise ArtifactError(
        f"{places[0]}: this installation of jaxrl has no folder {name}; install jaxrl again from a wheel or a clone."
    )
