"""Check, before allocating, that a run's replay stores fit into memory."""

from __future__ import annotations

import logging

import jax

from jaxrl import platforms
from jaxrl.algorithms.interface import Algorithm
from jaxrl.settings import BehaviorSettings, SettingsError

log = logging.getLogger(__name__)

LARGE = 2**26
"""Bytes from which the size of a store is logged."""


def free_bytes(devices: int) -> int | None:
    """Return the free memory of each of `devices` devices in bytes, or None; CPU devices share the machine's."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    available = platforms.available_memory()
    return None if available is None else available // devices


def stored_bytes(algorithm: Algorithm, seeds: int = 1) -> int:
    """Compute the bytes of the stores of `seeds` seeds, without allocating; 0 if only the newest rollout is stored."""
    return seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(algorithm.storage.init)))


def check_store(name: str, algorithm: Algorithm, settings: BehaviorSettings, seeds: int = 1) -> None:
    """Log the size of the stores of `seeds` seeds. Raises SettingsError if it exceeds the free memory."""
    needed, free = stored_bytes(algorithm, seeds), free_bytes(1)
    size = settings.hyperparameters.buffer_size
    if free is not None and needed > free:
        raise SettingsError(
            f"behaviors.{name}.hyperparameters.buffer_size: got {size}, a replay of {needed / 2**30:.2f} GiB for "
            f"{seeds} seed(s), {free / 2**30:.2f} GiB are free: at most {int(0.9 * size * free / needed)} fit"
        )
    if needed >= LARGE:
        log.info("%s: the replay takes %.2f GiB (buffer_size: %d).", name, needed / 2**30, size)
