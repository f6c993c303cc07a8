"""How programs are compiled and where they are kept, alike in every process. JAX is imported in the functions alone."""

from __future__ import annotations

import logging
from pathlib import Path

from jaxrl.cache import cache_folder

_log = logging.getLogger(__name__)


def quick_options(platform: str | None = None) -> dict[str, int] | None:
    """`compiler_options` of a program that runs once: on a CPU it is compiled unoptimised, in half the time.

    None on accelerators, whose compilers read the level otherwise. `platform`: where the program runs, by default where
    JAX computes by itself.
    """
    import jax

    return {"xla_backend_optimization_level": 0} if (platform or jax.default_backend()) == "cpu" else None


def enable_compilation_cache() -> Path | None:
    """Keep every compiled program on disk for the next run; returns the folder, or None if there is none.

    A cache folder that JAX was given already (JAX_COMPILATION_CACHE_DIR) stays. A folder that cannot be made is only a
    warning: the run is the same, its start slower.
    """
    import jax

    if jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        return Path(jax.config.jax_compilation_cache_dir)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        folder = cache_folder() / "xla"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _log.warning("compiled programs are not kept, each start compiles anew: %s; set JAXRL_CACHE_DIR", error)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
