"""Lines of numbers as `jaxrl bench` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl.tools.bench.lines import Accelerator, Commit, Line, Machine

CPU = Accelerator(backend="cpu", kind="cpu", count=1)
GPU = Accelerator(backend="gpu", kind="NVIDIA H200", count=1)


def line(
    benchmark: str,
    results: list[dict[str, Any]],
    *,
    device: Accelerator = CPU,
    commit: str = "",
    time: float = 0.0,
    **more: Any,
) -> Line:
    """One that ended well."""
    given = {
        "benchmark": benchmark,
        "state": "ok",
        "seconds": 1.0,
        "results": results,
        "message": "",
        "time": time,
        "quick": False,
        "machine": Machine(cpu="a processor", cores=2, platform="Linux", accelerator=device),
        "versions": {"jaxrl_version": "0.4.0", "jax_version": "0.10.2", "python_version": "3.11.2"},
        "commit": Commit(hash=commit * 40, changed=False, time=time) if commit else None,
        "load": 0.1,
    }
    return Line.model_validate(given | more)


def update_phase(*seconds: float, prepare: float = 1.0, **more: Any) -> list[Line]:
    """Rounds of a benchmark whose cost is known, with one case."""
    return [
        line("update phase", [{"trainer": "ppo", "members": 1, "prepare": prepare, "update": value}], **more)
        for value in seconds
    ]


def host_loop(*rates: float, **more: Any) -> list[Line]:
    """Rounds of a benchmark whose rate is known; higher is better."""
    return [line("host loop", [{"workers": 1, "env_steps": value, "share": 0.5}], **more) for value in rates]


def save(path: Path, lines: list[Line]) -> Path:
    """As --json."""
    path.write_text("".join(one.model_dump_json() + "\n" for one in lines), encoding="utf-8")
    return path
