"""Environments of JaxMARL (Rutherford et al. 2023) as ours, through its registry: `--env jaxmarl:MPE_simple_spread_v3`.

Agents stand in the order of `env.agents`, one row each, and share one behavior, called as the registry has it. Agents
whose names say that they are opponents (adversary_0, enemy_0, ...) form a second team; the smaller of
two teams has rows that never live. Observations are flattened and, where sizes differ, followed by zeros; actions that
an agent lacks are masked (discrete) or ignored (continuous). What `get_avail_actions` (SMAX) or `get_legal_moves`
(Hanabi) forbids is masked. An agent's own `done` ends it alone; it does not come back before the next episode.

Arguments are those of JaxMARL's constructors, by name: `num_agents=5` of MPE and Hanabi, `max_steps=50`;
`scenario=3m` of SMAX and `layout=coord_ring` of Overcooked are names of JaxMARL's own tables. What names agents, spaces
and moves is not among them: JaxMARL fills that in itself.

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
can be known and every end is `terminated` (Hanabi; coin_game and storm, whose number of rounds is a rule; the last
observation of storm is a first one, which no return uses). MABrax is made without its own resets; Brax tells which ends
are those of time.
JaxMARL's own trainers bootstrap from nothing at a time limit. We do, because agents of MPE see no clock: with an end
that cannot be foreseen no value function is right, and what is learned would depend on when the limit happens to fall
(Pardo et al. 2018, arXiv 1712.00378). Returns are counted alike either way. The argument `time_limits=false` of jaxrl
poses JaxMARL's problem instead: every end is `terminated`. Episodes of MPE last 26 steps, one more than `max_steps`,
because JaxMARL compares the clock before it counts.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.foreign.arguments import ArgumentsError, fitted, usual_arguments
from jaxrl.jax_envs.adapters import foreign
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.near_names import unknown
from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError

_PACKAGE = "jaxmarl"
_FILLED_IN = {"agents", "landmarks", "action_spaces", "observation_spaces", "colour", "num_moves"}
_REASONS = {
    "LearnedPolicyEnemySMAX": "its opponent is a trained network, which no argument can name: take HeuristicEnemySMAX, "
    "or SMAX, in which both sides learn",
    "JaxRobotarium": "needs jaxrobotarium, a submodule of JaxMARL's repository that its package does not contain: "
    "install it from there",
}
"""Why JaxMARL cannot make an environment whose name begins so."""
_TABLES = {
    "SMAX": ("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
    "HeuristicEnemySMAX": ("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
    "overcooked": ("layout", "overcooked", "overcooked_layouts"),
    "overcooked_v2": ("layout", "overcooked_v2", "overcooked_v2_layouts"),
}
"""Arguments that are entries of a table: its module in `jaxmarl.environments`, and its name there."""
_MASKS = ("get_avail_actions", "get_legal_moves")
_OPPONENTS = ("adversary", "leadadversary", "enemy", "eve")  # how JaxMARL's registry calls agents of the other side


class MarlState(NamedTuple):
    """State of one area."""

    inner: Any  # JaxMARL's own state
    alive: Array  # bool [A]


class _Bound(NamedTuple):
    """Environment of JaxMARL and the rows of its agents."""

    env: Any
    endless: Any  # the environment without time limit, None where limits are not told apart
    tells: bool  # infos["truncation"] says whether time ended the episode (Brax)
    rows: tuple[str | None, ...]  # A agents by row, None for rows that never live
    teams: int
    spaces: dict[str, Any]  # action space by agent
    action: ActionSpec  # of all agents
    possible: np.ndarray  # bool [A, M], actions that the agent's own action space contains
    size: int  # of an observation
    mask: str  # name of the method that returns the actions allowed now, "" if there is none


def make_jaxmarl(name: str, /, *, time_limits: bool = True, **arguments: Any) -> JaxEnv:
    """Make the environment that JaxMARL registers as `name`; `step` hands its key to `step_env`.

    Args:
        name: as in `jaxmarl.registered_envs`.
        time_limits: if False, every end of an episode is `terminated`, also one by `max_steps`.
        arguments: of JaxMARL's constructor.

    Raises:
        UnknownEnvironmentError: JaxMARL has no `name`; the text lists the nearest names.
        ArgumentsError: it takes no such argument; the text lists those that it takes.
        JaxrlError: JaxMARL is missing or cannot make it, and why; agents have neither only Discrete and
            MultiDiscrete nor only Box actions; an agent has no observation; or a step changes shapes.
    """
    jaxmarl = foreign.import_package(_PACKAGE)
    foreign.check_name(_PACKAGE, name, jaxmarl.registered_envs)
    where = f"{_PACKAGE}:{name}"
    if not isinstance(time_limits, bool):
        raise ArgumentsError(f"{where}: argument time_limits: got {time_limits!r}, expected true or false")
    env, constructor_arguments = _made(jaxmarl, name, where, arguments)
    bound, like = _bind(where, env, _without_limit(jaxmarl, name, env, constructor_arguments), time_limits)
    present = np.array([agent is not None for agent in bound.rows])

    def reset(key: Array, parameters: EnvParams) -> tuple[MarlState, TeamView]:
        obs, inner = env.reset(key)
        state = MarlState(foreign.typed_as(like, inner), jnp.asarray(present))
        return state, _view(bound, obs, state)

    def step(key: Array, state: MarlState, actions: TeamActions) -> tuple[MarlState, TeamStep]:
        return _step(bound, like, key, state, actions)

    return JaxEnv(
        name=foreign.behavior_name(name),
        spec=BehaviorSpec((vector_sensor(bound.size),), bound.action),
        members=len(bound.rows) // bound.teams,
        parameters={},
        reset=reset,
        step=step,
        teams=bound.teams,
        truncates=bound.endless is not None or bound.tells,
    )


def _made(jaxmarl: Any, name: str, where: str, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Make the environment. Return it with the arguments that its constructor received."""
    changes: dict[str, Any] = {}
    try:
        env = jaxmarl.make(name)
        if arguments:
            changes = _constructor_arguments(name, where, env, arguments)
        if getattr(env, "auto_reset", False):
            changes["auto_reset"] = False
        return (jaxmarl.make(name, **changes) if changes else env), changes
    except JaxrlError:
        raise
    except Exception as error:
        reason = next((why for start, why in _REASONS.items() if name.startswith(start)), None)
        told = f" with {', '.join(arguments)}" if changes else ""
        raise JaxrlError(f"{where}: {reason or f'JaxMARL cannot make it{told}: {error}'}") from error


