"""One behavior of a trainer file of before ML-Agents 0.18, whose keys all stood side by side, in today's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.settings.behavior import BehavioralCloningSettings, BehaviorSettings, Hyperparameters, SelfPlaySettings
from jaxrl.settings.rewards import SIGNALS
from jaxrl.settings.section import Section, SettingsError

Types = Mapping[str, type[Hyperparameters]]

TRAINERS = ("ppo", "sac")
"""Of that time, as far as there is something like them today."""
_NETWORK = ("normalize", "hidden_units", "num_layers", "vis_encode_type")
_MEMORY = ("use_recurrent", "memory_size", "sequence_length")
_BEFORE_SIGNALS = ("gamma", "use_curiosity", "curiosity_strength", "curiosity_enc_size")
_UPDATES = {"steps_per_update": "num_update", "reward_signal_steps_per_update": "reward_signal_num_update"}
_KEPT = (
    "keep_checkpoints", "checkpoint_interval", "max_steps", "time_horizon", "summary_freq", "init_path", "threaded"
)  # fmt: skip
_FLAT = frozenset((*_NETWORK, *_MEMORY, *_BEFORE_SIGNALS, "trainer", "batch_size", "buffer_size", "pretraining"))


def is_flat(section: Mapping[str, Any]) -> bool:
    """Whether a behavior has keys of the old layout."""
    return not is_today(section) and bool(_FLAT & set(section))


def is_today(section: Mapping[str, Any]) -> bool:
    """Whether a behavior has keys that came with today's layout."""
    return not {"trainer_type", "hyperparameters", "network_settings"}.isdisjoint(section)


def upgraded(flat: Mapping[str, Any], path: str, types: Types, notes: list[str]) -> dict[str, Any]:
    """The behavior with today's keys; `path` is where it stood, `notes` gets a line for all that is left out.

    Raises SettingsError for a trainer that there is no more.
    """
    rest = dict(flat)
    trainer = rest.pop("trainer", "ppo")
    if trainer not in TRAINERS:
        raise SettingsError(
            f"{path}.trainer: got {trainer!r}, expected {' or '.join(TRAINERS)}: it is gone; to imitate demonstrations "
            "write ppo with behavioral_cloning or reward_signals.gail"
        )
    hyperparameters = _hyperparameters(rest, path, types[trainer], notes)
    result: dict[str, Any] = {"trainer_type": trainer, "hyperparameters": hyperparameters}
    network = {key: rest.pop(key) for key in _NETWORK if key in rest}
    memory = {key: rest.pop(key) for key in _MEMORY if key in rest}
    if memory.pop("use_recurrent", False):
        network["memory"] = {key: memory[key] for key in ("sequence_length", "memory_size") if key in memory}
    result["network_settings"] = network
    result["reward_signals"] = _signals(rest, path, notes)
    result |= {key: rest.pop(key) for key in _KEPT if key in rest}
    result |= _self_play(rest, path, notes)
    for key in ("pretraining", "behavioral_cloning"):
        if isinstance(rest.get(key), Mapping):
            section = dict(rest.pop(key))
            result["behavioral_cloning"] = known(section, BehavioralCloningSettings, f"{path}.{key}", notes)
    notes += [f"{path}.{key}: dropped, a behavior of {trainer} has no such key" for key in rest]
    return {key: value for key, value in result.items() if value != {}}


def known(section: dict[str, Any], kind: type[Section], path: str, notes: list[str]) -> dict[str, Any]:
    """The keys that today's section has; the others are noted."""
    notes += [f"{path}.{key}: dropped, there is no such key" for key in section if key not in kind.model_fields]
    return {key: value for key, value in section.items() if key in kind.model_fields}


def _hyperparameters(rest: dict[str, Any], path: str, kind: type[Hyperparameters], notes: list[str]) -> dict[str, Any]:
    """Taken out of `rest`; what belongs to another trainer stays there."""
    found = {key: rest.pop(key) for key in kind.model_fields if key in rest}
    interval = rest.pop("train_interval", 1)
    for key, old in _UPDATES.items():
        if old in rest and key in kind.model_fields and key not in found:
            found[key] = interval / rest.pop(old)
            notes.append(
                f"{path}.{old}: written as hyperparameters.{key}: {found[key]:g}, which counts steps of all agents: "
                "multiply it by their number"
            )
    return found


def _signals(rest: dict[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    written = rest.pop("reward_signals", None)
    before = {key: rest.pop(key) for key in _BEFORE_SIGNALS if key in rest}
    if isinstance(written, Mapping):
        notes += [f"{path}.{key}: dropped, reward_signals say it" for key in before]
    else:
        gamma = {"gamma": before["gamma"]} if "gamma" in before else {}
        written = {"extrinsic": {"strength": 1.0, **gamma}} if before else {}
        if before.get("use_curiosity"):
            names = {"curiosity_strength": "strength", "curiosity_enc_size": "encoding_size"}
            written["curiosity"] = gamma | {new: before[old] for old, new in names.items() if old in before}
    return {name: _signal(name, signal, f"{path}.reward_signals.{name}", notes) for name, signal in written.items()}


def _signal(name: str, written: Any, path: str, notes: list[str]) -> Any:
    if name not in SIGNALS or not isinstance(written, Mapping):
        return written  # which today's rules name
    signal = dict(written)
    if name != "extrinsic" and "encoding_size" in signal:
        signal["network_settings"] = {"hidden_units": signal.pop("encoding_size"), **signal.get("network_settings", {})}
    return known(signal, SIGNALS[name], path, notes)


def _self_play(rest: dict[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    if not isinstance(rest.get("self_play"), Mapping):
        return {}
    section = dict(rest.pop("self_play"))
    if "play_against_current_self_ratio" in section:
        section["play_against_latest_model_ratio"] = section.pop("play_against_current_self_ratio")
    return {"self_play": known(section, SelfPlaySettings, f"{path}.self_play", notes)}


def today(section: Mapping[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    """A behavior in today's layout, without a key that stood in it for one release."""
    if "output_path" not in section:
        return dict(section)
    notes.append(f"{path}.output_path: dropped, there is no such key")
    return {key: value for key, value in section.items() if key != "output_path"}


def is_behavior(section: Mapping[str, Any]) -> bool:
    """Whether it may be a behavior in today's layout, if perhaps one with mistakes."""
    return not section or not set(BehaviorSettings.model_fields).isdisjoint(section)
