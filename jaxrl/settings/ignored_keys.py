"""Unknown keys that ML-Agents passes over in silence: they are named in a warning, and the run is trained without them.

The original refuses unknown keys of a run, a behavior, its hyperparameters and its reward signals, and passes over
those of networks, memory, self-play and behavioral cloning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.settings.behavior import BehavioralCloningSettings, SelfPlaySettings
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.settings.section import Section, unknown_key

_SECTIONS: dict[str, type[Section]] = {
    "network_settings": NetworkSettings,
    "memory": MemorySettings,
    "self_play": SelfPlaySettings,
    "behavioral_cloning": BehavioralCloningSettings,
}


def drop_ignored(written: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the file's mapping without unknown keys that the original ignores, and one warning for each of them."""
    warnings: list[str] = []
    result = dict(written)
    if "default_settings" in written:
        result["default_settings"] = _of_behavior(written["default_settings"], "default_settings", warnings)
    if isinstance(written.get("behaviors"), Mapping):
        result["behaviors"] = {
            name: _of_behavior(behavior, f"behaviors.{name}", warnings)
            for name, behavior in written["behaviors"].items()
        }
    return result, warnings


def _of_behavior(behavior: Any, path: str, warnings: list[str]) -> Any:
    cleaned = _subsections(behavior, path, warnings)
    signals = cleaned.get("reward_signals") if isinstance(cleaned, dict) else None
    if isinstance(signals, Mapping):
        where = f"{path}.reward_signals"
        cleaned["reward_signals"] = {
            name: _subsections(signal, f"{where}.{name}", warnings) for name, signal in signals.items()
        }
    return cleaned


def _subsections(section: Any, path: str, warnings: list[str]) -> Any:
    """Clean the lenient sections directly below `section`, and those below them."""
    if not isinstance(section, Mapping):
        return section
    return {
        key: _known_keys(value, f"{path}.{key}", _SECTIONS[key], warnings)
        if key in _SECTIONS and isinstance(value, Mapping)
        else value
        for key, value in section.items()
    }


def _known_keys(section: Mapping[str, Any], path: str, kind: type[Section], warnings: list[str]) -> dict[str, Any]:
    for key in section:
        if key not in kind.model_fields:
            advice = unknown_key(key, kind.model_fields, kind.hints).message().removeprefix("unknown key, ")
            warnings.append(
                f"{path}.{key}: unknown key, has no effect, as in ML-Agents (--strict refuses it); {advice}"
            )
    return _subsections({key: value for key, value in section.items() if key in kind.model_fields}, path, warnings)
