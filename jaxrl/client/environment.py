"""One Unity player, the Editor, or one of jaxrl's own players, stepped by a user's own loop.

    with jaxrl.unity_environment("builds/Walker", seed=1) as env:
        steps = env.reset()
        for _ in range(1000):
            for behavior, message in steps.items():
                n = len(message.deciding.agent_id)
                env.set_actions(behavior, continuous=np.zeros((n, env.specs[behavior].action.continuous_size)))
            steps = env.step()

`steps[behavior].deciding` holds the agents that ask for an action, `.ended` those whose episode is over. An agent id
names an agent, not an episode: an agent that begins anew stands in both, under one id. All are numpy arrays with one
row per agent (`jaxrl.types.BehaviorMessage`). No JAX is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl import trust
from jaxrl.envs.action_checks import whole
from jaxrl.envs.address import Kind, UnknownEnvironmentError, parse_address, unknown
from jaxrl.types import (
    Action,
    BehaviorMessage,
    BehaviorSpec,
    EnvironmentStat,
    JaxrlError,
    ParameterValue,
    ended_and_deciding,
)


class NoSuchBehaviorError(JaxrlError):
    """No behavior of that name has been seen so far; the text lists those that have."""


def unity_environment(
    path: str | None,
    *,
    seed: int = 0,
    worker: int = 0,
    base_port: int = 5005,
    timeout_wait: float = 60.0,
    env_args: Sequence[str] = (),
    side_channels: Sequence[Any] = (),
    **engine: Any,
) -> UnityEnvironment:
    """Start a player, or wait for the Editor, and shake hands.

    Args:
        path: the executable (the platform's suffix may be left out), `player:NAME` for one of jaxrl's own, or None for
            the Editor, whose port is 5004.
        seed: of the player. It is sent at the start; a player cannot be seeded again.
        worker: added to the port.
        base_port: of worker 0.
        timeout_wait: seconds; limits the start, each answer, and the time without an agent that asks.
        env_args: appended to the player's command line.
        side_channels: objects of `mlagents_envs.side_channel`'s classes, or of your own subclasses of `SideChannel`.
            One with the id of a channel of jaxrl (engine, parameters, statistics) takes its place.
        engine: `no_graphics`, `num_areas`, `width`, `height`, `quality_level`, `time_scale`, `target_frame_rate`,
            `capture_frame_rate`, `log_folder`: as `UnityHostEnv`.

    Raises:
        EnvironmentFailure: no such file, no connection, or another protocol; nothing is left running.
        UnknownEnvironmentError: `path` names an environment that is no player.
        TypeError: another keyword.
    """
    from jaxrl.envs.unity.environment import UnityHostEnv  # imports gRPC

    host = UnityHostEnv(
        worker=worker,
        file_name=_file(path),
        seed=seed,
        base_port=base_port,
        timeout_wait=timeout_wait,
        env_args=tuple(env_args),
        side_channels=tuple(side_channels),
        **engine,
    )
    return UnityEnvironment(host)


def _file(path: str | None) -> str | None:
    trust.ours(path)
    kind, name = parse_address(path)
    if kind is Kind.UNITY:
        return path
    if kind is Kind.PLAYER:
        from jaxrl.jax_envs.served.launcher import resolve_player

        return str(resolve_player(name or ""))
    raise UnknownEnvironmentError(f"{path}: is no player; expected the path of a build, player:NAME, or None")


class UnityEnvironment:
    """A connected player. Made by `unity_environment`; `close` it, or use it in a `with`.

    Attributes:
        specs: observations and actions of all behaviors seen so far.
        steps: result of the last `reset` or `step`.
        stats: statistics that the environment sent with it.
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self._actions: dict[str, Action] = {}
        self.specs: dict[str, BehaviorSpec] = {}
        self.steps: dict[str, BehaviorMessage] = {}
        self.stats: tuple[EnvironmentStat, ...] = ()

    def __enter__(self) -> UnityEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def about(self) -> str:
        """Versions of the package and the protocol."""
        return self._host.about

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> dict[str, BehaviorMessage]:
        """Begin all episodes anew, with these environment parameters. Return `steps`.

        Raises:
            EnvironmentFailure: the player died, hung, or sent invalid data; EnvironmentClosed if it quit in order.
        """
        self._actions.clear()
        return self._take(self._host.reset(parameters))

    def get_steps(self, behavior: str) -> BehaviorMessage:
        """Return the newest message of one behavior, which may have no agents. Raises NoSuchBehaviorError."""
        if behavior not in self.specs:
            if not self.specs:
                raise NoSuchBehaviorError(f"{behavior}: no behavior is known before the first reset; call reset first")
            raise NoSuchBehaviorError(unknown(behavior, behavior, self.specs, what="no such behavior"))
        return self.steps[behavior]

    def set_actions(
        self, behavior: str, action: Action | None = None, *, continuous: Any = None, discrete: Any = None
    ) -> None:
        """Set the actions of the agents in `steps[behavior].deciding` for the next `step`, in their order.

        Args:
            action: of all N of them, or its parts:
            continuous: [N, C], from -1 to 1 in most scenes; not needed where C is 0.
            discrete: [N, D], each below the size of its branch; not needed where D is 0.

        Raises:
            NoSuchBehaviorError: see there.
            ActionError: a discrete action that is no whole number. `step` checks whether the actions fit.
        """
        if action is not None:
            continuous, discrete = action
        n = len(self.get_steps(behavior).deciding.agent_id)
        if continuous is None:
            continuous = np.zeros((n, 0), np.float32)
        if discrete is None:
            discrete = np.zeros((n, 0), np.int32)
        self._actions[behavior] = Action(np.asarray(continuous, np.float32), whole(discrete))

    def step(self) -> dict[str, BehaviorMessage]:
        """Send the actions and wait for the next message in which an agent ended or asks. Return `steps`.

        Raises:
            ActionError: agents that asked got no actions, or unfitting ones; nothing was sent.
            EnvironmentFailure, EnvironmentClosed: as `reset`.
        """
        result = self._host.step(self._actions)
        self._actions.clear()
        return self._take(result)

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Send environment parameters with the next message: a scene reads them when it begins an episode."""
        self._host.set_parameters(parameters)

    def close(self) -> None:
        """End the player. May be called twice."""
        self._host.close()

    def _take(self, result: Any) -> dict[str, BehaviorMessage]:
        self.specs |= result.new_specs
        self.stats = result.stats
        self.steps = {name: result.steps.get(name) or _nobody(spec) for name, spec in self.specs.items()}
        return self.steps


def _nobody(spec: BehaviorSpec) -> BehaviorMessage:
    ids, numbers = np.zeros(0, np.int64), np.zeros(0, np.float32)
    obs = tuple(np.zeros((0, *sensor.shape), sensor.dtype) for sensor in spec.observations)
    mask = np.ones((0, spec.action.mask_size), np.bool_)
    truncated, nobody = np.zeros(0, np.bool_), (ids, ids, numbers, numbers)
    return BehaviorMessage(*ended_and_deciding(0, nobody, obs, truncated=truncated, action_mask=mask))
