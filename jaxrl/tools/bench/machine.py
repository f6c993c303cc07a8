"""Describes where a measurement was made: processor, accelerator, platform, and the commit of the source."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from jaxrl import platforms
from jaxrl.tools.bench.lines import Accelerator, Commit, Machine
from jaxrl.types import JaxrlError

_DEVICES = """
import json, jax
found = jax.devices()
print(json.dumps({"backend": jax.default_backend(), "kind": found[0].device_kind, "count": len(found)}))
"""
_SECONDS = 120.0  # a TPU takes its time to start


class MachineError(JaxrlError):
    """JAX does not start on this machine."""


_BACKENDS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}


def variables_for(device: str | None) -> dict[str, str]:
    """Return variables that make a script compute on "cpu", "cuda", "cuda:N" or "tpu"; None: JAX chooses."""
    name, _, index = (device or "").partition(":")
    variables = {"JAX_PLATFORMS": name if name == "cpu" else f"{name},cpu"} if name else {}
    return variables | ({"CUDA_VISIBLE_DEVICES": index} if index else {})


def machine(device: str | None = None) -> Machine:
    """Return the machine on which scripts with the variables of `device` run.

    JAX is asked in a process of its own: one that holds the accelerator would keep its memory from others. Raises
    MachineError if JAX does not start, or takes another device: JAX leaves out a platform that it cannot start.
    """
    offer = _accelerator(variables_for(device))
    if device is not None and offer.backend != _BACKENDS[device.partition(":")[0]]:
        raise MachineError(
            f"--device {device}: JAX offers only {offer.count} x {offer.kind} ({offer.backend}); install jax for that "
            "device, see that the system lists it, or leave --device out."
        )
    return Machine(cpu=platforms.processor(), cores=platforms.cores(), platform=platform.platform(), accelerator=offer)


def commit(folder: Path) -> Commit | None:
    """Return the commit of the git clone at `folder`; None if it is no clone."""
    try:
        if Path(_output(["git", "rev-parse", "--show-toplevel"], folder)).resolve() != folder.resolve():
            return None
        changed = _output(["git", "status", "--porcelain", "--untracked-files=no"], folder)
        commit_hash, time = _output(["git", "show", "-s", "--format=%H %ct", "HEAD"], folder).split()
        return Commit(hash=commit_hash, changed=bool(changed), time=float(time))
    except (OSError, subprocess.SubprocessError):
        return None


def installed_commit() -> Commit | None:
    """Return the commit that pip noted when it installed jaxrl from a repository; None: from a wheel or a folder."""
    try:
        noted = json.loads(metadata.distribution("jaxrl").read_text("direct_url.json") or "{}")
        return Commit(hash=noted["vcs_info"]["commit_id"], changed=False)
    except (metadata.PackageNotFoundError, KeyError, TypeError, ValueError):
        return None


def _accelerator(variables: Mapping[str, str]) -> Accelerator:
    try:
        text = _output([sys.executable, "-c", _DEVICES], environment={**os.environ, **variables})
    except subprocess.CalledProcessError as error:
        text = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise MachineError(f"JAX does not start: {text}. Check --device, its installation and JAX_PLATFORMS.") from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"JAX does not start within {_SECONDS:.0f} s: is another process holding the device?"
        ) from None
    return Accelerator.model_validate_json(text.splitlines()[-1])


def _output(command: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    return process.stdout.strip()
