"""What a measurement was made on: processor, accelerator, platform, and the commit of the source."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxrl.types import JaxrlError

_DEVICES = """
import json, jax
found = jax.devices()
print(json.dumps({"backend": jax.default_backend(), "kind": found[0].device_kind, "count": len(found)}))
"""
_SECONDS = 120.0  # a TPU takes its time to start


class MachineError(JaxrlError):
    """JAX does not start on this machine."""


def machine() -> dict[str, Any]:
    """{"cpu", "cores" (that this process may use), "platform", "accelerator": {"backend", "kind", "count"}}.

    JAX is asked in a process of its own: one that holds the accelerator would keep its memory from others. Raises
    MachineError when it does not start.
    """
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "platform": platform.platform(),
        "accelerator": _accelerator(),
    }


def cpu_model() -> str:
    """The processor's name as the system tells it, else its architecture."""
    try:
        if sys.platform == "darwin":
            found = _output(["sysctl", "-n", "machdep.cpu.brand_string"])
        else:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except (OSError, subprocess.SubprocessError):
        found = ""
    return found or platform.processor() or platform.machine()


def commit(folder: Path) -> dict[str, Any] | None:
    """{"hash", "changed": whether files differ from it} of the git clone at `folder`; None if it is none."""
    try:
        if Path(_output(["git", "rev-parse", "--show-toplevel"], folder)).resolve() != folder.resolve():
            return None
        changed = _output(["git", "status", "--porcelain", "--untracked-files=no"], folder)
        return {"hash": _output(["git", "rev-parse", "HEAD"], folder), "changed": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        return None


def _accelerator() -> dict[str, Any]:
    try:
        return json.loads(_output([sys.executable, "-c", _DEVICES]).splitlines()[-1])
    except subprocess.CalledProcessError as error:
        text = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise MachineError(f"JAX does not start: {text}. Check its installation and JAX_PLATFORMS.") from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"JAX does not start within {_SECONDS:.0f} s: is another process holding the device?"
        ) from None


def _output(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return done.stdout.strip()
