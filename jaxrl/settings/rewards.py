"""Settings of reward signals, one class per signal; each signal is one reward stream (axis R)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, ValidationInfo

from jaxrl.settings.networks import NetworkSettings
from jaxrl.settings.section import (
    VARIABLE,
    Boolean,
    Fraction,
    NonNegative,
    Number,
    Section,
    Text,
    expected,
    problem,
    reject,
    reworded,
    unknown_key,
)


class RewardSignalSettings(Section):
    """What every reward signal has."""

    gamma: Fraction = Field(default=0.99, description="discount per step", json_schema_extra=VARIABLE)
    strength: Number = Field(default=1.0, description="factor on the signal's reward", json_schema_extra=VARIABLE)
    network_settings: NetworkSettings = Field(
        default=NetworkSettings(), description="the signal's own network, if it has one"
    )


class ExtrinsicSettings(RewardSignalSettings):
    """The environment's own reward."""


class CuriositySettings(RewardSignalSettings):
    """Intrinsic curiosity: the error of a learned forward model."""

    learning_rate: NonNegative = Field(default=3e-4, description="Adam step size of the signal's networks")


class GAILSettings(RewardSignalSettings):
    """Likeness to demonstrations, judged by a discriminator."""

    demo_path: Text = Field(description="demonstration file or folder")
    learning_rate: NonNegative = Field(default=3e-4, description="Adam step size of the discriminator")
    use_actions: Boolean = Field(default=False, description="the discriminator sees actions, not observations alone")
    use_vail: Boolean = Field(default=False, description="variational bottleneck in the discriminator")


class RNDSettings(RewardSignalSettings):
    """Random network distillation: the error against a fixed random network."""

    learning_rate: NonNegative = Field(default=1e-4, description="Adam step size of the predictor")


SIGNALS: Mapping[str, type[RewardSignalSettings]] = {
    "extrinsic": ExtrinsicSettings,
    "gail": GAILSettings,
    "curiosity": CuriositySettings,
    "rnd": RNDSettings,
}


def _typed(value: Any, info: ValidationInfo) -> dict[str, RewardSignalSettings]:
    if not isinstance(value, Mapping) or not any(written is not None for written in value.values()):
        raise expected(f"a mapping with at least one of {', '.join(SIGNALS)}")
    signals, problems = {}, []
    for name, written in value.items():
        if name not in SIGNALS:
            problems.append(problem(unknown_key(name, SIGNALS), (name,), written))
            continue
        if written is None:
            continue
        try:
            signals[name] = SIGNALS[name].model_validate(written, context=info.context)
        except ValidationError as error:
            problems += reworded(error, (name,))
    reject("reward_signals", problems)
    return signals


RewardSignals = Annotated[dict[str, SerializeAsAny[RewardSignalSettings]], BeforeValidator(_typed)]
"""Signal settings by name, in written order, the order of the reward streams; null takes an inherited one away."""
