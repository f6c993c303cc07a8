"""Puts what lies beside the package's code into a wheel; an editable install reads it where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Found by hatchling by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" or "editable"."""
        if version == "editable":
            return
        carried = build_data["force_include"]
        carried |= {"configs": "jaxrl/configs", "zoo": "jaxrl/zoo"}
        for script in sorted(Path(self.root, "benchmarks").glob("[!_]*.py")):  # no package: not to be imported
            carried[f"benchmarks/{script.name}"] = f"jaxrl/benchmarks/{script.name}"
