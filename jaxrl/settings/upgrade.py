"""Converts configuration files of before ML-Agents 0.18 to today's layout: trainer file, curricula and samplers in one.

Also present-day files that forget `behaviors:`. Plain mappings in and out; `notes` list dropped and changed keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.settings.behavior import (
    LARGEST_STEP,
    BehavioralCloningSettings,
    BehaviorSettings,
    Hyperparameters,
    SelfPlaySettings,
)
from jaxrl.settings.environment_parameters import SAMPLERS
from jaxrl.settings.inheritance import inherit, resolve_behavior
from jaxrl.settings.rewards import SIGNALS
from jaxrl.settings.run import RunSettings
from jaxrl.settings.section import Section, SettingsError, finite_number

_PARAMETERS = "environment_parameters"
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+", re.IGNORECASE)
_STEPS = (
    "max_steps and summary_freq count steps of all agents: before ML-Agents 0.15 they counted those of the "
    "environment, so multiply them by the number of agents if the file is that old"
)
Types = Mapping[str, type[Hyperparameters]]

TRAINERS = ("ppo", "sac")
"""Trainers of that time that still exist."""
_NETWORK = ("normalize", "hidden_units", "num_layers", "vis_encode_type")
_MEMORY = ("use_recurrent", "memory_size", "sequence_length")
_BEFORE_SIGNALS = ("gamma", "use_curiosity", "curiosity_strength", "curiosity_enc_size")
_UPDATES = {"steps_per_update": "num_update", "reward_signal_steps_per_update": "reward_signal_num_update"}
_KEPT = (
    "keep_checkpoints", "checkpoint_interval", "max_steps", "time_horizon", "summary_freq", "init_path", "threaded"
)  # fmt: skip
_FLAT = frozenset((*_NETWORK, *_MEMORY, *_BEFORE_SIGNALS, "trainer", "batch_size", "buffer_size", "pretraining"))
INTERVALS = ("resampling-interval", "episode-length")
"""Names, the later one first, of the key that says how long a sampler's value lasted."""
_CURRICULUM = frozenset(("measure", "thresholds", "parameters"))
_TYPES = ("sampler-type", "sampler_type")
_FLAT_TRAINER = frozenset(
    ("trainer", "batch_size", "buffer_size", "hidden_units", "beta", "use_recurrent", "max_steps")
)
_OLD = "this is the layout of ML-Agents before release 0.18"
_COMMAND = "or convert all files: `jaxrl upgrade-config OLD [CURRICULUM] [SAMPLER] > new.yaml`"


def upgrade_files(files: Sequence[tuple[str, Mapping[str, Any]]], types: Types) -> tuple[dict[str, Any], list[str]]:
    """Convert several files, each a name (without folder and suffix) and its contents, to one configuration.

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
    """Convert texts such as `5.0e5`, which YAML 1.1 reads as text because its exponent has no sign, to numbers."""
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
    """Convert the sections of a trainer file."""
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
    flat = {name for name, section in behaviors.items() if is_flat(section)}
    if default is not None:  # beside it a section is old unless it has a key of today
        flat |= {name for name, section in behaviors.items() if not is_today(section) and "" not in section}
    keys = BehaviorSettings.model_fields.keys()  # of which also a behavior with mistakes has some
    wrong = [name for name, section in behaviors.items() if name not in flat and section and keys.isdisjoint(section)]
    if wrong:
        raise SettingsError([f"{name}: got {behaviors[name]!r}, expected the settings of a behavior" for name in wrong])
    gone = {name: _gone_trainer(behaviors[name], default) for name in flat}
    if len(flat) > sum(map(bool, gone.values())) or len(behaviors) > len(flat):  # something else is left
        notes += [f"{name}: left out, {text}" for name, text in gone.items() if text]
        behaviors = {name: section for name, section in behaviors.items() if not gone.get(name)}
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


def _aliased(behaviors: Mapping[str, Any], name: str) -> Any:
    """Return the section of a behavior, also where the name of another behavior stands in its place."""
    seen, section = {name}, behaviors[name]
    while isinstance(section, str) and section in behaviors and section not in seen:
        seen.add(section)
        section = behaviors[section]
    return section if isinstance(section, Mapping) else {"": section}


def _behavior(section: Mapping[str, Any], default: Any, name: str, types: Types, notes: list[str]) -> dict[str, Any]:
    of_all: list[str] = []
    result = upgraded({**(default or {}), **section}, name, types, of_all)
    prefixes = tuple(f"{name}.{key}{end}" for key in section for end in ".:")  # notes on `default` are under `default`
    notes += [note for note in of_all if note.startswith(prefixes)]
    if default is not None and "hyperparameters" in result:  # or `default_settings` would hand some down
        written = result["hyperparameters"]
        result["hyperparameters"] = written | types[result["trainer_type"]].amend(written, {})
    return result


def _without_harmful_default(result: dict[str, Any], types: Types, notes: list[str]) -> dict[str, Any]:
    """Drop `default_settings` where it would add keys to a listed behavior: every listed one has it all.

    `default:` was replaced by what a behavior wrote, whole; `default_settings:` is merged leaf by leaf with it.
    """
    merged = inherit(result, types)["behaviors"]
    resolved = {name: resolve_behavior(section, types) for name, section in result["behaviors"].items()}
    changed = [name for name, section in resolved.items() if resolve_behavior(merged[name], types) != section]
    if not changed:
        return result
    notes.append(
        f"default: its values stand in each behavior, there is no default_settings: {', '.join(changed)} would inherit "
        "what it had not; write an entry for each behavior that relied on it"
    )
    return {key: value for key, value in result.items() if key != "default_settings"}


def is_flat(section: Mapping[str, Any]) -> bool:
    """Return whether a behavior has keys of the old layout."""
    return not is_today(section) and bool(_FLAT & set(section))


def is_today(section: Mapping[str, Any]) -> bool:
    """Return whether a behavior has keys that came with today's layout."""
    return not {"trainer_type", "hyperparameters", "network_settings"}.isdisjoint(section)


