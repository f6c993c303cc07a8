"""Draws environment parameters where the environment is: numbers, and samplers drawn at each episode reset. Numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jaxrl.types import ParameterValue, SamplerSpec

Draw = Callable[[int], np.ndarray]
"""Function that draws so many values, float32 [E]."""


def drawing(value: ParameterValue, salt: int | None = None) -> Draw:
    """Return a function that draws a parameter's values by the sampler's seed; `salt` gives another sequence of it.

    Raises ValueError for a sampler that cannot be drawn from.
    """
    if not isinstance(value, SamplerSpec):
        return lambda count: np.full(count, value, np.float32)
    seed = value.seed & 0xFFFFFFFF
    random = np.random.default_rng(seed if salt is None else [seed, salt])
    if value.kind == "multirangeuniform":
        return _multirange(random, np.array(value.values, np.float64))
    first, second = value.values
    if value.kind == "uniform":
        return lambda count: random.uniform(first, second, count).astype(np.float32)
    return lambda count: random.normal(first, second, count).astype(np.float32)


def _multirange(random: np.random.Generator, values: np.ndarray) -> Draw:
    """Draw uniformly from the union of intervals [2 K]: each is chosen in proportion to its length.

    If all are points, each is equally likely.
    """
    bounds = values.reshape(-1, 2) if len(values) % 2 == 0 else np.zeros((0, 2))
    length = bounds[:, 1] - bounds[:, 0]
    if not len(bounds) or not (length >= 0).all():
        raise ValueError(f"intervals {values.tolist()}: expected pairs of minimum and maximum")
    share = length / length.sum() if length.sum() > 0 else np.full(len(bounds), 1 / len(bounds))

    def draw(count: int) -> np.ndarray:
        chosen = random.choice(len(bounds), size=count, p=share)
        return random.uniform(bounds[chosen, 0], bounds[chosen, 1]).astype(np.float32)

    return draw


def of_worker(parameters: Mapping[str, ParameterValue], worker: int) -> dict[str, ParameterValue]:
    """Return the parameters of one worker: samplers without a given seed get one for each worker after the first.

    A restarted worker begins its sequence again.
    """
    own_parameters = dict(parameters)
    for name, value in parameters.items() if worker else ():
        if isinstance(value, SamplerSpec) and value.each_worker:
            seed = np.random.SeedSequence([value.seed & 0xFFFFFFFF, worker]).generate_state(1)[0]
            own_parameters[name] = value._replace(seed=int(seed >> 1))
    return own_parameters


class Draws:
    """Values of the parameters of one environment, episode by episode."""

    def __init__(self) -> None:
        self._values: dict[str, ParameterValue] = {}
        self._draw: dict[str, Draw] = {}

    def set(self, parameters: Mapping[str, ParameterValue], salt: int | None = None) -> None:
        """Set parameters from the next episode on; a sampler begins with its first draw."""
        self._values |= parameters
        self._draw |= {name: drawing(value, salt) for name, value in parameters.items()}

    def next(self) -> dict[str, float]:
        """Return the values of an episode that begins; a number is unchanged."""
        return {
            name: float(self._draw[name](1)[0]) if isinstance(value, SamplerSpec) else value
            for name, value in self._values.items()
        }
