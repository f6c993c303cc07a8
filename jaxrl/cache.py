"""Where jaxrl keeps what can be made anew: compiled programs and executables of its own environments. No JAX."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """$JAXRL_CACHE_DIR, or else `jaxrl` in the platform's folder for caches. Absolute; may not exist yet.

    Raises RuntimeError if there is no home folder.
    """
    own = os.environ.get("JAXRL_CACHE_DIR")
    return (Path(own) if own else _platform_folder() / "jaxrl").expanduser().absolute()


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    if sys.platform == "darwin":
        return Path("~/Library/Caches")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
