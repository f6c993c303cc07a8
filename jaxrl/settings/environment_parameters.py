"""Environment parameters: constants, samplers drawn from by the environment, and curricula of lessons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from jaxrl.settings.records import TRAINERS_FOLDERS
from jaxrl.settings.section import Boolean, Integer, Location, NonNegative, Number, Section, Text, expected, nearest


class SamplerParameters(Section):
    """Settings that every sampler has."""

    seed: Integer = Field(
        default=-1,
        ge=-(2**31),
        lt=2**31,
        description="-1: each worker has its own, the first the run's seed plus the number of this sampler",
    )


class ConstantSampler(SamplerParameters):
    """Always the same value."""

    value: Number = Field(default=0.0, description="the value")


class UniformSampler(SamplerParameters):
    """Uniform between two bounds."""

    min_value: Number = Field(default=0.0, description="lower bound")
    max_value: Number = Field(default=1.0, description="upper bound")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem if the bounds are not ordered."""
        if self.min_value > self.max_value:
            yield ("min_value",), f"got {self.min_value}, expected at most max_value, which is {self.max_value}"


class GaussianSampler(SamplerParameters):
    """Normally distributed."""

    mean: Number = Field(default=1.0, description="mean")
    st_dev: NonNegative = Field(default=1.0, description="standard deviation")


