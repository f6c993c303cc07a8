"""Folder of files that can be made anew: compiled programs and executables of jaxrl's environments. No JAX."""

from __future__ import annotations

import os
from pathlib import Path

from jaxrl import platforms


def cache_folder() -> Path:
    """Return $JAXRL_CACHE_DIR, or else `jaxrl` in the platform's folder for caches. Absolute; may not exist yet.

    Raises RuntimeError if there is no home folder.
    """
    folder = os.environ.get("JAXRL_CACHE_DIR")
    return (Path(folder) if folder else platforms.cache_folder() / "jaxrl").expanduser().absolute()
