"""Who overrides whom: flags over file over defaults, a behavior over `default_settings`. Plain mappings in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jaxrl.settings.behavior import Hyperparameters
from jaxrl.settings.section import Location

EVERY_LISTED = "*"
"""Behavior name in overrides that stands for each behavior that the file lists."""
EVERY = "**"
"""Behavior name in overrides that stands for each listed behavior and for `default_settings`, if the file has them."""


_NOTHING = object()


def merge(base: Any, over: Any) -> Any:
    """Deep merge, mapping by mapping and leaf by leaf: what `over` has, null included, replaces what `base` has.

    The keys of `over` come first, in its order.
    """
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    merged = {key: merge(base[key], value) if key in base else value for key, value in over.items()}
    return merged | {key: value for key, value in base.items() if key not in over}


def is_written(written: Any, location: Location) -> bool:
    """Whether what was written holds this location."""
    for part in location:
        if isinstance(written, Mapping):
            written = written.get(part, _NOTHING)
        elif isinstance(written, list | tuple) and isinstance(part, int) and part < len(written):
            written = written[part]
        else:
            return False
    return written is not _NOTHING


def expand(overrides: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with behaviors `*` and `**` written out for each behavior that the file lists.

    A file without any behavior and without `default_settings` is given these where `**` is set.
    """
    expanded = dict(overrides)
    behaviors = dict(expanded.pop("behaviors", {}))
    listed, default = written.get("behaviors"), written.get("default_settings")
    of_every = behaviors.pop(EVERY, None)
    if of_every is not None and (default is not None or not listed):
        expanded["default_settings"] = merge(expanded.get("default_settings", {}), of_every)
    for for_all in (behaviors.pop(EVERY_LISTED, None), of_every):
        if for_all is not None and isinstance(listed, Mapping):
            behaviors.update({name: merge(for_all, behaviors.get(name, {})) for name in listed})
    return {**expanded, "behaviors": behaviors} if behaviors else expanded


def inherit(written: Mapping[str, Any], types: Mapping[str, type[Hyperparameters]]) -> dict[str, Any]:
    """Merge each listed behavior over `default_settings`; what was written is merged, not what it resolves to."""
    default, behaviors = written.get("default_settings"), written.get("behaviors")
    if not isinstance(default, Mapping) or not isinstance(behaviors, Mapping):
        return dict(written)
    merged = {
        name: merge(_without_foreign_defaults(default, behavior, types), behavior)
        for name, behavior in behaviors.items()
    }
    return {**written, "behaviors": merged}


def _without_foreign_defaults(
    default: Mapping[str, Any], behavior: Any, types: Mapping[str, type[Hyperparameters]]
) -> Mapping[str, Any]:
    """`default_settings` without hyperparameters that only its own trainer type has and that say what is said anyway.

    A resolved configuration.yaml spells out every default, also one that follows from another key; without this it
    could not be read back where a behavior has another trainer type than `default_settings`.
    """
    hyperparameters = default.get("hyperparameters")
    if not isinstance(behavior, Mapping) or not isinstance(hyperparameters, Mapping):
        return default
    mine, theirs = (types.get(str(written.get("trainer_type", ""))) for written in (behavior, default))
    if mine is None or theirs is None or mine is theirs:
        return default
    shared = {key: value for key, value in hyperparameters.items() if key in mine.model_fields}
    usual = {key: field.default for key, field in theirs.model_fields.items() if key not in mine.model_fields}
    resolved = _resolved(theirs, shared)
    kept = {
        key: value
        for key, value in hyperparameters.items()
        if key not in usual or value not in (usual[key], resolved.get(key, usual[key]))
    }
    return {**default, "hyperparameters": kept}


def _resolved(kind: type[Hyperparameters], written: Mapping[str, Any]) -> dict[str, Any]:
    """All hyperparameters where these are written; none where they are wrong, which is reported elsewhere."""
    try:
        return kind.model_validate(written).model_dump(mode="json")
    except ValidationError:
        return {}


def settle_start(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Resume or initialize from another run? A flag beats the file, and resume beats initialize_from otherwise."""
    checkpoint = written.get("checkpoint_settings")
    if not isinstance(checkpoint, Mapping) or not checkpoint.get("resume") or not checkpoint.get("initialize_from"):
        return dict(written), []
    flags = overrides.get("checkpoint_settings", {})
    if "initialize_from" in flags and "resume" not in flags:
        settled, text = {**checkpoint, "resume": False}, "checkpoint_settings.resume is dropped for --initialize-from"
    else:
        settled = {**checkpoint, "initialize_from": None}
        text = "checkpoint_settings.initialize_from is dropped: the run is resumed, which loads its own weights"
    return {**written, "checkpoint_settings": settled}, [text]
