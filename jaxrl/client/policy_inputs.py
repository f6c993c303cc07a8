"""Checks a caller's inputs of a policy against its behavior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import BehaviorSpec, ObservationSpec, PolicyError

IMAGE_AXES = 3


class Shown(NamedTuple):
    """Inputs of a policy, with the caller's axes `...`. Arrays are numpy's where the caller's are."""

    obs: tuple[Any, ...]  # [..., *shape]
    action_mask: Any  # bool [..., M]
    lead: tuple[int, ...]  # the axes `...`


def shown(spec: BehaviorSpec, obs: Any, action_mask: Any) -> Shown:
    """Check observations [..., *shape], in the order of the spec or by sensor name; one array for a single sensor."""
    arrays = tuple(_array(sensor, x) for sensor, x in zip(spec.observations, _in_order(spec, obs), strict=True))
    leads = [_lead(sensor, x.shape) for sensor, x in zip(spec.observations, arrays, strict=True)]
    if any(lead != leads[0] for lead in leads):
        raise PolicyError(f"observations: their leading axes differ: {', '.join(map(str, leads))}")
    wanted = (*leads[0], spec.action.mask_size)
    mask = np.ones(wanted, bool) if action_mask is None else _as_array(action_mask).astype(bool)
    if mask.shape != wanted:
        raise PolicyError(f"action_mask: got shape {mask.shape}, expected {wanted}: True where allowed")
    return Shown(arrays, mask, leads[0])


def per_agent(name: str, given: Any, lead: tuple[int, ...], dtype: Any) -> Any:
    """Return an array [...]; one value counts for all agents."""
    array = _as_array(given).astype(dtype)
    if array.shape not in ((), lead):
        raise PolicyError(f"{name}: got shape {array.shape}, expected {lead}")
    return array if array.shape == lead else np.full(lead, array)


def typed_key(key: Any) -> jax.Array:
    """Return a whole number, a typed key or one of the old kind (uint32 [2]) as a typed key."""
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))


def _in_order(spec: BehaviorSpec, obs: Any) -> list[Any]:
    sensors = spec.observations
    names = [sensor.name for sensor in sensors]
    if isinstance(obs, Mapping):
        if sorted(obs) != sorted(names):
            raise PolicyError(f"observations: got {', '.join(map(str, obs)) or 'none'}, expected {', '.join(names)}")
        return [obs[name] for name in names]
    if not (isinstance(obs, tuple) or (isinstance(obs, list) and len(sensors) > 1)):
        obs = (obs,)
    if len(obs) != len(sensors):
        raise PolicyError(f"observations: got {len(obs)}, expected {len(sensors)}: {', '.join(names)}")
    return list(obs)


def _array(sensor: ObservationSpec, x: Any) -> Any:
    """Return the array in the policy's dtype: bytes stay bytes if the sensor is an image, 255 stands for 1."""
    x = _as_array(x)
    if sensor.dtype == "uint8" and x.dtype != np.uint8:
        raise PolicyError(f"observation {sensor.name}: got {x.dtype}, expected uint8, where 255 stands for 1")
    image = len(sensor.shape) == IMAGE_AXES and x.dtype == np.uint8
    return x if image or sensor.dtype == "uint8" else x.astype(np.float32)


def _as_array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else np.asarray(x)


def _lead(sensor: ObservationSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    axes = len(sensor.shape)
    if len(shape) < axes or shape[len(shape) - axes :] != sensor.shape:
        raise PolicyError(
            f"observation {sensor.name}: got shape {shape}, expected {sensor.shape} or [..., *{sensor.shape}]"
        )
    return shape[: len(shape) - axes]
