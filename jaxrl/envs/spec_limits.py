"""Refuses absurd specifications by behavior, sensor and number before anything is allocated.

The limits are far above anything that is trained (a picture of 2,000 by 2,000 pixels, an action for each square of a
large board) and far below the memory of a machine, since every agent's slot needs room for all of it.
"""

from __future__ import annotations

from math import prod

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.types import ActionSpec, BehaviorSpec

MOST_NUMBERS = 1 << 24
"""Largest number of values of all observations of one agent: 64 MiB of float32, four pictures of 1,180 by 1,180."""
MOST_SENSORS = 1024
"""Largest number of observations of one agent; each is an array, and recorded scenes have below 20."""
MOST_AXES = 8
"""Largest number of axes of one observation: an image has 3."""
MOST_CONTINUOUS = 1 << 14
"""Largest number of continuous actions of one agent: a body with every muscle has some 700."""
MOST_CHOICES = 1 << 16
"""Largest number of choices of all discrete branches together, the length of a mask: Go has 362, chess moves 4,672."""
MOST_BRANCHES = 1 << 12


class SpecError(EnvironmentFailure):
    """A behavior's observations or actions are nonsense. The text names behavior, sensor or branch, and number."""


def check_spec(behavior: str, spec: BehaviorSpec) -> None:
    """Raise SpecError for the first absurd number."""
    sensors = spec.observations
    if len(sensors) > MOST_SENSORS:
        raise _error(behavior, f"{len(sensors)} sensors", f"at most {MOST_SENSORS}")
    total = 0
    for index, sensor in enumerate(sensors):
        name = f"sensor {index} ({sensor.name!r})"
        if len(sensor.shape) > MOST_AXES:
            raise _error(behavior, f"{name} with {len(sensor.shape)} axes", f"at most {MOST_AXES}")
        if any(size < 1 for size in sensor.shape):
            raise _error(behavior, f"{name} of shape {sensor.shape}", "sizes of 1 and more")
        if len(sensor.dimension_property) not in (0, len(sensor.shape)):
            properties = f"{len(sensor.dimension_property)} dimension properties"
            raise _error(behavior, f"{name} of shape {sensor.shape} with {properties}", "one for each axis, or none")
        total += prod(sensor.shape)
        if total > MOST_NUMBERS:
            so_far = f"{name} of shape {sensor.shape}, with which an agent has {total} numbers"
            raise _error(behavior, so_far, f"at most {MOST_NUMBERS}")
    _check_actions(behavior, spec.action)


def _check_actions(behavior: str, action: ActionSpec) -> None:
    if not 0 <= action.continuous_size <= MOST_CONTINUOUS:
        raise _error(behavior, f"{action.continuous_size} continuous actions", f"0 to {MOST_CONTINUOUS}")
    branches = action.discrete_branches
    if len(branches) > MOST_BRANCHES:
        raise _error(behavior, f"{len(branches)} discrete branches", f"at most {MOST_BRANCHES}")
    for index, size in enumerate(branches):
        if not 1 <= size <= MOST_CHOICES:
            raise _error(behavior, f"discrete branch {index} of size {size}", f"1 to {MOST_CHOICES}")
    if sum(branches) > MOST_CHOICES:
        raise _error(behavior, f"discrete branches of {sum(branches)} choices in all", f"at most {MOST_CHOICES}")


def _error(behavior: str, what: str, expected: str) -> SpecError:
    hint = "mend the agent's Behavior Parameters or sensors"
    return SpecError(f"behavior {behavior!r}: announces {what}, expected {expected}; {hint}")
