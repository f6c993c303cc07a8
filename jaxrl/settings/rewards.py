"""Settings of reward signals, one class per signal; each signal is one reward signal (axis R)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails

from jaxrl.own_code import split_address
from jaxrl.plugins import Kind, load, offers
from jaxrl.settings.demonstrations import DemoActions
from jaxrl.settings.networks import NetworkSettings
from jaxrl.settings.section import (
    VARIABLE,
    Boolean,
    Fraction,
    NonNegative,
    Number,
    Section,
    Text,
    conflict,
    expected,
    problem,
    reject,
    reworded,
    unknown_key,
    unwritten,
)
from jaxrl.trust import UntrustedError
from jaxrl.types import JaxrlError

OWN_SETTINGS = "__jaxrl_reward_signal__"
"""Attribute of a function that makes a user's own signal: the class of its settings."""
_STREAM = re.compile(r"[a-z][a-z0-9_]*")
_ADVICE = "a signal of your own is NAME: {type: my_file.py:make_x}"


class RewardSignalSettings(Section):
    """Settings that every reward signal has."""

    gamma: Fraction = Field(default=0.99, description="discount per step", json_schema_extra=VARIABLE)
    strength: Number = Field(default=1.0, description="factor on the signal's reward", json_schema_extra=VARIABLE)
    episodic: Boolean | None = unwritten(
        None,
        "whether the stream ends with an episode, or goes on with the value of its last state; default: it "
        "ends, but that of curiosity and rnd, as in ML-Agents",
    )
    network_settings: NetworkSettings = Field(
        default=NetworkSettings(), description="the signal's own network, if it has one"
    )


class ExtrinsicSettings(RewardSignalSettings):
    """The environment's own reward."""


class CuriositySettings(RewardSignalSettings):
    """Intrinsic curiosity: the error of a learned forward model."""

    learning_rate: NonNegative = Field(default=3e-4, description="Adam step size of the signal's networks")
    normalize_rewards: Boolean = Field(default=False, description="divide rewards by their running deviation")


class GAILSettings(RewardSignalSettings):
    """Likeness to demonstrations, judged by a discriminator."""

    demo_path: Text = Field(description="demonstration file or folder")
    demo_actions: DemoActions = Field(
        default="detect",
        description="where files have the action of an observation; detect: as who wrote them does; as_recorded: "
        "beside it, as ML-Agents reads all files; next_record: in the agent's next record",
    )
    learning_rate: NonNegative = Field(
        default=3e-4, description="Adam step size of the discriminator", json_schema_extra=VARIABLE
    )
    use_actions: Boolean = Field(default=False, description="the discriminator sees actions, not observations alone")
    use_vail: Boolean = Field(default=False, description="variational bottleneck in the discriminator")
    whole_penalty: Boolean = Field(default=False, description="gradient penalty on all inputs, not the first alone")
    gradient_penalty: NonNegative = Field(
        default=10.0,
        description="factor of that penalty; the larger, the less the discriminator tells states apart that lie near "
        "each other",
        json_schema_extra=VARIABLE,
    )
    reward_form: Literal["positive", "logit", "negative"] = Field(
        default="positive",
        description="of D, the estimate: positive -ln(1 - D), as in ML-Agents, pays who lives longer; negative ln D "
        "who is done sooner; logit ln D - ln(1 - D) neither",
    )


class RNDSettings(RewardSignalSettings):
    """Random network distillation: the error against a fixed random network."""

    learning_rate: NonNegative = Field(default=1e-4, description="Adam step size of the predictor")
    normalize_rewards: Boolean = Field(default=False, description="divide rewards by their running deviation")


class OwnSignalSettings(RewardSignalSettings):
    """A signal of one's own. Subclass it for keys of your own, and name the subclass in `jaxrl.reward_signal`."""

    type: Text | None = unwritten(
        None,
        "your own: my_file.py:make_x, my_package.module:make_x, or the name of one that a package offers; "
        "default: the name of the stream",
    )


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
        kind = SIGNALS.get(name) or _own(name, written)
        if not isinstance(kind, type):
            problems.append(kind)
            continue
        if written is None:
            continue
        try:
            signals[name] = kind.model_validate(written, context=info.context)
        except ValidationError as error:
            problems += reworded(error, (name,))
    if signals and "extrinsic" not in signals and all(signal.strength == 0 for signal in signals.values()):
        name = next(iter(signals))
        problems.append(problem(conflict("got 0, expected another number: nothing else pays"), (name, "strength"), 0))
    reject("reward_signals", problems)
    return signals


def _own(name: Any, written: Any) -> type[RewardSignalSettings] | InitErrorDetails:
    """Return the settings class of a signal that is none of jaxrl's, which is imported; or the problem with it."""
    if split_address(name) is not None:
        return problem(
            conflict(f"a stream has a name, which statistics show: write NAME: {{type: {name}}}"), (name,), {}
        )
    if isinstance(written, OwnSignalSettings):
        return type(written)
    asked = written.get("type") if isinstance(written, Mapping) else None
    known = isinstance(name, str) and offers(Kind.REWARD_SIGNAL, name)
    if asked is None and not known and written is not None:
        return problem(unknown_key(name, SIGNALS, advice=_ADVICE), (name,), written)
    if not (isinstance(name, str) and _STREAM.fullmatch(name)):
        return problem(conflict("expected small letters, digits and _: statistics show the name"), (name,), written)
    if written is None:
        return OwnSignalSettings
    try:
        make = load(Kind.REWARD_SIGNAL, str(name if asked is None else asked))
    except UntrustedError:
        raise
    except JaxrlError as error:
        return problem(conflict(str(error)), (name, "type"), asked)
    if not callable(make):
        text = f"{asked} is a {type(make).__name__}, expected a function (spec, settings)"
        return problem(conflict(text), (name, "type"), asked)
    return getattr(make, OWN_SETTINGS, OwnSignalSettings)


RewardSignals = Annotated[dict[str, SerializeAsAny[RewardSignalSettings]], BeforeValidator(_typed)]
"""Signal settings by name, in written order, the order of the reward signals; null takes an inherited one away."""
