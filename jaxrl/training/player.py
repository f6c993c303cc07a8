"""Play with a policy outside of a training, message by message, as environments of the host loop send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.artifacts.status import identities
from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.jax_envs.interface import TeamView
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.training.acting import Act, Moment, memory_before, trained_actions, untrained_actions
from jaxrl.training.file_policy import choose_model, load_policy
from jaxrl.training.lessons import present_values, read_lessons
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, EnvMessage, ParameterValue


def settings_of_run(run: Path | None) -> tuple[tuple[str, ...], dict[str, ParameterValue]]:
    """Return a run's env_args and its environment parameters in their present lessons; empty if it has no files yet."""
    folder = None if run is None else RunFolder(run.parent, run.name)
    if folder is None or not folder.configuration.is_file():
        return (), {}
    settings = load_run_settings(folder.configuration, {}, HYPERPARAMETER_TYPES, of_folder=True)
    lessons = read_lessons(folder.status)
    parameters = present_values(settings.environment_parameters, settings.env_settings.seed, lessons)
    return settings.env_settings.env_args or (), parameters


def address_of_run(run: Path) -> str | None:
    """Return the address of the environment that a run was trained in, if it is written there."""
    configuration = RunFolder(run.parent, run.name).configuration
    if not configuration.is_file():
        return None
    return load_run_settings(configuration, {}, HYPERPARAMETER_TYPES, of_folder=True).env_settings.env_path


def names_of_run(run: Path | None) -> BehaviorNames:
    """Return what the behaviors of a run are called, for the environment that it is played in."""
    return BehaviorNames({} if run is None else identities(RunFolder(run.parent, run.name).status))


class Players:
    """Players of the behaviors of an environment: a model, the policies of a run, or random actions without either.

    `seed` fixes all random draws. `models`: as of `choose_model`.
    """

    def __init__(self, run: Path | None, seed: int, deterministic: bool, models: Sequence[Path] = ()) -> None:
        self.origins: dict[str, str] = {}
        """Description of the policy that plays, by behavior in the order of their appearance."""
        self._run, self._key, self._deterministic = run, jax.random.key(seed), deterministic
        self._models = models
        self._players: dict[str, Player] = {}

    def meet(self, message: EnvMessage) -> None:
        """Make players for the behaviors that appear in a message, before they act.

        Raises JaxrlError, as `load_policy`; EnvironmentFailure: a copy of the environment failed.
        """
        if message.faults:
            raise EnvironmentFailure(message.faults[0].why)
        for behavior, spec in message.new_specs.items():
            key = jax.random.fold_in(self._key, len(self._players))
            names = [behavior_name(each) for each in (*self._players, *message.new_specs)]
            source = choose_model(self._models, behavior_name(behavior), names) or self._run
            self._players[behavior], self.origins[behavior] = self._made(behavior, spec, key, source)

    def act(self, message: EnvMessage) -> dict[str, Action]:
        """Return the actions of all agents that ask."""
        return {behavior: self._players[behavior].act(part) for behavior, part in message.steps.items()}

    def _made(self, behavior: str, spec: BehaviorSpec, key: Array, source: Path | None) -> tuple[Player, str]:
        if source is None:
            return Player(spec, untrained_actions(spec.action), None, lambda rows: (), key), "random actions"
        trained = load_policy(source, spec, behavior=behavior_name(behavior), deterministic=self._deterministic)
        if trained.algorithm.places is not None:
            raise SettingsError(
                f"{source}: {trained.behavior} has a policy for each member of a team (share_policy: false), and "
                "here nobody tells who is which: play it with `jaxrl train --resume --inference`, or with `jaxrl "
                "watch` where it is a jax: environment"
            )
        memory = partial(memory_before, trained.algorithm, trained.policy)
        return Player(spec, trained_actions(trained.algorithm), trained.policy, memory, key), trained.origin


class Player:
    """Decides for the agents of one behavior. Each agent has a row; the number of rows grows in powers of two.

    Args:
      act: the acting function, which is compiled here.
      memory: number of rows → memory of `act` before the first decision.
    """

    def __init__(self, spec: BehaviorSpec, act: Act, policy: Any, memory: Callable[[int], Any], key: Array) -> None:
        self._spec, self._policy, self._make_memory, self._key = spec, policy, memory, key
        self._act = jax.jit(act)
        self._rows: dict[int, int] = {}  # by agent id
        self._size = 0
        self._memory: Any = ()
        self._turns = 0

    def act(self, message: BehaviorMessage) -> Action:
        """Return actions for the agents that ask, in their order; forget the agents that ended."""
        ended, asking = message.ended, message.deciding
        rewards = [*zip(asking.agent_id, asking.reward, asking.group_reward, strict=True)]
        rewards += [*zip(ended.agent_id, ended.reward, ended.group_reward, strict=True)]  # an ending overrides
        paid = {self._rows[int(agent)]: pay for agent, *pay in rewards if int(agent) in self._rows}
        for agent in ended.agent_id:
            self._rows.pop(int(agent), None)
        new = [int(agent) for agent in asking.agent_id if int(agent) not in self._rows]
        self._grow(len(self._rows) + len(new))
        free = sorted(set(range(self._size)) - set(self._rows.values()))
        self._rows |= dict(zip(new, free, strict=False))
        rows = np.array([self._rows[int(agent)] for agent in asking.agent_id], int)
        begin, decided = np.zeros((2, self._size), bool)
        reward = np.zeros((self._size, 2), np.float32)
        begin[[self._rows[agent] for agent in new]] = True
        for row, pay in paid.items():
            decided[row], reward[row] = True, pay
        key = jax.random.fold_in(self._key, self._turns)
        self._turns += 1
        moment = Moment(self._view(asking, rows), jnp.asarray(begin), jnp.asarray(decided), jnp.asarray(reward))
        actions, self._memory = self._act(self._policy, self._memory, moment, key)
        return Action(continuous=np.asarray(actions.continuous)[rows], discrete=np.asarray(actions.discrete)[rows])

    def _view(self, asking: Any, rows: np.ndarray) -> TeamView:
        obs = []
        for sensor, seen in zip(self._spec.observations, asking.obs, strict=True):
            table = np.zeros((self._size, *sensor.shape), sensor.dtype)
            table[rows] = seen
            obs.append(jnp.asarray(table))
        mask = np.ones((self._size, self._spec.action.mask_size), bool)
        mask[rows] = asking.action_mask
        alive = np.zeros(self._size, bool)
        alive[rows] = True
        return TeamView(tuple(obs), jnp.asarray(mask), jnp.asarray(alive))

    def _grow(self, wanted: int) -> None:
        """Make room for `wanted` rows; existing rows keep their memory."""
        if wanted <= self._size:
            return
        before, self._size = self._size, 1 << (wanted - 1).bit_length()
        fresh = self._make_memory(self._size)
        if before:  # arrays without a row for each agent, such as statistics, keep their shape

            def keep(old: Array, new: Array) -> Array:
                return old if old.shape == new.shape else new.at[: len(old)].set(old)

            fresh = jax.tree.map(keep, self._memory, fresh)
        self._memory = fresh
