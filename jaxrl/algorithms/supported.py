"""What a run is refused for before it starts: what jaxrl does not train yet, and demonstrations of no use. No JAX."""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.rewards import REWARD_SIGNALS
from jaxrl.settings import BehaviorSettings, RunSettings, SettingsError
from jaxrl.settings.behavior import BehavioralCloningSettings
from jaxrl.settings.rewards import GAILSettings, OwnSignalSettings


def refuse_unsupported(settings: RunSettings, source: str = "") -> None:
    """Raise SettingsError if a feature is in use that jaxrl does not train yet; `source` is where it was written."""
    problems = refused(settings)
    if problems:
        raise SettingsError(problems, source)


def refused(settings: RunSettings) -> list[str]:
    """One text, path first, for each reason not to begin; empty if there is none."""
    return [*unsupported(settings), *undemonstrated(settings)]


def undemonstrated(settings: RunSettings) -> Iterator[str]:
    """One text for each `demo_path` whose files cannot be read."""
    for path, behavior in settings.every_behavior():
        sections = {f"reward_signals.{name}": signal for name, signal in behavior.reward_signals.items()}
        for key, section in {**sections, "behavioral_cloning": behavior.behavioral_cloning}.items():
            if isinstance(section, GAILSettings | BehavioralCloningSettings):
                from jaxrl.demonstrations import DemonstrationError, remembered  # needs the protocol's messages
                from jaxrl.demonstrations.columns import keep_in

                keep_in(settings.checkpoint_settings.results_dir)
                try:
                    remembered(section.demo_path)
                except DemonstrationError as error:
                    yield f"{path}.{key}.demo_path: {error}"


def unsupported(settings: RunSettings) -> list[str]:
    """One text, path first, for each feature in use that jaxrl does not train yet; empty if it trains all of them."""
    return [text for path, behavior in settings.every_behavior() for text in untrained(behavior, f"{path}.")]


def refuse_untrained(settings: BehaviorSettings, source: str) -> None:
    """The same for settings of one behavior that were made in Python; `source` is the function that was given them."""
    problems = list(untrained(settings))
    if problems:
        raise SettingsError(problems, source)


def untrained(behavior: BehaviorSettings, path: str = "") -> Iterator[str]:
    """One text for each feature of one behavior that jaxrl does not train yet; `path` stands before its keys."""
    for signal, section in behavior.reward_signals.items():
        if signal not in REWARD_SIGNALS and not isinstance(section, OwnSignalSettings):
            yield f"{path}reward_signals.{signal}: this signal is not supported yet: remove it"


def refuse_foreign(name: str, settings: BehaviorSettings) -> None:
    """Raise SettingsError where `make_<name>` is given hyperparameters that are not those of its algorithm."""
    wanted, given = TRAINER_TYPES[name].hyperparameters, settings.hyperparameters
    missing = [key for key in wanted.model_fields if not hasattr(given, key)]
    if missing:
        raise SettingsError(
            f"hyperparameters: those of {settings.trainer_type} lack {', '.join(missing)}: "
            f"make the settings with make_settings({name!r}, ...)",
            f"make_{name}",
        )
