"""Plays a JAX environment with the policy of a run, or with random actions, and makes a film of it.

This is a shell of its own, as the training loops are: a whole game is one compiled program. The states come back as
numpy arrays and are drawn one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.connectors import chain as chains
from jaxrl.envs.address import Kind, parse_address, unknown
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, State, TeamActions, TeamView
from jaxrl.training.trained_policy import Trained, policy_of
from jaxrl.types import JaxrlError
from jaxrl.watch.painter import Frame, check_ending, write_film

_FILM_SECONDS, _FASTEST, _SLOWEST = 10.0, 0.06, 0.4
_LONGEST, _LONGEST_WIDE = 480, 800  # pixels; of scenes more than twice as wide as high


class WatchError(JaxrlError):
    """What was asked for cannot be shown. The text says why and what to do."""


class WatchSummary(NamedTuple):
    """What the film shows."""

    behavior: str
    policy: str  # whose actions, in words
    steps: int  # decisions in all episodes
    returns: tuple[tuple[float, ...], ...]  # of each episode, for each team: see `team_rewards`
    finished: bool  # False: cut by the limit of steps, the last episode is not over
    out: Path


class Game(NamedTuple):
    """T decisions in one area, as numpy arrays with a leading axis T."""

    before: State  # where the decision was made
    after: State  # where it led; where the episode is over, its end
    reward: np.ndarray  # float32 [T, A]
    group_reward: np.ndarray  # float32 [T, A]
    over: np.ndarray  # bool [T]


class Moment(NamedTuple):
    """What members see when they decide, and what came before."""

    view: TeamView
    begin: Array  # bool [A], whose episode begins
    decided: Array  # bool [A], who has just been paid for a decision
    reward: Array  # float32 [A, 2], own and group reward for it


Act = Callable[[Any, Any, Moment, Array], tuple[TeamActions, Any]]
"""(policy, memory, moment, typed key, consumed) → actions and memory."""


def watch(
    environment: str,
    *,
    run: Path | None,
    out: Path,
    seed: int = 0,
    episodes: int = 1,
    steps: int = 300,
    deterministic: bool = False,
) -> WatchSummary:
    """Play one area of `environment` and write the film to `out`.

    Args:
      environment: `jax:NAME`.
      run: results folder of a run, whose latest checkpoint acts; None for random actions among the allowed ones.
      out: a .gif, or a .png with at most 12 stills.
      seed: decides everything random: the same one gives the same film.
      episodes: after so many the film ends,
      steps: or after so many decisions, whatever comes first.
      deterministic: take the mean or most likely action instead of a sample.

    Raises:
      WatchError: unknown environment, one that cannot be drawn, or a limit below 1.
      PictureError: `out` has another ending or cannot be written.
      JaxrlError: the run cannot be used, see `policy_of`.
    """
    check_ending(out)
    if episodes < 1 or steps < 1:
        raise WatchError(f"episodes = {episodes}, steps = {steps}: a film needs at least one of each")
    env = _environment(environment)
    assert env.draw is not None
    trained = None if run is None else policy_of(run, env, deterministic=deterministic)
    parameters = dict(env.parameters) if trained is None else trained.parameters
    act, memory = random_actions(env), ()
    policy = None if trained is None else trained.policy
    if trained is not None:
        act, memory = trained_actions(trained.algorithm), memory_of(env, trained)
    game = play(env, act, policy, memory, jax.random.key(seed), parameters, steps=steps)
    length = _length(game.over, episodes)
    rewards = team_rewards(env, game)[:length]
    frames = _frames(env.draw, game, rewards, episodes)
    width, height = frames[0].scene.size
    seconds = min(max(_FILM_SECONDS / len(frames), _FASTEST), _SLOWEST)
    write_film(out, frames, frame_seconds=seconds, longest=_LONGEST_WIDE if width > 2 * height else _LONGEST)
    ends = np.flatnonzero(game.over[:length]) + 1
    parts = np.split(rewards, ends[ends < length])
    return WatchSummary(
        behavior=env.name,
        policy="random actions" if trained is None else trained.origin,
        steps=length,
        returns=tuple(tuple(float(team) for team in part.sum(axis=0)) for part in parts),
        finished=bool(game.over[length - 1]),
        out=out,
    )


def _environment(name: str) -> JaxEnv:
    """The environment called `jax:NAME`, if it can be drawn."""
    kind, short = parse_address(name)
    if kind is not Kind.JAX or short not in ENVIRONMENTS:
        known = unknown(name, short or "", ENVIRONMENTS, there_are="jaxrl can show", prefix=f"{Kind.JAX}:")
        raise WatchError(known)
    env = ENVIRONMENTS[short]()
    if env.draw is None:
        raise WatchError(f"{name}: the environment has no picture: give its JaxEnv a `draw` function to watch it")
    return env


def random_actions(env: JaxEnv) -> Act:
    """Continuous actions uniform in [-1, 1], discrete ones uniform among the allowed of each branch."""
    action = env.spec.action
    ends = np.cumsum(action.discrete_branches, dtype=int)

    def act(policy: None, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        view = moment.view
        keys = jax.random.split(key, len(ends) + 1)
        members = view.alive.shape[0]
        logits = jnp.where(view.action_mask, 0.0, -jnp.inf)
        branches = [
            jax.random.categorical(keys[i + 1], logits[:, end - size : end])
            for i, (end, size) in enumerate(zip(ends, action.discrete_branches, strict=True))
        ]
        discrete = jnp.stack(branches, axis=1) if branches else jnp.zeros((members, 0))
        continuous = jax.random.uniform(keys[0], (members, action.continuous_size), minval=-1.0)
        return TeamActions(continuous=continuous, discrete=discrete.astype(jnp.int32)), memory

    return act


def trained_actions(algorithm: Algorithm) -> Act:
    """What the algorithm of a run does with a policy, as the environment receives it."""

    chain = None if algorithm.connectors is None else chains.frozen(algorithm.connectors)

    def act(policy: PolicyState, memory: Any, moment: Moment, key: Array) -> tuple[TeamActions, Any]:
        view, obs = moment.view, moment.view.obs
        if chain is not None:
            memory, _ = chains.rewarded(chain, memory, moment.reward, moment.decided)
            memory, obs = chains.observed(chain, memory, obs, view.alive, moment.begin)
        decision = algorithm.act(policy, obs, view.action_mask, algorithm.carry, key)
        sent = decision.sent
        if chain is not None:
            memory, sent = chains.sent(chain, memory, decision.action, sent, view.alive)
        return TeamActions(continuous=sent.continuous, discrete=sent.discrete), memory

    return act


def memory_of(env: JaxEnv, trained: Trained) -> Any:
    """What `trained_actions` remembers before the first decision: the state of its connectors, () without."""
    chain = trained.algorithm.connectors
    return () if chain is None else chains.start(chain, trained.policy.connectors, (env.teams * env.members,))


def play(env: JaxEnv, act: Act, policy: Any, memory: Any, key: Array, parameters: EnvParams, *, steps: int) -> Game:
    """`steps` decisions in one area, one episode after the other. `key` is consumed.

    `policy` is what `act` takes, `memory` what it takes first. The policy is an argument of the program: as a constant,
    each would be compiled anew.
    """
    values = {name: jnp.float32(value) for name, value in parameters.items()}
    game = jax.jit(partial(_play, env, act, steps))(policy, memory, key, values)
    return Game(*jax.tree.map(np.asarray, game))


def _play(
    env: JaxEnv, act: Act, steps: int, policy: Any, memory: Any, key: Array, parameters: dict[str, Array]
) -> tuple[Any, ...]:
    """The program of `play`: the fields of a `Game`, as JAX arrays."""
    reset_key, play_key = jax.random.split(key)

    def step(carry: tuple[State, Moment, Any], key: Array) -> tuple[tuple[State, Moment, Any], tuple[Any, ...]]:
        act_key, step_key, reset_key = jax.random.split(key, 3)
        state, moment, memory = carry
        actions, memory = act(policy, memory, moment, act_key)
        after, result = env.step(step_key, state, actions)
        going, view = jax.lax.cond(result.over, lambda: env.reset(reset_key, parameters), lambda: (after, result.view))
        decided, ended = moment.view.alive, result.terminated | result.truncated
        begin = view.alive & (~decided | ended)
        reward = jnp.stack([result.reward, result.group_reward], axis=-1)
        carry = (going, Moment(view, begin, decided, reward), memory)
        return carry, (state, after, result.reward, result.group_reward, result.over)

    state, view = env.reset(reset_key, parameters)
    nobody = jnp.zeros_like(view.alive)
    first = Moment(view, view.alive, nobody, jnp.zeros((*nobody.shape, 2)))
    return jax.lax.scan(step, (state, first, memory), jax.random.split(play_key, steps))[1]


def team_rewards(env: JaxEnv, game: Game) -> np.ndarray:
    """What each of the K teams earned with each decision, float32 [T, K]: its group reward and its members' own."""
    shape = (*game.over.shape, env.teams, env.members)
    group, own = game.group_reward.reshape(shape), game.reward.reshape(shape)
    received = np.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))  # by those who lived to get it
    return received + own.sum(-1)


