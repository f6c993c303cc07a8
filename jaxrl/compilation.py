"""Options and cache of compiled programs, alike in every process. JAX is imported in the functions alone."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from functools import cache
from pathlib import Path

from jaxrl.cache import cache_folder
from jaxrl.types import JaxrlError

SWITCH = "JAXRL_COMPILATION_CACHE"
"""Environment variable: 0 (or off, false, no) leaves JAX without a cache of compiled programs on disk."""
BY_DEFAULT = True
"""True if functions of the Python interface keep their programs. Tests set it to False."""

_log = logging.getLogger(__name__)


@cache
def quick_options(platform: str | None = None) -> dict[str, int | bool] | None:
    """Return `compiler_options` of a program that runs seldom: on a CPU unoptimised, compiled in a quarter of the time.

    Half of the gain is XLA's older way to write kernels, left out where this version of XLA does not know the switch.

    None on accelerators, whose compilers read the level otherwise. `platform`: where the program runs, by default where
    JAX computes by itself.
    """
    import jax

    if (platform or jax.default_backend()) != "cpu":
        return None
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        del options["xla_cpu_use_fusion_emitters"]
    return options


def enable_compilation_cache() -> Path | None:
    """Keep every compiled program on disk for the next run; returns the folder, or None if there is none.

    A cache folder that JAX was given already (JAX_COMPILATION_CACHE_DIR) stays, and so does a cache that was switched
    off, by `SWITCH` or in JAX (JAX_ENABLE_COMPILATION_CACHE). A folder that cannot be made is only a warning: the run
    is the same, its start slower. The folder lies in $JAXRL_CACHE_DIR, see `cache_folder`.
    """
    if os.environ.get(SWITCH, "").lower() in ("0", "off", "false", "no"):
        return None
    import jax

    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        return Path(jax.config.jax_compilation_cache_dir)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        folder = cache_folder() / "xla"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _log.warning("compiled programs are not kept, each start compiles anew: %s; set JAXRL_CACHE_DIR", error)
        return None
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()  # JAX decides at its first compilation whether there is one, a notebook had some
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def require_float32() -> None:
    """Raise JaxrlError where JAX makes float64 arrays, which policies and checkpoints are not."""
    import jax

    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise JaxrlError(
            "JAX makes float64 arrays here (JAX_ENABLE_X64), and jaxrl computes in float32: leave the variable out, or "
            "call jax.config.update('jax_enable_x64', False) first"
        )


def cache_by_default() -> None:
    """Call `enable_compilation_cache` for programs that Python asks for, unless `BY_DEFAULT` is off."""
    if BY_DEFAULT:
        enable_compilation_cache()


def release_memory() -> None:
    """Give memory that is free within the process back to the system: a compiler leaves hundreds of MiB. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
