"""A behavior's observations and actions as they stand in `checkpoint.json`, and back. No JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

_PROPERTIES = "dimension_property"


def spec_to_json(spec: BehaviorSpec) -> dict[str, Any]:
    """Observations and action sizes of a behavior as plain JSON values.

    The dtype is noted where it is not float32, the properties of axes where the sensor has several.
    """
    return {
        "observations": [_sensor(item) for item in spec.observations],
        "continuous_actions": int(spec.action.continuous_size),
        "discrete_branches": [int(size) for size in spec.action.discrete_branches],
    }


def spec_from_json(written: Mapping[str, Any]) -> BehaviorSpec:
    """The behavior that was written."""
    found = [
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
    return BehaviorSpec(tuple(found), action)


def _sensor(item: ObservationSpec) -> dict[str, Any]:
    told: dict[str, Any] = {"name": item.name, "shape": list(item.shape), "type": item.observation_type.name.lower()}
    if item.dtype != "float32":
        told["dtype"] = item.dtype
    if len(item.shape) > 1:
        told[_PROPERTIES] = [DimensionProperty(axis).name.lower() for axis in item.dimension_property]
    return told
