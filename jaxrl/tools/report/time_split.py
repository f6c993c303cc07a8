"""Where a run's time went, from its timers.json: environment, acting and updates, or the compiled loop of all three."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl.artifacts.metrics.timers import ENV_STEP, EVALUATE, ITERATIONS, LEARNING, UPDATE_POLICY
from jaxrl.tools.report.runs import Run

PHASES = {"environment": ENV_STEP, "act": EVALUATE, "update": UPDATE_POLICY, "compiled loop": ITERATIONS}


class TimeSpent(NamedTuple):
    """The learning phase of a run's last session."""

    seconds: float  # wall time
    phases: dict[str, float]  # seconds by phase, with "other" for what no timer of PHASES covers
    steps_per_second: float  # agent steps of all behaviors and seeds; NaN when no time passed


def time_of(run: Run) -> TimeSpent | None:
    """None without timers.json, or with one that has no learning phase.

    ML-Agents nests the timers (it acts inside env_step); the inner one's time is taken off the outer one's, so that
    the phases add up to the whole. Parallel timers, which ran at the same time in other processes, do not count.
    """
    learning = _find(run.timers or {}, LEARNING)
    if learning is None:
        return None
    names = {node: phase for phase, node in PHASES.items()}
    phases = dict.fromkeys([*PHASES, "other"], 0.0)
    _add(learning, "other", names, phases)
    seconds = float(learning["total"])
    seeds = [seed for seeds in run.behaviors.values() for seed in seeds.values()]
    steps = sum(seed.last_step - seed.begun_at for seed in seeds)
    return TimeSpent(seconds, phases, steps / seconds if seconds else float("nan"))


def _find(tree: dict[str, Any], name: str) -> dict[str, Any] | None:
    children = tree.get("children", {})
    if name in children:
        return children[name]
    found = (_find(child, name) for child in children.values())
    return next((node for node in found if node is not None), None)


def _add(node: dict[str, Any], phase: str, names: dict[str, str], phases: dict[str, float]) -> None:
    """Add the time of `node` itself to `phase`, that of its children to theirs."""
    serial = {name: child for name, child in node.get("children", {}).items() if not child.get("is_parallel")}
    phases[phase] += max(0.0, node["total"] - sum(child["total"] for child in serial.values()))
    for name, child in serial.items():
        _add(child, names.get(name, phase), names, phases)
