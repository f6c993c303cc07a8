"""What a compiled run refuses: environments that break their contract, unknown parameters, numbers not finite."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.address import unknown
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.settings import BehaviorSettings, RunSettings, SettingsError, constants
from jaxrl.training.compiled.iteration import METRIC, PARAMETERS, IterationLog, JittedTrainer
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.errors import DivergedError
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


class JaxEnvError(JaxrlError):
    """A JAX environment breaks the contract of `jax_envs.interface`."""


def parameters_of(settings: RunSettings, env: JaxEnv) -> dict[str, float]:
    """The environment parameters of the configuration. Raises SettingsError for one that the environment has not."""
    values = constants(settings.environment_parameters)
    for name in values:
        if name not in env.parameters:
            path, what = f"environment_parameters.{name}", f"{env.name} has no such parameter"
            raise SettingsError(unknown(path, name, env.parameters, what=what))
    return values


def check_jax_env(env: JaxEnv) -> None:
    """Trace reset and step once, without computing anything.

    Raises:
      JaxEnvError: a function cannot be compiled, or what it returns has not the structure, shapes or dtypes asked for.
    """
    key, parameters = jax.random.key(0), {name: np.float32(value) for name, value in env.parameters.items()}
    state, view = _trace(env, "reset", env.reset, key, parameters)
    _compare(env, "the view that reset returns", view, _view(env))
    count, action = env.teams * env.members, env.spec.action
    actions = TeamActions(
        continuous=_array((count, action.continuous_size), jnp.float32),
        discrete=_array((count, len(action.discrete_branches)), jnp.int32),
    )
    after, step = _trace(env, "step", env.step, key, state, actions)
    _compare(env, "the state after a step", after, state)
    flags, numbers = _array((count,), jnp.bool_), _array((count,), jnp.float32)
    figures: Any = dict.fromkeys(getattr(step, "stats", {}), _array((), jnp.float32))
    asked = TeamStep(_view(env), numbers, numbers, flags, flags, _array((), jnp.bool_), figures)
    _compare(env, "what step returns", step, asked)


def check_sampling(name: str, behavior: BehaviorSettings) -> None:
    """Refuse what only the host loop can: in a compiled run all environments step alike, and rows have one length.

    Raises SettingsError.
    """
    path = f"behaviors.{name}"
    problems = []
    if behavior.batch_mode != "fragments":
        problems.append(f"{path}.batch_mode: got {behavior.batch_mode}, expected fragments in a compiled run")
    if behavior.max_episode_length is not None:
        problems.append(
            f"{path}.max_episode_length: got {behavior.max_episode_length}, expected null in a compiled run, whose "
            "environments end their episodes themselves"
        )
    if problems:
        raise SettingsError([f"{text}; player:NAME runs the same environment in the host loop" for text in problems])
    if behavior.threaded:
        log.warning("%s.threaded: has no effect in a compiled run, which acts and learns in one program", path)


def check_memory(subject: Subject, trainer: JittedTrainer) -> None:
    """Compare what the compiled program will take with what is free, before anything is allocated.

    Raises SettingsError if it does not fit. A device that does not tell what is free is not checked.
    """
    free = free_bytes(trainer.devices)
    if free is None or trainer.bytes <= free:
        return
    seeds = len(subject.seeds)
    fitting = int(seeds * free / trainer.bytes)
    advice = f"at most {fitting} fit" if fitting else "lower num_areas, buffer_size or hidden_units"
    raise SettingsError(
        f"env_settings.seeds: {seeds} seed(s) of {subject.areas} areas need {trainer.bytes / 2**30:.2f} GiB on each of "
        f"{trainer.devices} device(s), {free / 2**30:.2f} GiB are free: {advice}"
    )


def free_bytes(devices: int) -> int | None:
    """Memory that each of `devices` devices may still take, in bytes; those of a CPU share the machine's."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        told = device.memory_stats() or {}
        return told["bytes_limit"] - told.get("bytes_in_use", 0) if "bytes_limit" in told else None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * available[0] // devices if available else None


def faults(subject: Subject, chunk: IterationLog) -> dict[int, JaxrlError]:
    """Numbers that were not finite: by the index of a seed the first one, as an error in words.

    A JaxEnvError where the environment made it, which says in which area and step; else a DivergedError.
    """
    found = enumerate(np.asarray(chunk.fault).tolist())
    return {index: _fault(subject, subject.seeds[index], chunk, *fault) for index, fault in found if fault[0] >= 0}


def _fault(
    subject: Subject, seed: int, chunk: IterationLog, iteration: int, step: int, area: int, kind: int
) -> JaxrlError:
    if kind in (METRIC, PARAMETERS):
        name = sorted(chunk.metrics)[step]
        what = f"{name} is {('nan', 'inf', '-inf')[area]}" if kind == METRIC else "its parameters are not finite"
        rate = subject.settings.hyperparameters.learning_rate
        return DivergedError(f"{subject.name}, seed {seed}", f"{what} in iteration {iteration}", rate)
    what = ("an observation", "a reward")[kind]
    return JaxEnvError(
        f"{subject.name}: the environment gave {what} that is not finite: seed {seed}, area {area}, "
        f"decision {step} of iteration {iteration}. Mend its step or reset; what was saved before is good."
    )


def _view(env: JaxEnv) -> TeamView:
    count = env.teams * env.members
    return TeamView(
        obs=tuple(_array((count, *sensor.shape), jnp.float32) for sensor in env.spec.observations),
        action_mask=_array((count, env.spec.action.mask_size), jnp.bool_),
        alive=_array((count,), jnp.bool_),
    )


def _array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _trace(env: JaxEnv, name: str, function: Any, *arguments: Any) -> Any:
    try:
        found = jax.eval_shape(function, *arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise JaxEnvError(
            f"{env.name}: {name} cannot be compiled: {reason} Use jax.numpy and lax.cond in place of Python's own "
            "branches and numpy, with shapes that do not depend on values."
        ) from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise JaxEnvError(f"{env.name}: {name} returns {found}, asked for is a pair of a state and what is seen")
    return found


def _compare(env: JaxEnv, what: str, got: Any, asked: Any) -> None:
    """Equal structure, shapes and dtypes, or an error that names the first difference."""
    if jax.tree.structure(got) != jax.tree.structure(asked):
        raise JaxEnvError(
            f"{env.name}: {what} has structure {jax.tree.structure(got)}, asked for is {jax.tree.structure(asked)}"
        )
    found, wanted = jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(asked)
    for (path, leaf), want in zip(found, wanted, strict=True):
        if leaf.shape != want.shape or leaf.dtype != want.dtype:
            raise JaxEnvError(
                f"{env.name}: {what}{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}, asked for is "
                f"{want.dtype}{list(want.shape)}"
            )
