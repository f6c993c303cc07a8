"""Loads settings from a file and flags, and writes settings back to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from jaxrl import trust
from jaxrl.settings.behavior import TYPES, BehaviorSettings, Hyperparameters
from jaxrl.settings.environment_parameters import Curriculum, repeated_samplers
from jaxrl.settings.ignored_keys import drop_ignored
from jaxrl.settings.inheritance import EVERY_LISTED, expand, inherit, is_written, merge, settle_start
from jaxrl.settings.original import as_comment, split
from jaxrl.settings.reading import read_yaml
from jaxrl.settings.run import RunSettings
from jaxrl.settings.section import Location, Section, SettingsError, dotted, nearest, problems_of
from jaxrl.settings.upgrade import refuse_old_layout, upgrade

logger = logging.getLogger(__name__)
_LEAST_EPSILON = 0.1
_RATES = ("restarts_rate_limit_n", "restarts_rate_limit_period_s")


def load_run_settings(
    path: str | Path | None,
    overrides: Mapping[str, Any],
    hyperparameter_types: Mapping[str, type[Hyperparameters]],
    *,
    of_folder: bool = False,
    strict: bool = False,
) -> RunSettings:
    """Load the settings of a run: `overrides` over the file at `path` over built-in defaults.

    `overrides` is shaped like a file and holds only what was really given; behavior `*` stands for each behavior that
    the file lists. `hyperparameter_types` maps each trainer type to the class of its hyperparameters. Without a file,
    every behavior is trained with built-in defaults, after a warning. What is odd but usable is logged as a warning.
    The file is one that the user wrote or chose, so that code which it names is imported; `of_folder`: it lies in the
    folder of a run, whoever made that (`jaxrl.trust`), and nobody is warned of what was trained. `strict`: unknown keys
    that ML-Agents passes over are refused, not warned of.
    Raises SettingsError, with all mistakes of the file at once, if anything is wrong; UntrustedError.
    """
    source = "command line" if path is None else str(Path(path).absolute())
    doubled: list[str] = []
    written = {} if path is None else read_yaml(path, doubled)
    if not of_folder:
        trust.ours(written, overrides)
    refuse_old_layout(written, source)
    if doubled:
        advice = "check indentation and colons, or run a YAML linter"
        raise SettingsError([f"YAML error at {text}; {advice}" for text in doubled], source)
    written, ignored = (written, []) if strict else drop_ignored(written)
    expanded_overrides = expand(overrides, written)
    resolved, warnings = _resolve(written, overrides, expanded_overrides, hyperparameter_types)
    warnings += ignored
    if path is None:
        warnings.append("no configuration file: every behavior is trained with built-in defaults (trainer_type ppo)")
        resolved.setdefault("default_settings", {})
    elif not resolved.get("behaviors") and resolved.get("default_settings") is None:
        warnings.append("the file lists no behavior and has no default_settings")
    try:
        settings = RunSettings.model_validate(resolved, context={TYPES: hyperparameter_types})
    except ValidationError as error:
        raise SettingsError(_with_origin(problems_of(error), written, expanded_overrides), source) from None
    for text in () if of_folder else warnings + remarks(settings):
        logger.warning(text)
    return settings


def _resolve(
    written: Mapping[str, Any],
    overrides: Mapping[str, Any],
    given: Mapping[str, Any],
    types: Mapping[str, type[Hyperparameters]],
) -> tuple[dict[str, Any], list[str]]:
    """Merge file, flags and `default_settings` into one mapping. Return it with the texts of warnings.

    `given` are the flags with each behavior written out.
    """
    warnings = []
    if EVERY_LISTED in overrides.get("behaviors", {}) and not written.get("behaviors"):
        warnings.append("--deterministic concerns behaviors that the file lists; it lists none, so it has no effect")
    elif EVERY_LISTED in overrides.get("behaviors", {}) and written.get("default_settings") is not None:
        warnings.append("--deterministic concerns listed behaviors alone, not those that take default_settings")
    resolved = merge(written, given)
    default, of_default = upgrade({key: resolved[key] for key in ("default_settings",) if key in resolved})
    resolved, deprecated = upgrade(inherit({**resolved, **default}, types))
    resolved, dropped = settle_start(resolved, overrides)
    return resolved, warnings + of_default + deprecated + dropped


def _with_origin(
    problems: list[tuple[Location, str]], written: Mapping[str, Any], overrides: Mapping[str, Any]
) -> list[str]:
    """Write out the problems with the origin of their values; those of `default_settings` appear once."""
    default = written.get("default_settings")
    in_default = {(location[1:], _detail(text)) for location, text in problems if location[0] == "default_settings"}
    texts = []
    for location, text in problems:
        rest = location[2:]
        inherited = location[0] == "behaviors" and not is_written(written, location) and is_written(default, rest)
        if inherited and rest and (rest, _detail(text)) in in_default:
            continue
        if is_written(overrides, location):
            text += " (given on the command line)"
        elif inherited and rest:
            text += " (inherited from default_settings)"
        texts.append(text)
    return texts


def _detail(text: str) -> str:
    return text.partition(": ")[2]


@contextmanager
def without_remarks() -> Iterator[None]:
    """Silence warnings about odd but usable settings, for files that are read again or by another command."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def behavior_settings_for(settings: RunSettings, behavior_name: str) -> BehaviorSettings:
    """Return the settings of a behavior that the environment shows: its own entry, or else `default_settings`.

    A team part (`Name?team=1`) is ignored. Raises SettingsError if the behavior has neither.
    """
    name = behavior_name.partition("?")[0]
    settings_of_behavior = settings.behaviors.get(name, settings.default_settings)
    if settings_of_behavior is not None:
        return settings_of_behavior
    match = nearest(name, settings.behaviors)
    listed = ", ".join(settings.behaviors) or "none"
    raise SettingsError(
        f"behaviors.{name}: the environment has this behavior, the configuration does not (it lists: {listed}); "
        + (f"did you mean {match}? " if match else "")
        + f"Add an entry `{name}:` below `behaviors:`, or a `default_settings:` section for all unlisted behaviors"
    )


