"""Loads a trained policy: `jaxrl.load(run)`, then `policy.act(observations)` and `policy.rollout(env)`.

`jaxrl.load("FILE.onnx")` loads a model that Unity runs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl import trust as trusted
from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.artifacts.checkpoint.mismatch import mismatches
from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import identities
from jaxrl.artifacts.zoo import run_path
from jaxrl.client.episodes import PlayedEpisodes, play_episodes
from jaxrl.client.policy_inputs import per_agent, shown, typed_key
from jaxrl.compilation import cache_by_default, require_float32
from jaxrl.connectors.chain import ChainState
from jaxrl.envs.address import Kind, parse_address
from jaxrl.jax_envs import environment_of, make_environment
from jaxrl.jax_envs.interface import JaxEnv, TeamView
from jaxrl.jax_envs.sampling import of_one
from jaxrl.jax_envs.scene import BehaviorPart, JaxScene, Sizes, scene_of
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.teams import check_places
from jaxrl.training.acting import Moment, memory_before, trained_actions
from jaxrl.training.file_policy import behavior_of_file, is_model, load_policy
from jaxrl.training.trained_policy import Trained, parameters_for
from jaxrl.types import BehaviorSpec, ParameterValue, PolicyError

if TYPE_CHECKING:
    from jaxrl.client.space_policy import Spaced, SpacePolicy

log = logging.getLogger(__name__)


@overload
def load(
    run: str | Path,
    env: JaxEnv | JaxScene | None = None,
    *,
    behavior: str | None = None,
    checkpoint: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> Policy: ...
@overload
def load(
    run: str | Path,
    env: str,
    *,
    behavior: str | None = None,
    checkpoint: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> Any: ...
@overload
def load(
    run: str | Path,
    env: Spaced,
    *,
    behavior: str | None = None,
    checkpoint: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> SpacePolicy: ...
def load(
    run: str | Path,
    env: JaxEnv | JaxScene | str | Spaced | None = None,
    *,
    behavior: str | None = None,
    checkpoint: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> Policy | SpacePolicy:
    """Return the policy in a run's results folder, in a folder that `JittedTrainer.save` wrote, or in an ONNX file.

        policy = jaxrl.load("results/first", deterministic=True)
        action = policy.act(observations)

    Args:
      run: the folder, of a host or compiled run, of one or many seeds; or `zoo:NAME`, one of `jaxrl zoo`; or any model
        that Unity runs, `FILE.onnx`.
      env: the environment that it will play, a JaxEnv or JaxScene or its name (`jax:basic`). None: the checkpoint, or
        the file, gives observations and actions. An environment of Gymnasium, PettingZoo or RLlib, or its address
        (made with the arguments of the run, to see its spaces): the policy is a `SpacePolicy`, which reads the
        environment's observations and returns its actions.
      behavior: its name; None: that of `env`, or the only one of the run, or that in the file's name.
      checkpoint: a step, or the path of a checkpoint folder; None: the latest.
      seed: number of a seed, as in its folder of events; None: the best one according to training_status.json.
      deterministic: act with the mean or most likely action; False: as in the run's settings, usually with a sample.
      trust: import code that the folder names: a user's algorithm or network runs with all your rights.

    Raises:
      RunFolderError: no such folder, behavior, checkpoint or seed.
      CheckpointError: damaged, from a newer jaxrl, for another spec, or too old to contain its spec.
      ArtifactError: no ONNX file that Unity would run for these observations and actions.
      PolicyError: the environment has several behaviors, and `behavior` names none of them.
      OwnCodeError: a user's algorithm or network cannot be imported.
      UntrustedError: the folder names code that you have not trusted, and `trust` is false.
    """
    require_float32()
    cache_by_default()
    folder = run_path(run).absolute()
    chosen: Any = {"checkpoint_at": checkpoint, "seed": seed, "deterministic": deterministic, "trust": trust}
    if isinstance(env, str):
        trusted.ours(env)
    if not _is_jax(env):
        from jaxrl.client.space_policy import SpacePolicy, kind_for

        behavior, kind, batch = kind_for(folder, env, behavior)
        return SpacePolicy(Policy(load_policy(folder, kind.spec, behavior=behavior, **chosen)), kind, batch)
    jax_env: Any = environment_of(env) if isinstance(env, str) else env
    if isinstance(jax_env, JaxScene):
        jax_env = _part(jax_env, behavior_of_file(Path(run)) if behavior is None and is_model(run) else behavior)
    name = behavior if jax_env is None or behavior is not None else jax_env.name
    trained = load_policy(folder, None if jax_env is None else jax_env.spec, behavior=name, **chosen)
    if jax_env is None:
        _tell_of_spaces(folder, trained)
    return Policy(trained)


def _is_jax(env: Any) -> bool:
    """Return whether the environment is in JAX, or None."""
    if isinstance(env, str):
        return parse_address(env).kind not in (Kind.GYMNASIUM, Kind.PETTINGZOO, Kind.RLLIB)
    return env is None or isinstance(env, JaxEnv | JaxScene)


def _tell_of_spaces(run: Path, trained: Trained) -> None:
    """Warn if continuous actions or offsets of the policy are silently not those of the environment."""
    identity = identities(RunFolder(run.parent, run.name).status).get(trained.behavior)
    if identity is not None and (trained.spec.action.continuous_size or "start=" in identity.spaces):
        log.warning(
            "%s was trained with the spaces %s: act answers in the arrays of the training, continuous actions from -1 "
            "to 1. jaxrl.load(run, env) answers what the environment takes.", trained.behavior, identity.spaces,
        )  # fmt: skip


def _part(scene: JaxScene, behavior: str | None) -> BehaviorPart:
    """Return the behavior of that name. Raises PolicyError."""
    names = [part.name for part in scene.parts]
    if behavior not in names:
        got = "none is named" if behavior is None else f"{behavior} is none of them"
        raise PolicyError(f"{scene.name}: has the behaviors {', '.join(names)}, and {got}: say which with `behavior`")
    return scene.part(behavior)


class PolicyAction(NamedTuple):
    """Actions for the environment, and the memory for the next decision. Axes `...` as in the call."""

    continuous: Array  # float32 [..., C]
    discrete: Array  # int32 [..., D]
    memory: Any  # a pytree of arrays [..., *]


class Policy:
    """A trained policy. It does not learn: normalisation and statistics of connectors stay fixed."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._act = jax.jit(partial(_act, trained.algorithm))
        self._memory = cache(self.initial_memory)  # agents mostly come in equal numbers
        self._programs: dict[Any, Any] = {}  # for `rollout`, by environment and number of areas

    def __repr__(self) -> str:
        return f"<Policy {self.behavior}, {self._trained.origin}>"

    @property
    def behavior(self) -> str:
        """Name of the behavior."""
        return self._trained.behavior

    @property
    def spec(self) -> BehaviorSpec:
        """Observations and actions of the environment."""
        return self._trained.spec

    @property
    def settings(self) -> BehaviorSettings:
        """Settings of the training; `network_settings.deterministic` says how it acts.

        An ONNX file has none; its policy has the default ones.
        """
        return self._trained.settings

    @property
    def step(self) -> int:
        """Trainer step of the checkpoint."""
        return self._trained.step

    @property
    def state(self) -> PolicyState:
        """Parameters and statistics, pytrees of arrays."""
        return self._trained.policy

    @property
    def algorithm(self) -> Algorithm:
        """Functions of the policy, for a user's own programs."""
        return self._trained.algorithm

    def initial_memory(self, lead: int | tuple[int, ...] = ()) -> Any:
        """Return the memory before the first decision, a pytree of arrays [*lead, *], `lead` as in `act`."""
        lead = (lead,) if isinstance(lead, int) else tuple(lead)
        return _unflat(_user_memory(memory_before(self.algorithm, self.state, math.prod(lead))), lead)

    def act(
        self,
        obs: Any,
        action_mask: Any = None,
        key: Any = None,
        *,
        memory: Any = None,
        begin: Any = None,
        reward: Any = None,
    ) -> PolicyAction:
        """Decide for agents with any number of leading axes `...`, also none. Compiled once for each size.

        Args:
          obs: arrays [..., *shape] of numpy or JAX, one per sensor in the order of the spec or by name; the array
            itself where there is one sensor.
          action_mask: bool [..., M], True where allowed; None: all choices are.
          key: a JAX key or a whole number, consumed; not needed by a deterministic policy.
          memory: of the previous decision, or `initial_memory`; None: that of the beginning of an episode.
          begin: bool [...], agents whose episode begins with this decision and who forget; None: no agent's.
          reward: float32 [...], reward of each agent for the previous decision, for connectors that show it.

        Raises PolicyError where shapes, dtypes or sensors differ from the spec, or a key is missing.
        """
        view = shown(self.spec, obs, action_mask)
        places = self.algorithm.places
        if places is not None and view.lead[-1:] != (places,):
            raise PolicyError(
                f"obs: got agents {list(view.lead)}, expected [..., {places}]: each of {places} members of a team has "
                "a policy of its own (share_policy: false), in the order of their places"
            )
        if key is None and not self.settings.network_settings.deterministic:
            raise PolicyError("key: this policy samples its actions: give key, or load it with deterministic=True")
        first, paid = memory is None, reward is not None
        moment = (
            *view[:2],
            per_agent("begin", first if begin is None else begin, view.lead, bool),
            per_agent("reward", reward if paid else 0.0, view.lead, np.float32),
            np.full(view.lead, paid),
        )
        before = self._memory(view.lead) if first else self._checked(memory, view.lead)
        action = PolicyAction(*self._act(self.state, before, moment, typed_key(0 if key is None else key)))
        # Python must not end while a file is being evaluated
        return jax.block_until_ready(action) if self._trained.of_file else action

    def rollout(
        self,
        env: JaxEnv | JaxScene | str,
        episodes: int = 100,
        *,
        seed: int = 0,
        steps: int = 10_000,
        areas: int | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        others: Mapping[str, Policy] | None = None,
    ) -> PlayedEpisodes:
        """Play whole episodes of a JAX environment, as one compiled program; return this behavior's results.

        Args:
          env: a JaxEnv or JaxScene, or its name.
          episodes: number; each is an area of its own, so that short ones do not count more often than long ones.
          seed: decides everything random.
          steps: an episode that has not ended after so many decisions is stopped, see `PlayedEpisodes.finished`.
          areas: number of areas side by side; None: all, but at most 128.
          parameters: of the environment, in place of those of the run (in the policy's lessons) and the defaults.
            Samplers are drawn from for each episode.
          others: policies of the other behaviors of a JaxScene, by behavior.

        Raises PolicyError if the environment has other observations or actions than the policy, or other behaviors.
        """
        trusted.ours(env)
        jax_env = environment_of(env) if isinstance(env, str) else env
        scene = scene_of(jax_env)
        name = self.behavior if isinstance(jax_env, JaxScene) else jax_env.name
        players = self._players(scene, name, others or {})
        if episodes < 1 or steps < 1:
            raise PolicyError(f"episodes = {episodes}, steps = {steps}: expected at least one of each")
        values = {**parameters_for(self._trained, jax_env), **(parameters or {})}
        unknown = sorted(set(values) - set(jax_env.parameters))
        if unknown:
            known = ", ".join(jax_env.parameters) or "none"
            raise PolicyError(f"parameters: {jax_env.name} has no {', '.join(unknown)}, it has {known}")
        side_by_side = min(episodes, areas or 128)
        place = (env if isinstance(env, str) else id(env), side_by_side, *map(id, players.values()))
        if place not in self._programs:  # with the environment and players, or their ids might be given to others
            acts = {who: trained_actions(player.algorithm) for who, player in players.items()}
            self._programs[place] = jax_env, players, jax.jit(partial(play_episodes, scene, name, acts, side_by_side))
        *_, program = self._programs[place]
        states, memories = {who: player.state for who, player in players.items()}, {}
        for who, player in players.items():
            rows = side_by_side * scene.part(who).teams * scene.part(who).members
            memories[who] = memory_before(player.algorithm, player.state, rows)
        keys = jax.random.split(jax.random.key(seed), -(-episodes // side_by_side))
        numbers = of_one(values)
        parts = [program(states, memories, key, numbers, jnp.int32(steps)) for key in keys]
        return PlayedEpisodes.joined(parts, episodes)

    def _players(self, scene: JaxScene, name: str, others: Mapping[str, Policy]) -> dict[str, Policy]:
        """Return the policies in the order of the scene; this one is `name`. Raises PolicyError."""
        known, policies = {part.name for part in scene.parts}, {**others, name: self}
        if known != set(policies):
            wanted, got = (", ".join(sorted(behaviors - {name})) or "none" for behaviors in (known, set(policies)))
            raise PolicyError(f"others: {scene.name} wants policies of {wanted} beside {name}, got {got}")
        players = {part.name: policies[part.name] for part in scene.parts}
        for part in scene.parts:
            players[part.name]._fits(part)
        return players

    def _fits(self, env: Sizes) -> None:
        check_places(self.behavior, self.algorithm.places, env.members)
        sensors = zip(env.spec.observations, self.spec.observations, strict=False)
        renamed = tuple(
            theirs._replace(
                name=mine.name,
                observation_type=mine.observation_type if self._trained.of_file else theirs.observation_type,
            )
            for theirs, mine in sensors
        )
        rest = env.spec.observations[len(renamed) :]
        changed = mismatches(spec_to_json(self.spec), {}, env.spec._replace(observations=(*renamed, *rest)), None)
        if changed:
            raise PolicyError(f"{env.name}: this policy of {self.behavior} does not fit it ({'; '.join(changed)})")

    def _checked(self, memory: Any, lead: tuple[int, ...]) -> Any:
        """Return the memory. Raises PolicyError if it is that of other agents or another policy."""
        wanted, other = jax.tree.flatten(self._memory(lead)), jax.tree.flatten(memory)
        if wanted[1] != other[1] or [x.shape for x in wanted[0]] != [np.shape(x) for x in other[0]]:
            raise PolicyError(f"memory: is not that of agents {list(lead)} of this policy: start with initial_memory")
        return memory


def _act(
    algorithm: Algorithm, policy: PolicyState, memory: Any, moment: tuple[Any, ...], key: Array
) -> tuple[Array, Array, Any]:
    """Run the program of `act`: its leading axes become one, and the memory has the form that users see."""
    lead, rows = moment[2].shape, moment[2].size

    def flat(x: Array) -> Array:
        return x.reshape(rows, *x.shape[len(lead) :])

    obs, action_mask, begin, reward, paid, (slots, carry) = jax.tree.map(flat, (*moment, memory))
    now = Moment(
        view=TeamView(obs, action_mask, jnp.ones_like(begin)),
        begin=begin,
        decided=paid & ~begin,
        reward=jnp.stack([reward, jnp.zeros_like(reward)], axis=-1),
    )
    chained = () if algorithm.connectors is None else ChainState(slots, policy.connectors)
    actions, new_memory = trained_actions(algorithm)(policy, (chained, carry), now, key)
    return _unflat((actions.continuous, actions.discrete, _user_memory(new_memory)), lead)


def _user_memory(memory: Any) -> Any:
    """Remove the statistics of connectors, which belong to the policy: every array left has an axis of agents."""
    chained, carry = memory
    return chained.slots if isinstance(chained, ChainState) else (), carry


def _unflat(tree: Any, lead: tuple[int, ...]) -> Any:
    """Reshape every array [N, *] to [*lead, *]."""
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), tree)


def evaluate(
    run: str | Path, environment: str, *, episodes: int, seed: int = 0, deterministic: bool = False, trust: bool = False
) -> list[float]:
    """Play episodes and return the mean return of the teams in each.

    A team's return is the sum of its group rewards and of all its members' own rewards, as in the caption of a film.

    Args:
      run: results folder of a run, whose latest checkpoint acts.
      environment: `jax:NAME`, or the function of a file that makes one.
      episodes: number of them.
      seed: decides everything random.
      deterministic: take the mean or most likely action; False: as in the run's settings, usually a sample.
      trust: import code that the folder of the run names, as in `load`.

    Raises:
      PolicyError: the policy does not fit the environment, no episodes, or one that does not end.
      JaxrlError: the environment is unknown, or the run cannot be used, see `load`.
    """
    env = make_environment(environment)
    played = load(run, env, deterministic=deterministic, trust=trust).rollout(env, episodes, seed=seed)
    if not played.finished.all():
        raise PolicyError(f"{environment}: an episode went on for {played.lengths.max():,} decisions; it has no return")
    own_returns = played.returns.reshape(episodes, env.teams, env.members).sum(axis=-1)
    return [float(value) for value in (played.group_returns + own_returns).mean(axis=-1)]
