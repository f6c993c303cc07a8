"""Where JAX computes and where it keeps compiled programs. JAX is imported inside the functions alone."""

from __future__ import annotations

import logging
from pathlib import Path

from jaxrl.cache import cache_folder
from jaxrl.settings import SettingsError

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
_log = logging.getLogger(__name__)


def choose_device(device: str | None, cpu_devices: int = 1) -> None:
    """Make "cpu", "cuda" or "cuda:N" the place where JAX computes; None leaves the choice to JAX.

    Where that is the CPU it shows as `cpu_devices` devices, each with its own share of the cores: seeds side by side
    gain more from that than from several threads in each small matrix product.

    Raises SettingsError if there is no such device. Must run before the first computation. The choice is not put into
    the environment variables, so that environments served by JAX in their own process do not take the accelerator.
    """
    import jax

    name, _, index = (device or "").partition(":")
    if name:
        jax.config.update("jax_platforms", "cpu" if name == "cpu" else f"{name},cpu")
    if index:
        jax.config.update("jax_cuda_visible_devices", index)
    if cpu_devices > 1:
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    # The host loop waits for each result at once; handing the work to a thread costs 30 us a decision.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise SettingsError(f"torch_settings.device: got {device!r}: JAX does not start: {error}") from None
    if name and devices[0].platform != _PLATFORMS[name]:
        raise SettingsError(
            f"torch_settings.device: got {device!r}, but JAX offers only {devices[0].platform}: "
            "install jax with CUDA support, check that nvidia-smi lists the device, or choose cpu"
        )
    _log.debug("devices: %s", devices)


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