def upgraded(flat: Mapping[str, Any], path: str, types: Types, notes: list[str]) -> dict[str, Any]:
    """Convert a behavior to today's keys; `path` is where it stood, `notes` gets a line for each key that is dropped.

    Raises SettingsError for a trainer that there is no more.
    """
    rest = dict(flat)
    gone = _gone_trainer(flat, None)
    if gone:
        raise SettingsError(f"{path}.{gone}")
    trainer = rest.pop("trainer", "ppo")
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


def _gone_trainer(section: Mapping[str, Any], default: Any) -> str:
    """Return the problem with the trainer of an old section, empty if a trainer of that name still exists."""
    trainer = {**(default or {}), **section}.get("trainer", "ppo")
    if trainer in TRAINERS:
        return ""
    return (
        f"trainer: got {trainer!r}, expected {' or '.join(TRAINERS)}: it is gone; to imitate demonstrations write ppo "
        "with behavioral_cloning or reward_signals.gail"
    )


def known(section: dict[str, Any], kind: type[Section], path: str, notes: list[str]) -> dict[str, Any]:
    """Return the keys that today's section has; note the others."""
    notes += [f"{path}.{key}: dropped, there is no such key" for key in section if key not in kind.model_fields]
    return {key: value for key, value in section.items() if key in kind.model_fields}


def _hyperparameters(rest: dict[str, Any], path: str, kind: type[Hyperparameters], notes: list[str]) -> dict[str, Any]:
    """Take the hyperparameters out of `rest`; keys of another trainer stay there."""
    chosen = {key: rest.pop(key) for key in kind.model_fields if key in rest}
    interval = rest.pop("train_interval", 1)
    for key, old in _UPDATES.items():
        if old in rest and key in kind.model_fields and key not in chosen:
            chosen[key] = interval / rest.pop(old)
            notes.append(
                f"{path}.{old}: written as hyperparameters.{key}: {chosen[key]:g}, which counts steps of all agents: "
                "multiply it by their number"
            )
    return chosen


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
    """Return a behavior in today's layout, without a key that stood in it for one release."""
    if "output_path" not in section:
        return dict(section)
    notes.append(f"{path}.output_path: dropped, there is no such key")
    return {key: value for key, value in section.items() if key != "output_path"}


def is_curriculum(section: Any) -> bool:
    return isinstance(section, Mapping) and set(section) >= _CURRICULUM


def is_sampler(section: Any) -> bool:
    return isinstance(section, Mapping) and any(key in section for key in _TYPES)


