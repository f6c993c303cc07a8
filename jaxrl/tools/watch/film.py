"""Plays an environment with the policy of a run, or with random actions, and makes a film of it.

For environments in JAX this is a shell of its own, as the training loops are: a whole game is one compiled program. The
states come back as numpy arrays and are drawn one by one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxrl import trust as trusted
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, parse_address, split_function, unknown
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.jax_envs import ENVIRONMENTS, environment_of
from jaxrl.jax_envs.interface import JaxEnv, State, TeamView
from jaxrl.jax_envs.sampling import of_episode, of_one
from jaxrl.jax_envs.scene import JaxScene, Sizes, parts_of, scene_of
from jaxrl.settings import load_run_settings
from jaxrl.settings.teams import check_places
from jaxrl.tools.watch.painter import Frame, check_ending, write_film
from jaxrl.training.acting import (
    Act,
    Moment,
    by_team,
    first_moment,
    memory_before,
    next_moment,
    trained_actions,
    untrained_actions,
)
from jaxrl.training.file_policy import choose_model, is_model, load_policy
from jaxrl.training.trained_policy import Trained, parameters_for
from jaxrl.types import JaxrlError, ParameterValue

if TYPE_CHECKING:
    from jaxrl.tools.watch.foreign import Played

_FILM_SECONDS, _FASTEST, _SLOWEST = 10.0, 0.06, 0.4
_SHORTEST = 0.02  # seconds of a picture, shortest time that viewers of GIF files respect
_LONGEST, _LONGEST_WIDE = 480, 800  # pixels; of scenes more than twice as wide as high
FOREIGN = (Kind.GYMNASIUM, Kind.PETTINGZOO)
_SHOWN = 8  # names of runs in one message
_UNITY = (
    "{what} draws in a window of its own, of which no film is made; to see a trained policy play in it: "
    "jaxrl train {config}{env} --run-id={run} --results-dir={results} --resume --inference; give an .onnx file to the "
    "agents' Behavior Parameters"
)


class WatchSummary(NamedTuple):
    """Summary of a film."""

    behavior: str
    policy: str  # source of the actions, in words
    steps: int  # decisions in all episodes
    returns: tuple[tuple[float, ...], ...]  # by episode and team: see `team_rewards`
    finished: bool  # False: cut by the limit of steps, the last episode is not over
    out: Path


class Game(NamedTuple):
    """T decisions in one area, as numpy arrays with a leading axis T."""

    before: State  # at the decision
    after: State  # after the decision; at the end of an episode, its final state
    reward: Mapping[str, np.ndarray]  # float32 [T, A], by behavior
    group_reward: Mapping[str, np.ndarray]  # float32 [T, A], likewise
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
    opponent: Path | None = None,
    models: Sequence[Path] = (),
) -> WatchSummary:
    """Play one area of `environment` and write the film to `out`.

    Args:
      environment: `jax:NAME` or `player:NAME` (the same, drawn), `FILE.py:FUNCTION`, `gymnasium:ID` or
        `pettingzoo:MODULE`; None: that of the run.
      run: results folder of a run of either loop, whose latest checkpoint acts, or an ONNX file; None for random
        allowed actions.
      out: a .gif, or a .png with at most 12 stills.
      seed: decides everything random: one seed gives one film.
      episodes: the film ends after so many episodes,
      steps: or after so many decisions, whichever comes first.
      deterministic: take the mean or most likely action instead of a sample.
      env_args: `key=value` of an environment that a Python function makes, in place of those of the run.
      trust: import code that the folders of the runs name, see `jaxrl.trust`.
      opponent: results folder of the run, or the ONNX file, that plays all teams but the first one; if each behavior of
        the environment has one team, all behaviors but the first one.
      models: ONNX files that act in place of the run, each for the behavior in its name, or one for the rest.

    Raises:
      UntrustedError: the folder names code that the user has not trusted, and `trust` is false.
      JaxrlError: unknown environment, one that cannot be drawn, an opponent where there is one team, or a limit below
        1; `out` has another ending or cannot be written; a run or file cannot be used, see `load_policy`.
    """
    check_ending(out)
    if episodes < 1 or steps < 1:
        raise JaxrlError(f"episodes = {episodes}, steps = {steps}: a film needs at least one of each")
    if run is not None and is_model(run):
        models, run = (*models, run), None
    if models and environment is None and run is None:
        raise JaxrlError(f"{models[0]}: a model does not tell its environment: name it, such as jax:dungeon_escape")
    for folder in (run, opponent) if trust else ():
        if folder is not None:
            trusted.accept(folder)
    if environment is not None:
        trusted.ours(environment)
    name = address_of(run) if environment is None else environment
    check_watchable(name, run)
    if parse_address(name).kind in FOREIGN:
        if opponent is not None:
            raise JaxrlError(f"--opponent: {name} is played by one policy: leave it out")
        from jaxrl.tools.watch.foreign import play_foreign  # Gymnasium is an extra

        limits = {"seed": seed, "episodes": episodes, "steps": steps, "models": models}
        return _watch_foreign(play_foreign(name, run, env_args, deterministic=deterministic, **limits), out, episodes)
    arguments = arguments_of(run, name) if env_args is None else keyword_arguments(env_args)
    env = drawable(name, arguments)
    return _watch_game(env, cast(env, run, deterministic, opponent, models), out, seed, episodes, steps)


def _watch_game(
    env: JaxEnv | JaxScene, roles: Mapping[str, Role], out: Path, seed: int, episodes: int, steps: int
) -> WatchSummary:
    trained = [player for role in roles.values() for player in role.trained]
    parameters = parameters_for(trained[0], env) if trained else dict(env.parameters)
    game = play(env, roles, jax.random.key(seed), parameters, steps=steps)
    length = _length(game.over, episodes)
    rewards = team_rewards(env, game)[:length]
    frames = frames_of(env, game, rewards, episodes)
    width, height = frames[0].scene.size
    seconds = min(max(_FILM_SECONDS / len(frames), _FASTEST), _SLOWEST)
    write_film(out, frames, frame_seconds=seconds, longest=_LONGEST_WIDE if width > 2 * height else _LONGEST)
    ends = np.flatnonzero(game.over[:length]) + 1
    parts = np.split(rewards, ends[ends < length])
    origins = (" against ".join(player.origin for player in role.trained) for role in roles.values() if role.trained)
    return WatchSummary(
        behavior=", ".join(part.name for part in parts_of(env)),
        policy=", ".join(origins) or "random actions",
        steps=length,
        returns=tuple(tuple(float(team) for team in part.sum(axis=0)) for part in parts),
        finished=bool(game.over[length - 1]),
        out=out,
    )


class Role(NamedTuple):
    """Decides for all members of a behavior."""

    act: Act
    policy: Any
    memory: Any  # first memory that `act` takes
    trained: tuple[Trained, ...] = ()


def cast(
    env: JaxEnv | JaxScene,
    run: Path | None,
    deterministic: bool = False,
    opponent: Path | None = None,
    models: Sequence[Path] = (),
) -> dict[str, Role]:
    """Return the role of each behavior: a model, its policy of the run, or random actions; an opponent for other sides.

    Raises JaxrlError if there is an opponent, but only one side.
    """
    parts = parts_of(env)
    names = [part.name for part in parts]
    runs = {name: choose_model(models, name, names) or run for name in names}
    if opponent is None:
        return {part.name: _role(part, runs[part.name], deterministic) for part in parts}
    if sum(part.teams for part in parts) < 2:
        raise JaxrlError(f"--opponent {opponent}: {env.name} has one team, there is no other side: leave it out")
    return {
        part.name: _both(part, _role(part, runs[part.name], deterministic), _role(part, opponent, deterministic))
        if part.teams > 1
        else _role(part, runs[part.name] if index == 0 else opponent, deterministic)
        for index, part in enumerate(parts)
    }


def _role(part: Sizes, run: Path | None, deterministic: bool) -> Role:
    if run is None:
        return Role(untrained_actions(part.spec.action), None, ())
    trained = load_policy(run, part.spec, behavior=part.name, deterministic=deterministic)
    check_places(part.name, trained.algorithm.places, part.members)
    memory = memory_before(trained.algorithm, trained.policy, part.teams * part.members)
    return Role(trained_actions(trained.algorithm), trained.policy, memory, (trained,))


def _both(part: Sizes, first: Role, others: Role) -> Role:
    """Return a role with `first` for the first team, `others` for the rest."""
    sides = (np.arange(part.teams * part.members) >= part.members).astype(int)
    act = by_team([first.act, others.act], sides)
    policies, memories = (first.policy, others.policy), (first.memory, others.memory)
    return Role(act, policies, memories, (*first.trained, *others.trained))


def _watch_foreign(played: Played, out: Path, episodes: int) -> WatchSummary:
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


def drawable(name: str, arguments: Mapping[str, Any]) -> JaxEnv | JaxScene:
    """Return the environment, as `compiled`. Raises JaxrlError where it cannot be drawn."""
    env = compiled(name, arguments)
    if env.draw is None:
        raise JaxrlError(f"{name}: the environment has no picture: give its JaxEnv a `draw` function to watch it")
    return env


def play(
    env: JaxEnv | JaxScene,
    roles: Mapping[str, Role],
    key: Array,
    parameters: Mapping[str, ParameterValue],
    *,
    steps: int,
) -> Game:
    """Play `steps` decisions in one area, one episode after the other. `key` is consumed.

    Policies are arguments of the program: as constants, each would be compiled anew. Parameters that are samplers are
    drawn for each episode.
    """
    acts = {name: role.act for name, role in roles.items()}
    policies, memories = ({name: role[field] for name, role in roles.items()} for field in (1, 2))
    game = jax.jit(partial(_play, scene_of(env), acts, steps))(policies, memories, key, of_one(parameters))
    return Game(*jax.tree.map(np.asarray, game))


def _play(
    scene: JaxScene,
    acts: Mapping[str, Act],
    steps: int,
    policies: dict[str, Any],
    memories: dict[str, Any],
    key: Array,
    parameters: dict[str, Any],
) -> tuple[Any, ...]:
    """Play as the program of `play`: return the fields of a `Game`, as JAX arrays."""
    names = [part.name for part in scene.parts]
    reset_key, play_key = jax.random.split(key)

    def begin(key: Array) -> tuple[State, dict[str, TeamView]]:
        return scene.reset(key, of_episode(parameters, key))

    def step(carry: tuple[State, dict[str, Moment], dict[str, Any]], key: Array) -> tuple[Any, tuple[Any, ...]]:
        keys = jax.random.split(key, 2 + len(names))
        act_keys, (step_key, reset_key) = (keys[:1], keys[1:]) if len(names) == 1 else (keys[2:], keys[:2])
        state, moments, memories = carry
        actions, after_memories = {}, {}
        for name, act_key in zip(names, act_keys, strict=True):
            sent = acts[name](policies[name], memories[name], moments[name], act_key)
            actions[name], after_memories[name] = sent
        new_state, result = scene.step(step_key, state, actions)
        outcomes = result.behaviors
        views = {name: outcome.view for name, outcome in outcomes.items()}
        going, views = jax.lax.cond(result.over, partial(begin, reset_key), lambda: (new_state, views))
        following = {}
        for name, outcome in outcomes.items():
            ended = outcome.terminated | outcome.truncated | result.over
            following[name] = next_moment(moments[name], views[name], ended, outcome.reward, outcome.group_reward)
        rewards, group = ({name: outcome[field] for name, outcome in outcomes.items()} for field in (1, 2))
        return (going, following, after_memories), (state, new_state, rewards, group, result.over)

    state, views = begin(reset_key)
    first = {name: first_moment(view) for name, view in views.items()}
    return jax.lax.scan(step, (state, first, memories), jax.random.split(play_key, steps))[1]


def team_rewards(env: JaxEnv | JaxScene, game: Game) -> np.ndarray:
    """Return the reward of each of K teams for each decision, float32 [T, K]: its group reward and its members' own.

    Teams of several behaviors follow each other.
    """
    return np.concatenate([_team_rewards(part, game) for part in parts_of(env)], axis=-1)


def _team_rewards(part: Sizes, game: Game) -> np.ndarray:
    shape = (*game.over.shape, part.teams, part.members)
    group, own = game.group_reward[part.name].reshape(shape), game.reward[part.name].reshape(shape)
    received = np.where(group.max(-1) > -group.min(-1), group.max(-1), group.min(-1))  # of living members
    return received + own.sum(-1)


def _length(over: np.ndarray, episodes: int) -> int:
    """Return the number of decisions until `episodes` have ended, or of all."""
    ends = np.flatnonzero(over)
    return int(ends[episodes - 1]) + 1 if len(ends) >= episodes else len(over)


def frames_of(env: JaxEnv | JaxScene, game: Game, rewards: np.ndarray, episodes: int) -> list[Frame]:
    """Return pictures of the start of each episode and of the state after every decision."""
    assert env.draw is not None
    tell = env.tell or (lambda state, over: "")
    frames: list[Frame] = []
    episode, clock, total, text = 0, 0, np.zeros(rewards.shape[1]), ""
    for time, reward in enumerate(rewards):
        if clock == 0:
            episode, total, before = episode + 1, np.zeros(rewards.shape[1]), _at(game.before, time)
            title, text = _title(episode, episodes), tell(before, False)
            frames.append(Frame(env.draw(before), caption(title, 0, total, text), news=bool(text)))
        clock, total, over, state = clock + 1, total + reward, bool(game.over[time]), _at(game.after, time)
        text, known = tell(state, over), text
        frames.append(Frame(env.draw(state), caption(title, clock, total, text), ends=over, news=text != known))
        clock = 0 if over else clock
    return frames


def _at(states: State, time: int) -> State:
    return jax.tree.map(lambda x: x[time], states)


def _title(episode: int, episodes: int) -> str:
    return f"episode {episode}   " if episodes > 1 else ""


def caption(title: str, clock: int, total: np.ndarray, told: str = "") -> str:
    """Return the line under a picture: decisions of this episode, rewards of each team in it, and the scene's text."""
    earned = " : ".join(f"{round(float(value), 2) + 0.0:.2f}" for value in total)
    return f"{title}step {clock}   reward {earned}" + (f"   {told}" if told else "")


