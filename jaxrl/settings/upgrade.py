"""Configuration files of before ML-Agents 0.18 in today's layout: trainer file, curricula and samplers in one.

Also present-day files that forget `behaviors:`. Plain mappings in and out; `notes` say what was dropped or changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.settings.inheritance import inherit
from jaxrl.settings.run import RunSettings
from jaxrl.settings.section import SettingsError
from jaxrl.settings.upgrade_behavior import Types, is_behavior, is_flat, is_today, today, upgraded
from jaxrl.settings.upgrade_parameters import INTERVALS, curricula, is_curriculum, is_sampler, named_lessons, samplers

_PARAMETERS = "environment_parameters"
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+", re.IGNORECASE)
_STEPS = (
    "max_steps and summary_freq count steps of all agents: before ML-Agents 0.15 they counted those of the "
    "environment, so multiply them by the number of agents if the file is that old"
)


def upgrade_files(files: Sequence[tuple[str, Mapping[str, Any]]], types: Types) -> tuple[dict[str, Any], list[str]]:
    """One configuration of several files, each a name (without folder and suffix) and what is in it.

    A curriculum file that names no behavior, as JSON files of their time, is for the behavior of its own name.
    Returns what to write and notes. Raises SettingsError, which names the key.
    """
    notes: list[str] = []
    result: dict[str, Any] = {}
    lessons: dict[str, Any] = {}
    drawn: dict[str, Any] = {}
    for name, content in files:
        if is_curriculum(content):
            content = {"curriculum": {name: content}}
        elif content and all(map(is_curriculum, content.values())):
            content = {"curriculum": content}
        elif content and all(is_sampler(value) or key in INTERVALS for key, value in content.items()):
            content = {"parameter_randomization": content}
        lessons = {**curricula(_section(content, "curriculum"), notes), **lessons}
        drawn |= samplers(_section(content, "parameter_randomization"), notes)
        rest = {key: value for key, value in content.items() if key not in ("curriculum", "parameter_randomization")}
        if rest and result:
            raise SettingsError(f"{name}: is a second trainer file beside the first, expected a curriculum or samplers")
        result |= _trainers(rest, types, notes)
    notes += [f"{name}: its sampler is dropped, it has a curriculum" for name in drawn if name in lessons]
    if lessons or drawn:
        result[_PARAMETERS] = {**(result.pop(_PARAMETERS, None) or {}), **drawn, **lessons}
    return _numbers(result), notes


def _numbers(content: Any) -> Any:
    """With `5.0e5`, which YAML 1.1 reads as text because its exponent has no sign, as the number that it means."""
    if isinstance(content, Mapping):
        return {key: _numbers(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_numbers(value) for value in content]
    if not isinstance(content, str) or not _NUMBER.fullmatch(content):
        return content
    number = float(content)
    return int(number) if number.is_integer() else number


def _section(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = content.get(key)
    if section is not None and not isinstance(section, Mapping):
        raise SettingsError(f"{key}: got {section!r}, expected a mapping of names to settings")
    return section or {}


def _trainers(content: Mapping[str, Any], types: Types, notes: list[str]) -> dict[str, Any]:
    """The sections of a trainer file."""
    if not content:
        return {}
    sections = {key: content[key] for key in RunSettings.model_fields if key in content}
    behaviors = {**_section(content, "behaviors"), **{k: v for k, v in content.items() if k not in sections}}
    behaviors = {name: _aliased(behaviors, name) for name in behaviors}
    default = behaviors.pop("default", None)
    if default is not None and not is_flat(default):
        raise SettingsError(
            f"default: got {default!r}, expected settings of before 0.18; today's is `default_settings`"
        )
    flat = {name for name, section in behaviors.items() if _is_flat(section, default)}
    wrong = [name for name, section in behaviors.items() if name not in flat and not is_behavior(section)]
    if wrong:
        raise SettingsError([f"{name}: got {behaviors[name]!r}, expected the settings of a behavior" for name in wrong])
    forgotten = [name for name in behaviors if name not in _section(content, "behaviors")]
    if forgotten:
        notes.append(f"{', '.join(forgotten)}: written below `behaviors:`")
    converted = {
        name: _behavior(section, default, name, types, notes) if name in flat else today(section, name, notes)
        for name, section in behaviors.items()
    }
    if default is not None:
        sections = {"default_settings": upgraded(default, "default", types, notes), **sections}
    if flat or default is not None:
        notes.append(_STEPS)
    result = {**sections, "behaviors": converted}
    if isinstance(result.get(_PARAMETERS), Mapping):
        result[_PARAMETERS] = {name: named_lessons(value) for name, value in result[_PARAMETERS].items()}
    return _without_harmful_default(result, types, notes) if default is not None else result


def _is_flat(section: Mapping[str, Any], default: Any) -> bool:
    """Beside `default:` a section is old unless it has a key of today."""
    return is_flat(section) or (default is not None and not is_today(section) and "" not in section)


def _aliased(behaviors: Mapping[str, Any], name: str) -> Any:
    """The section of a behavior, also where the name of another one stands in its place."""
    seen, section = {name}, behaviors[name]
    while isinstance(section, str) and section in behaviors and section not in seen:
        seen.add(section)
        section = behaviors[section]
    return section if isinstance(section, Mapping) else {"": section}


def _behavior(section: Mapping[str, Any], default: Any, name: str, types: Types, notes: list[str]) -> dict[str, Any]:
    of_all: list[str] = []
    result = upgraded({**(default or {}), **section}, name, types, of_all)
    own = tuple(f"{name}.{key}{end}" for key in section for end in ".:")  # what is in `default` is told for `default`
    notes += [note for note in of_all if note.startswith(own)]
    return result


def _without_harmful_default(result: dict[str, Any], types: Types, notes: list[str]) -> dict[str, Any]:
    """`default:` was replaced by what a behavior wrote, whole; `default_settings:` is merged leaf by leaf with it.

    Where that would add something to a listed behavior, `default_settings` is dropped: every listed one has it all.
    """
    merged = inherit(result, types)["behaviors"]
    changed = [name for name, section in result["behaviors"].items() if merged[name] != section]
    if not changed:
        return result
    notes.append(
        f"default: its values stand in each behavior, there is no default_settings: {', '.join(changed)} would inherit "
        "what it had not; write an entry for each behavior that relied on it"
    )
    return {key: value for key, value in result.items() if key != "default_settings"}