def curricula(by_behavior: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return lessons by parameter. Raises SettingsError where values and thresholds do not fit together."""
    lessons: dict[str, Any] = {}
    for behavior, section in by_behavior.items():
        if not is_curriculum(section) or not isinstance(section["parameters"], Mapping):
            expected = "expected a curriculum: measure, thresholds, min_lesson_length, signal_smoothing, parameters"
            raise SettingsError(f"{behavior}: got {section!r}, {expected}")
        for name, values in section["parameters"].items():
            if name in lessons:
                notes.append(f"{behavior}.parameters.{name}: dropped, another behavior's curriculum has it already")
                continue
            lessons[name] = {"curriculum": _lessons(behavior, name, section, values)}
    return lessons


def _lessons(behavior: str, name: str, section: Mapping[str, Any], values: Any) -> list[dict[str, Any]]:
    thresholds = section["thresholds"]
    if not isinstance(values, list) or not isinstance(thresholds, list) or len(values) != len(thresholds) + 1:
        raise SettingsError(
            f"{behavior}.parameters.{name}: got {values!r}, expected a list of numbers, one more than thresholds, "
            f"which is {thresholds!r}"
        )
    lessons: list[dict[str, Any]] = [{"name": f"Lesson{i}", "value": value} for i, value in enumerate(values)]
    shared = {key: section[key] for key in ("min_lesson_length", "signal_smoothing") if key in section}
    for lesson, threshold in zip(lessons, thresholds, strict=False):
        criteria = {"behavior": behavior, "measure": section["measure"], **shared, "threshold": threshold}
        lesson["completion_criteria"] = criteria
    return lessons


def named_lessons(parameter: Any) -> Any:
    """Rewrite lessons that were written as `Lesson0: {...}` for one release with today's `name: Lesson0`."""
    if not isinstance(parameter, Mapping) or not isinstance(parameter.get("curriculum"), list):
        return parameter
    return {"curriculum": [_named(lesson) for lesson in parameter["curriculum"]]}


def _named(lesson: Any) -> Any:
    if isinstance(lesson, Mapping) and len(lesson) == 1:
        ((name, content),) = lesson.items()
        if isinstance(content, Mapping) and "value" in content:
            return {"name": name, **content}
    return lesson


def samplers(by_parameter: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return samplers by parameter. Raises SettingsError for a distribution that does not exist."""
    result: dict[str, Any] = {}
    for name, section in by_parameter.items():
        if name in INTERVALS:
            notes.append(f"{name}: dropped, the environment draws anew at the beginning of each episode")
            continue
        if not is_sampler(section):
            raise SettingsError(f"{name}: got {section!r}, expected a sampler: sampler-type and its parameters")
        if "sampler_parameters" in section:
            result[name] = dict(section)
            continue
        parameters = {key: value for key, value in section.items() if key not in _TYPES}
        kind = str(next(section[key] for key in _TYPES if key in section)).replace("_", "").lower()
        if kind not in SAMPLERS:
            raise SettingsError(f"{name}.sampler-type: got {kind!r}, expected one of {', '.join(SAMPLERS)}")
        result[name] = {"sampler_type": kind, "sampler_parameters": parameters}
    return result


def refuse_old_layout(written: Mapping[str, Any], source: str) -> None:
    """Raise SettingsError with the way to the present layout if a file has the layout of before release 0.18.

    Also if behaviors of today stand on top: `behaviors:` is forgotten.
    """
    behaviors = written.get("behaviors")
    for name, section in behaviors.items() if isinstance(behaviors, Mapping) else ():
        keys = (
            [key for key in section if key in _FLAT] if isinstance(section, Mapping) and not is_today(section) else []
        )
        if len(keys) > 1 or "trainer" in keys or (isinstance(section, Mapping) and "output_path" in section):
            listed = ", ".join(keys or ["output_path"])
            raise SettingsError(f"behaviors.{name}: {listed}: {_OLD}: `jaxrl upgrade-config OLD > new.yaml`", source)
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
        "max_steps": f"more steps than are counted: the run goes on until {LARGEST_STEP}, or until Ctrl-C, which saves",
    }
    return result, [f"{', '.join(places)}: {advice[key]}" for key, places in paths.items()]


def _upgrade_behavior(written: Any, path: str, paths: dict[str, list[str]]) -> Any:
    if not isinstance(written, Mapping):
        return written
    behavior = dict(written)
    if "framework" in behavior:
        del behavior["framework"]
        paths.setdefault("framework", []).append(f"{path}.framework")
    steps = finite_number(behavior.get("max_steps"))
    if steps is not None and steps > LARGEST_STEP:
        behavior["max_steps"] = LARGEST_STEP
        paths.setdefault("max_steps", []).append(f"{path}.max_steps")
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
