"""Checks device, memory and disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxrl import platforms
from jaxrl.artifacts import files
from jaxrl.artifacts.run_folder import MIN_FREE_BYTES
from jaxrl.tools.bench.lines import Accelerator
from jaxrl.tools.bench.machine import MachineError, machine
from jaxrl.tools.doctor.findings import Finding, fail, ok, warn

_GIB = 2**30
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 2 * _GIB, _GIB // 2
"""Bytes: the trainer takes about one, and each environment its own."""
LITTLE_DISK = _GIB
_SECONDS = 10.0


def hardware(results_dir: Path) -> Iterator[Finding]:
    """Check the device, and the free memory and disk space."""
    try:
        place = machine()
    except MachineError as error:
        yield fail("device", str(error))
    else:
        yield device(place.accelerator, place.cores, gpus())
    yield memory(free_memory())
    yield disk(results_dir, files.free_bytes(results_dir))


def device(found: Accelerator, cores: int, present: list[str]) -> Finding:
    """Check where JAX computes, and whether it leaves a GPU unused; `present`: GPUs that the driver lists."""
    text = f"JAX computes on {found.count} x {found.kind} ({found.backend}); {cores} CPU core(s)"
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if found.backend == "cpu" and present and chosen.partition(",")[0] != "cpu":
        return warn(
            "device",
            f"{text}, but the machine has {', '.join(present)}: jaxlib is for CPUs alone",
            "pip install -U 'jax[cuda12]' for networks that read images; small ones are faster on the CPU",
        )
    if cores < 2:
        return warn("device", text, "with one core environment and trainer wait for each other: allow two or more")
    return ok("device", text + (f" (JAX_PLATFORMS={chosen})" if chosen else ""))


def gpus() -> list[str]:
    """Return names of NVIDIA's GPUs, as the driver lists them; none where there is no driver."""
    try:
        process = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.partition(" (UUID")[0] for line in process.stdout.splitlines() if line.startswith("GPU")]


def memory(free: int | None) -> Finding:
    """Check the bytes that processes may still take; None where the system does not tell."""
    if free is None:
        return ok("memory", "the system does not tell how much is free")
    text = f"{free / _GIB:.1f} GiB free"
    remedy = "close other programs, or take fewer environments (--num-envs) and a smaller buffer_size"
    if free < TOO_LITTLE_MEMORY:
        return fail("memory", text, remedy)
    return warn("memory", text, remedy) if free < LITTLE_MEMORY else ok("memory", text)


def free_memory() -> int | None:
    """Return the bytes that the system can still give, or the container may still take (Linux)."""
    free, left = platforms.available_memory(), platforms.container_memory()
    return free if free is None or left is None else min(free, left)


def disk(results_dir: Path, free: int) -> Finding:
    """Check that a run can be written to the results folder, and that there is room."""
    folder = files.nearest_existing(results_dir)
    text = f"{free / _GIB:.1f} GiB free in {results_dir.absolute()}"
    if not folder.is_dir():
        return fail("disk", f"{folder} is a file, not a folder", "choose another --results-dir")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".jaxrl-probe-") as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        return fail("disk", f"{folder} cannot be written to ({error.strerror or error})",
                    "check its permissions, or choose another --results-dir")  # fmt: skip
    remedy = "free disk space, choose another --results-dir, or lower keep_checkpoints"
    if free < MIN_FREE_BYTES:
        return fail("disk", text, remedy)
    return warn("disk", text, remedy) if free < LITTLE_DISK else ok("disk", text)