def address_of(run: Path | None) -> str:
    """Return the address in the configuration of a run. Raises JaxrlError if there is none."""
    if run is None:
        raise JaxrlError("Nothing to watch: name an environment, such as jax:dungeon_escape, or a run with --run")
    path = RunFolder(run.parent, run.name).configuration
    if not path.is_file():
        runs = sorted(file.parent.name for file in run.glob("*/configuration.yaml"))
        if runs:
            raise JaxrlError(
                f"{run}: is the folder of a sweep or of several runs, and no run itself; name one of them, such as "
                f"--run {shlex.quote(str(run / runs[0]))} (there are: {', '.join(runs[:_SHOWN])}"
                f"{f' and {len(runs) - _SHOWN} more' if len(runs) > _SHOWN else ''})"
            )
        raise JaxrlError(f"{path}: not there, so the run does not tell its environment; name it before --run")
    address = load_run_settings(path, {}, HYPERPARAMETER_TYPES, of_folder=True).env_settings.env_path
    if address is None:
        raise JaxrlError(_unity("the Unity Editor", None, run))
    return address


def arguments_of(run: Path | None, address: str) -> dict[str, Any]:
    """Return arguments of the run's environment if `address` is compiled and is that environment; else nothing."""
    path = None if run is None else RunFolder(run.parent, run.name).configuration
    if path is None or not path.is_file() or not parse_address(address).kind.compiled:
        return {}
    options = load_run_settings(path, {}, HYPERPARAMETER_TYPES, of_folder=True).env_settings
    return keyword_arguments(options.env_args) if options.env_path == address else {}


