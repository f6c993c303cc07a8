"""Order of settings: flags over file over defaults, a behavior over `default_settings`. Plain mappings in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jaxrl.settings.behavior import TYPES, BehaviorSettings, Hyperparameters
from jaxrl.settings.section import Location

EVERY_LISTED = "*"
"""Behavior name in overrides that stands for each behavior that the file lists."""
EVERY = "**"
"""Behavior name in overrides that stands for each listed behavior and for `default_settings`, if the file has them."""


_NOTHING = object()


def merge(base: Any, over: Any) -> Any:
    """Merge deeply, mapping by mapping and leaf by leaf: values of `over`, null included, replace those of `base`.

    The keys of `over` come first, in its order.
    """
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    merged = {key: merge(base[key], value) if key in base else value for key, value in over.items()}
    return merged | {key: value for key, value in base.items() if key not in over}


def is_written(written: Any, location: Location) -> bool:
    """Return whether `written` has a value at this location."""
    for part in location:
        if isinstance(written, Mapping):
            written = written.get(part, _NOTHING)
        elif isinstance(written, list | tuple) and isinstance(part, int) and part < len(written):
            written = written[part]
        else:
            return False
    return written is not _NOTHING


def expand(overrides: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Write overrides of behaviors `*` and `**` out for each behavior that the file lists.

    A file without any behavior and without `default_settings` is given these where `**` is set.
    """
    expanded = dict(overrides)
    behaviors = dict(expanded.pop("behaviors", {}))
    listed, default = written.get("behaviors"), written.get("default_settings")
    overrides_of_every = behaviors.pop(EVERY, None)
    if overrides_of_every is not None and (default is not None or not listed):
        expanded["default_settings"] = merge(expanded.get("default_settings", {}), overrides_of_every)
    for for_all in (behaviors.pop(EVERY_LISTED, None), overrides_of_every):
        if for_all is not None and isinstance(listed, Mapping):
            behaviors.update({name: merge(for_all, behaviors.get(name, {})) for name in listed})
    return {**expanded, "behaviors": behaviors} if behaviors else expanded


def inherit(written: Mapping[str, Any], types: Mapping[str, type[Hyperparameters]]) -> dict[str, Any]:
    """Merge each listed behavior over `default_settings`, a whole behavior: its own defaults are inherited too.

    So as in ML-Agents a default that follows from another key, as `beta_schedule`, is that of `default_settings`.
    """
    default, behaviors = written.get("default_settings"), written.get("behaviors")
    if not isinstance(default, Mapping) or not isinstance(behaviors, Mapping):
        return dict(written)
    resolved = resolve_behavior(default, types)
    merged = {
        name: merge(_inheritable(default, resolved, behavior, types), behavior) for name, behavior in behaviors.items()
    }
    return {**written, "behaviors": merged}


def resolve_behavior(written: Mapping[str, Any], types: Mapping[str, type[Hyperparameters]]) -> Mapping[str, Any]:
    """Return the settings of a behavior with all defaults; as written where they are wrong, reported elsewhere."""
    try:
        return BehaviorSettings.model_validate(written, context={TYPES: types}).model_dump(mode="json")
    except ValidationError:
        return written


def _inheritable(
    default: Mapping[str, Any], resolved: Mapping[str, Any], behavior: Any, types: Mapping[str, type[Hyperparameters]]
) -> Mapping[str, Any]:
    """Return the part of the resolved `default_settings` that a behavior, perhaps of another trainer type, begins with.

    Another trainer type takes the hyperparameters that were written, and those that it has with the same default.
    A written one that it lacks, a mistake, is left out where the value is usual: a resolved configuration.yaml spells
    out every default.
    """
    theirs_name, everything = resolved.get("trainer_type"), resolved.get("hyperparameters")
    if not isinstance(behavior, Mapping) or not isinstance(everything, Mapping):
        return resolved
    mine, theirs = (types.get(str(name)) for name in (behavior.get("trainer_type", theirs_name), theirs_name))
    if mine is None or theirs is None or mine is theirs:
        return resolved
    written, fields = default.get("hyperparameters") or {}, mine.model_fields
    implied = _implied(theirs, {key: value for key, value in written.items() if key in fields})
    inherited = {
        key: value
        for key, value in everything.items()
        if (key in fields and (key in written or fields[key].default == theirs.model_fields[key].default))
        or (key not in fields and key in written and value not in implied.get(key, ()))
    }
    return {**resolved, "hyperparameters": inherited}


def _implied(kind: type[Hyperparameters], written: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the usual values of each hyperparameter: its default, and its value beside these `written` ones."""
    try:
        resolved = kind.model_validate(written).model_dump(mode="json")
    except ValidationError:
        resolved = {}
    return {key: (field.default, resolved.get(key, field.default)) for key, field in kind.model_fields.items()}


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
