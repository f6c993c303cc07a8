"""Settings of one behavior without a file, for scripts and notebooks. No JAX here."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from jaxrl.algorithms.hyperparameters import HYPERPARAMETER_TYPES
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.behavior import TYPES
from jaxrl.settings.section import describe


def make_settings(trainer_type: str, **written: Any) -> BehaviorSettings:
    """What a configuration file would give a behavior: `written` holds its keys, nested ones as dicts.

        make_settings("poca", max_steps=300_000, hyperparameters={"batch_size": 512})

    Raises SettingsError, with all mistakes at once.
    """
    try:
        return BehaviorSettings.model_validate(
            {"trainer_type": trainer_type, **written}, context={TYPES: HYPERPARAMETER_TYPES}
        )
    except ValidationError as error:
        raise SettingsError([text for _, text in describe(error)], "make_settings") from None