def check_watchable(address: str, run: Path | None) -> None:
    """Raise JaxrlError unless there is such an environment, of a kind that can be drawn."""
    kind, name = parse_address(address)
    if kind in FOREIGN:
        simulator(kind).check(name)
        return
    if kind in (Kind.JAXMARL, Kind.GYMNAX, Kind.RLLIB):
        raise JaxrlError(f"{address}: the environments of {kind} have no picture here; watch jax:NAME instead")
    if kind is Kind.UNITY and (Path(address).exists() or Path(address).name != address):
        raise JaxrlError(_unity(f"{address}: a Unity build", address, run))
    by_function = kind is Kind.FUNCTION or (kind is Kind.PLAYER and split_function(name or "") is not None)
    known = kind in (Kind.JAX, Kind.PLAYER) and name in ENVIRONMENTS
    if not by_function and not known:
        prefix = f"{Kind.PLAYER if kind is Kind.PLAYER else Kind.JAX}:"
        raise JaxrlError(unknown(address, name or "", ENVIRONMENTS, there_are="jaxrl can show", prefix=prefix))


def compiled(address: str, arguments: Mapping[str, Any]) -> JaxEnv | JaxScene:
    """Return an environment in JAX; that of a player is compiled from its function. Raises JaxrlError."""
    kind, name = parse_address(address)
    if kind is Kind.PLAYER:
        address = name if name and split_function(name) else f"{Kind.JAX}:{name}"
    return environment_of(address, **arguments)


def _unity(what: str, build: str | None, run: Path | None) -> str:
    config = "CONFIG" if run is None else shlex.quote(str(run / "configuration.yaml"))
    return _UNITY.format(
        what=what,
        config=config,
        env="" if build is None else f" --env={shlex.quote(build)}",
        run="ID" if run is None else shlex.quote(run.name),
        results="results" if run is None else shlex.quote(str(run.parent)),
    )