def to_yaml(settings: RunSettings) -> str:
    """Write all eight sections with all defaults, keys in schema order; reading the text gives equal settings.

    Keys that ML-Agents does not know stand in a comment at the end, which it passes over and jaxrl reads.
    """
    dump = settings.model_dump(mode="json")
    for name, behavior in dump["behaviors"].items():
        _spell_out(behavior, dump["default_settings"] or {}, settings.behaviors[name])
    theirs, ours = split(dump)
    return yaml.safe_dump(theirs, sort_keys=False, allow_unicode=True) + as_comment(ours)


def _spell_out(own: dict[str, Any], default: Mapping[str, Any], section: Section | Mapping[str, Any]) -> None:
    """Write into `own`, the dump of `section`, keys of `default` that it lacks, which would be inherited otherwise.

    It lacks keys that are not written at their usual value; names (reward signals, stop rules) get null.
    """
    for key, inherited in default.items():
        if isinstance(section, Section) and key not in type(section).model_fields:
            continue  # a hyperparameter of another trainer type
        value: Any = getattr(section, key) if isinstance(section, Section) else section.get(key)
        own.setdefault(key, dict(value) if isinstance(value, Mapping) else value)
        if isinstance(inherited, dict) and isinstance(own[key], dict):
            _spell_out(own[key], inherited, value)


def remarks(settings: RunSettings) -> list[str]:
    """Return one text, path first, for every setting that is allowed but probably not intended."""
    texts = [text for path, behavior in settings.every_behavior() for text in _behavior_remarks(path, behavior)]
    for name, parameter in (settings.environment_parameters or {}).items():
        if isinstance(parameter, Curriculum) and parameter.curriculum[-1].completion_criteria is not None:
            path = f"environment_parameters.{name}.curriculum[{len(parameter.curriculum) - 1}]"
            texts.append(f"{path}.completion_criteria: the last lesson never ends, this has no effect")
    options, usual = settings.env_settings, type(settings.env_settings)()
    for location, seed in repeated_samplers(settings.environment_parameters) if options.num_envs > 1 else ():
        path = dotted(("environment_parameters", *location))
        texts.append(
            f"{path}: got {seed}, with which all {options.num_envs} environments draw the same numbers: leave it out, "
            "and each draws its own"
        )
    changed = [name for name in _RATES if getattr(options, name) != getattr(usual, name)]
    if changed and not options.max_lifetime_restarts:
        names = ", ".join(f"env_settings.{name}" for name in changed)
        texts.append(f"{names}: no effect beside env_settings.max_lifetime_restarts: 0, which allows no restart")
    if options.editor_wait != usual.editor_wait and options.env_path is not None:
        texts.append(f"env_settings.editor_wait: no effect with env_path {options.env_path}: it is for the Editor")
    if settings.checkpoint_settings.train_model:
        texts.append("checkpoint_settings.train_model: deprecated, has no effect: training is the default")
    return texts


def _behavior_remarks(path: str, behavior: BehaviorSettings) -> Iterator[str]:
    hyperparameters, self_play = behavior.hyperparameters, behavior.self_play
    if hyperparameters.batch_size > hyperparameters.buffer_size:
        yield (
            f"{path}.hyperparameters.batch_size: {hyperparameters.batch_size} is more than buffer_size, "
            f"which is {hyperparameters.buffer_size}: a minibatch cannot be filled"
        )
    epsilon = getattr(hyperparameters, "epsilon", _LEAST_EPSILON)
    if epsilon < _LEAST_EPSILON and getattr(hyperparameters, "epsilon_schedule", "constant") == "linear":
        yield (
            f"{path}.hyperparameters.epsilon: {epsilon} grows under epsilon_schedule: linear, "
            f"which ends at {_LEAST_EPSILON}; write epsilon_schedule: constant"
        )
    if self_play is not None and self_play.team_change > behavior.max_steps:
        yield (
            f"{path}.self_play.team_change: got {self_play.team_change}, expected at most max_steps, which is "
            f"{behavior.max_steps}: the learning team never changes; lower it (it is 5 x save_steps unless given)"
        )
