"""Layouts that older ML-Agents releases used: explained where they must be rewritten, upgraded where that is safe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.settings.run import RunSettings
from jaxrl.settings.section import SettingsError
from jaxrl.settings.upgrade_behavior import is_today
from jaxrl.settings.upgrade_parameters import INTERVALS, is_curriculum

_FLAT_TRAINER = frozenset(
    ("trainer", "batch_size", "buffer_size", "hidden_units", "beta", "use_recurrent", "max_steps")
)
_OLD = "this is the layout of ML-Agents before release 0.18"
_COMMAND = "or convert all files: `jaxrl upgrade-config OLD [CURRICULUM] [SAMPLER] > new.yaml`"


def refuse_old_layout(written: Mapping[str, Any], source: str) -> None:
    """Raise SettingsError with the way to the present layout if a file has the layout of before release 0.18.

    Also if behaviors of today stand on top: `behaviors:` is forgotten.
    """
    for name, section in written.items():
        if name in INTERVALS or (name == "parameter_randomization" and isinstance(section, Mapping)):
            raise SettingsError(f"{name}: {_OLD}: write samplers below environment_parameters, {_COMMAND}", source)
        if name in RunSettings.model_fields or not isinstance(section, Mapping):
            continue
        if is_curriculum(section) or (name == "curriculum" and any(map(is_curriculum, section.values()))):
            raise SettingsError(
                f"{name}: {_OLD}: write the curriculum below environment_parameters, {_COMMAND}", source
            )
        if "sampler-type" in section:
            raise SettingsError(f"{name}: {_OLD}: write samplers below environment_parameters, {_COMMAND}", source)
        if is_today(section):
            raise SettingsError(
                f"{name}: a behavior on top: write it below `behaviors:`, or `jaxrl upgrade-config OLD > new.yaml`",
                source,
            )
        if _FLAT_TRAINER & set(section):
            raise SettingsError(
                f"{name}: {_OLD}: write behaviors below `behaviors:` (and `default:` as `default_settings:`), "
                "`trainer:` as `trainer_type:`, batch_size and the like below `hyperparameters:`, "
                f"hidden_units and the like below `network_settings:`, {_COMMAND}",
                source,
            )


def upgrade(written: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Take out keys that current ML-Agents still accepts but no longer means. Returns the rest and one text per key.

    `encoding_size` of a reward signal becomes its `network_settings.hidden_units` if it has no `network_settings`.
    """
    paths: dict[str, list[str]] = {}
    result = dict(written)
    if isinstance(written.get("behaviors"), Mapping):
        result["behaviors"] = {
            name: _upgrade_behavior(behavior, f"behaviors.{name}", paths)
            for name, behavior in written["behaviors"].items()
        }
    if "default_settings" in written:
        result["default_settings"] = _upgrade_behavior(written["default_settings"], "default_settings", paths)
    advice = {
        "framework": "deprecated, has no effect, remove it",
        "encoding_size": "deprecated, write network_settings.hidden_units",
        "memory": "reward signals have no memory, this has no effect, remove it",
    }
    return result, [f"{', '.join(found)}: {advice[key]}" for key, found in paths.items()]


def _upgrade_behavior(written: Any, path: str, paths: dict[str, list[str]]) -> Any:
    if not isinstance(written, Mapping):
        return written
    behavior = dict(written)
    if "framework" in behavior:
        del behavior["framework"]
        paths.setdefault("framework", []).append(f"{path}.framework")
    if isinstance(behavior.get("reward_signals"), Mapping):
        behavior["reward_signals"] = {
            name: _upgrade_signal(name, signal, f"{path}.reward_signals.{name}", paths)
            for name, signal in behavior["reward_signals"].items()
        }
    return behavior


def _upgrade_signal(name: str, written: Any, path: str, paths: dict[str, list[str]]) -> Any:
    if not isinstance(written, Mapping):
        return written
    signal = dict(written)
    if name != "extrinsic" and "encoding_size" in signal:
        size = signal.pop("encoding_size")
        paths.setdefault("encoding_size", []).append(f"{path}.encoding_size")
        signal.setdefault("network_settings", {"hidden_units": size})
    network = signal.get("network_settings")
    if isinstance(network, Mapping) and network.get("memory") is not None:
        signal["network_settings"] = {key: value for key, value in network.items() if key != "memory"}
        paths.setdefault("memory", []).append(f"{path}.network_settings.memory")
    return signal
