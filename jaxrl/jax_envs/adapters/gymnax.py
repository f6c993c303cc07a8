"""Environments of gymnax (Lange 2022) as ours, through gymnax's registry: `--env gymnax:CartPole-v1`.

One agent without a team (A = 1), its observation as one flat vector (a number of a
`Discrete` observation space as one-hot), its reward as the agent's own. The behavior is called as the registry has it.

Arguments are those of the environment's constructor (`rows=5` of Catch-bsuite) and its parameters (`gravity=3.7`,
`max_steps_in_episode=200` of CartPole-v1); others keep the package's defaults.

Episode ends. Only `step_env` is called, which does not reset: gymnax's `step` puts the next episode's first observation
in the place of the last one, here the true last one is kept. What is known about the end depends on the release:
- gymnax 1 says it. `step_env` gives natural ends alone (`terminated`), `is_truncated` the time limit. In a step in
  which both hold, the episode has terminated.
- gymnax 0 has one `done`. The step is asked a second time with `max_steps_in_episode` = `NEVER` (XLA shares what both
  have in common): what then still ends has terminated, what goes on was cut off by the limit.
Where a time limit is a rule of the task (`DeepSea-bsuite`: one step per row) its natural end falls into the same step
and counts. `truncates` is True for every environment whose parameters have a `max_steps_in_episode`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.error import URLError

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.foreign.arguments import fitted, usual_arguments
from jaxrl.jax_envs.adapters import foreign
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError

_PACKAGE = "gymnax"
_Moved = tuple[Any, Any, Array, Array, Array]  # observation, state, reward, terminated, truncated


class _Single(NamedTuple):
    """A gymnax environment, bound to its parameters."""

    reset: Callable[[Array], tuple[Any, Any]]  # key → observation, state
    step: Callable[[Array, Any, Array], _Moved]
    action_space: Any
    categories: int  # of a `Discrete` observation space, else 0


def make_gymnax(name: str, /, **arguments: Any) -> JaxEnv:
    """Make the environment that gymnax registers as `name`, with A = 1.

    `step` hands its key to gymnax's `step_env` as it is. The state is gymnax's own.

    Raises:
        UnknownEnvironmentError: gymnax has no `name`; the text lists the nearest names.
        ArgumentsError: it takes no such argument; the text lists those that it takes.
        JaxrlError: gymnax is missing or cannot make it, its action space is not Discrete, MultiDiscrete
            or Box, or a step changes the state's shapes.
    """
    gymnax = foreign.import_package(_PACKAGE)
    foreign.check_name(_PACKAGE, name, gymnax.registered_envs)
    where = f"{_PACKAGE}:{name}"
    try:
        env, parameters = gymnax.make(name)
        if arguments:
            env, parameters = _made_with(gymnax, name, env, parameters, arguments)
    except JaxrlError:
        raise
    except URLError as error:
        raise JaxrlError(f"{where}: gymnax downloads its data, which failed: {error.reason}") from error
    except Exception as error:
        raise JaxrlError(f"{where}: gymnax cannot make it: {error}") from error
    single = _bind(env, parameters)
    action = foreign.action_spec(where, single.action_space)
    obs, like = _shapes(where, single, action)
    size = single.categories or int(np.prod(obs.shape))

    def view(obs: Any, alive: Array) -> TeamView:
        row = jax.nn.one_hot(obs, size) if single.categories else foreign.flat(obs, size)
        return TeamView((row[None],), jnp.ones((1, action.mask_size), bool), alive[None])

    def reset(key: Array, parameters: EnvParams) -> tuple[Any, TeamView]:
        obs, state = single.reset(key)
        return foreign.typed_as(like, state), view(obs, jnp.bool_(True))

    def step(key: Array, state: Any, actions: TeamActions) -> tuple[Any, TeamStep]:
        native = foreign.to_native(single.action_space, actions.continuous[0], actions.discrete[0])
        obs, state, reward, terminated, truncated = single.step(key, state, native)
        reward, seen = jnp.asarray(reward, jnp.float32).reshape(()), view(obs, ~(terminated | truncated))
        step = team_step(seen, reward=reward, terminated=terminated, truncated=truncated, figures={})
        return foreign.typed_as(like, state), step

    return JaxEnv(
        name=foreign.behavior_name(name),
        spec=BehaviorSpec((vector_sensor(size),), action),
        members=1,
        parameters={},
        reset=reset,
        step=step,
        truncates=hasattr(parameters, "max_steps_in_episode"),
    )


def _made_with(gymnax: Any, name: str, env: Any, parameters: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Make the environment and its parameters again, with `arguments` in place of the package's defaults."""
    constructor_defaults = usual_arguments(type(env))
    checked_arguments = fitted(f"{_PACKAGE}:{name}", arguments, {**vars(parameters), **constructor_defaults})
    constructor_arguments = {key: value for key, value in checked_arguments.items() if key in constructor_defaults}
    if constructor_arguments:
        env, parameters = gymnax.make(name, **constructor_arguments)
    return env, parameters.replace(
        **{key: value for key, value in checked_arguments.items() if key not in constructor_defaults}
    )


def _bind(env: Any, parameters: Any) -> _Single:
    """Bind an environment of either gymnax release to its parameters, behind one interface."""
    says_truncated = hasattr(env, "is_truncated")
    limited = hasattr(parameters, "max_steps_in_episode")
    endless = parameters.replace(max_steps_in_episode=foreign.NEVER) if limited else parameters

    def step(key: Array, state: Any, action: Array) -> _Moved:
        obs, new_state, reward, done, _ = env.step_env(key, state, action, parameters)
        terminated = done if says_truncated or not limited else env.step_env(key, state, action, endless)[3]
        stopped = env.is_truncated(new_state, parameters) if says_truncated and limited else done
        terminated, stopped = (jnp.asarray(flag, bool).reshape(()) for flag in (terminated, stopped))
        return obs, new_state, reward, terminated, stopped & ~terminated

    space = env.observation_space(parameters)
    return _Single(
        reset=lambda key: env.reset_env(key, parameters),
        step=step,
        action_space=env.action_space(parameters),
        categories=int(space.n) if type(space).__name__ == "Discrete" else 0,
    )


def _shapes(where: str, single: _Single, action: ActionSpec) -> tuple[Any, Any]:
    """Return shapes and types of an observation and of the state. Raises JaxrlError if a step changes the state's."""

    def play(key: Array) -> tuple[Any, Any, Any]:
        obs, state = single.reset(key)
        first = jnp.zeros(action.continuous_size), jnp.zeros(len(action.discrete_branches), jnp.int32)
        return obs, state, single.step(key, state, foreign.to_native(single.action_space, *first))[1]

    try:
        obs, state, new_state = jax.eval_shape(play, jax.random.key(0))
    except Exception as error:
        raise JaxrlError(f"{where}: cannot be traced by JAX: {error}") from error
    if len(jax.tree.leaves(obs)) != 1:
        raise JaxrlError(f"{where}: the observation is {type(obs).__name__}, expected one array")
    return obs, foreign.unchanging(where, state, new_state)
