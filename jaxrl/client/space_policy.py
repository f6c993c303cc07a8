"""Offers a trained policy in the spaces of Gymnasium, PettingZoo or RLlib environments: `jaxrl.load(run, env)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium
import jax
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.actions import bounded
from jaxrl.envs.foreign.area import Area
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.envs.foreign.behaviors import AgentKind, described, identity_of
from jaxrl.envs.foreign.options import IN_TEAMS, AreaOptions, take_options
from jaxrl.envs.foreign.simulator import open_area
from jaxrl.envs.gymnasium.area import GymnasiumArea
from jaxrl.envs.rllib.area import MultiAgentArea
from jaxrl.training.player import address_of_run, names_of_run, settings_of_run
from jaxrl.types import PolicyError

if TYPE_CHECKING:
    from jaxrl.client.policy import Policy


class Spaced(Protocol):
    """An environment of Gymnasium (or a vector of them), PettingZoo or RLlib."""

    observation_space: Any
    action_space: Any


class SpaceAction(NamedTuple):
    """An action of the environment, and the memory for the agent's next decision."""

    action: Any  # an element of the action space, or a batch for a vector environment
    memory: Any


class SpacePolicy:
    """A policy that reads an environment's observations and returns its actions, as RLlib's `compute_single_action`.

        env = gymnasium.make("Pendulum-v1")
        policy = jaxrl.load("results/pendulum", env, deterministic=True)
        obs, info = env.reset()
        obs, reward, terminated, truncated, info = env.step(policy.act(obs))

    Attributes:
      policy: the policy in the arrays of the training: sensors, and continuous actions from -1 to 1.
    """

    def __init__(self, policy: Policy, kind: AgentKind, batch: Batch | None = None) -> None:
        self.policy = policy
        self._kind = kind
        self._batch = batch

    def __repr__(self) -> str:
        return f"<SpacePolicy of {self.policy!r}>"

    def act(self, obs: Any, action_mask: Any = None, key: Any = None) -> Any:
        """Return the action for an observation of the environment.

        Args:
          obs: an element of the observation space, or a batch of a vector environment.
          action_mask: as in the environment's infos; None: that of the observation, if it holds one.
          key: a JAX key or a whole number; not needed by a deterministic policy.

        Raises:
          PolicyError: as `Policy.act`; or the policy has a memory, which needs `decide`.
          ObservationError: the observation is no element of the space.
        """
        if jax.tree.leaves(self.policy.initial_memory()):
            raise PolicyError("act: this policy remembers what it saw: call decide, and give it its memory back")
        return self.decide(obs, action_mask, key).action

    def decide(
        self,
        obs: Any,
        action_mask: Any = None,
        key: Any = None,
        *,
        memory: Any = None,
        begin: Any = None,
        reward: Any = None,
    ) -> SpaceAction:
        """Return the action and the memory for the next decision; `memory`, `begin`, `reward` as in `Policy.act`."""
        if self._batch is None:
            arrays, mask = self.read(obs, action_mask)
            action = self.policy.act(tuple(arrays), mask, key, memory=memory, begin=begin, reward=reward)
            return SpaceAction(self.write(action.continuous, action.discrete), action.memory)
        masks = [None] * self._batch.size if action_mask is None else action_mask
        read = [self.read(one, mask) for one, mask in zip(self._batch.split(obs), masks, strict=True)]
        arrays, mask = (jax.tree.map(lambda *rows: np.stack(rows), *part) for part in zip(*read, strict=True))
        action = self.policy.act(tuple(arrays), mask, key, memory=memory, begin=begin, reward=reward)
        pairs = zip(np.asarray(action.continuous), np.asarray(action.discrete), strict=True)
        return SpaceAction(self._batch.join([self.write(*pair) for pair in pairs]), action.memory)

    def read(self, obs: Any, action_mask: Any = None) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Return the sensors' arrays of one observation, and its mask, bool [M]; None: all choices are allowed."""
        return self._kind.observation.read(obs), self._kind.mask(obs, action_mask)

    def write(self, continuous: Any, discrete: Any) -> Any:
        """Return an element of the action space for float32 [C] from -1 to 1 and int32 [D]."""
        return self._kind.action.value(np.asarray(continuous), np.asarray(discrete))


