"""Chooses where JAX computes. JAX is imported inside the function alone."""

from __future__ import annotations

import logging
import os
import sys

from jaxrl.compilation import enable_compilation_cache
from jaxrl.settings import SettingsError

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "tpu": "tpu"}
_log = logging.getLogger(__name__)


def choose_device(device: str | None, cpu_devices: int = 1) -> None:
    """Make "cpu", "gpu", "tpu", "cuda" or "cuda:N" the place where JAX computes; None leaves the choice to JAX.

    Where that is the CPU it shows as `cpu_devices` devices, each with its own share of the cores: seeds side by side
    gain more from that than from several threads in each small matrix product.

    Raises SettingsError if there is no such device. Must run before the first computation. The choice is not put into
    the environment variables, so that environments served by JAX in their own process do not take the accelerator.
    """
    import jax

    name, _, index = (device or "").partition(":")
    if name == "gpu":  # of any maker: JAX prefers it to a CPU, and its own word "gpu" asks for GPUs of all makers
        jax.config.update("jax_platforms", "")
    elif name:
        jax.config.update("jax_platforms", "cpu" if name == "cpu" else f"{name},cpu")
    if index:
        jax.config.update("jax_cuda_visible_devices", index)
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_enable_x64", False)
        _log.info("JAX_ENABLE_X64 is left aside: jaxrl computes in float32.")
    if cpu_devices > 1:
        _show_as(cpu_devices)
    # The host loop waits for each result at once; handing the work to a thread costs 30 us a decision.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        devices = jax.devices()
    except RuntimeError as error:
        text = f"torch_settings.device: got {device!r}: JAX does not start: {error}"
        raise SettingsError(f"{text}; {advice(name)}" if name else text) from None
    if name and devices[0].platform != _PLATFORMS[name]:
        offered = devices[0].platform
        raise SettingsError(f"torch_settings.device: got {device!r}, but JAX offers only {offered}: {advice(name)}")
    _log.debug("devices: %s", devices)


def advice(name: str) -> str:
    """Return what the user can do where there is no such accelerator."""
    if name == "tpu":
        return "on a TPU machine install JAX for it (pip install -U 'jax[tpu]'), or choose cpu"
    if name == "cpu" or sys.platform == "darwin":
        return "choose cpu: JAX computes on no GPU of a Mac" if name != "cpu" else "install jax and jaxlib anew"
    command = "install JAX for CUDA (pip install -U 'jax[cuda12]') and check that nvidia-smi lists the device"
    if sys.platform == "win32":
        return f"JAX has no CUDA on Windows itself: inside WSL2 {command}, or choose cpu"
    return f"{command}, or choose cpu"


def start_computing(device: str | None, at_once: int = 1) -> None:
    """Prepare JAX before the first computation: a CPU shows as one device for each of `at_once` seeds, if it has cores.

    A `device` has been chosen already, as a check of the settings. Compiled programs are kept on disk.
    """
    if device is None:
        choose_device(None, cpu_devices=min(at_once, os.cpu_count() or 1))
    enable_compilation_cache()


def compute_on_cpu() -> None:
    """Choose the CPU for a command that trains nothing, before its first computation: training may use the GPU."""
    choose_device("cpu")
    enable_compilation_cache()


def _show_as(cpu_devices: int) -> None:
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    except RuntimeError:  # the backend has started: a user's algorithm is imported with the settings
        _log.warning(
            "all seeds share one CPU device, which is slower: your own code computed with JAX when it was imported: "
            "move that into functions"
        )
