"""Check the arguments of `make_jitted_trainer` before anything is compiled."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jax.interpreters import partial_eval

from jaxrl.algorithms.interface import Algorithm, WithTracedSettings, acting, nothing_remembered
from jaxrl.envs.address import unknown
from jaxrl.jax_envs.contract import JaxEnvError
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.traced import problem_with, variable
from jaxrl.training.compiled.checks import check_trainer
from jaxrl.types import JaxrlError

UNFITTING = (AssertionError, TypeError, ValueError, FlaxError)
"""Errors that functions of an algorithm raise if it was made for other observations or actions."""
_OF_RUNS = ("evaluation", "keep_best", "stop")
"""Settings that only a run with files follows."""


def check_arguments(
    env: Any, algorithm: Algorithm, settings: BehaviorSettings, numbers: Mapping[str, int], parameters: Mapping
) -> None:
    """Check arguments that would be ignored, or fail later with an unclear message.

    `numbers` are areas, seeds and newest by name. Raises SettingsError; JaxrlError if `env` is no environment of one
    behavior.
    """
    if isinstance(env, JaxScene):
        names = ", ".join(part.name for part in env.parts)
        raise JaxrlError(
            f"{env.name}: has several behaviors ({names}), make_jitted_trainer takes an environment of one; "
            "`jaxrl train` trains it"
        )
    if not isinstance(env, JaxEnv):
        raise JaxEnvError(f"env: got {env!r}, expected a JaxEnv: jaxrl.make_environment makes one by its name")
    for name, number in numbers.items():
        least = 0 if name == "newest" else 1
        if not _is_whole(number) or number < least:
            raise SettingsError(f"{name}: got {number!r}, expected a whole number, at least {least}")
    check_trainer(env.name, settings)
    written = [name for name in _OF_RUNS if getattr(settings, name)]
    problems = [
        f"{name}: only `jaxrl train` follows it: leave it out, and look at the log of each `run`" for name in written
    ]
    if settings.connectors and algorithm.connectors is None:
        problems.append("connectors: the algorithm was made without them: make both of the same settings")
    if problems:
        raise SettingsError(problems, "make_jitted_trainer")
    for name, value in parameters.items():
        _check_parameter(env, name, value, numbers["seeds"])


def check_values(
    algorithm: Algorithm, settings: BehaviorSettings, seeds: int, values: Mapping[str, Sequence[float]]
) -> None:
    """Raise SettingsError for settings that cannot differ by seed, and unless each seed has one valid number."""
    known = variable(settings)
    for key, numbers in values.items():
        if key not in known:
            what = "seeds of one program cannot differ in it"
            raise SettingsError(unknown(f"values[{key!r}]", key, known, what=what))
        if np.shape(numbers) != (seeds,) or not np.isfinite(numbers).all():
            expected = f"{seeds} finite number(s), one for each seed"
            raise SettingsError(f"values[{key!r}]: got {numbers!r}, expected {expected}")
        for index, number in enumerate(np.asarray(numbers, np.float64).tolist()):
            wrong = problem_with(settings, key, number)
            if wrong is not None:
                raise SettingsError(f"values[{key!r}][{index}]: {wrong}")
    remake = algorithm.with_traced_settings
    if values and remake is None:
        raise SettingsError(
            "values: this algorithm cannot be made for traced settings: give it Algorithm.with_traced_settings"
        )
    if values and isinstance(remake, WithTracedSettings) and remake.learn is not algorithm.learn:
        raise SettingsError(
            "values: `learn` of this algorithm was replaced after it was made, and would be made again as it was "
            "before: put the function that makes it behind `trainer_type: FILE.py:make_x`, or replace "
            "Algorithm.with_traced_settings too, (values) -> Algorithm"
        )


def check_fit(env: Sizes, algorithm: Algorithm) -> None:
    """Raise SettingsError if the algorithm cannot act in the environment, traced for one area."""
    if algorithm.connectors is not None:
        return  # connectors transform observations and actions between the two
    try:
        jax.eval_shape(partial(_decided, algorithm), *_seen(env, algorithm))
    except UNFITTING as error:
        raise SettingsError(
            f"algorithm: cannot act in {env.name}, it was made for other observations or actions: "
            "make it with make_x(env.spec, settings)",
            "make_jitted_trainer",
        ) from error


def check_acting(env: Sizes, algorithm: Algorithm, values: Mapping[str, Sequence[float]]) -> None:
    """Raise SettingsError if acting depends on one of the settings in which seeds differ, traced for one area.

    All seeds of a program act with one function, which has the numbers of the settings that the algorithm was made for.
    """
    remake = algorithm.with_traced_settings
    if not values or remake is None:
        return
    numbers = {key: jax.ShapeDtypeStruct((), jnp.float32) for key in sorted(values)}
    traced = jax.make_jaxpr(lambda traced, *seen: _decided(remake(traced), *seen))(numbers, *_seen(env, algorithm))
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    acts_by = [key for key, is_used in zip(numbers, used, strict=False) if is_used]
    if acts_by:
        raise SettingsError(
            f"values[{acts_by[0]!r}]: the algorithm acts by it, and seeds of one program differ only in how they "
            "learn: make a trainer for each number (jaxrl sweep --parallel 1)",
            "make_jitted_trainer",
        )


def _seen(env: Sizes, algorithm: Algorithm) -> tuple[Any, ...]:
    """Return the inputs of acting for one area as shapes: train state, observations, action mask."""
    lead, chain = (1, env.teams * env.members), algorithm.connectors
    spec = env.spec if chain is None else chain.spec
    obs = tuple(jax.ShapeDtypeStruct((*lead, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    mask = jax.ShapeDtypeStruct((*lead, spec.action.mask_size), jnp.bool_)
    return jax.eval_shape(algorithm.init, jax.random.key(0)), obs, mask


def _decided(algorithm: Algorithm, state: Any, obs: tuple[Any, ...], mask: Any) -> Any:
    memory = nothing_remembered(algorithm, mask.shape[:-1])
    return algorithm.act(acting(algorithm, state), obs, mask, memory, jax.random.key(0))


def seed_numbers(numbers: Any, seeds: int) -> np.ndarray:
    """Return the numbers of the seeds, uint32 [S]. Raises SettingsError unless each is whole, from 0 to 2³² - 1."""
    values = list(numbers) if np.ndim(numbers) == 1 else [numbers]
    if len(values) != seeds or np.ndim(numbers) != 1:
        raise SettingsError(f"init: got {len(values)} number(s) of seeds, expected {seeds}, such as range({seeds})")
    for number in values:
        if not _is_whole(number) or not 0 <= int(number) < 2**32:
            raise SettingsError(f"init: got the seed {number!r}, expected a whole number from 0 to {2**32 - 1}")
    return np.array([int(number) for number in values], np.uint32)


def iterations(state: Any, count: Any) -> np.int32:
    """Return the number of iterations for `run` as int32.

    Raises SettingsError unless it is a whole number, at least 0; JaxrlError for a state that is used up.
    """
    if not _is_whole(count) or not 0 <= count < 2**31:
        raise SettingsError(f"run: got {count!r} iterations, expected a whole number from 0 to {2**31 - 1}")
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state)):
        raise JaxrlError("run: got a state that an earlier `run` has used up: go on with the one that it returned")
    return np.int32(count)


def _is_whole(number: Any) -> bool:
    try:
        operator.index(number)
    except TypeError:
        return False
    return not isinstance(number, bool)


def _check_parameter(env: JaxEnv, name: str, value: Any, seeds: int) -> None:
    path = f"parameters[{name!r}]"
    if name not in env.parameters:
        raise SettingsError(unknown(path, name, env.parameters, what=f"{env.name} has no such parameter"))
    if isinstance(value, Distribution):
        if any(np.shape(field)[:1] != (seeds,) for field in value):
            raise SettingsError(f"{path}: expected a distribution with {seeds} seed(s): sampling.of_seeds makes it")
        return
    try:
        right = np.shape(value) in ((), (seeds,)) and bool(np.isfinite(np.asarray(value, np.float64)).all())
    except (TypeError, ValueError):
        right = False
    if not right:
        raise SettingsError(f"{path}: got {value!r}, expected a finite number, or {seeds}, one for each seed")