class Batch(NamedTuple):
    """The way in which a vector environment joins observations and actions."""

    size: int
    split: Callable[[Any], Any]  # batch of observations → one of each environment
    join: Callable[[list[Any]], Any]  # actions → a batch


def kind_for(run: Path, env: Any, behavior: str | None) -> tuple[str | None, AgentKind, Batch | None]:
    """Return name and kind of the agents of an environment that a policy of the run is to play.

    The name is `behavior` where the environment has one agent. An address is made with the arguments of the run, and
    closed.

    Raises:
      PolicyError: the environment has several behaviors and `behavior` names none of them.
      SpaceError: policies cannot read the spaces.
    """
    if hasattr(env, "single_action_space"):
        scale, action = _options(run).action_scale, env.single_action_space
        kind = AgentKind("agent", env.single_observation_space, action if scale is None else bounded(action, scale))
        return behavior, kind, _batch(env)
    if isinstance(env, str):
        area = open_area(env, settings_of_run(run)[0])
    else:
        of_rllib = parse_address(address_of_run(run)).kind is Kind.RLLIB
        area = area_of(env, _options(run), of_rllib=of_rllib)
    try:
        named = area.announced or getattr(env, "agents", ())  # after a reset of an environment of PettingZoo's
        agents = [described(area, agent) for agent in named]
    finally:
        if isinstance(env, str):
            area.close()
    if isinstance(area, GymnasiumArea):
        return behavior, AgentKind(*agents[0][:3]), None
    names = names_of_run(run)
    names.add(map(identity_of, agents))
    kinds = {names[identity_of(agent)]: agent for agent in agents}
    if behavior is None and len(kinds) == 1:
        (behavior,) = kinds
    if behavior not in kinds:
        got = "none is named" if behavior is None else f"{behavior} is none of them"
        known = ", ".join(kinds) or "none that it tells: give it possible_agents"
        raise PolicyError(f"env: the environment has the behaviors {known}, and {got}: say which with `behavior`")
    return behavior, AgentKind(*kinds[behavior][:3]), None


def area_of(env: Any, options: AreaOptions = IN_TEAMS, *, of_rllib: bool = False) -> Area:
    """Return a user's environment as an area. Raises PolicyError for other objects.

    An RLlib environment without RLlib's base class is known by its methods, or by the address of the run.
    """
    derived = any(kind.__name__ == "MultiAgentEnv" for kind in type(env).__mro__)
    if not derived and callable(getattr(env, "action_space", None)):
        from jaxrl.envs.pettingzoo.area import PettingZooArea

        return PettingZooArea(env, options)
    named = any(hasattr(env, name) for name in ("observation_spaces", "get_observation_space"))
    if derived or named or (of_rllib and not isinstance(env, gymnasium.Env)):
        return MultiAgentArea(env, options)
    if isinstance(getattr(env, "action_space", None), Space):
        return GymnasiumArea(env, "agent", options)
    raise PolicyError(
        f"env: got a {type(env).__name__}, expected a JaxEnv or JaxScene, an environment of Gymnasium, PettingZoo or "
        "RLlib, or an address such as jax:basic"
    )


def _options(run: Path) -> AreaOptions:
    """Return the options of the environment that the run was trained in."""
    written = [text for text in settings_of_run(run)[0] if text.partition("=")[0] in AreaOptions._fields]
    return take_options(keyword_arguments(written), one_agent=False)[0]


def _batch(env: Any) -> Batch:
    def join(actions: list[Any]) -> Any:
        space = env.single_action_space
        return concatenate(space, actions, create_empty_array(space, env.num_envs))

    return Batch(env.num_envs, lambda obs: list(iterate(env.observation_space, obs)), join)
