"""Describes changes between a checkpoint and the run that wants to continue it, in the user's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.artifacts.checkpoint.loop import AREAS, SEEDS
from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.settings.section import flatten
from jaxrl.types import BehaviorSpec

_SHAPING = (
    "trainer_type",
    "network_settings",
    "connectors",
    "reward_signals",
    "hyperparameters.shared_critic",
    "hyperparameters.team_capacity",
    "hyperparameters.share_policy",
)
"""Settings that decide which arrays there are and how large; others may change between two parts of a run."""
_SIZES = (SEEDS, AREAS)
"""Such settings that only compiled runs note: compared where both sides have them."""


def mismatches(
    saved_spec: Mapping[str, Any],
    saved_settings: Mapping[str, Any],
    spec: BehaviorSpec | None,
    settings: Mapping[str, Any] | None,
) -> list[str]:
    """Return one line per difference that can change the networks; sides that were not given are not compared."""
    lines = spec_differences(saved_spec, spec_to_json(spec)) if saved_spec and spec is not None else []
    if saved_settings and settings is not None:
        old, new = flatten(saved_settings), flatten(settings)
        lines += [_line(key, old.get(key), new.get(key)) for key in {**old, **new} if _shapes(key, old, new)]
    return lines


def moved_signals(saved_settings: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """Return a line if the same reward signals stand in another order, that of a critic's outputs, else None."""
    old, new = (list(side.get("reward_signals", ())) for side in (saved_settings, settings))
    moved = old != new and sorted(old) == sorted(new)
    return _line("the order of reward_signals", ", ".join(old), ", ".join(new)) if moved else None


def other_signals(saved_settings: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether both sides name reward signals, and not the same."""
    old, new = (set(side.get("reward_signals", ())) for side in (saved_settings, settings))
    return bool(old and new) and old != new


def moved_actions(saved_spec: Mapping[str, Any], spec: BehaviorSpec | None) -> str | None:
    """Return a line if other actions have as many columns, so that arrays of the old ones would fit, else None."""
    if not saved_spec or spec is None:
        return None
    old, new = ({**side, "observations": []} for side in (saved_spec, spec_to_json(spec)))
    columns = {side["continuous_actions"] + sum(side["discrete_branches"]) for side in (old, new)}
    return "; ".join(spec_differences(old, new)) if len(columns) == 1 and old != new else None


def spec_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], sides: tuple[str, str] = ("in the checkpoint", "now")
) -> list[str]:
    """Return one line per different sensor or action size in results of `spec_to_json`; `sides` name the two."""
    lines = []
    old_sensors, new_sensors = old["observations"], new["observations"]
    if len(old_sensors) != len(new_sensors):
        lines.append(_line("observations: number of sensors", len(old_sensors), len(new_sensors), sides))
    for index, (before, now) in enumerate(zip(old_sensors, new_sensors, strict=False)):
        lines += [
            _line(f"observation {index} ({now['name']}) {key}", before[key], now[key], sides)
            for key in ("name", "shape", "type")
            if before[key] != now[key]
        ]
    names = {"continuous_actions": "action size (continuous)", "discrete_branches": "action size (discrete branches)"}
    return lines + [_line(text, old[key], new[key], sides) for key, text in names.items() if old[key] != new[key]]


def _shapes(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if old.get(key) == new.get(key):
        return False
    compared = key in _SIZES and key in old and key in new
    return compared or any(key == name or key.startswith(f"{name}.") for name in _SHAPING)


def _line(what: str, before: Any, after: Any, sides: tuple[str, str] = ("in the checkpoint", "now")) -> str:
    return f"{what}: {before} {sides[0]}, {after} {sides[1]}"
