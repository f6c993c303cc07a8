"""Environments of JaxMARL (Rutherford et al. 2023) as ours, through its registry: `--env jaxmarl:MPE_simple_spread_v3`.

Agents stand in the order of `env.agents`, one row each, and share one behavior, called as the registry has it. Agents
whose names say that they are opponents (adversary_0, enemy_0, ...) form a second team; the smaller of
two teams has rows that never live. Observations are flattened and, where sizes differ, followed by zeros; actions that
an agent lacks are masked (discrete) or ignored (continuous). What `get_avail_actions` (SMAX) or `get_legal_moves`
(Hanabi) forbids is masked. An agent's own `done` ends it alone; it does not come back before the next episode.

Rewards. JaxMARL gives each agent a number r_i and does not say what belongs to the team. With m the mean of r over the
members of the team that lived before the step, `group_reward` = m and `reward` = r_i - m; a team of one has r as
`reward`. So every learner has the task it needs: PPO adds both and has r_i, as JaxMARL's own trainers (IPPO, MAPPO)
have; MA-POCA adds the rewards of all members, which cancel, and has m. A reward that all members share (SMAX,
Overcooked, Hanabi) is group reward alone, to the last bit, and does not grow with the number of the living. The group
reward of an episode is the mean over agents of the returns in JaxMARL's `LogWrapper`; `MPELogWrapper` shows A times it.

Episode ends. Only `step_env` is called, which does not reset: JaxMARL's `step` puts the next episode's first
observation in the place of the last one, here the true last one is kept. JaxMARL has one `done` for natural ends and
for time limits. Where an environment has `max_steps` (MPE, SMAX, Overcooked, JaxNav, switch_riddle) the two are told
apart: the step is asked a second time, of the same environment with `max_steps` = `NEVER`. XLA shares what both have in
common outside loops: that costs simple_spread 3 % of the environment's time, HeuristicEnemySMAX, a loop, 68 % (CPU).
What then still ends has `terminated`, what goes on was cut off by the limit: `truncated`. Elsewhere nothing
can be known and every end is `terminated` (Hanabi; coin_game, whose number of rounds is a rule). MABrax, which resets
by itself, is refused.
JaxMARL's own trainers bootstrap from nothing at a time limit. We do, because agents of MPE see no clock: with an end
that cannot be foreseen no value function is right, and what is learned would depend on when the limit happens to fall
(Pardo et al. 2018, arXiv 1712.00378). Returns are counted alike either way. `make_jaxmarl(name, time_limits=False)`
poses JaxMARL's problem instead: every end is `terminated`. Episodes of MPE last 26 steps, one more than `max_steps`,
because JaxMARL compares the clock before it counts.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.adapters import foreign
from jaxrl.jax_envs.adapters.foreign import ForeignEnvironmentError
from jaxrl.jax_envs.adapters.foreign_team import joint_action, possible_actions, rows_of, shares
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

_PACKAGE = "jaxmarl"
_MASKS = ("get_avail_actions", "get_legal_moves")


class MarlState(NamedTuple):
    """One area."""

    inner: Any  # JaxMARL's own state
    alive: Array  # bool [A]


class _Bound(NamedTuple):
    """An environment of JaxMARL and where its agents stand."""

    env: Any
    endless: Any  # the same without time limit, None where limits are not told apart
    rows: tuple[str | None, ...]  # A agents by row, None for rows that never live
    teams: int
    spaces: dict[str, Any]  # action space by agent
    action: ActionSpec  # of all agents
    possible: np.ndarray  # bool [A, M], what an agent's action space holds
    size: int  # of an observation
    mask: str  # name of the method that says what is allowed now, "" without


def make_jaxmarl(name: str, *, time_limits: bool = True) -> JaxEnv:
    """The environment that JaxMARL registers as `name`, with its default settings; `step` hands its key to `step_env`.

    Args:
        name: as in `jaxmarl.registered_envs`.
        time_limits: False: every end of an episode is `terminated`, also one by `max_steps`.

    Raises:
        UnknownEnvironmentError: JaxMARL has no `name`; the text lists the nearest names.
        ForeignEnvironmentError: JaxMARL is missing or cannot make it; agents have neither only Discrete and
            MultiDiscrete nor only Box actions; an agent has no observation; it resets by itself; or a
            step changes shapes.
    """
    jaxmarl = foreign.import_package(_PACKAGE)
    foreign.check_name(_PACKAGE, name, jaxmarl.registered_envs)
    where = f"{_PACKAGE}:{name}"
    try:
        env = jaxmarl.make(name)
    except Exception as error:
        raise ForeignEnvironmentError(f"{where}: JaxMARL cannot make it: {error}") from error
    if getattr(env, "auto_reset", False):
        raise ForeignEnvironmentError(
            f"{where}: resets inside its own step and so loses last observations: not supported"
        )
    bound, like = _bind(where, env, _without_limit(jaxmarl, name, env) if time_limits else None)
    present = np.array([agent is not None for agent in bound.rows])

    def reset(key: Array, parameters: EnvParams) -> tuple[MarlState, TeamView]:
        obs, inner = env.reset(key)
        state = MarlState(foreign.typed_as(like, inner), jnp.asarray(present))
        return state, _view(bound, obs, state)

    def step(key: Array, state: MarlState, actions: TeamActions) -> tuple[MarlState, TeamStep]:
        return _step(bound, like, key, state, actions)

    sensor = ObservationSpec(f"VectorSensor_size{bound.size}", (bound.size,), (DimensionProperty.NONE,))
    return JaxEnv(
        name=foreign.behavior_name(name),
        spec=BehaviorSpec((sensor,), bound.action),
        members=len(bound.rows) // bound.teams,
        parameters={},
        reset=reset,
        step=step,
        teams=bound.teams,
        truncates=bound.endless is not None,
    )


def _without_limit(jaxmarl: Any, name: str, env: Any) -> Any:
    """The same environment that time never ends, None if it has no `max_steps`."""
    if not hasattr(env, "max_steps"):
        return None
    try:
        return jaxmarl.make(name, max_steps=foreign.NEVER)
    except TypeError:  # no argument of the constructor (FACMAC's variants, switch_riddle)
        endless = copy.copy(env)
        endless.max_steps = foreign.NEVER
        return endless


def _bind(where: str, env: Any, endless: Any) -> tuple[_Bound, Any]:
    """Sizes of all that is padded, and the state as shapes and types."""
    rows, teams = rows_of(env.agents)
    spaces = {agent: env.action_space(agent) for agent in env.agents}
    specs = {agent: foreign.action_spec(f"{where}, agent {agent}", space) for agent, space in spaces.items()}
    action = joint_action(where, list(specs.values()))
    first = jnp.zeros(action.continuous_size), jnp.zeros(len(action.discrete_branches), jnp.int32)

    def play(key: Array) -> tuple[Any, Any, Any]:
        obs, state = env.reset(key)
        return obs, state, env.step_env(key, state, _native(spaces, dict.fromkeys(spaces, first)))[1]

    try:
        obs, state, after = jax.eval_shape(play, jax.random.key(0))
    except Exception as error:
        raise ForeignEnvironmentError(f"{where}: cannot be traced by JAX: {error}") from error
    blind = [str(agent) for agent in env.agents if not isinstance(obs, dict) or not hasattr(obs.get(agent), "shape")]
    if blind:
        raise ForeignEnvironmentError(f"{where}: no array of observations by the name of agent {', '.join(blind)}")
    bound = _Bound(
        env=env,
        endless=endless,
        rows=rows,
        teams=teams,
        spaces=spaces,
        action=action,
        possible=np.stack([possible_actions(action, specs.get(agent, action)) for agent in rows]),
        size=max(int(np.prod(obs[agent].shape)) for agent in env.agents),
        mask=_mask_method(env, state) if all(len(spec.discrete_branches) == 1 for spec in specs.values()) else "",
    )
    return bound, foreign.unchanging(where, state, after)


def _mask_method(env: Any, state: Any) -> str:
    """The method of `env` that says which discrete actions are allowed; the base class has one that only raises."""
    for method in _MASKS:
        try:
            jax.eval_shape(getattr(env, method, _none), state)
            return method
        except NotImplementedError:
            continue
    return ""


def _none(state: Any) -> Any:
    raise NotImplementedError


def _native(spaces: dict[str, Any], actions: dict[str, tuple[Array, Array]]) -> dict[str, Array]:
    """Actions (continuous [C], discrete [D]) by agent as JaxMARL takes them."""
    return {agent: foreign.to_native(space, *actions[agent]) for agent, space in spaces.items()}


def _view(bound: _Bound, obs: dict[str, Any], state: MarlState) -> TeamView:
    """What the members see and may do in `state`."""
    blank = jnp.zeros(bound.size)
    rows = [blank if agent is None else foreign.flat(obs[agent], bound.size) for agent in bound.rows]
    mask = jnp.asarray(bound.possible)
    if bound.mask:
        allowed = getattr(bound.env, bound.mask)(state.inner)
        everything = jnp.ones(bound.action.mask_size)
        now = [everything if agent is None else foreign.flat(allowed[agent], everything.size) for agent in bound.rows]
        mask &= jnp.stack(now) > 0
    return TeamView((jnp.stack(rows),), mask | ~state.alive[:, None], state.alive)


def _step(bound: _Bound, like: Any, key: Array, state: MarlState, actions: TeamActions) -> tuple[MarlState, TeamStep]:
    """One step of JaxMARL's; see the module's docstring for rewards and ends."""
    agents = [(i, agent) for i, agent in enumerate(bound.rows) if agent is not None]
    native = _native(bound.spaces, {agent: (actions.continuous[i], actions.discrete[i]) for i, agent in agents})
    obs, inner, rewards, dones, _ = bound.env.step_env(key, state.inner, native)
    ended = state.alive & _done(bound, dones)
    terminated = ended
    if bound.endless is not None:
        terminated = ended & _done(bound, bound.endless.step_env(key, state.inner, native)[3])
    alive = state.alive & ~ended
    state_after = MarlState(foreign.typed_as(like, inner), alive)
    own, group = shares(_by_row(bound, rewards, jnp.float32), state.alive, bound.teams)
    return state_after, TeamStep(
        view=_view(bound, obs, state_after),
        reward=own,
        group_reward=group,
        terminated=terminated,
        truncated=ended & ~terminated,
        over=~jnp.any(alive),
        stats={},
    )


def _by_row(bound: _Bound, values: dict[str, Any], dtype: Any) -> Array:
    """[A] from scalars by agent; 0 in rows that never live."""
    return jnp.stack([jnp.asarray(0 if agent is None else values[agent], dtype).reshape(()) for agent in bound.rows])


def _done(bound: _Bound, dones: dict[str, Any]) -> Array:
    """bool [A]: the agent itself or the episode is done."""
    return _by_row(bound, dones, bool) | jnp.asarray(dones["__all__"], bool)
