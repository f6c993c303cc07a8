"""Whether there is memory for what a run keeps, said before it is allocated."""

from __future__ import annotations

import logging

import jax

from jaxrl import platforms
from jaxrl.algorithms.interface import Algorithm
from jaxrl.settings import BehaviorSettings, SettingsError

log = logging.getLogger(__name__)

LARGE = 2**26
"""Bytes of a store that are worth a line."""


def free_bytes(devices: int) -> int | None:
    """Memory that each of `devices` devices may still take, in bytes; those of a CPU share the machine's."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        told = device.memory_stats() or {}
        return told["bytes_limit"] - told.get("bytes_in_use", 0) if "bytes_limit" in told else None
    available = platforms.available_memory()
    return None if available is None else available // devices


def stored_bytes(algorithm: Algorithm, seeds: int = 1) -> int:
    """What the stores of so many seeds take; nothing where only the newest rollout is kept. Nothing is allocated."""
    return seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(algorithm.storage.init)))


def check_store(name: str, algorithm: Algorithm, settings: BehaviorSettings, seeds: int = 1) -> None:
    """Say what the stores of so many seeds take. Raises SettingsError where that is more than is free."""
    needed, free = stored_bytes(algorithm, seeds), free_bytes(1)
    size = settings.hyperparameters.buffer_size
    if free is not None and needed > free:
        raise SettingsError(
            f"behaviors.{name}.hyperparameters.buffer_size: got {size}, a replay of {needed / 2**30:.2f} GiB for "
            f"{seeds} seed(s), {free / 2**30:.2f} GiB are free: at most {int(0.9 * size * free / needed)} fit"
        )
    if needed >= LARGE:
        log.info("%s: the replay takes %.2f GiB (buffer_size: %d).", name, needed / 2**30, size)
