"""Converts a behavior's observations and actions to plain values of `checkpoint.json`, and back. No JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

_PROPERTIES = "dimension_property"


def spec_to_json(spec: BehaviorSpec) -> dict[str, Any]:
    """Convert observations and action sizes of a behavior to plain JSON values.

    The dtype is noted where it is not float32, the properties of axes where the sensor has several.
    """
    return {
        "observations": [_sensor(item) for item in spec.observations],
        "continuous_actions": int(spec.action.continuous_size),
        "discrete_branches": [int(size) for size in spec.action.discrete_branches],
    }


def spec_from_json(written: Mapping[str, Any]) -> BehaviorSpec:
    """Convert such values back to the spec of the behavior."""
    observations = [
        ObservationSpec(
            name=item["name"],
            shape=tuple(item["shape"]),
            dimension_property=tuple(DimensionProperty[name.upper()] for name in item.get(_PROPERTIES, ())),
            observation_type=ObservationType[item["type"].upper()],
            dtype=item.get("dtype", "float32"),
        )
        for item in written["observations"]
    ]
    action = ActionSpec(written["continuous_actions"], tuple(written["discrete_branches"]))
    return BehaviorSpec(tuple(observations), action)


def _sensor(item: ObservationSpec) -> dict[str, Any]:
    values: dict[str, Any] = {"name": item.name, "shape": list(item.shape), "type": item.observation_type.name.lower()}
    if item.dtype != "float32":
        values["dtype"] = item.dtype
    if len(item.shape) > 1:
        values[_PROPERTIES] = [DimensionProperty(axis).name.lower() for axis in item.dimension_property]
    return values