def _constructor_arguments(name: str, where: str, env: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    usual = {key: value for key, value in _usual(env).items() if key not in _FILLED_IN}
    key, module, table = _TABLES.get(name, ("", "", ""))
    named = arguments.get(key)
    if named is not None and key in usual:
        entries = getattr(import_module(f"{_PACKAGE}.environments.{module}"), table)
        if str(named) not in entries:
            raise ArgumentsError(unknown(f"{where}: {key}={named}", str(named), entries, what=f"no such {key}"))
        usual = {**usual, key: None}
        arguments = {**arguments, key: entries[str(named)]}
    return fitted(where, arguments, usual)


def _usual(env: Any) -> dict[str, Any]:
    """Return the constructor's arguments with their defaults, including those that it passes on through `**kwargs`."""
    defaults: dict[str, Any] = {}
    for kind in type(env).__mro__:
        init = vars(kind).get("__init__")
        if init is not None:
            usual = usual_arguments(init)
            defaults = {**{key: value for key, value in usual.items() if value is not ...}, **defaults}
            if "kwargs" not in str(inspect.signature(init)):
                break
    inner = vars(env).get("_env")  # SMAX against a heuristic plays SMAX
    return defaults if inner is None else {**_usual(inner), **defaults}


def _without_limit(jaxmarl: Any, name: str, env: Any, given: dict[str, Any]) -> Any:
    """Return a copy of the environment that never reaches its time limit, None if it has no `max_steps`."""
    if not hasattr(env, "max_steps"):
        return None
    try:
        return jaxmarl.make(name, **{**given, "max_steps": foreign.NEVER})
    except TypeError:  # no argument of the constructor (FACMAC's variants, switch_riddle)
        endless = copy.copy(env)
        endless.max_steps = foreign.NEVER
        return endless


def _bind(where: str, env: Any, endless: Any, time_limits: bool) -> tuple[_Bound, Any]:
    """Compute the sizes of all padded arrays. Return them with the state's shapes and types."""
    rows, teams = rows_of(env.agents)
    spaces = {agent: env.action_space(agent) for agent in env.agents}
    specs = {agent: foreign.action_spec(f"{where}, agent {agent}", space) for agent, space in spaces.items()}
    action = joint_action(where, list(specs.values()))
    first = jnp.zeros(action.continuous_size), jnp.zeros(len(action.discrete_branches), jnp.int32)

    def play(key: Array) -> tuple[Any, Any, Any, Any]:
        obs, state = env.reset(key)
        _, new_state, _, _, infos = env.step_env(key, state, _native(spaces, dict.fromkeys(spaces, first)))
        return _by_agent(env.agents, obs), state, new_state, infos

    try:
        obs, state, new_state, infos = jax.eval_shape(play, jax.random.key(0))
    except Exception as error:
        raise JaxrlError(f"{where}: cannot be traced by JAX: {error}") from error
    blind = [str(agent) for agent in env.agents if not jax.tree.leaves(obs.get(agent))]
    if blind:
        raise JaxrlError(f"{where}: no array of observations by the name of agent {', '.join(blind)}")
    bound = _Bound(
        env=env,
        endless=endless if time_limits else None,
        tells=time_limits and "truncation" in infos,
        rows=rows,
        teams=teams,
        spaces=spaces,
        action=action,
        possible=np.stack([possible_actions(action, specs.get(agent, action)) for agent in rows]),
        size=max(sum(leaf.size for leaf in jax.tree.leaves(obs[agent])) for agent in env.agents),
        mask=_mask_method(env, state) if all(len(spec.discrete_branches) == 1 for spec in specs.values()) else "",
    )
    return bound, foreign.unchanging(where, state, new_state)


def _mask_method(env: Any, state: Any) -> str:
    """Return the name of the method of `env` that gives allowed actions; the base class has one that only raises."""
    for method in _MASKS:
        if hasattr(env, method):
            with suppress(NotImplementedError):
                jax.eval_shape(getattr(env, method), state)
                return method
    return ""


def _native(spaces: dict[Any, Any], actions: dict[Any, tuple[Array, Array]]) -> Any:
    """Convert actions (continuous [C], discrete [D]) by agent for JaxMARL, to a tuple if agents are numbers (storm)."""
    native = {agent: foreign.to_native(space, *actions[agent]) for agent, space in spaces.items()}
    return tuple(native.values()) if all(isinstance(agent, int) for agent in native) else native


def _by_agent(agents: Sequence[Any], obs: Any) -> dict[Any, Any]:
    """Return observations by agent. Where agents are numbers (storm), `obs` is a tuple or array of them, or two.

    In storm for any number of agents, `inventory` has a column for each: what it holds (2), whether it may interact,
    what it shows (2). As in its variant for two, an agent sees its own three and of each other the last three.
    """
    if isinstance(obs, Mapping) and "observations" in obs:
        own_columns, shown = obs["inventory"][:3], obs["inventory"][2:]
        others = [[shown[:, j] for j in range(len(agents)) if j != i] for i in range(len(agents))]
        return {a: (obs["observations"][i], own_columns[:, i], others[i]) for i, a in enumerate(agents)}
    if isinstance(obs, Mapping):
        return {agent: obs[agent] for agent in agents if agent in obs}
    return {agent: obs[i] for i, agent in enumerate(agents)}


def _view(bound: _Bound, obs: Any, state: MarlState) -> TeamView:
    """Compute the observations and allowed actions of the members in `state`."""
    obs = _by_agent(bound.env.agents, obs)
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
    """Advance JaxMARL by one step; see the module's docstring for rewards and ends."""
    agents = [(i, agent) for i, agent in enumerate(bound.rows) if agent is not None]
    native = _native(bound.spaces, {agent: (actions.continuous[i], actions.discrete[i]) for i, agent in agents})
    obs, inner, rewards, dones, infos = bound.env.step_env(key, state.inner, native)
    ended = state.alive & _done(bound, dones)
    terminated = ended & (infos["truncation"] == 0) if bound.tells else ended
    if bound.endless is not None:
        terminated = ended & _done(bound, bound.endless.step_env(key, state.inner, native)[3])
    alive = state.alive & ~ended
    state_after = MarlState(foreign.typed_as(like, inner), alive)
    own_reward, group = shares(_by_row(bound, rewards, jnp.float32), state.alive, bound.teams)
    view, ends = _view(bound, obs, state_after), {"terminated": terminated, "truncated": ended & ~terminated}
    return state_after, team_step(view, reward=own_reward, group_reward=group, **ends, over=~jnp.any(alive), figures={})


def _by_row(bound: _Bound, values: dict[str, Any], dtype: Any) -> Array:
    """Stack scalars by agent into an array [A], with 0 in rows that never live."""
    return jnp.stack([jnp.asarray(0 if agent is None else values[agent], dtype).reshape(()) for agent in bound.rows])


def _done(bound: _Bound, dones: dict[str, Any]) -> Array:
    """Return whether the agent itself or the episode is done, bool [A]."""
    agent_dones = {agent: dones.get(agent, False) for agent in bound.spaces}
    return _by_row(bound, agent_dones, bool) | jnp.asarray(dones["__all__"], bool)


def rows_of(agents: list[str]) -> tuple[tuple[str | None, ...], int]:
    """Assign agents to rows (A entries). Return the rows and the number of teams.

    Agents whose names begin as in `_OPPONENTS` are the second team if there are others; the smaller of two teams is
    filled up with None, rows that never live.
    """
    opponents = [agent for agent in agents if str(agent).startswith(_OPPONENTS)]
    sides = [side for side in ([agent for agent in agents if agent not in opponents], opponents) if side]
    members = max(len(side) for side in sides)
    filled = [[*side, *[None] * (members - len(side))] for side in sides]
    return tuple(agent for side in filled for agent in side), len(sides)


def joint_action(where: str, specs: list[ActionSpec]) -> ActionSpec:
    """Return the smallest action spec that holds every agent's: most dimensions, most branches, largest branches.

    Raises:
        JaxrlError: some agents are continuous and others discrete; `where` names the environment.
    """
    continuous = max(spec.continuous_size for spec in specs)
    count = max(len(spec.discrete_branches) for spec in specs)
    if continuous and count:
        raise JaxrlError(f"{where}: agents with continuous and agents with discrete actions: not supported")
    padded = [(*spec.discrete_branches, *[1] * (count - len(spec.discrete_branches))) for spec in specs]
    return ActionSpec(continuous, tuple(max(sizes) for sizes in zip(*padded, strict=True)))


def possible_actions(action: ActionSpec, own: ActionSpec) -> np.ndarray:
    """Return which entries of the joint action `own` has, bool [M]; of a branch that it lacks, only the first."""
    lacking = len(action.discrete_branches) - len(own.discrete_branches)
    sizes = zip(action.discrete_branches, (*own.discrete_branches, *[1] * lacking), strict=True)
    return np.concatenate([np.zeros(0, bool), *[np.arange(joint) < size for joint, size in sizes]])


def shares(reward: Array, alive: Array, teams: int) -> tuple[Array, Array]:
    """Split each member's reward into its own and the group's: r_i = own_i + group with Σ own_i = 0 in a team.

    `group` is the mean over the members that lived before the step. It is taken of differences from the largest reward,
    so that it is exact where all are equal. A team of one keeps r as its own.

    Args:
        reward: float32 [A], r, one team after the other.
        alive: bool [A], before the step.
        teams: number of teams, each of A / teams rows.

    Returns:
        own and group reward, float32 [A], 0 for members that did not live.
    """
    reward, lived = (x.reshape(teams, -1) for x in (reward, alive))
    if lived.shape[1] == 1:
        return jnp.where(alive, reward.ravel(), 0.0), jnp.zeros(alive.shape)
    some = jnp.max(reward, axis=1, where=lived, initial=-jnp.inf)[:, None]
    count = jnp.maximum(lived.sum(axis=1, keepdims=True), 1)
    mean = some + jnp.where(lived, reward - some, 0.0).sum(axis=1, keepdims=True) / count
    own_reward, group = jnp.where(lived, reward - mean, 0.0), jnp.where(lived, mean, 0.0)
    return own_reward.ravel(), group.ravel()
