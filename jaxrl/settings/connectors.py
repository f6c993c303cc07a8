"""Settings of connectors, one class per type; `jaxrl.connectors` applies them. No JAX here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, ValidationInfo

from jaxrl.settings.section import (
    Fraction,
    Integer,
    Location,
    Number,
    Section,
    Text,
    expected,
    problem,
    reject,
    reworded,
)

Of = Literal["observations", "rewards", "actions"]


class ConnectorSettings(Section):
    """Settings that every connector has."""

    remembers: ClassVar[bool] = False
    """True if it keeps data of an agent from one decision to the next, which Unity cannot do with an ONNX file."""
    standardizes: ClassVar[bool] = False
    """True if it standardizes observations, as `network_settings.normalize` does."""

    type: Text = Field(description="name of the connector")


class SensorsSettings(ConnectorSettings):
    """A connector of some sensors."""

    sensors: tuple[Text, ...] | None = Field(
        default=None, description="names of the sensors that it changes; null: all that it can"
    )


class NormalizeSettings(SensorsSettings):
    """Vector observations less their running mean, over their running deviation, within -5 and 5."""

    standardizes = True


class FlattenSettings(SensorsSettings):
    """Images and tables as vectors; images of whole numbers, 0 to 255, as 0 to 1."""


class OneHotSettings(ConnectorSettings):
    """A column of a vector that holds a whole number becomes one column for each of its values."""

    sensor: Text = Field(description="name of the sensor")
    column: Annotated[Integer, Field(ge=0)] = Field(description="which number of the vector, from 0")
    values: Annotated[Integer, Field(ge=2)] = Field(description="how many values it has: 0 to values - 1")


class ClipSettings(SensorsSettings):
    """Numbers below `low` become `low`, those above `high` become `high`; images in bytes if named, as 0 to 1."""

    of: Of = Field(default="observations", description="what is clipped: observations, rewards or actions")
    low: Number = Field(description="smallest number that is let through")
    high: Number = Field(description="largest number that is let through")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield problems of an empty range, and of sensors named for anything but observations."""
        if self.low >= self.high:
            yield ("low",), f"got {self.low:g}, expected less than high, which is {self.high:g}"
        yield from _no_sensors(self.of, self.sensors)


class ScaleSettings(SensorsSettings):
    """Numbers times a factor; images in bytes if named, as 0 to 1."""

    of: Literal["observations", "rewards"] = Field(default="observations", description="observations or rewards")
    factor: Number = Field(description="what they are multiplied by")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem if sensors are named for anything but observations."""
        yield from _no_sensors(self.of, self.sensors)


class MaskSettings(ConnectorSettings):
    """Sensors, or columns of one vector, that the policy does not see."""

    sensors: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(description="names of the sensors")
    columns: tuple[Annotated[Integer, Field(ge=0)], ...] | None = Field(
        default=None, description="which numbers of these vectors are hidden, from 0; null: the whole sensors"
    )


class FrameStackSettings(SensorsSettings):
    """The newest observations of an agent side by side, the oldest first, zeros before its episode began."""

    remembers = True

    frames: Annotated[Integer, Field(ge=2)] = Field(description="how many, the newest included")


class PreviousActionSettings(ConnectorSettings):
    """Additional sensor: the agent's last action as drawn, discrete branches one-hot; zeros at first."""

    remembers = True


class PreviousRewardSettings(ConnectorSettings):
    """Additional sensor: reward of the last action, own and group reward together; 0 at first."""

    remembers = True


class NormalizeRewardsSettings(ConnectorSettings):
    """Rewards over the running deviation of the discounted return that each agent has so far."""

    gamma: Fraction = Field(default=0.99, description="discount per step of that return")


class UnsquashSettings(ConnectorSettings):
    """Continuous actions from [-1, 1], as policies send them, to [low, high]."""

    low: Number | tuple[Number, ...] = Field(description="what -1 becomes: one number, or one for each dimension")
    high: Number | tuple[Number, ...] = Field(description="what 1 becomes: one number, or one for each dimension")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield problems if there are more ends than beginnings, or an end is not above its beginning."""
        low, high = (x if isinstance(x, tuple) else (x,) for x in (self.low, self.high))
        if len(low) != len(high) and min(len(low), len(high)) > 1:
            yield ("high",), f"got {len(high)} numbers, expected {len(low)}, as many as in low"
            return
        size = max(len(low), len(high))
        pairs = zip(low * (size // len(low)), high * (size // len(high)), strict=True)
        for i, (begin, end) in enumerate(pairs):
            if begin >= end:
                yield ("low",), f"got {begin:g} for dimension {i}, expected less than high, which is {end:g}"


CONNECTORS: dict[str, type[ConnectorSettings]] = {
    "clip": ClipSettings,
    "flatten": FlattenSettings,
    "frame_stack": FrameStackSettings,
    "mask": MaskSettings,
    "normalize": NormalizeSettings,
    "normalize_rewards": NormalizeRewardsSettings,
    "one_hot": OneHotSettings,
    "previous_action": PreviousActionSettings,
    "previous_reward": PreviousRewardSettings,
    "scale": ScaleSettings,
    "unsquash": UnsquashSettings,
}
"""Settings by type. `jaxrl.connectors.register` adds a user's own types."""


def _no_sensors(of: str, sensors: tuple[str, ...] | None) -> Iterator[tuple[Location, str]]:
    if of != "observations" and sensors is not None:
        yield ("sensors",), f"has no meaning with of: {of}, remove it"


def _typed(value: Any, info: ValidationInfo) -> tuple[ConnectorSettings, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise expected("a list of connectors, such as [{type: clip, low: -5, high: 5}]")
    connectors, problems = [], []
    for i, written in enumerate(value):
        if isinstance(written, ConnectorSettings):
            connectors.append(written)
            continue
        if not isinstance(written, Mapping) or "type" not in written:
            problems.append(problem(expected("a mapping with the key type, such as {type: flatten}"), (i,), written))
            continue
        name = written["type"]
        if not isinstance(name, str) or name not in CONNECTORS:
            problems.append(problem(expected(f"one of {', '.join(CONNECTORS)}"), (i, "type"), name))
            continue
        try:
            connectors.append(CONNECTORS[name].model_validate(written, context=info.context))
        except ValidationError as error:
            problems += reworded(error, (i,))
    reject("connectors", problems)
    return tuple(connectors)


Connectors = Annotated[tuple[SerializeAsAny[ConnectorSettings], ...], BeforeValidator(_typed)]
"""Settings of the connectors of a behavior, in the order in which they are passed; null: none."""