def _length(over: np.ndarray, episodes: int) -> int:
    """Decisions until `episodes` have ended, or all."""
    ends = np.flatnonzero(over)
    return int(ends[episodes - 1]) + 1 if len(ends) >= episodes else len(over)


def _frames(draw: Callable[[Any], Any], game: Game, rewards: np.ndarray, episodes: int) -> list[Frame]:
    """The start of each episode and what every decision led to."""
    frames: list[Frame] = []
    episode, clock, total = 0, 0, np.zeros(rewards.shape[1])
    for time, reward in enumerate(rewards):
        if clock == 0:
            episode, total = episode + 1, np.zeros(rewards.shape[1])
            title = f"episode {episode}   " if episodes > 1 else ""
            frames.append(Frame(draw(_at(game.before, time)), _caption(title, 0, total)))
        clock, total = clock + 1, total + reward
        over = bool(game.over[time])
        frames.append(Frame(draw(_at(game.after, time)), _caption(title, clock, total), ends=over))
        clock = 0 if over else clock
    return frames


def _at(states: State, time: int) -> State:
    return jax.tree.map(lambda x: x[time], states)


def _caption(title: str, clock: int, total: np.ndarray) -> str:
    return f"{title}step {clock}   reward {' : '.join(f'{round(value, 2) + 0.0:.2f}' for value in total)}"