def _pair(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise expected("a pair of numbers: [lower bound, upper bound]")
    return tuple(value)


class MultiRangeUniformSampler(SamplerParameters):
    """Uniform over several intervals."""

    intervals: tuple[Annotated[tuple[Number, Number], BeforeValidator(_pair)], ...] = Field(
        default=((0.0, 1.0),), min_length=1, description="[low, high] each"
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem for each interval whose bounds are not ordered."""
        for index, (low, high) in enumerate(self.intervals):
            if low > high:
                yield ("intervals", index), f"got [{low}, {high}], expected the lower bound first"


SAMPLERS: Mapping[str, type[SamplerParameters]] = {
    "constant": ConstantSampler,
    "uniform": UniformSampler,
    "gaussian": GaussianSampler,
    "multirangeuniform": MultiRangeUniformSampler,
}


class Sampler(Section):
    """A distribution that the environment draws from at each episode reset."""

    sampler_type: Literal["constant", "uniform", "gaussian", "multirangeuniform"] = Field(description="distribution")
    sampler_parameters: SerializeAsAny[SamplerParameters] = Field(description="of the distribution")

    @field_validator("sampler_parameters", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> SamplerParameters:
        kind = SAMPLERS.get(info.data.get("sampler_type", ""), SamplerParameters)
        return SamplerParameters() if kind is SamplerParameters else kind.model_validate(value)


def _plain(value: Section | float) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Section) else value


def _constant_or_sampler(value: Any) -> Sampler | float:
    if isinstance(value, Mapping | Sampler):
        return Sampler.model_validate(value)
    try:
        return _NUMBER.validate_python(value)
    except ValidationError:
        raise expected("a number, or a mapping with sampler_type and sampler_parameters") from None


_NUMBER = TypeAdapter(Number)
ConstantOrSampler = Annotated[Sampler | float, PlainValidator(_constant_or_sampler), PlainSerializer(_plain)]


MEASURES = ("reward", "progress", "group_reward", "elo")
"""Measures that can end a lesson, beside the tags of statistics."""
_OWN_TAGS = {"Environment/Cumulative Reward": "reward", "Environment/Group Cumulative Reward": "group_reward"}
_ELO = "Self-play/ELO"


def _measure(value: str) -> str:
    """Return a measure, or the tag of a statistic that an environment or a callback reports, as it is; else raise."""
    if value in MEASURES:
        return value
    known = ", ".join(MEASURES)
    if value == _ELO:
        raise expected("elo, which is measured behind this tag")
    if value in _OWN_TAGS:
        raise expected(f"{_OWN_TAGS[value]}, which is measured from the episodes behind this tag")
    if not value.strip() or value.startswith(TRAINERS_FOLDERS) or value == "Environment/Episode Length":
        raise expected(f"{known}, or the tag of a statistic that the environment or a callback reports")
    near = nearest(value.lower(), MEASURES)
    if near and "/" not in value:
        raise expected(f"{known}, or the tag of a statistic (did you mean {near}?)")
    return value


class CompletionCriteria(Section):
    """When a lesson is over."""

    behavior: Text = Field(description="behavior whose episodes and progress count")
    measure: Annotated[Text, AfterValidator(_measure)] = Field(
        default="reward",
        description="reward: mean episode reward; progress: step / max_steps; group_reward: mean reward of a team's "
        "episode; elo: its rating in self-play; or the tag of a statistic that the environment or a callback reports: "
        "its mean since the last look",
    )
    min_lesson_length: Integer = Field(default=0, ge=0, description="episodes that a lesson lasts at least")
    signal_smoothing: Boolean = Field(default=True, description="smooth the reward: 0.25 previous + 0.75 mean")
    threshold: Number = Field(default=0.0, description="the measure must exceed it")
    require_reset: Boolean = Field(default=False, description="reset the environment when the lesson is over")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem if the threshold of progress, which is a share, is not within 0 to 1."""
        if self.measure == "progress" and not 0 <= self.threshold <= 1:
            yield ("threshold",), f"got {self.threshold}, expected 0 to 1 with measure: progress"


class Lesson(Section):
    """Stage of a curriculum."""

    name: Text = Field(description="shown in the log")
    value: ConstantOrSampler = Field(description="the parameter's value in this lesson")
    completion_criteria: CompletionCriteria | None = Field(
        default=None, description="required for all but the last lesson"
    )


class Curriculum(Section):
    """Lessons, taken in order."""

    curriculum: tuple[Lesson, ...] = Field(min_length=1, description="the lessons")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem for each lesson but the last that has no end."""
        for index, lesson in enumerate(self.curriculum[:-1]):
            if lesson.completion_criteria is None:
                location = ("curriculum", index, "completion_criteria")
                yield location, "this key is required for every lesson but the last"


def _parameter(value: Any) -> Curriculum | Sampler | float:
    if isinstance(value, Curriculum) or (isinstance(value, Mapping) and "curriculum" in value):
        return Curriculum.model_validate(value)
    keys = {"sampler_type", "sampler_parameters"} & set(value) if isinstance(value, Mapping) else ()
    if isinstance(value, bool) or not (keys or isinstance(value, Sampler | int | float | str)):
        raise expected("a number, or a mapping with curriculum, or one with sampler_type and sampler_parameters")
    return _constant_or_sampler(value)


def repeated_samplers(parameters: Mapping[str, Any] | None) -> Iterator[tuple[Location, int]]:
    """Yield where samplers with a seed of their own stand, below `environment_parameters`, and the seed.

    Every worker draws the same numbers from such a one.
    """
    for name, parameter in (parameters or {}).items():
        lessons = parameter.curriculum if isinstance(parameter, Curriculum) else ()
        values: dict[Location, Any] = {(name, "curriculum", i, "value"): of.value for i, of in enumerate(lessons)}
        for location, value in (values or {(name,): parameter}).items():
            if isinstance(value, Sampler) and not isinstance(value.sampler_parameters, ConstantSampler):
                seed = value.sampler_parameters.seed
                if seed != -1:
                    yield (*location, "sampler_parameters", "seed"), seed


def judged_behaviors(parameters: Mapping[str, Any] | None) -> Iterator[tuple[Location, CompletionCriteria]]:
    """Yield the location of each completion criteria, below `environment_parameters`, and the criteria."""
    for name, parameter in (parameters or {}).items():
        for index, lesson in enumerate(parameter.curriculum if isinstance(parameter, Curriculum) else ()):
            if lesson.completion_criteria is not None:
                yield (name, "curriculum", index, "completion_criteria"), lesson.completion_criteria


EnvironmentParameter = Annotated[Curriculum | Sampler | float, PlainValidator(_parameter), PlainSerializer(_plain)]
"""A constant, a sampler or a curriculum."""


def constants(parameters: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the parameters that are one number for the whole run, by name."""
    numbers = {}
    for name, parameter in (parameters or {}).items():
        only = isinstance(parameter, Curriculum) and len(parameter.curriculum) == 1
        value = parameter.curriculum[0].value if only else parameter
        if isinstance(value, float):
            numbers[name] = value
        elif isinstance(value, Sampler) and isinstance(value.sampler_parameters, ConstantSampler):
            numbers[name] = value.sampler_parameters.value
    return numbers
