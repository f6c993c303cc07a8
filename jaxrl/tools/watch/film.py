"""Plays an environment with the policy of a run, or with random actions, and makes a film of it.

For environments in JAX this is a shell of its own, as the training loops are: a whole game is one compiled program. The
states come back as numpy arrays and are drawn one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxrl import trust as trusted
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.jax_envs import environment_of
from jaxrl.jax_envs.interface import JaxEnv, State, TeamView
from jaxrl.jax_envs.sampling import of_episode, of_one
from jaxrl.jax_envs.scene import JaxScene, Sizes, by_behavior, parts_of
from jaxrl.tools.watch import addresses
from jaxrl.tools.watch.acting import untrained_actions
from jaxrl.tools.watch.addresses import WatchError
from jaxrl.tools.watch.painter import Frame, check_ending, write_film
from jaxrl.tools.watch.scene import play_scene
from jaxrl.training.acting import Act, Moment, first_moment, memory_before, next_moment, trained_actions
from jaxrl.training.trained_policy import Trained, load_trained, parameters_for
from jaxrl.types import ParameterValue

_FILM_SECONDS, _FASTEST, _SLOWEST = 10.0, 0.06, 0.4
_SHORTEST = 0.02  # seconds of a picture that viewers of GIF files still keep to
_LONGEST, _LONGEST_WIDE = 480, 800  # pixels; of scenes more than twice as wide as high


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
    reward: Any  # float32 [T, A], or by behavior
    group_reward: Any  # float32 [T, A], likewise
    over: np.ndarray  # bool [T]


def watch(
    environment: str | None,
    *,
    run: Path | None,
    out: Path,
    seed: int = 0,
    episodes: int = 1,
    steps: int = 300,
    deterministic: bool = False,
    env_args: Sequence[str] | None = None,
    trust: bool = False,
) -> WatchSummary:
    """Play one area of `environment` and write the film to `out`.

    Args:
      environment: `jax:NAME` or `player:NAME` (the same, drawn), `FILE.py:FUNCTION`, `gymnasium:ID` or
        `pettingzoo:MODULE`; None: that of the run.
      run: results folder of a run of either loop, whose latest checkpoint acts; None for random allowed actions.
      out: a .gif, or a .png with at most 12 stills.
      seed: decides everything random: the same one gives the same film.
      episodes: after so many the film ends,
      steps: or after so many decisions, whatever comes first.
      deterministic: take the mean or most likely action instead of a sample.
      env_args: `key=value` of an environment that a Python function makes, in place of those of the run.
      trust: import code that the folder of the run names, see `jaxrl.trust`.

    Raises:
      UntrustedError: the folder names code that the user has not named, and `trust` is false.
      WatchError: unknown environment, one that cannot be drawn, or a limit below 1.
      PictureError: `out` has another ending or cannot be written.
      JaxrlError: the run or the environment cannot be used, see `load_trained`.
    """
    check_ending(out)
    if episodes < 1 or steps < 1:
        raise WatchError(f"episodes = {episodes}, steps = {steps}: a film needs at least one of each")
    if trust and run is not None:
        trusted.accept(run)
    if environment is not None:
        trusted.ours(environment)
    name = addresses.environment_of(run) if environment is None else environment
    addresses.check_watchable(name, run)
    if parse_address(name).kind in addresses.FOREIGN:
        return _watch_foreign(name, run, out, env_args, seed, episodes, steps, deterministic)
    arguments = addresses.arguments_of(run, name) if env_args is None else keyword_arguments(env_args)
    return _watch_game(_environment(name, arguments), run, out, seed, episodes, steps, deterministic)


def _watch_game(
    env: JaxEnv | JaxScene, run: Path | None, out: Path, seed: int, episodes: int, steps: int, deterministic: bool
) -> WatchSummary:
    cast = by_behavior(env, partial(_cast, run, deterministic))
    roles = [cast] if isinstance(env, JaxEnv) else list(cast.values())
    trained = next((role.trained for role in roles if role.trained is not None), None)
    parameters = dict(env.parameters) if trained is None else parameters_for(trained, env)
    game = play(env, *_each(cast), jax.random.key(seed), parameters, steps=steps)
    length = _length(game.over, episodes)
    rewards = team_rewards(env, game)[:length]
    frames = _frames(env, game, rewards, episodes)
    width, height = frames[0].scene.size
    seconds = min(max(_FILM_SECONDS / len(frames), _FASTEST), _SLOWEST)
    write_film(out, frames, frame_seconds=seconds, longest=_LONGEST_WIDE if width > 2 * height else _LONGEST)
    ends = np.flatnonzero(game.over[:length]) + 1
    parts = np.split(rewards, ends[ends < length])
    return WatchSummary(
        behavior=", ".join(part.name for part in parts_of(env)),
        policy="random actions" if run is None else ", ".join(role.trained.origin for role in roles if role.trained),
        steps=length,
        returns=tuple(tuple(float(team) for team in part.sum(axis=0)) for part in parts),
        finished=bool(game.over[length - 1]),
        out=out,
    )


class _Role(NamedTuple):
    """Who acts for a behavior."""

    trained: Trained | None
    act: Act
    policy: Any
    memory: Any


def _cast(run: Path | None, deterministic: bool, part: Sizes) -> _Role:
    """Who acts for a behavior: its policy of the run, or random actions."""
    if run is None:
        return _Role(None, untrained_actions(part.spec.action), None, ())
    trained = load_trained(run, part.spec, behavior=part.name, deterministic=deterministic)
    memory = memory_before(trained.algorithm, trained.policy, part.teams * part.members)
    return _Role(trained, trained_actions(trained.algorithm), trained.policy, memory)


def _each(cast: Any) -> tuple[Any, Any, Any]:
    """Act, policy and memory; of several behaviors by name."""
    if isinstance(cast, _Role):
        return cast.act, cast.policy, cast.memory
    acts, policies, memories = ({name: role[field] for name, role in cast.items()} for field in (1, 2, 3))
    return acts, policies, memories


def _watch_foreign(
    name: str,
    run: Path | None,
    out: Path,
    env_args: Sequence[str] | None,
    seed: int,
    episodes: int,
    steps: int,
    deterministic: bool,
) -> WatchSummary:
    from jaxrl.tools.watch.foreign import play_foreign  # Gymnasium is an extra

    limits = {"seed": seed, "episodes": episodes, "steps": steps}
    played = play_foreign(name, run, env_args, deterministic=deterministic, **limits)
    frames = [
        Frame(shot.picture, caption(_title(shot.episode, episodes), shot.clock, np.array(shot.earned)), shot.ends)
        for shot in played.shots
    ]
    write_film(out, frames, frame_seconds=max(played.frame_seconds, _SHORTEST), longest=_LONGEST)
    return WatchSummary(
        behavior=", ".join(played.behaviors),
        policy=played.origin,
        steps=played.steps,
        returns=played.returns,
        finished=played.shots[-1].ends,
        out=out,
    )


def _environment(name: str, arguments: Mapping[str, Any]) -> JaxEnv | JaxScene:
    """The environment that can be drawn. A served one is the same environment, compiled."""
    kind, short = parse_address(name)
    env = environment_of(addresses.compiled(short or "") if kind is Kind.PLAYER else name, **arguments)
    if env.draw is None:
        raise WatchError(f"{name}: the environment has no picture: give its JaxEnv a `draw` function to watch it")
    return env


def play(
    env: JaxEnv | JaxScene,
    act: Any,
    policy: Any,
    memory: Any,
    key: Array,
    parameters: Mapping[str, ParameterValue],
    *,
    steps: int,
) -> Game:
    """`steps` decisions in one area, one episode after the other. `key` is consumed.

    `policy` is what `act` takes, `memory` what it takes first; with several behaviors all three, and the rewards of the
    game, stand by name. The policy is an argument of the program: as a constant, each would be compiled anew.
    Parameters that are samplers are drawn for each episode.
    """
    program = partial(_play, env) if isinstance(env, JaxEnv) else partial(play_scene, env)
    game = jax.jit(partial(program, act, steps))(policy, memory, key, of_one(parameters))
    return Game(*jax.tree.map(np.asarray, game))


def _play(
    env: JaxEnv, act: Act, steps: int, policy: Any, memory: Any, key: Array, parameters: dict[str, Any]
) -> tuple[Any, ...]:
    """The program of `play`: the fields of a `Game`, as JAX arrays."""
    reset_key, play_key = jax.random.split(key)

    def begin(key: Array) -> tuple[State, TeamView]:
        return env.reset(key, of_episode(parameters, key))

    def step(carry: tuple[State, Moment, Any], key: Array) -> tuple[tuple[State, Moment, Any], tuple[Any, ...]]:
        act_key, step_key, reset_key = jax.random.split(key, 3)
        state, moment, memory = carry
        actions, memory = act(policy, memory, moment, act_key)
        after, result = env.step(step_key, state, actions)
        going, view = jax.lax.cond(result.over, partial(begin, reset_key), lambda: (after, result.view))
        ended = result.terminated | result.truncated | result.over
        carry = (going, next_moment(moment, view, ended, result.reward, result.group_reward), memory)
        return carry, (state, after, result.reward, result.group_reward, result.over)

    state, view = begin(reset_key)
    return jax.lax.scan(step, (state, first_moment(view), memory), jax.random.split(play_key, steps))[1]


def team_rewards(env: JaxEnv | JaxScene, game: Game) -> np.ndarray:
    """What each of the K teams earned with each decision, float32 [T, K]: its group reward and its members' own.

    Of several behaviors, one after the other.
    """
    if isinstance(env, JaxScene):
        games = [
            (p, game._replace(reward=game.reward[p.name], group_reward=game.group_reward[p.name])) for p in env.parts
        ]
        return np.concatenate([_team_rewards(part, of_part) for part, of_part in games], axis=-1)
    return _team_rewards(env, game)


def _team_rewards(env: Sizes, game: Game) -> np.ndarray:
    shape = (*game.over.shape, env.teams, env.members)
    group, own = game.group_reward.reshape(shape), game.reward.reshape(shape)
    received = np.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))  # by those who lived to get it
    return received + own.sum(-1)


def _length(over: np.ndarray, episodes: int) -> int:
    """Decisions until `episodes` have ended, or all."""
    ends = np.flatnonzero(over)
    return int(ends[episodes - 1]) + 1 if len(ends) >= episodes else len(over)


def _frames(env: JaxEnv | JaxScene, game: Game, rewards: np.ndarray, episodes: int) -> list[Frame]:
    """The start of each episode and what every decision led to."""
    assert env.draw is not None
    tell = env.tell or (lambda state, over: "")
    frames: list[Frame] = []
    episode, clock, total, told = 0, 0, np.zeros(rewards.shape[1]), ""
    for time, reward in enumerate(rewards):
        if clock == 0:
            episode, total, before = episode + 1, np.zeros(rewards.shape[1]), _at(game.before, time)
            title, told = _title(episode, episodes), tell(before, False)
            frames.append(Frame(env.draw(before), caption(title, 0, total, told), news=bool(told)))
        clock, total, over, after = clock + 1, total + reward, bool(game.over[time]), _at(game.after, time)
        told, known = tell(after, over), told
        frames.append(Frame(env.draw(after), caption(title, clock, total, told), ends=over, news=told != known))
        clock = 0 if over else clock
    return frames


def _at(states: State, time: int) -> State:
    return jax.tree.map(lambda x: x[time], states)


def _title(episode: int, episodes: int) -> str:
    return f"episode {episode}   " if episodes > 1 else ""


def caption(title: str, clock: int, total: np.ndarray, told: str = "") -> str:
    """The line under a picture: decisions of this episode, what each team has earned in it, and what it shows."""
    earned = " : ".join(f"{round(float(value), 2) + 0.0:.2f}" for value in total)
    return f"{title}step {clock}   reward {earned}" + (f"   {told}" if told else "")
